package clusters

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/gate"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
)

const (
	// patience is for a loaded machine.
	patience = 30 * time.Second
	// soon is what the tests demand of what takes less than 500 ms on a machine with nothing else to do.
	// They print what it took.
	soon = 5 * time.Second
	poll = 5 * time.Millisecond
)

// realCluster is a bare API server with Kueue's CRDs, and in it a ClusterQueue and an AdmissionCheck that
// lack nothing. It is started for the first test that needs it.
var realCluster struct {
	once    sync.Once
	started *controlplane.Cluster
	admin   client.Client
	err     error
}

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	code := m.Run()
	if realCluster.started != nil {
		realCluster.started.Stop()
	}
	os.Exit(code)
}

func startReal(ctx context.Context) error {
	r := &realCluster
	var err error
	if r.started, err = controlplane.Start(ctx, controlplane.Options{}); err != nil {
		return err
	}
	if err = install.KueueCRDs(ctx, r.started); err != nil {
		return err
	}
	root, err := install.Root()
	if err != nil {
		return err
	}
	if err = r.started.Apply(ctx, filepath.Join(root, "config", "crd")); err != nil {
		return err
	}
	if r.admin, err = client.New(r.started.Config(), client.Options{Scheme: targetScheme}); err != nil {
		return err
	}
	active := []metav1.Condition{{
		Type: kueue.AdmissionCheckActive, Status: metav1.ConditionTrue, Reason: "Active", Message: "", LastTransitionTime: metav1.Now(),
	}}
	check := &kueue.AdmissionCheck{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultAdmissionCheck},
		Spec:       kueue.AdmissionCheckSpec{ControllerName: v1alpha1.DefaultControllerName},
	}
	queue := &kueue.ClusterQueue{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: kueue.ClusterQueueSpec{AdmissionChecksStrategy: &kueue.AdmissionChecksStrategy{
			AdmissionChecks: []kueue.AdmissionCheckStrategyRule{{Name: v1alpha1.DefaultAdmissionCheck}},
		}},
	}
	if err := errors.Join(r.admin.Create(ctx, check), r.admin.Create(ctx, queue)); err != nil {
		return err
	}
	check.Status.Conditions, queue.Status.Conditions = active, active
	return errors.Join(r.admin.Status().Update(ctx, check), r.admin.Status().Update(ctx, queue))
}

// fixture is a namespace of the real cluster with one Lease, and credentials for it.
type fixture struct {
	*WithT
	t         *testing.T
	admin     client.Client
	namespace string
	// cfg is an administrator's.
	cfg *rest.Config
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	r := &realCluster
	r.once.Do(func() { r.err = startReal(context.Background()) })
	if r.err != nil {
		t.Fatal(r.err)
	}
	f := &fixture{WithT: NewWithT(t), t: t, admin: r.admin, cfg: r.started.Config()}
	f.SetDefaultEventuallyTimeout(patience)
	f.SetDefaultEventuallyPollingInterval(poll)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	f.Expect(f.admin.Create(t.Context(), namespace)).To(Succeed())
	f.namespace = namespace.Name
	return f
}

func (f *fixture) spec() *v1alpha1.KueueSpec {
	spec := &v1alpha1.KueueSpec{ClusterQueue: "gpu", AdmissionLease: &v1alpha1.LeaseReference{Namespace: f.namespace, Name: "heartbeat"}}
	spec.SetDefaults()
	return spec
}

// createLease creates the Lease, freshly renewed.
func (f *fixture) createLease(seconds int32) *coordinationv1.Lease {
	f.t.Helper()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "heartbeat"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("leader"), LeaseDurationSeconds: &seconds, RenewTime: ptr.To(metav1.NowMicro()),
		},
	}
	f.Expect(f.admin.Create(f.t.Context(), lease)).To(Succeed())
	return lease
}

func (f *fixture) renew(lease *coordinationv1.Lease) {
	f.t.Helper()
	lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
	f.Expect(f.admin.Update(f.t.Context(), lease)).To(Succeed())
}

// keepRenewing renews the Lease every period until stop is called.
func (f *fixture) keepRenewing(lease *coordinationv1.Lease, period time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(period)
		defer ticker.Stop()
		for {
			lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
			if err := f.admin.Update(context.WithoutCancel(ctx), lease); err != nil {
				f.t.Errorf("renewing the Lease: %v", err)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
	stop = func() {
		cancel()
		running.Wait()
	}
	f.t.Cleanup(stop)
	return stop
}

// account gives the credentials of a ServiceAccount that may use these verbs on the three objects.
func (f *fixture) account(verbs ...string) *rest.Config {
	f.t.Helper()
	ctx := f.t.Context()
	name := f.namespace // also of the ClusterRole, which has no namespace
	f.Expect(f.admin.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name}})).To(Succeed())
	f.Expect(rbacClient(f).Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: verbs},
			{APIGroups: []string{"kueue.x-k8s.io"}, Resources: []string{"clusterqueues", "admissionchecks"}, Verbs: verbs},
		},
	})).To(Succeed())
	f.Expect(rbacClient(f).Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: f.namespace, Name: name}},
	})).To(Succeed())
	cfg, err := realCluster.started.ServiceAccountConfig(ctx, f.namespace, name)
	f.Expect(err).NotTo(HaveOccurred())
	return cfg
}

// rbacClient knows the types that a target's client need not know.
func rbacClient(f *fixture) client.Client {
	f.t.Helper()
	c, err := client.New(f.cfg, client.Options{})
	f.Expect(err).NotTo(HaveOccurred())
	return c
}

// news is one call of onChange: when it came, and what the Snapshot was then.
type news struct {
	at time.Time
	Snapshot
}

// followed is a Cluster with the news that it told.
type followed struct {
	*Cluster
	self atomic.Pointer[Cluster]
	mu   sync.Mutex
	told []news
}

func (f *fixture) connect(cfg *rest.Config, spec *v1alpha1.KueueSpec) *followed {
	f.t.Helper()
	followed := &followed{}
	connected, err := Connect(cfg, spec, followed.note)
	f.Expect(err).NotTo(HaveOccurred())
	followed.Cluster = connected
	followed.self.Store(connected)
	f.t.Cleanup(connected.Close)
	return followed
}

func (f *followed) note() {
	now := time.Now()
	c := f.self.Load()
	if c == nil {
		return // Connect has not returned yet
	}
	snapshot := c.Snapshot()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, news{now, snapshot})
}

func (f *followed) all() []news {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.told)
}

func (f *followed) gate() gate.Finding { return f.Snapshot().ReadmissionGate }

// leaseVersion is that of the Lease as the Cluster has it.
func (f *followed) leaseVersion() string {
	f.Cluster.mu.Lock()
	defer f.Cluster.mu.Unlock()
	if f.evidence.Lease.Object == nil {
		return ""
	}
	return f.evidence.Lease.Object.ResourceVersion
}

// eventuallyGate waits for a reason of the gate and returns how long after since it was told of.
func (f *fixture) eventuallyGate(c *followed, since time.Time, reason string) time.Duration {
	f.t.Helper()
	var took time.Duration
	f.Eventually(func(g Gomega) {
		all := c.all()
		i := slices.IndexFunc(all, func(n news) bool { return n.at.After(since) && n.ReadmissionGate.Reason == reason })
		g.Expect(i).To(BeNumerically(">=", 0), "not told of %s; the gate is %v", reason, c.gate())
		took = all[i].at.Sub(since)
	}).Should(Succeed())
	return took
}
