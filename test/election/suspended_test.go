package election

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/dispatch-dev/dispatch/test/controlplane"
)

// TestSuspendedLeader suspends a leader for longer than its Lease lasts, lets
// another one lead, and resumes the first. Work waits for it just then, because
// the other is suspended in turn: whatever the first one still did as a leader
// would show.
func TestSuspendedLeader(t *testing.T) {
	t.Parallel()
	t.Run(admission, func(t *testing.T) {
		t.Parallel()
		resumeOldLeader(t, newElection(t, shared(t), admission))
	})
	t.Run(manager, func(t *testing.T) {
		t.Parallel()
		// No other manager is to do the work.
		cluster := controlplane.StartForTest(t, controlplane.Options{AuditLevel: auditv1.LevelMetadata})
		if err := installAll(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}
		resumeOldLeader(t, newElection(t, cluster, manager))
	})
}

func resumeOldLeader(t *testing.T, e *election) {
	g := NewWithT(t)
	lease := e.watchLease()
	first := e.startLeader(nil)
	g.Eventually(e.work("before")).WithTimeout(5*time.Second).Should(BeTrue(), "the leader decides")
	second := e.startStandby(nil)
	old := lease.last().holder

	first.Freeze()
	g.Eventually(second.leads).WithTimeout(30 * time.Second).WithPolling(100 * time.Millisecond).Should(BeTrue())
	holder := lease.last().holder
	g.Expect(holder).NotTo(BeElementOf("", old))

	second.Freeze()
	done := e.work("after")
	resumed := time.Now()
	first.Thaw()
	g.Eventually(first.Running).WithTimeout(5*time.Second).WithPolling(10*time.Millisecond).
		Should(BeFalse(), "an old leader stops")
	t.Logf("the old leader ends %s after it was resumed", time.Since(resumed).Round(time.Millisecond))
	g.Expect(first.ExitCode()).To(Equal(1))
	// Both are due when it is resumed. That it could not renew is found out first where it was suspended in the
	// middle of a renewal.
	g.Expect(first.lastLine()).To(Or(HavePrefix(e.program+": lease lost: last renewed"), Equal(e.program+": leader election lost")))
	g.Expect(done()).To(BeFalse(), "nobody has done the work yet")

	second.Thaw()
	g.Eventually(done).WithTimeout(10*time.Second).Should(BeTrue(), "the new leader goes on")
	g.Expect(landed(t, e, first, resumed)).To(BeEmpty(), "what the old leader wrote after it was resumed")
	g.Expect(landed(t, e, second, resumed)).NotTo(BeEmpty(), "the audit log tells processes apart")
	g.Expect(lease.holders()).To(HaveExactElements(old, holder), "the new leader's Lease is left alone")
}
