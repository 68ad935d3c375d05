package gate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

func TestConditions(t *testing.T) {
	condition := func(conditionType string, f Finding) metav1.Condition {
		return metav1.Condition{Type: conditionType, Status: f.Status, Reason: f.Reason, Message: f.Message}
	}
	whenTrue := func(f Finding) Finding {
		f.Status = metav1.ConditionTrue
		return f
	}
	good := Verdict{Reachable: reachable, QueueActive: queueActive, ReadmissionGate: proved}
	closed := Verdict{Reachable: reachable, QueueActive: queueActive, ReadmissionGate: notHeld}
	unread := Judge(kueueSpec(), Evidence{}, start)
	invalid := Refused(kueueSpec(), "KubeConfigInvalid", "it does not parse")
	insecure := Refused(nil, "KubeConfigInsecure", "user.exec is set")
	missing := Refused(kueueSpec(), "KubeConfigNotFound", "no such Secret")

	for name, row := range map[string]struct {
		verdict     Verdict
		observeOnly bool
		mode        v1alpha1.Mode
		// Conditions beside the three of the verdict and Ready.
		more []metav1.Condition
	}{
		"all is well":               {good, false, "ReadWrite", nil},
		"observe-only by request":   {good, true, "ObserveOnly", nil},
		"a closed gate":             {closed, false, "ObserveOnly", nil},
		"no verdict yet":            {unread, false, "ObserveOnly", []metav1.Condition{condition("Reconciling", whenTrue(noAnswerYet))}},
		"no verdict yet, requested": {unread, true, "ObserveOnly", []metav1.Condition{condition("Reconciling", whenTrue(noAnswerYet))}},
		"an invalid kubeconfig":     {invalid, false, "ObserveOnly", []metav1.Condition{condition("Stalled", whenTrue(invalid.Reachable))}},
		"an insecure kubeconfig":    {insecure, false, "ObserveOnly", []metav1.Condition{condition("Stalled", whenTrue(insecure.Reachable))}},
		// It may appear.
		"no kubeconfig": {missing, false, "ObserveOnly", nil},
	} {
		t.Run(name, func(t *testing.T) {
			mode, got := row.verdict.Conditions(row.observeOnly)
			_, ready := row.verdict.Ready(row.observeOnly)
			want := append([]metav1.Condition{
				condition("Reachable", row.verdict.Reachable),
				condition("QueueActive", row.verdict.QueueActive),
				condition("ReadmissionGate", row.verdict.ReadmissionGate),
				condition("Ready", ready),
			}, row.more...)
			if mode != row.mode {
				t.Errorf("got %s, want %s", mode, row.mode)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
