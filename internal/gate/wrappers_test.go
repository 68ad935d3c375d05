package gate

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

type leaseWrapper struct{ coordinationv1.Lease }

func makeLease(namespace, name string) *leaseWrapper {
	return &leaseWrapper{coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "lease-1"}}}
}

func (w *leaseWrapper) holder(identity string) *leaseWrapper {
	w.Spec.HolderIdentity = &identity
	return w
}

func (w *leaseWrapper) renewed(t time.Time) *leaseWrapper {
	w.Spec.RenewTime = &metav1.MicroTime{Time: t}
	return w
}

func (w *leaseWrapper) seconds(duration int32) *leaseWrapper {
	w.Spec.LeaseDurationSeconds = &duration
	return w
}

func (w *leaseWrapper) obj() *coordinationv1.Lease {
	return w.DeepCopy()
}

type queueWrapper struct{ kueue.ClusterQueue }

func makeQueue(name string) *queueWrapper {
	return &queueWrapper{kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: name}}}
}

// group adds a resource group with these flavors.
func (w *queueWrapper) group(flavors ...kueue.ResourceFlavorReference) *queueWrapper {
	var group kueue.ResourceGroup
	for _, name := range flavors {
		group.Flavors = append(group.Flavors, kueue.FlavorQuotas{Name: name})
	}
	w.Spec.ResourceGroups = append(w.Spec.ResourceGroups, group)
	return w
}

// lists adds an AdmissionCheck, for all flavors where none is given.
func (w *queueWrapper) lists(check kueue.AdmissionCheckReference, onFlavors ...kueue.ResourceFlavorReference) *queueWrapper {
	if w.Spec.AdmissionChecksStrategy == nil {
		w.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{}
	}
	w.Spec.AdmissionChecksStrategy.AdmissionChecks = append(w.Spec.AdmissionChecksStrategy.AdmissionChecks,
		kueue.AdmissionCheckStrategyRule{Name: check, OnFlavors: onFlavors})
	return w
}

func (w *queueWrapper) active(status metav1.ConditionStatus, reason, message string) *queueWrapper {
	w.Status.Conditions = []metav1.Condition{{Type: kueue.ClusterQueueActive, Status: status, Reason: reason, Message: message}}
	return w
}

func (w *queueWrapper) obj() *kueue.ClusterQueue {
	return w.DeepCopy()
}

type checkWrapper struct{ kueue.AdmissionCheck }

func makeCheck() *checkWrapper {
	return &checkWrapper{kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: "dispatch"}}}
}

func (w *checkWrapper) controller(name string) *checkWrapper {
	w.Spec.ControllerName = name
	return w
}

func (w *checkWrapper) active(status metav1.ConditionStatus, reason, message string) *checkWrapper {
	w.Status.Conditions = []metav1.Condition{{Type: kueue.AdmissionCheckActive, Status: status, Reason: reason, Message: message}}
	return w
}

func (w *checkWrapper) obj() *kueue.AdmissionCheck {
	return w.DeepCopy()
}

// evidenceWrapper is evidence of a proved gate, read at start, for a test to spoil.
type evidenceWrapper struct{ Evidence }

func makeEvidence() *evidenceWrapper {
	w := &evidenceWrapper{}
	w.Server.Answer(ptr.To("v1.37.2"), nil, start.Mono)
	return w.queue(goodQueue().obj(), nil).check(goodCheck().obj(), nil).lease(goodLease().obj(), nil)
}

func goodQueue() *queueWrapper {
	return makeQueue("gpu").group("spot", "reserved").lists("dispatch").active(metav1.ConditionTrue, "Ready", "Can admit new workloads")
}

func goodCheck() *checkWrapper {
	return makeCheck().controller("dispatch.dev/admission").active(metav1.ConditionTrue, "Active", "taken up")
}

func goodLease() *leaseWrapper {
	return makeLease("dispatch-system", "dispatch-admission").holder("pod-a").renewed(start.Wall).seconds(15)
}

func (w *evidenceWrapper) queue(queue *kueue.ClusterQueue, err error) *evidenceWrapper {
	w.ClusterQueue.Answer(queue, err, start.Mono)
	return w
}

func (w *evidenceWrapper) check(check *kueue.AdmissionCheck, err error) *evidenceWrapper {
	w.AdmissionCheck.Answer(check, err, start.Mono)
	return w
}

// lease forgets any other Lease and sees this one, for the first time, at start.
func (w *evidenceWrapper) lease(lease *coordinationv1.Lease, err error) *evidenceWrapper {
	return w.leaseAt(0, lease, err)
}

// leaseAt forgets any other Lease and sees this one, for the first time, some time after start.
func (w *evidenceWrapper) leaseAt(after time.Duration, lease *coordinationv1.Lease, err error) *evidenceWrapper {
	w.Lease, w.Renewal = Read[coordinationv1.Lease]{}, Renewal{}
	w.SawLease(lease, err, start.Mono+after)
	return w
}

// confirmed sees the same Lease again, some time after start.
func (w *evidenceWrapper) confirmed(after time.Duration) *evidenceWrapper {
	w.SawLease(w.Lease.Object, nil, start.Mono+after)
	return w
}

func (w *evidenceWrapper) with(change func(*Evidence)) *evidenceWrapper {
	change(&w.Evidence)
	return w
}

func (w *evidenceWrapper) obj() Evidence {
	return w.Evidence
}
