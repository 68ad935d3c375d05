// Package targets tests how the hub follows many target clusters: the real dispatch-manager, under its
// ServiceAccount, and real API servers with Kueue's API, some of them behind proxies that break things.
// Kueue itself does not run; the tests write what it would.
package targets

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/controlplane/ports"
	"github.com/dispatch-dev/dispatch/test/install"
)

const (
	// leases is the namespace of the tests' Leases.
	leases = "leases"
	// patience is for a loaded machine.
	patience = time.Minute
	// soon is what the tests demand of what takes less than 500 ms on a machine with nothing else to do.
	// They print what it took.
	soon = 5 * time.Second
)

// cluster is an API server that is a target.
type cluster struct {
	*controlplane.Cluster
	client client.WithWatch
	// hub is what the hub's ServiceAccount needs to reach it.
	hub *rest.Config
}

var (
	// hub is the hub and a target, too.
	hub *cluster
	// victim is a target that tests break.
	victim *cluster
	// programs is the folder with the programs and their logs.
	programs string
	// manager leads; TestAWarmStandbyTakesOver, which runs first, puts another in its place.
	manager *process
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	// They wait far more than they compute, so the number of cores is no limit.
	flag.Parse()
	if err := flag.Set("test.parallel", "20"); err != nil {
		return 0, err
	}
	log.SetLogger(logr.Discard())
	ctx := context.Background()
	if programs, err = os.MkdirTemp("", "dispatch-targets-"); err != nil {
		return 0, err
	}
	defer func() {
		if code == 0 {
			err = errors.Join(err, os.RemoveAll(programs))
		} else {
			fmt.Fprintln(os.Stderr, "logs of the managers are kept in", programs)
		}
	}()
	if err := install.Programs(ctx, programs); err != nil {
		return 0, err
	}
	if hub, err = startCluster(ctx); err != nil {
		return 0, err
	}
	defer hub.Stop()
	if victim, err = startCluster(ctx); err != nil {
		return 0, err
	}
	defer victim.Stop()
	if manager, err = startManager(ctx, "first"); err != nil {
		return 0, err
	}
	defer func() { manager.Stop() }()
	return m.Run(), nil
}

func startCluster(ctx context.Context) (*cluster, error) {
	started, err := controlplane.Start(ctx, controlplane.Options{AuditLevel: auditv1.LevelMetadata})
	if err != nil {
		return nil, err
	}
	c := &cluster{Cluster: started}
	if c.client, err = client.NewWithWatch(started.Config(), client.Options{Scheme: newScheme()}); err != nil {
		return nil, err
	}
	if err := errors.Join(install.Hub(ctx, started), install.Target(ctx, started), c.installKueue(ctx)); err != nil {
		return nil, err
	}
	// Leases other than the one that the hub's role names.
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: leases}},
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: leases, Name: "hub"}, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "watch"},
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: leases, Name: "hub"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "hub"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: install.Namespace, Name: install.HubAccount}},
		},
	} {
		if err := c.client.Create(ctx, object); err != nil {
			return nil, err
		}
	}
	c.hub, err = started.ServiceAccountConfig(ctx, install.Namespace, install.HubAccount)
	return c, err
}

// installKueue installs Kueue's API and the objects that all targets name.
func (c *cluster) installKueue(ctx context.Context) error {
	if err := install.KueueCRDs(ctx, c.Cluster); err != nil {
		return err
	}
	return errors.Join(c.createCheck(ctx), c.createQueue(ctx))
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, kueue.AddToScheme, v1alpha1.AddToScheme} {
		utilruntime.Must(add(scheme))
	}
	return scheme
}

// active is the condition that Kueue writes; it has the same type on both kinds.
var active = []metav1.Condition{{
	Type: kueue.AdmissionCheckActive, Status: metav1.ConditionTrue, Reason: "Active", LastTransitionTime: metav1.Now(),
}}

// createCheck creates the AdmissionCheck that all targets name.
func (c *cluster) createCheck(ctx context.Context) error {
	check := &kueue.AdmissionCheck{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultAdmissionCheck},
		Spec:       kueue.AdmissionCheckSpec{ControllerName: v1alpha1.DefaultControllerName},
	}
	if err := c.client.Create(ctx, check); err != nil {
		return err
	}
	check.Status.Conditions = active
	return c.client.Status().Update(ctx, check)
}

// createQueue creates the ClusterQueue that all targets name.
func (c *cluster) createQueue(ctx context.Context) error {
	queue := &kueue.ClusterQueue{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: kueue.ClusterQueueSpec{AdmissionChecksStrategy: &kueue.AdmissionChecksStrategy{
			AdmissionChecks: []kueue.AdmissionCheckStrategyRule{{Name: v1alpha1.DefaultAdmissionCheck}},
		}},
	}
	if err := c.client.Create(ctx, queue); err != nil {
		return err
	}
	queue.Status.Conditions = active
	return c.client.Status().Update(ctx, queue)
}

// process is a dispatch-manager and where it serves its metrics.
type process struct {
	*controlplane.Component
	metrics string
}

func startManager(ctx context.Context, name string) (*process, error) {
	config, err := hub.ServiceAccountConfig(ctx, install.Namespace, install.ManagerAccount)
	if err != nil {
		return nil, err
	}
	port, _, err := ports.Reserve() // until this process ends
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	component, err := install.Process{
		Program: "dispatch-manager", Name: name, Folder: programs, Config: config,
		Args: []string{"-metrics-bind-address=" + address},
	}.New()
	if err != nil {
		return nil, err
	}
	return &process{component, "http://" + address + "/metrics"}, component.Start(ctx)
}

// test is one test's view.
type test struct {
	*WithT
	t   *testing.T
	ctx context.Context
}

func newTest(t *testing.T) *test {
	t.Helper()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	return &test{WithT: g, t: t, ctx: t.Context()}
}

// create creates an object for as long as the test lasts.
func (t *test) create(c client.Client, object client.Object) {
	t.t.Helper()
	t.Expect(c.Create(t.ctx, object)).To(Succeed())
	t.t.Cleanup(func() {
		t.Expect(client.IgnoreNotFound(c.Delete(context.Background(), object))).To(Succeed())
	})
}

func kubeConfigSecret(name string, cfg *rest.Config) (*corev1.Secret, error) {
	kubeConfig, err := controlplane.Kubeconfig(cfg)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: name},
		Data:       map[string][]byte{"kubeconfig": kubeConfig},
	}, err
}

// createTarget creates a DispatchTarget and its Secret. It reads the Lease of its own name.
func (t *test) createTarget(name string, cfg *rest.Config) *v1alpha1.DispatchTarget {
	t.t.Helper()
	secret, err := kubeConfigSecret(name, cfg)
	t.Expect(err).NotTo(HaveOccurred())
	t.create(hub.client, secret)
	target := &v1alpha1.DispatchTarget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.DispatchTargetSpec{
			KubeConfig: &v1alpha1.KubeConfigSource{SecretRef: &v1alpha1.KubeConfigSecretReference{Name: name}},
			Kueue:      &v1alpha1.KueueSpec{ClusterQueue: "gpu", AdmissionLease: &v1alpha1.LeaseReference{Namespace: leases, Name: name}},
		},
	}
	t.create(hub.client, target)
	return target
}

func (t *test) get(name string) *v1alpha1.DispatchTarget {
	t.t.Helper()
	var target v1alpha1.DispatchTarget
	t.Expect(hub.client.Get(t.ctx, client.ObjectKey{Name: name}, &target)).To(Succeed())
	return &target
}

// condition is a function for Eventually. It gives the zero value where the condition is absent.
func (t *test) condition(name, conditionType string) func(Gomega) metav1.Condition {
	return func(g Gomega) metav1.Condition {
		var target v1alpha1.DispatchTarget
		g.Expect(hub.client.Get(t.ctx, client.ObjectKey{Name: name}, &target)).To(Succeed())
		return ptr.Deref(meta.FindStatusCondition(target.Status.Conditions, conditionType), metav1.Condition{})
	}
}

// eventuallyGate waits for a reason of the gate and prints how long it took.
func (t *test) eventuallyGate(what, name, reason string) time.Duration {
	t.t.Helper()
	begin := time.Now()
	t.Eventually(t.condition(name, v1alpha1.ReadmissionGateCondition)).Should(HaveField("Reason", reason), what)
	took := time.Since(begin)
	t.t.Logf("%s: %s after %s", what, reason, took.Round(time.Millisecond))
	return took
}

// heartbeat is a Lease that is renewed until it is stopped.
type heartbeat struct {
	cluster *cluster
	name    string
	seconds int32

	mu     sync.Mutex // held while the Lease is written
	lease  *coordinationv1.Lease
	paused bool
	stop   func()
}

func (t *test) heartbeat(c *cluster, name string, seconds int32, period time.Duration) *heartbeat {
	t.t.Helper()
	h := &heartbeat{cluster: c, name: name, seconds: seconds}
	t.Expect(h.beat(t.ctx)).To(Succeed())
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(period)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				h.mu.Lock()
				paused := h.paused
				h.mu.Unlock()
				if !paused {
					_ = h.beat(ctx) // its API server may be down
				}
			}
		}
	})
	h.stop = func() {
		cancel()
		running.Wait()
	}
	t.t.Cleanup(h.stop)
	return h
}

func newLease(name, holder string, seconds int32) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: leases, Name: name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: ptr.To(metav1.NowMicro()),
		},
	}
}

// beat renews the Lease, or creates it.
func (h *heartbeat) beat(ctx context.Context) error { return h.write(ctx, "leader") }

func (h *heartbeat) write(ctx context.Context, holder string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lease == nil {
		lease := newLease(h.name, holder, h.seconds)
		if err := h.cluster.client.Create(ctx, lease); err != nil {
			return err
		}
		h.lease = lease
		return nil
	}
	next := h.lease.DeepCopy()
	next.Spec.HolderIdentity, next.Spec.RenewTime = &holder, ptr.To(metav1.NowMicro())
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := h.cluster.client.Update(ctx, next)
	if err == nil {
		h.lease = next
	}
	return err
}

// remove deletes the Lease. The next beat creates it anew.
func (h *heartbeat) remove(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	lease := h.lease
	h.lease = nil
	return h.cluster.client.Delete(ctx, lease)
}

// pause leaves the Lease to the test.
func (h *heartbeat) pause(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.paused = on
}

// lastRenewal is the renewTime that the API server has.
func (h *heartbeat) lastRenewal() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease.Spec.RenewTime.Time
}

// statusWrites are the writes of these targets' statuses that the hub got since then.
func (t *test) statusWrites(since time.Time, names ...string) []string {
	t.t.Helper()
	events, err := hub.AuditEvents()
	t.Expect(err).NotTo(HaveOccurred())
	var writes []string
	for _, e := range events {
		if e.ObjectRef == nil || e.ObjectRef.Resource != "dispatchtargets" || e.ObjectRef.Subresource != "status" ||
			e.Verb == "get" || e.RequestReceivedTimestamp.Time.Before(since) {
			continue
		}
		for _, name := range names {
			if e.ObjectRef.Name == name {
				writes = append(writes, e.RequestReceivedTimestamp.Format(time.StampMicro)+" "+name)
			}
		}
	}
	return writes
}

// eventuallyQuiet waits until the hub got no write of these targets' statuses for so long, and returns how
// many it got before.
func (t *test) eventuallyQuiet(quiet time.Duration, names ...string) int {
	t.t.Helper()
	begin, last, count := time.Now(), time.Now(), 0
	t.Eventually(func(g Gomega) {
		if writes := t.statusWrites(begin, names...); len(writes) > count {
			last, count = time.Now(), len(writes)
		}
		g.Expect(time.Since(last)).To(BeNumerically(">", quiet))
	}).WithTimeout(patience + quiet).WithPolling(time.Second).Should(Succeed())
	return count
}
