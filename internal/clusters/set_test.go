package clusters

import (
	"net/http"
	"runtime"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// nobody is where nothing listens.
var nobody = &rest.Config{Host: "https://127.0.0.1:1"}

func targetSpec(queue string) v1alpha1.DispatchTargetSpec {
	return v1alpha1.DispatchTargetSpec{Kueue: &v1alpha1.KueueSpec{ClusterQueue: queue}}
}

func (s *Set) cluster(name string) *Cluster {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.members[name]; m != nil {
		return m.cluster
	}
	return nil
}

func unfenced(next http.RoundTripper) http.RoundTripper { return next }

func TestSetConnectsAnewWhereSomethingChanged(t *testing.T) {
	g := NewWithT(t)
	s := NewSet(unfenced)
	t.Cleanup(s.Close)
	var mu sync.Mutex
	told := map[string]int{}
	s.OnChange(func(name string) {
		mu.Lock()
		defer mu.Unlock()
		told[name]++
	})
	connect := func(spec v1alpha1.DispatchTargetSpec, version string) *Cluster {
		t.Helper()
		g.Expect(s.Connect("west", spec, version, nobody)).To(Succeed())
		return s.cluster("west")
	}
	first := connect(targetSpec("gpu"), "1")
	observeOnly := targetSpec("gpu")
	observeOnly.ObserveOnly = true
	g.Expect(connect(observeOnly, "1")).To(BeIdenticalTo(first), "observeOnly is not about the connection")
	rotated := connect(targetSpec("gpu"), "2")
	g.Expect(rotated).NotTo(BeIdenticalTo(first))
	moved := connect(targetSpec("cpu"), "2")
	g.Expect(moved).NotTo(BeIdenticalTo(rotated))
	for _, c := range []*Cluster{first, rotated} {
		g.Eventually(func() error { return c.ctx.Err() }).Should(HaveOccurred(), "the one before is closed")
	}
	_, ok := s.Snapshot("west", targetSpec("gpu"))
	g.Expect(ok).To(BeFalse(), "what is known of another spec is not this one's")

	s.Refuse("west", targetSpec("cpu"), v1alpha1.KubeConfigInvalidReason, "no")
	snapshot, ok := s.Snapshot("west", targetSpec("cpu"))
	g.Expect(ok).To(BeTrue())
	g.Expect(snapshot.Reachable.Reason).To(Equal(v1alpha1.KubeConfigInvalidReason))
	g.Eventually(func() error { return moved.ctx.Err() }).Should(HaveOccurred())

	mended := connect(targetSpec("cpu"), "2")
	s.Remove("west")
	_, ok = s.Snapshot("west", targetSpec("cpu"))
	g.Expect(ok).To(BeFalse())
	g.Eventually(func() error { return mended.ctx.Err() }).Should(HaveOccurred())
	mu.Lock()
	defer mu.Unlock()
	g.Expect(told["west"]).To(BeNumerically(">=", 4))
}

// A reconcile may be under way while the process stops.
func TestSetKeepsNothingAfterClose(t *testing.T) {
	g := NewWithT(t)
	before := runtime.NumGoroutine()
	s := NewSet(unfenced)
	var connecting sync.WaitGroup
	for _, name := range []string{"west", "east"} {
		connecting.Go(func() {
			for range 50 {
				if err := s.Connect(name, targetSpec("gpu"), "1", nobody); err != nil {
					t.Error(err)
				}
				s.Remove(name)
			}
			if err := s.Connect(name, targetSpec("gpu"), "1", nobody); err != nil {
				t.Error(err)
			}
		})
	}
	s.Close()
	connecting.Wait()
	for _, name := range []string{"west", "east"} {
		_, ok := s.Snapshot(name, targetSpec("gpu"))
		g.Expect(ok).To(BeFalse())
	}
	g.Eventually(runtime.NumGoroutine).Should(BeNumerically("<=", before))
}
