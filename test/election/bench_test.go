package election

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/ptr"

	internalelection "github.com/dispatch-dev/dispatch/internal/election"
	"github.com/dispatch-dev/dispatch/test/controlplane"
)

// BenchmarkRenewal measures how long a renewal takes while the process's other
// clients keep their limiter saturated: with the Lease's own client config, and
// with a copy of theirs, as controller-runtime does by default.
func BenchmarkRenewal(b *testing.B) {
	const (
		qps     = 100
		waiting = 200 // requests at a time, so that each waits for 2 s
		leases  = 10
		lasts   = 20 * time.Second
	)
	cluster := controlplane.StartForTest(b, controlplane.Options{})
	for name, leaseConfig := range map[string]func(*rest.Config) (*rest.Config, error){
		"own": func(base *rest.Config) (*rest.Config, error) {
			return internalelection.LeaseConfig(base, 10*time.Second)
		},
		"shared": func(base *rest.Config) (*rest.Config, error) {
			return rest.CopyConfig(base), nil
		},
	} {
		b.Run("config="+name, func(b *testing.B) {
			base := cluster.Config()
			base.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(qps, qps)
			stop := saturate(b, base, waiting)
			var mu sync.Mutex
			var took []time.Duration
			for b.Loop() {
				var all sync.WaitGroup
				for i := range leases {
					all.Go(func() {
						d, err := renewals(leaseConfig, base, fmt.Sprintf("%s-%d", name, i), lasts)
						mu.Lock()
						defer mu.Unlock()
						took = append(took, d...)
						if err != nil {
							b.Error(err)
						}
					})
				}
				all.Wait()
			}
			stop()
			slices.Sort(took)
			b.ReportMetric(milliseconds(took[len(took)/2]), "p50-ms")
			b.ReportMetric(milliseconds(took[len(took)*99/100]), "p99-ms")
			b.ReportMetric(float64(len(took)), "renewals")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// saturate keeps many requests waiting for the limiter of config.
func saturate(b *testing.B, config *rest.Config, waiting int) (stop func()) {
	b.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	for range waiting {
		all.Go(func() {
			for ctx.Err() == nil {
				_, _ = client.Discovery().ServerVersionWithContext(ctx) // that it waits is all that counts
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// renewals renews a Lease for some time, as often as a leader does.
func renewals(leaseConfig func(*rest.Config) (*rest.Config, error), base *rest.Config, name string, lasts time.Duration) ([]time.Duration, error) {
	config, err := leaseConfig(base)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	leases := client.CoordinationV1().Leases(metav1.NamespaceDefault)
	lease, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		next := time.After(2 * time.Second)
		start := time.Now()
		lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(start))
		if lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
			return took, err
		}
		took = append(took, time.Since(start))
		<-next
	}
	return took, nil
}

// BenchmarkTakeover measures from the moment that a leader is stopped to the
// moment that a standby has the Lease, and to its first decision.
func BenchmarkTakeover(b *testing.B) {
	for _, program := range []string{manager, admission} {
		for how, stop := range map[string]func(*replica){
			"SIGTERM": func(r *replica) { r.Stop() },
			"SIGKILL": func(r *replica) { r.Kill() },
		} {
			b.Run(program+"/"+how, func(b *testing.B) {
				g := NewWithT(b)
				var leads, decides time.Duration
				for b.Loop() {
					e := newElection(b, shared(b), program)
					lease := e.watchLease()
					leader := e.startLeader(nil)
					e.startStandby(nil)
					old := lease.last().holder
					stopped := time.Now()
					stop(leader)
					done := e.work("work")
					g.Eventually(func() string { return lease.last().holder }).WithTimeout(40 * time.Second).
						WithPolling(5 * time.Millisecond).ShouldNot(BeElementOf("", old))
					leads += time.Since(stopped)
					g.Eventually(done).WithTimeout(10 * time.Second).WithPolling(5 * time.Millisecond).Should(BeTrue())
					decides += time.Since(stopped)
				}
				b.ReportMetric(leads.Seconds()/float64(b.N), "s/lead")
				b.ReportMetric(decides.Seconds()/float64(b.N), "s/decision")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
