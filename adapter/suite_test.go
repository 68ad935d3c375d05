package adapter_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/dispatch-dev/dispatch/test/controlplane"
)

// started is the one cluster of this package's tests, without Kueue. It is started for the first that needs it.
var started *controlplane.Cluster

var realCluster = sync.OnceValues(func() (*controlplane.Cluster, error) {
	var err error
	started, err = controlplane.Start(context.Background(), controlplane.Options{ControllerManager: true})
	return started, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if started != nil {
		started.Stop()
	}
	os.Exit(code)
}

func clusterFor(t *testing.T) *controlplane.Cluster {
	t.Helper()
	cluster, err := realCluster()
	if err != nil {
		t.Fatal(fmt.Errorf("starting a cluster: %w", err))
	}
	return cluster
}
