package adapter

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/clusters"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

func TestMayWrite(t *testing.T) {
	const now = time.Hour
	yes := gate.Finding{Status: metav1.ConditionTrue, Reason: v1alpha1.ProvedReason}
	no := gate.Finding{Status: metav1.ConditionFalse, Reason: v1alpha1.LeaseStaleReason, Message: "stale"}
	unknown := gate.Finding{Status: metav1.ConditionUnknown, Reason: v1alpha1.UnreachableReason, Message: "away"}
	verdict := func(reachable, queue, admission gate.Finding, expires time.Duration) gate.Verdict {
		return gate.Verdict{Reachable: reachable, QueueActive: queue, ReadmissionGate: admission, Expires: expires}
	}
	for _, tc := range []struct {
		name        string
		verdict     gate.Verdict
		observeOnly bool
		plain       bool
		remaining   time.Duration
		condition   string
		soon        bool
	}{
		{"a proof that stands, until a second before its expiry", verdict(yes, yes, yes, now+5*time.Second), false, false, 4 * time.Second, "", false},
		{"a queue that is held: cancelling and granting must work", verdict(yes, no, yes, now+5*time.Second), false, false, 4 * time.Second, "", false},
		{"plain mode, without expiry", verdict(yes, yes, yes, 0), false, true, clusters.RequestTimeout, "", false},
		{"a proof with a second left", verdict(yes, yes, yes, now+time.Second), false, false, 0, v1alpha1.ReadmissionGateCondition, true},
		{"a proof that should have an expiry and has none", verdict(yes, yes, yes, 0), false, false, 0, v1alpha1.ReadmissionGateCondition, true},
		{"a gate that is closed", verdict(yes, yes, no, now+5*time.Second), false, false, 0, v1alpha1.ReadmissionGateCondition, false},
		{"a gate that is unknown", verdict(yes, yes, unknown, now+5*time.Second), false, false, 0, v1alpha1.ReadmissionGateCondition, false},
		{"a target that is away", verdict(unknown, yes, yes, now+5*time.Second), false, false, 0, v1alpha1.ReachableCondition, false},
		{"a target in plain mode that is away", verdict(unknown, yes, yes, 0), false, true, 0, v1alpha1.ReachableCondition, false},
		{"an admin's own switch", verdict(yes, yes, yes, now+5*time.Second), true, false, 0, "", false},
		{"nothing", gate.Verdict{}, false, false, 0, v1alpha1.ReachableCondition, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			remaining, err := mayWrite(tc.verdict, tc.observeOnly, tc.plain, now)
			g.Expect(remaining).To(Equal(tc.remaining))
			if tc.remaining > 0 {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ErrObserveOnly))
			var observeOnly *ObserveOnlyError
			g.Expect(errors.As(err, &observeOnly)).To(BeTrue())
			g.Expect(observeOnly.Condition).To(Equal(tc.condition))
			g.Expect(observeOnly.Soon).To(Equal(tc.soon))
		})
	}
}
