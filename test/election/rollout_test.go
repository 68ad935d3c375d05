package election

import (
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// TestManagerHandsOver is not parallel, so that nothing delays the 5 s in which a
// standby has to lead: it looks at the Lease every 2 to 4.4 s.
func TestManagerHandsOver(t *testing.T) {
	g := NewWithT(t)
	e := newElection(t, shared(t), manager)
	lease := e.watchLease()
	leader := e.startLeader(nil)
	standby := e.startStandby(nil)
	old := lease.last().holder

	stopped := time.Now()
	signal(t, leader, syscall.SIGTERM)
	g.Eventually(lease.holders).WithTimeout(2*time.Second).WithPolling(10*time.Millisecond).
		Should(ContainElement(""), "a released Lease has no holder")
	g.Eventually(standby.leads).WithTimeout(time.Until(stopped.Add(5 * time.Second))).WithPolling(10 * time.Millisecond).
		Should(BeTrue())
	t.Logf("the standby leads %s after SIGTERM", time.Since(stopped).Round(time.Millisecond))
	g.Expect(lease.holders()).To(HaveExactElements(old, "", Not(BeElementOf("", old))))
	g.Eventually(leader.Running).WithTimeout(10 * time.Second).Should(BeFalse())
	g.Expect(leader.ExitCode()).To(Equal(0))
}

// TestRollout replaces the leader of dispatch-admission in each of the ways in
// which that happens. Only they are parallel, so that the gate is read often.
func TestRollout(t *testing.T) {
	t.Run("SIGTERM with a standby", func(t *testing.T) {
		t.Parallel()
		replaceAdmission(t, func(_ *election, leader *replica) {
			leader.Stop()
			NewWithT(t).Expect(leader.ExitCode()).To(Equal(0))
		}, true)
	})
	t.Run("SIGKILL with a standby", func(t *testing.T) {
		t.Parallel()
		replaceAdmission(t, func(_ *election, leader *replica) {
			leader.Kill()
		}, true)
	})
	t.Run("a new process within 3 s of SIGTERM", func(t *testing.T) {
		t.Parallel()
		replaceAdmission(t, func(e *election, leader *replica) {
			outage := time.After(2500 * time.Millisecond)
			leader.Stop()
			<-outage
			e.start(nil)
		}, false)
	})
}

// replaceAdmission replaces a leader, with a standby or without, and sees that
// the gate stays proved, and that the next leader decides in time.
func replaceAdmission(t *testing.T, replace func(*election, *replica), standby bool) {
	g := NewWithT(t)
	e := newElection(t, shared(t), admission)
	lease := e.watchLease()
	leader := e.startLeader(nil)
	g.Eventually(e.work("before")).WithTimeout(5*time.Second).Should(BeTrue(), "the leader decides")
	if standby {
		e.startStandby(nil)
	}
	old := lease.last().holder
	reader := e.readGate()

	stopped := time.Now()
	replace(e, leader)
	done := e.work("after")
	limit := 25 * time.Second
	if !standby {
		limit = 30 * time.Second
	}
	g.Eventually(done).WithTimeout(time.Until(stopped.Add(limit))).WithPolling(50*time.Millisecond).
		Should(BeTrue(), "the next leader decides")
	decided := time.Now()
	t.Logf("the next leader decides %s after the old one was stopped, %s after its first renewal",
		decided.Sub(stopped).Round(time.Millisecond), decided.Sub(lease.last().seen).Round(time.Millisecond))

	g.Expect(lease.holders()).To(HaveExactElements(old, Not(BeElementOf("", old))), "nobody empties the Lease")
	reads, shut := reader.verdicts()
	g.Expect(shut).To(BeEmpty(), "the gate is proved throughout")
	g.Expect(reads).To(BeNumerically(">", 100))
}

func signal(t testing.TB, r *replica, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(r.PID(), s); err != nil {
		t.Fatal(err)
	}
}
