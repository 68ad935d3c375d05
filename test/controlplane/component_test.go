package controlplane

import (
	"context"
	"errors"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

// shell is a component that runs a script.
func shell(t *testing.T, script string, ready func(context.Context) error) *Component {
	t.Helper()
	c := NewComponent("script", "/bin/sh", []string{"-c", script}, t.TempDir(), ready)
	t.Cleanup(c.Kill)
	return c
}

func notReady(context.Context) error { return errors.New("not yet") }

func TestComponentThatEndsBeforeItIsReady(t *testing.T) {
	g := NewWithT(t)
	c := shell(t, "echo listen on 127.0.0.1:1: address already in use; exit 3", notReady)
	err := c.Start(t.Context())
	g.Expect(err).To(MatchError(And(ContainSubstring("starting script"), ContainSubstring("listen on 127.0.0.1:1"))))
	g.Expect(err).To(MatchError(syscall.EADDRINUSE), "so that another port is tried")
	g.Expect(c.ExitCode()).To(Equal(3))
}

func TestComponentThatDoesNotGetReady(t *testing.T) {
	g := NewWithT(t)
	c := shell(t, "exec sleep 1000", notReady)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("out of patience"))
	g.Expect(c.Start(ctx)).To(MatchError(And(ContainSubstring("out of patience"), ContainSubstring("not yet"))))
	g.Expect(c.Running()).To(BeFalse())
	g.Expect(c.PID()).To(BeZero())
}

func TestComponentKeepsItsLogOverItsStarts(t *testing.T) {
	g := NewWithT(t)
	c := shell(t, "echo started; exec sleep 1000", nil)
	log := func() string { return string(c.logSince(0)) }
	for _, expected := range []string{"started\n", "started\nstarted\n"} {
		g.Expect(c.Start(t.Context())).To(Succeed())
		g.Eventually(log, patience).Should(Equal(expected))
		pid := c.PID()
		g.Expect(c.Start(t.Context())).To(Succeed(), "nothing to do")
		g.Expect(c.PID()).To(Equal(pid))
		c.Stop()
		g.Expect(c.ExitCode()).To(Equal(-1), "ended by a signal")
	}
}

func TestStopReachesTheWholeGroup(t *testing.T) {
	g := NewWithT(t)
	c := shell(t, "sleep 1000 & echo $!; wait", nil)
	g.Expect(c.Start(t.Context())).To(Succeed())
	g.Eventually(func() string { return string(c.logSince(0)) }, patience).Should(HaveSuffix("\n"))
	group := c.PID()
	c.Stop()
	g.Eventually(func() error { return syscall.Kill(-group, 0) }, patience).Should(MatchError(syscall.ESRCH))
}
