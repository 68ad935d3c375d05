package controlplane

import (
	"context"
	"strings"
)

// TB is what a test hands in: a *testing.T, a *testing.B or GinkgoT().
type TB interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Failed() bool
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// StartForTest starts a cluster that is stopped when the test has ended. If the
// test failed, it shows the end of each component's log and keeps the logs.
//
// Clusters that many tests share are started with Start in TestMain or
// BeforeSuite.
func StartForTest(t TB, options Options) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), options)
	if err != nil {
		t.Fatalf("starting a cluster: %v", err)
		return nil
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.KeepLogs()
			var logs strings.Builder
			_ = c.WriteLogs(&logs) // a Builder takes everything
			t.Logf("the test failed; logs of the cluster are kept in %s\n%s", c.LogDir(), logs.String())
		}
		c.Stop()
	})
	return c
}
