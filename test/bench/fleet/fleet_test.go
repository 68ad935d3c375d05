// Package fleet measures what dispatch-manager costs with many targets: CPU, memory and writes to the hub,
// and how late it is when every target's admission controller dies at once. Beside it, in the same run and
// with the same targets, stands a baseline: a process that watches the same three objects of each target
// with client-go and does nothing with them.
package fleet

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/bench/usage"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
)

const (
	// renewPeriod is how often each Lease is renewed, as dispatch-admission does by default.
	renewPeriod = 2 * time.Second
	// leaseSeconds is how long each says that it lasts, and proofWindow how long it proves the gate for.
	leaseSeconds = 15
	proofWindow  = 2 * leaseSeconds * time.Second
	// settling is what a process gets to calm down after its start: garbage, retries, the last events.
	settling = 10 * time.Second
)

var (
	realTargets    = flag.Int("fleet.real", 200, "Targets that are real API servers' objects; 0 leaves this part out.")
	standinTargets = flag.Int("fleet.standin", 1000, "Targets that the stand-in API server plays; 0 leaves this part out.")
	window         = flag.Duration("fleet.window", 30*time.Second, "For how long the steady state is measured.")
	baselineOf     = flag.String("fleet.baseline", "", "Be the baseline for the targets in this file. For the benchmark's own use.")
	keepFolder     = flag.String("fleet.folder", "", "Build the programs into this folder, and keep their logs. Default: a temporary one.")
)

func TestMain(m *testing.M) {
	flag.Parse()
	log.SetLogger(logr.Discard())
	if *baselineOf != "" {
		if err := runBaseline(context.Background(), *baselineOf); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	// Printed last, since a benchmark's own log is cut off after ten lines.
	for _, t := range tables {
		fmt.Print(t)
	}
	os.Exit(code)
}

// fleet is all target clusters of a run. Their Leases are renewed from its start to kill, and again from
// revive, spread evenly over renewPeriod.
type fleet interface {
	targets() ([]target, error)
	// kill ends all renewals at once.
	kill()
	// lastRenewal is that of one target's Lease.
	lastRenewal(i int) time.Time
	// revive begins them again.
	revive()
	// renewals is how many there were so far: on a busy machine they fall behind.
	renewals() int64
}

// target is one of them, as the hub knows it.
type target struct {
	Name       string
	KubeConfig []byte
	Kueue      v1alpha1.KueueSpec
}

// BenchmarkFleet measures the whole life of a hub: a start, a steady state, the death of all targets'
// admission controllers, and their return.
func BenchmarkFleet(b *testing.B) {
	usage.SkipWithout(b)
	b.Run("real", func(b *testing.B) {
		if *realTargets == 0 {
			b.Skip("-fleet.real=0")
		}
		for b.Loop() {
			measure(b, "against a real API server", newRealFleet(b, *realTargets))
		}
	})
	b.Run("standin", func(b *testing.B) {
		if *standinTargets == 0 {
			b.Skip("-fleet.standin=0")
		}
		for b.Loop() {
			measure(b, "against a stand-in API server", newStandin(b, *standinTargets))
		}
	})
}

func measure(b *testing.B, against string, f fleet) {
	ctx := b.Context()
	targets, err := f.targets()
	if err != nil {
		b.Fatal(err)
	}
	folder := *keepFolder
	if folder == "" {
		folder = b.TempDir()
	}
	if err := install.Programs(ctx, folder); err != nil {
		b.Fatal(err)
	}
	hub := newHub(b, targets)
	t := &table{title: fmt.Sprintf("%d targets %s", len(targets), against), targets: len(targets), window: *window}

	// One after the other, so that neither takes CPU from the other.
	process := newBaseline(b, folder, targets)
	began := time.Now()
	start(b, process)
	t.baseline = usageOf{start: time.Since(began)}
	t.baseline.steady(b, process, f)
	process.Stop()

	process = newManager(b, folder, hub.cluster)
	began = time.Now()
	start(b, process)
	proved := hub.wait(b, process, metav1.ConditionTrue)
	t.manager = usageOf{start: slices.MaxFunc(slices.Collect(maps.Values(proved)), time.Time.Compare).Sub(began)}
	t.startWrites = hub.writes(b, began, time.Now().Add(settling))
	steady := t.manager.steady(b, process, f)
	t.steadyWrites = hub.writes(b, steady, time.Now())
	if t.steadyWrites.statuses+t.steadyWrites.events+t.steadyWrites.others != 0 {
		b.Errorf("writes to the hub in the steady state: %+v", t.steadyWrites)
	}

	began = time.Now()
	f.kill()
	expiries := map[string]time.Time{}
	for i, t := range targets {
		expiries[t.Name] = f.lastRenewal(i).Add(proofWindow)
	}
	closed := hub.wait(b, process, metav1.ConditionFalse)
	for name, at := range closed {
		t.overshoot = append(t.overshoot, at.Sub(expiries[name]))
	}
	slices.Sort(t.overshoot)
	time.Sleep(settling) // for the events, and for what should not come any more
	t.deathWrites = hub.writes(b, began, time.Now())
	if t.overshoot[0] < 0 {
		b.Errorf("a gate was closed %s before its proof expired", -t.overshoot[0])
	}
	if t.deathWrites.statuses != len(targets) {
		b.Errorf("%d status writes for the death of %d admission controllers", t.deathWrites.statuses, len(targets))
	}

	began = time.Now()
	f.revive()
	opened := hub.wait(b, process, metav1.ConditionTrue)
	t.reopened = slices.MaxFunc(slices.Collect(maps.Values(opened)), time.Time.Compare).Sub(began)
	t.load = usage.LoadAverage(b)
	process.Stop()
	hub.cluster.Stop()
	t.report(b)
}

func start(b *testing.B, process *controlplane.Component) {
	b.Helper()
	b.Cleanup(process.Kill)
	if err := process.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func newManager(b *testing.B, folder string, hub *controlplane.Cluster) *controlplane.Component {
	b.Helper()
	config, err := hub.ServiceAccountConfig(b.Context(), install.Namespace, install.ManagerAccount)
	if err != nil {
		b.Fatal(err)
	}
	process, err := install.Process{Program: "dispatch-manager", Folder: folder, Config: config}.New()
	if err != nil {
		b.Fatal(err)
	}
	return process
}

// hubOptions: the audit log is what tells of every write, also of one that changes nothing.
var hubOptions = controlplane.Options{AuditLevel: auditv1.LevelMetadata}
