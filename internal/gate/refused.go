package gate

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// Refused is the verdict on a target that is not even dialled, for the reason given of Reachable.
func Refused(kueueSpec *v1alpha1.KueueSpec, reason, message string) Verdict {
	v := Judge(kueueSpec, Evidence{}, Instant{})
	v.Reachable = Finding{metav1.ConditionFalse, reason, message}
	if kueueSpec != nil {
		notRead := Finding{metav1.ConditionUnknown, v1alpha1.UnreachableReason, "the target is not connected: " + message}
		v.QueueActive, v.ReadmissionGate = notRead, notRead
	}
	return v
}
