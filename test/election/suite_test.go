// Package election tests how the two programs are elected: as processes of
// their own, with their ServiceAccounts' tokens, on a real cluster. Nothing here
// is faster than in production: the Lease lasts 15 s. The tests therefore run
// side by side, each with Leases in a namespace of its own.
package election

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
)

const (
	manager   = "dispatch-manager"
	admission = "dispatch-admission"
)

// programs is the folder with the built programs.
var programs string

var scheme = newScheme()

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(kueuev1beta2.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}

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
	if programs, err = os.MkdirTemp("", "dispatch-election-"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(programs)) }()
	if err := install.Programs(context.Background(), programs); err != nil {
		return 0, err
	}
	code = m.Run()
	if cluster := sharedCluster.started; cluster != nil {
		if code != 0 {
			cluster.KeepLogs()
			fmt.Fprintln(os.Stderr, "logs of the shared cluster are kept in", cluster.LogDir())
		}
		cluster.Stop()
	}
	return code, nil
}

// sharedCluster is the one of all tests that need none of their own.
var sharedCluster struct {
	once    sync.Once
	started *controlplane.Cluster
	err     error
}

func shared(t testing.TB) *controlplane.Cluster {
	t.Helper()
	s := &sharedCluster
	s.once.Do(func() {
		ctx := context.Background()
		if s.started, s.err = controlplane.Start(ctx, controlplane.Options{Kueue: true, AuditLevel: auditv1.LevelMetadata}); s.err == nil {
			s.err = installAll(ctx, s.started)
		}
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.started
}

// installAll makes the cluster hub and target.
func installAll(ctx context.Context, cluster *controlplane.Cluster) error {
	return errors.Join(install.Hub(ctx, cluster), install.Target(ctx, cluster))
}

func newClient(t testing.TB, cluster *controlplane.Cluster) client.WithWatch {
	t.Helper()
	c, err := client.NewWithWatch(cluster.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// election is one Lease and all that stand for it.
type election struct {
	t         testing.TB
	cluster   *controlplane.Cluster
	client    client.WithWatch
	program   string
	namespace string // of the Lease
	// controllerName keeps dispatch-admissions that run side by side apart.
	controllerName string
	replicas       int
}

// newElection prepares a Lease in a namespace of its own. Others of the same
// program may run on the cluster.
func newElection(t testing.TB, cluster *controlplane.Cluster, program string) *election {
	t.Helper()
	ctx := t.Context()
	c := newClient(t, cluster)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "election-"}}
	if err := c.Create(ctx, namespace); err != nil {
		t.Fatal(err)
	}
	if err := copyLeaseRole(ctx, c, program, namespace.Name); err != nil {
		t.Fatal(err)
	}
	e := inNamespace(t, cluster, program, namespace.Name)
	e.controllerName = namespace.Name + ".dispatch.dev/admission"
	return e
}

func inNamespace(t testing.TB, cluster *controlplane.Cluster, program, namespace string) *election {
	return &election{
		t: t, cluster: cluster, client: newClient(t, cluster), program: program, namespace: namespace,
		controllerName: "dispatch.dev/admission",
	}
}

// copyLeaseRole grants in another namespace what config/rbac grants in
// dispatch-system.
func copyLeaseRole(ctx context.Context, c client.Client, program, namespace string) error {
	key := client.ObjectKey{Namespace: install.Namespace, Name: program + "-lease"}
	var role rbacv1.Role
	if err := c.Get(ctx, key, &role); err != nil {
		return err
	}
	var binding rbacv1.RoleBinding
	if err := c.Get(ctx, key, &binding); err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: key.Name}
	role.ObjectMeta, binding.ObjectMeta = meta, meta
	return errors.Join(c.Create(ctx, &role), c.Create(ctx, &binding))
}

// replica is one process.
type replica struct {
	*controlplane.Component
	// credential is how the audit log calls the token of this one process.
	credential string
	probes     string // http://host:port
	metrics    string
}

// start starts a process and does not wait. via, if given, changes the client
// config, to lead it through a proxy for instance.
func (e *election) start(via func(*rest.Config), args ...string) *replica {
	e.t.Helper()
	config, err := e.cluster.ServiceAccountConfig(e.t.Context(), install.Namespace, e.program)
	if err != nil {
		e.t.Fatal(err)
	}
	credential, err := credentialID(config.BearerToken)
	if err != nil {
		e.t.Fatal(err)
	}
	if via != nil {
		via(config)
	}
	addresses := freeAddresses(e.t, 2)
	probes, metrics := addresses[0], addresses[1]
	args = append([]string{
		"-lease-namespace=" + e.namespace,
		"-health-probe-bind-address=" + probes,
		"-metrics-bind-address=" + metrics,
	}, args...)
	if e.program == admission {
		args = append(args, "-controller-name="+e.controllerName)
	}
	e.replicas++
	process := install.Process{
		Program: e.program, Name: fmt.Sprintf("%s-%s-%d", e.program, e.namespace, e.replicas),
		Folder: programs, Config: config, Args: args,
	}
	component, err := process.New()
	if err != nil {
		e.t.Fatal(err)
	}
	if err := component.Start(e.t.Context()); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		component.Kill()
		text, err := os.ReadFile(component.LogPath())
		if err != nil {
			e.t.Error(err)
		}
		if strings.Contains(string(text), "forbidden") {
			e.t.Error("the program lacks a permission")
		}
		if e.t.Failed() {
			e.t.Logf("--- %s\n%s", component.LogPath(), text)
		}
	})
	return &replica{Component: component, credential: credential, probes: "http://" + probes, metrics: "http://" + metrics}
}

// startLeader starts a process and waits until it leads, and decides.
func (e *election) startLeader(via func(*rest.Config), args ...string) *replica {
	e.t.Helper()
	r := e.start(via, args...)
	NewWithT(e.t).Eventually(r.leads).WithTimeout(30*time.Second).WithPolling(100*time.Millisecond).Should(BeTrue(),
		"a first process should lead at once")
	NewWithT(e.t).Expect(r.live()).To(Succeed())
	return r
}

// startStandby starts a process and waits until it answers readiness.
func (e *election) startStandby(via func(*rest.Config), args ...string) *replica {
	e.t.Helper()
	r := e.start(via, args...)
	g := NewWithT(e.t)
	g.Eventually(r.ready).WithTimeout(30*time.Second).WithPolling(100*time.Millisecond).Should(Succeed(),
		"a warm standby should be ready")
	g.Expect(r.leads()).To(BeFalse(), "it should not lead")
	g.Expect(r.live()).To(Succeed())
	return r
}

// work makes something for the leader to do, and returns how to tell that it
// was done.
func (e *election) work(name string) (done func() (bool, error)) {
	e.t.Helper()
	ctx := e.t.Context()
	if e.program == manager {
		// A Secret that does not exist is a verdict at once, without a connection.
		target := &v1alpha1.DispatchTarget{
			ObjectMeta: metav1.ObjectMeta{Name: e.namespace + "-" + name},
			Spec: v1alpha1.DispatchTargetSpec{KubeConfig: &v1alpha1.KubeConfigSource{
				SecretRef: &v1alpha1.KubeConfigSecretReference{Name: "missing"},
			}},
		}
		if err := e.client.Create(ctx, target); err != nil {
			e.t.Fatal(err)
		}
		return func() (bool, error) {
			err := e.client.Get(ctx, client.ObjectKeyFromObject(target), target)
			return target.Status.ObservedGeneration == target.Generation, err
		}
	}
	check := &kueuev1beta2.AdmissionCheck{
		ObjectMeta: metav1.ObjectMeta{Name: e.namespace + "-" + name},
		Spec:       kueuev1beta2.AdmissionCheckSpec{ControllerName: e.controllerName},
	}
	if err := e.client.Create(ctx, check); err != nil {
		e.t.Fatal(err)
	}
	return func() (bool, error) {
		err := e.client.Get(ctx, client.ObjectKeyFromObject(check), check)
		return len(check.Status.Conditions) > 0, err
	}
}

// credentialID is the one that the audit log notes for requests with a token.
func credentialID(token string) (string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", fmt.Errorf("a token of %d parts", len(parts))
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", err
	}
	var claims struct {
		ID string `json:"jti"`
	}
	err = json.Unmarshal(payload, &claims)
	return "JTI=" + claims.ID, err
}

// freeAddresses are that many that nobody listens on now.
func freeAddresses(t testing.TB, n int) []string {
	t.Helper()
	addresses := make([]string, n)
	for i := range addresses {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close() // after the last, so that none comes twice
		addresses[i] = listener.Addr().String()
	}
	return addresses
}
