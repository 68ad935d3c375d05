package clusters

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

// beProved is a gate that stands open.
func beProved() OmegaMatcher { return HaveField("Reason", v1alpha1.ProvedReason) }

func TestAChangeOfTheLeaseIsToldAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := t.Context()
	lease := f.createLease(60)
	c := f.connect(f.cfg, f.spec())
	f.Eventually(c.gate).Should(beProved())

	for _, step := range []struct {
		name   string
		change func() error
		reason string
	}{
		{"it is deleted", func() error { return f.admin.Delete(ctx, lease) }, v1alpha1.LeaseNotFoundReason},
		{"it is created anew", func() error { lease = f.createLease(60); return nil }, v1alpha1.ProvedReason},
		{"it loses its holder", func() error {
			lease.Spec.HolderIdentity = ptr.To("")
			return f.admin.Update(ctx, lease)
		}, v1alpha1.LeaseNotHeldReason},
		{"it is held again", func() error {
			lease.Spec.HolderIdentity = ptr.To("leader")
			return f.admin.Update(ctx, lease)
		}, v1alpha1.ProvedReason},
		{"its renewal is older than it proves", func() error {
			lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Now().Add(-121 * time.Second)))
			return f.admin.Update(ctx, lease)
		}, v1alpha1.LeaseStaleReason},
		{"it is renewed", func() error {
			lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
			return f.admin.Update(ctx, lease)
		}, v1alpha1.ProvedReason},
	} {
		since := time.Now()
		f.Expect(step.change()).To(Succeed(), step.name)
		took := f.eventuallyGate(c, since, step.reason)
		t.Logf("%s: %s after %s", step.name, step.reason, took.Round(time.Millisecond))
		f.Expect(took).To(BeNumerically("<", soon), step.name)
	}
}

func TestAProofEndsAtItsExpiry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lease := f.createLease(2)
	c := f.connect(f.cfg, f.spec())
	f.Eventually(c.gate).Should(beProved())
	stop := f.keepRenewing(lease, 200*time.Millisecond)
	f.Eventually(c.leaseVersion).ShouldNot(Equal(""))
	stop() // the leader is dead
	expiry := lease.Spec.RenewTime.Add(4 * time.Second)

	closed := f.eventuallyGate(c, lease.Spec.RenewTime.Time, v1alpha1.LeaseStaleReason)
	overshoot := closed - 4*time.Second
	t.Logf("the leader dead: closed %s after the expiry", overshoot.Round(time.Millisecond))
	f.Expect(overshoot).To(And(BeNumerically(">", 0), BeNumerically("<", soon)))
	for _, n := range c.all() {
		if n.at.Before(expiry) {
			f.Expect(n.ReadmissionGate.Reason).To(Or(Equal(v1alpha1.ProvedReason), Equal(v1alpha1.PreflightingReason)))
		}
		f.Expect(n.Reachable.Reason).To(Or(Equal(v1alpha1.ConnectedReason), Equal(v1alpha1.PreflightingReason)))
	}
	f.Expect(c.gate().Message).To(MatchRegexp(`^the admission controller's Lease was last renewed \d+s ago, beyond 4s$`))

	since := time.Now()
	f.renew(lease)
	took := f.eventuallyGate(c, since, v1alpha1.ProvedReason)
	t.Logf("renewed after that: proved after %s", took.Round(time.Millisecond))
	f.Expect(took).To(BeNumerically("<", soon))
}

func TestRenewalsAreNoNews(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lease := f.createLease(60)
	c := f.connect(f.cfg, f.spec())
	f.Eventually(c.gate).Should(beProved())
	f.Eventually(func() string { return c.Snapshot().Identity.KubernetesVersion }).ShouldNot(BeEmpty())
	before := c.all()
	for range 20 {
		f.renew(lease)
		f.Eventually(c.leaseVersion).Should(Equal(lease.ResourceVersion))
	}
	f.Expect(c.all()).To(HaveLen(len(before)))
}

func TestTheFirstVerdictIsWhole(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.createLease(60)
	hold := newHolder(func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/admissionchecks/") })
	cfg := rest.CopyConfig(f.cfg)
	cfg.Wrap(hold.wrap)
	hold.arm()
	c := f.connect(cfg, f.spec())
	f.Eventually(hold.held).Should(Receive())
	f.Eventually(func() bool {
		c.Cluster.mu.Lock()
		defer c.Cluster.mu.Unlock()
		return c.identified && c.evidence.Lease.Object != nil && c.evidence.ClusterQueue.Object != nil
	}).Should(BeTrue())
	preflighting := HaveField("Reason", v1alpha1.PreflightingReason)
	f.Expect(c.Snapshot()).To(HaveField("Verdict", And(
		HaveField("Reachable", preflighting), HaveField("QueueActive", preflighting), HaveField("ReadmissionGate", preflighting))))
	hold.release()
	f.Eventually(c.gate).Should(beProved())
	for _, n := range c.all() {
		f.Expect(n.ReadmissionGate).To(beProved())
	}
}

func TestGetOnlyCredentialsArePolled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := t.Context()
	lease := f.createLease(60)
	c := f.connect(f.account("get"), f.spec())
	f.Eventually(c.gate).Should(beProved())
	const message = "the API server answers, but refuses to let AdmissionCheck, ClusterQueue, Lease be watched: read every 5s instead"
	f.Eventually(func() gate.Finding { return c.Snapshot().Reachable }).Should(Equal(
		gate.Finding{Status: metav1.ConditionTrue, Reason: v1alpha1.ConnectedReason, Message: message}))
	f.Expect(c.Snapshot().Identity.UID).To(BeEmpty(), "kube-system may not be read")

	since := time.Now()
	f.Expect(f.admin.Delete(ctx, lease)).To(Succeed())
	took := f.eventuallyGate(c, since, v1alpha1.LeaseNotFoundReason)
	t.Logf("polled: closed %s after the Lease was deleted", took.Round(time.Millisecond))
	f.Expect(took).To(BeNumerically("<", pollPeriod*6/5+soon))
}

// A watch can tell of the Lease's end while an answer from before it is still on its way.
func TestLaterNewsAreKept(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := t.Context()
	hold := newHolder(func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/leases/heartbeat") })
	cfg := rest.CopyConfig(f.cfg)
	cfg.Wrap(hold.wrap)
	lease := f.createLease(60)
	c := f.connect(cfg, f.spec())
	f.Eventually(c.gate).Should(beProved())
	hold.arm()
	// The expiry is 3 s away, and the Lease is confirmed from 1 s from now on.
	lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Now().Add(-117 * time.Second)))
	f.Expect(f.admin.Update(ctx, lease)).To(Succeed())
	f.Eventually(hold.held).Should(Receive())
	f.Expect(f.admin.Delete(ctx, lease)).To(Succeed())
	f.Eventually(c.gate).Should(HaveField("Reason", v1alpha1.LeaseNotFoundReason))
	hold.release()
	f.Consistently(c.gate).WithTimeout(time.Second).Should(HaveField("Reason", v1alpha1.LeaseNotFoundReason))
}

// A process that was frozen has missed the time to confirm the Lease.
func TestALeaseThatWasNotConfirmedInTimeIsReadAnew(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.createLease(2)
	c := f.connect(f.cfg, f.spec())
	c.Cluster.mu.Lock()
	c.confirming = true // so that nobody else does
	c.Cluster.mu.Unlock()
	f.eventuallyGate(c, time.Time{}, v1alpha1.UnreachableReason)
	c.Cluster.mu.Lock()
	c.confirming = false
	c.snapshot.ConfirmBy = 1 // as a timer that fires late finds it
	c.Cluster.mu.Unlock()
	c.confirmLease()
	f.Eventually(c.gate).Should(HaveField("Reason", v1alpha1.LeaseStaleReason))
	f.Expect(c.Snapshot().Reachable.Reason).To(Equal(v1alpha1.ConnectedReason))
}

func TestADeadConnectionClosesNothingWhereAFreshOneWorks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lease := f.createLease(2)
	f.keepRenewing(lease, 300*time.Millisecond)
	network := &network{}
	cfg := rest.CopyConfig(f.cfg)
	cfg.Dial = network.dial
	c := f.connect(cfg, f.spec())
	f.Eventually(c.gate).Should(beProved())
	f.Eventually(func() string { return c.Snapshot().Identity.KubernetesVersion }).ShouldNot(BeEmpty())
	before := c.all()
	network.freezeConnections()
	// Two windows, each of which ends unless the Lease is read.
	begin := time.Now()
	f.Eventually(func(g Gomega) {
		g.Expect(c.all()).To(HaveLen(len(before)), "the verdict changed")
		g.Expect(time.Since(begin)).To(BeNumerically(">", 8*time.Second))
	}).Should(Succeed())
	f.Expect(c.gate()).To(beProved())
}

func TestATargetOutOfReachIsUnreachableAtTheExpiry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lease := f.createLease(2)
	stop := f.keepRenewing(lease, 300*time.Millisecond)
	network := &network{}
	cfg := rest.CopyConfig(f.cfg)
	cfg.Dial = network.dial
	c := f.connect(cfg, f.spec())
	f.Eventually(c.gate).Should(beProved())
	before := len(c.all())
	network.refuse(true)
	network.freezeConnections()
	f.eventuallyGate(c, time.Time{}, v1alpha1.UnreachableReason)
	stop()
	n := c.all()[before]
	expiry := c.lastRenewal().Add(4 * time.Second)
	t.Logf("out of reach: closed %s after the expiry", n.at.Sub(expiry).Round(time.Millisecond))
	f.Expect(n.at).To(And(BeTemporally(">", expiry), BeTemporally("<", expiry.Add(soon))))
	f.Expect(n.ReadmissionGate).To(And(HaveField("Status", metav1.ConditionUnknown), HaveField("Reason", v1alpha1.UnreachableReason)))
	f.Expect(n.Reachable).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.UnreachableReason)))

	network.refuse(false)
	f.renew(lease)
	f.keepRenewing(lease, 300*time.Millisecond)
	took := f.eventuallyGate(c, time.Now(), v1alpha1.ProvedReason)
	t.Logf("back: proved after %s", took.Round(time.Millisecond))
}

func TestCloseGivesEverythingBack(t *testing.T) {
	// Not parallel: it counts goroutines.
	f := newFixture(t)
	f.createLease(60)
	var collected atomic.Int64
	connectAndClose := func() {
		var closed atomic.Bool
		c, err := Connect(f.cfg, f.spec(), func() {
			if closed.Load() {
				t.Error("onChange was called after Close")
			}
		})
		f.Expect(err).NotTo(HaveOccurred())
		runtime.AddCleanup(c, func(struct{}) { collected.Add(1) }, struct{}{})
		f.Eventually(func() string { return c.Snapshot().ReadmissionGate.Reason }).Should(Equal(v1alpha1.ProvedReason))
		c.Close()
		closed.Store(true)
	}
	heap := func() int64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	connectAndClose() // what is made once is made
	goroutines, memory := runtime.NumGoroutine(), heap()
	const connections = 50
	for range connections {
		connectAndClose()
	}
	f.Eventually(runtime.NumGoroutine).Should(BeNumerically("<=", goroutines))
	f.Eventually(func() int64 {
		runtime.GC()
		return collected.Load()
	}).Should(BeNumerically("==", connections+1))
	// What is left is net/http's timers for idle connections, which hold on to them for 30 s.
	t.Logf("after %d connections: %d goroutines of %d, %d bytes more", connections, runtime.NumGoroutine(), goroutines, heap()-memory)
}

func TestCloseBeforeTheFirstAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 20 {
		c, err := Connect(f.cfg, f.spec(), func() {})
		f.Expect(err).NotTo(HaveOccurred())
		c.Close()
	}
}

// lastRenewal is the renewTime of the Lease as the Cluster has it.
func (f *followed) lastRenewal() time.Time {
	f.Cluster.mu.Lock()
	defer f.Cluster.mu.Unlock()
	return f.evidence.Lease.Object.Spec.RenewTime.Time
}

// holder holds back the answers to some requests.
type holder struct {
	of    func(*http.Request) bool
	armed atomic.Bool
	held  chan struct{}
	free  chan struct{}
}

func newHolder(of func(*http.Request) bool) *holder {
	return &holder{of: of, held: make(chan struct{}, 100), free: make(chan struct{})}
}

func (h *holder) arm()     { h.armed.Store(true) }
func (h *holder) release() { close(h.free) }

func (h *holder) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if h.armed.Load() && h.of(r) {
			h.held <- struct{}{}
			select {
			case <-h.free:
			case <-r.Context().Done():
			}
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// network can lose what is sent over its connections, as a firewall does that has forgotten them.
type network struct {
	mu      sync.Mutex
	refused bool
	conns   []*lossyConn
}

func (n *network) dial(ctx context.Context, network, address string) (net.Conn, error) {
	n.mu.Lock()
	refused := n.refused
	n.mu.Unlock()
	if refused {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	lossy := &lossyConn{Conn: conn, closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(n.conns, lossy)
	return lossy, nil
}

func (n *network) refuse(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused = on
}

// freezeConnections loses everything on the connections that there are. New ones work.
func (n *network) freezeConnections() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, conn := range n.conns {
		conn.frozen.Store(true)
	}
}

type lossyConn struct {
	net.Conn
	frozen atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (c *lossyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.frozen.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *lossyConn) Write(p []byte) (int, error) {
	if c.frozen.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *lossyConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
