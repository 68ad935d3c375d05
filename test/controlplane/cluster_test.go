package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// patience is for a loaded machine.
const patience = 30 * time.Second

func clientset(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return client
}

func TestServiceAccountIsHeldToRBAC(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	cluster := StartForTest(t, Options{AuditLevel: auditv1.LevelMetadata})
	g.Expect(cluster.ApplyYAML(ctx, []byte(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: default}
`))).To(Succeed())
	account, err := cluster.ServiceAccountConfig(ctx, "default", "reader")
	g.Expect(err).NotTo(HaveOccurred())

	kubeconfig, err := Kubeconfig(account)
	g.Expect(err).NotTo(HaveOccurred())
	loaded, err := clientcmd.Load(kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(clientcmd.ConfirmUsable(*loaded, "")).To(Succeed())
	g.Expect(string(kubeconfig)).NotTo(ContainSubstring(cluster.dir), "a file is named")
	g.Expect(string(kubeconfig)).NotTo(ContainSubstring("insecure"))
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())

	list := func(config *rest.Config) error {
		_, err := clientset(t, config).CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
		return err
	}
	g.Expect(list(config)).To(Satisfy(apierrors.IsForbidden))
	g.Expect(cluster.AuditEvents()).To(ContainElement(SatisfyAll(
		HaveField("User.Username", "system:serviceaccount:default:reader"),
		HaveField("ResponseStatus.Code", int32(403)),
	)))

	_, err = cluster.Kubectl(ctx, "create", "role", "reader", "--verb=list", "--resource=configmaps")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cluster.Kubectl(ctx, "create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:reader")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(list, patience).WithArguments(config).Should(Succeed())

	config.BearerToken += "x"
	g.Expect(list(config)).To(Satisfy(apierrors.IsUnauthorized))
	config.CAData = nil
	g.Expect(list(config)).To(MatchError(ContainSubstring("certificate")))
}

func TestAPIServerComesBack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	cluster := StartForTest(t, Options{})
	configMaps := clientset(t, cluster.Config()).CoreV1().ConfigMaps("default")
	_, err := configMaps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kept"},
	}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	get := func(ctx context.Context) error {
		_, err := configMaps.Get(ctx, "kept", metav1.GetOptions{})
		return err
	}

	pid := cluster.APIServer.PID()
	cluster.APIServer.Kill()
	g.Expect(get(ctx)).To(MatchError(syscall.ECONNREFUSED))
	g.Expect(cluster.APIServer.Start(ctx)).To(Succeed())
	g.Expect(get(ctx)).To(Succeed())
	g.Expect(cluster.APIServer.PID()).NotTo(Equal(pid))

	cluster.APIServer.Freeze()
	// A signal takes effect a moment after it was sent.
	g.Eventually(func() error {
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		return get(short)
	}).Should(MatchError(context.DeadlineExceeded))
	cluster.APIServer.Thaw()
	g.Expect(get(ctx)).To(Succeed())

	cluster.APIServer.Freeze()
	cluster.APIServer.Stop()
	g.Expect(cluster.APIServer.Running()).To(BeFalse())
	g.Expect(cluster.APIServer.Start(ctx)).To(Succeed())
	g.Expect(get(ctx)).To(Succeed())
}

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cluster, err := Start(t.Context(), Options{ControllerManager: true, Scheduler: true})
	g.Expect(err).NotTo(HaveOccurred())
	var pids []int
	for _, component := range cluster.components {
		pids = append(pids, component.PID())
	}
	g.Expect(pids).To(HaveLen(4))
	g.Expect(pids).To(HaveEach(Satisfy(alive)))
	cluster.Stop()
	cluster.Stop()
	g.Expect(pids).NotTo(ContainElement(Satisfy(alive)))
	g.Expect(cluster.dir).NotTo(BeADirectory())
}

func TestFailedStartLeavesNothingButLogs(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	_, err := Start(t.Context(), Options{
		Args: map[string][]string{"kube-apiserver": {"--no-such-flag"}},
	})
	g.Expect(err).To(MatchError(ContainSubstring("unknown flag: --no-such-flag")))
	logs := regexp.MustCompile(`(?m)^logs: (.*)$`).FindStringSubmatch(err.Error())
	g.Expect(logs).To(HaveLen(2))
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(logs[1])) })
	g.Expect(filepath.Join(logs[1], "etcd.log")).To(BeAnExistingFile())
	g.Expect(filepath.Join(filepath.Dir(logs[1]), "etcd")).NotTo(BeADirectory())
	g.Expect(commandLines(t)).NotTo(ContainElement(ContainSubstring(filepath.Dir(logs[1]))))
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	_, err := Start(t.Context(), Options{StartTimeout: time.Millisecond})
	g.Expect(err).To(MatchError(context.DeadlineExceeded))
	g.Expect(os.RemoveAll(filepath.Dir(err.Error()[strings.LastIndex(err.Error(), " ")+1:]))).To(Succeed())
}

// failingTest is a test that fails, as seen by StartForTest.
type failingTest struct {
	*testing.T
	cleanups []func()
	logged   strings.Builder
}

func (f *failingTest) Cleanup(cleanup func())          { f.cleanups = append(f.cleanups, cleanup) }
func (f *failingTest) Failed() bool                    { return true }
func (f *failingTest) Logf(format string, args ...any) { fmt.Fprintf(&f.logged, format, args...) }

func TestFailedTestShowsAndKeepsLogs(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	failing := &failingTest{T: t}
	cluster := StartForTest(failing, Options{})
	g.Expect(failing.cleanups).To(HaveLen(1))
	failing.cleanups[0]()
	t.Cleanup(func() { _ = os.RemoveAll(cluster.dir) })
	g.Expect(cluster.APIServer.Running()).To(BeFalse())
	for _, component := range []*Component{cluster.Etcd, cluster.APIServer} {
		g.Expect(component.LogPath()).To(BeAnExistingFile())
		g.Expect(failing.logged.String()).To(ContainSubstring("the end of " + component.LogPath()))
	}
	g.Expect(cluster.KubeconfigPath()).NotTo(BeAnExistingFile())
}

// victimVariable makes this test binary a process that starts a cluster, prints
// the process ids and waits to be killed.
const victimVariable = "DISPATCH_CONTROLPLANE_TEST_VICTIM"

func TestClusterEndsWithItsProcess(t *testing.T) {
	if os.Getenv(victimVariable) != "" {
		cluster, err := Start(t.Context(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("started %s %d %d\n", cluster.dir, cluster.Etcd.PID(), cluster.APIServer.PID())
		select {}
	}
	t.Parallel()
	g := NewWithT(t)
	victim := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	victim.Env = append(os.Environ(), victimVariable+"=1")
	victim.Stderr = os.Stderr
	output, err := victim.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(victim.Start()).To(Succeed())
	var dir string
	pids := make([]int, 2)
	_, err = fmt.Fscanf(output, "started %s %d %d\n", &dir, &pids[0], &pids[1])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(pids).To(HaveEach(Satisfy(alive)))

	g.Expect(victim.Process.Kill()).To(Succeed())
	g.Expect(victim.Wait()).NotTo(Succeed())
	g.Eventually(func() bool { return alive(pids[0]) || alive(pids[1]) }, patience).Should(BeFalse())
	g.Expect(os.RemoveAll(dir)).To(Succeed())
}

func TestTwoClustersSideBySide(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	hub := StartForTest(t, Options{})
	target := StartForTest(t, Options{})
	uid := func(cluster *Cluster) string {
		namespace, err := clientset(t, cluster.Config()).CoreV1().Namespaces().
			Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		return string(namespace.UID)
	}
	g.Expect(uid(hub)).NotTo(Equal(uid(target)))

	foreign := hub.Config()
	foreign.Host = target.Config().Host
	_, err := clientset(t, foreign).CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	g.Expect(err).To(MatchError(ContainSubstring("certificate signed by unknown authority")))
}

func TestAdmissionPluginsAndManifests(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	cluster := StartForTest(t, Options{AdmissionPlugins: []string{"OwnerReferencesPermissionEnforcement"}})

	folder := t.TempDir()
	write := func(name, text string) {
		g.Expect(os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600)).To(Succeed())
	}
	write("account.yaml", "{apiVersion: v1, kind: ServiceAccount, metadata: {name: owner}}")
	write("kustomization.yaml", "{namespace: default, resources: [account.yaml]}")
	g.Expect(cluster.Apply(ctx, folder)).To(Succeed())
	g.Expect(cluster.ApplyYAML(ctx, []byte(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: owner}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: owner}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: owner}
subjects:
- {kind: ServiceAccount, name: owner, namespace: default}
`))).To(Succeed())
	account, err := cluster.ServiceAccountConfig(ctx, "default", "owner")
	g.Expect(err).NotTo(HaveOccurred())
	create := func(name string, references ...metav1.OwnerReference) error {
		_, err := clientset(t, account).CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: references},
		}, metav1.CreateOptions{})
		return err
	}
	g.Eventually(create, patience).WithArguments("free").Should(Succeed())
	blocks := true
	g.Expect(create("owned", metav1.OwnerReference{
		APIVersion: "v1", Kind: "Namespace", Name: "default", UID: "1", BlockOwnerDeletion: &blocks,
	})).To(MatchError(ContainSubstring("cannot set blockOwnerDeletion")))

	g.Expect(cluster.ApplyYAML(ctx, []byte("{apiVersion: v1, kind: Nothing, metadata: {name: x}}"))).
		To(MatchError(ContainSubstring(`no matches for kind "Nothing"`)))
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// commandLines are those of all processes.
func commandLines(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Skip("there is no /proc")
	}
	var lines []string
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		// A process may just have ended.
		if line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline")); err == nil {
			lines = append(lines, string(line))
		}
	}
	return lines
}
