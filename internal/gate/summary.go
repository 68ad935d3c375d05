package gate

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// Ready summarises a verdict in kstatus' sense, and says what dispatch may do with the target.
// QueueActive has no part in it: cancelling and granting must work while a queue is held.
func (v Verdict) Ready(observeOnly bool) (v1alpha1.Mode, Finding) {
	forbidding := []struct {
		condition string
		Finding
	}{
		{v1alpha1.ReachableCondition, v.Reachable},
		{v1alpha1.ReadmissionGateCondition, v.ReadmissionGate},
	}
	if v.Preflighting() {
		return v1alpha1.ModeObserveOnly, preflighting()
	}
	if observeOnly {
		return v1alpha1.ModeObserveOnly, Finding{metav1.ConditionTrue, v1alpha1.ObserveOnlyRequestedReason,
			"spec.observeOnly is set: nothing is written to the target"}
	}
	for _, f := range forbidding {
		if f.Status != metav1.ConditionTrue {
			return v1alpha1.ModeObserveOnly, Finding{metav1.ConditionFalse, v1alpha1.ObserveOnlyReason,
				fmt.Sprintf("%s is %s: %s", f.condition, f.Status, f.Message)}
		}
	}
	return v1alpha1.ModeReadWrite, Finding{metav1.ConditionTrue, v1alpha1.ReadWriteReason, "the target may be written to"}
}

// Conditions is the verdict as the conditions of a DispatchTarget, without times and generation.
// Reconciling and Stalled, which are abnormal-true, are there only while they are true.
func (v Verdict) Conditions(observeOnly bool) (v1alpha1.Mode, []metav1.Condition) {
	mode, ready := v.Ready(observeOnly)
	conditions := []metav1.Condition{
		v.Reachable.condition(v1alpha1.ReachableCondition),
		v.QueueActive.condition(v1alpha1.QueueActiveCondition),
		v.ReadmissionGate.condition(v1alpha1.ReadmissionGateCondition),
		ready.condition(v1alpha1.ReadyCondition),
	}
	abnormal := func(condition string, f Finding) {
		f.Status = metav1.ConditionTrue
		conditions = append(conditions, f.condition(condition))
	}
	if ready.Reason == v1alpha1.PreflightingReason {
		abnormal(v1alpha1.ReconcilingCondition, ready)
	}
	if v.Reachable.Reason == v1alpha1.KubeConfigInvalidReason || v.Reachable.Reason == v1alpha1.KubeConfigInsecureReason {
		abnormal(v1alpha1.StalledCondition, v.Reachable)
	}
	return mode, conditions
}

func (f Finding) condition(conditionType string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: f.Status, Reason: f.Reason, Message: f.Message}
}
