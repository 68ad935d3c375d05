// Package argocd runs a real Argo CD, its application controller and its repo server, over a git repository of
// DispatchTargets and DispatchJobs, on a cluster that is hub and target. It is no part of `make test`: see
// `make test-argocd`.
package argocd

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
	"github.com/dispatch-dev/dispatch/test/controlplane/ports"
	"github.com/dispatch-dev/dispatch/test/install"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

// argoNamespace is where Argo CD is installed.
const argoNamespace = "argocd"

// update writes the testdata of config/argocd from what the run meets.
var update = flag.Bool("update", false, "write the testdata in config/argocd from the objects of this run")

// application is the kind.
var application = schema.GroupVersionKind{Group: "argoproj.io", Version: "v1alpha1", Kind: "Application"}

// test is a cluster with dispatch, Argo CD and a git repository.
type test struct {
	*WithT
	t       *testing.T
	ctx     context.Context
	root    string // of the checkout
	folder  string // with programs, logs and the repository
	files   map[string]string
	cluster *controlplane.Cluster
	kube    client.Client

	manager, admission *controlplane.Component
}

func newTest(t *testing.T) *test {
	t.Helper()
	w := &test{WithT: NewWithT(t), t: t, ctx: t.Context(), folder: t.TempDir()}
	ctrllog.SetLogger(logr.Discard())
	w.SetDefaultEventuallyTimeout(time.Minute)
	w.SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	var err error
	w.root, err = install.Root()
	w.Expect(err).NotTo(HaveOccurred())
	w.files, err = binaries.Ensure(w.ctx, log.New(os.Stderr, "argocd: ", 0), binaries.ArgoCD, binaries.ArgoCDCRDs, binaries.ArgoCDConfig)
	w.Expect(err).NotTo(HaveOccurred())
	return w
}

// startCluster starts a cluster that is hub and target, with dispatch-admission but without dispatch-manager.
func (w *test) startCluster() {
	w.t.Helper()
	w.Expect(install.Programs(w.ctx, w.folder)).To(Succeed())
	w.cluster = controlplane.StartForTest(w.t, controlplane.Options{Kueue: true, ControllerManager: true, Scheduler: true, KWOK: true})
	var err error
	w.kube, err = kueuejobs.NewClient(w.cluster.Config())
	w.Expect(err).NotTo(HaveOccurred())
	for _, put := range []func(context.Context, *controlplane.Cluster) error{install.Hub, install.Target, install.TargetWrite} {
		w.Expect(put(w.ctx, w.cluster)).To(Succeed())
	}
	w.Expect(w.cluster.Apply(w.ctx, filepath.Join(w.root, "config", "samples", "target"))).To(Succeed())
	hub, err := w.cluster.ServiceAccountConfig(w.ctx, install.Namespace, install.HubAccount)
	w.Expect(err).NotTo(HaveOccurred())
	kubeConfig, err := controlplane.Kubeconfig(hub)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.kube.Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "gpu-west"},
		Data:       map[string][]byte{v1alpha1.DefaultKubeConfigKey: kubeConfig},
	})).To(Succeed())
	w.admission = w.program("dispatch-admission", install.AdmissionAccount)
	w.manager = w.program("dispatch-manager", install.ManagerAccount, "-leader-elect-release-on-cancel=true")
	w.start(w.admission)
}

func (w *test) program(name, account string, args ...string) *controlplane.Component {
	w.t.Helper()
	config, err := w.cluster.ServiceAccountConfig(w.ctx, install.Namespace, account)
	w.Expect(err).NotTo(HaveOccurred())
	process, err := install.Process{Program: name, Folder: w.folder, Config: config, Args: args}.New()
	w.Expect(err).NotTo(HaveOccurred())
	return process
}

// start starts a component until the end of the test.
func (w *test) start(c *controlplane.Component) {
	w.t.Helper()
	w.t.Cleanup(c.Stop)
	w.Expect(c.Start(w.ctx)).To(Succeed())
}

func (w *test) port() string {
	w.t.Helper()
	port, release, err := ports.Reserve()
	w.Expect(err).NotTo(HaveOccurred())
	w.t.Cleanup(release)
	return fmt.Sprint(port)
}

// startArgoCD installs Argo CD's own CRDs and configuration, and dispatch's patch of it as its comment says, and
// starts the two processes that sync.
func (w *test) startArgoCD() {
	w.t.Helper()
	w.Expect(w.kube.Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: argoNamespace}})).To(Succeed())
	w.Expect(w.cluster.Apply(w.ctx, w.files[binaries.ArgoCDCRDs])).To(Succeed())
	w.kubectl("apply", "--server-side", "--namespace="+argoNamespace, "--filename="+w.files[binaries.ArgoCDConfig])
	w.kubectl("wait", "--for=condition=Established", "crd/applications.argoproj.io", "crd/appprojects.argoproj.io")
	w.kubectl("patch", "configmap", "argocd-cm", "-n", "argocd", "--type=merge",
		"--patch-file="+filepath.Join(w.root, "config", "argocd", "argocd-cm-patch.yaml"))
	// What Argo CD's API server, which does not run here, would make at its first start.
	w.kubectl("patch", "secret", "argocd-secret", "-n", "argocd", "--patch", `{"stringData":{"server.secretkey":"test"}}`)
	w.Expect(w.cluster.ApplyYAML(w.ctx, []byte(`
apiVersion: argoproj.io/v1alpha1
kind: AppProject
metadata: {name: default, namespace: argocd}
spec:
  sourceRepos: ["*"]
  destinations: [{server: "*", namespace: "*"}]
  clusterResourceWhitelist: [{group: "*", kind: "*"}]
`))).To(Succeed())

	redis := miniredis.RunT(w.t)
	address := "127.0.0.1:" + w.port()
	_, repoPort, err := net.SplitHostPort(address)
	w.Expect(err).NotTo(HaveOccurred())
	w.start(w.argo("argocd-repo-server", func(ctx context.Context) error {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return connection.Close()
	}, "--redis="+redis.Addr(), "--disable-tls", "--address=127.0.0.1", "--port="+repoPort, "--metrics-address=127.0.0.1", "--metrics-port="+w.port()))
	w.start(w.argo("argocd-application-controller", nil,
		"--redis="+redis.Addr(), "--repo-server="+address, "--repo-server-plaintext", "--metrics-port="+w.port(),
		"--kubeconfig="+w.cluster.KubeconfigPath(), "--namespace="+argoNamespace,
		// So that each object's health can be read off the Application.
		"--persist-resource-health"))
}

// argo is one of Argo CD's processes. All of them are one program.
func (w *test) argo(name string, ready func(context.Context) error, args ...string) *controlplane.Component {
	args = append([]string{
		// The Application's destination is the cluster that Argo CD runs in.
		"ARGOCD_FAKE_IN_CLUSTER=true", "KUBECONFIG=" + w.cluster.KubeconfigPath(),
		"ARGOCD_GPG_ENABLED=false", "ARGOCD_ASK_PASS_SOCK=" + filepath.Join(w.folder, "ask-pass.sock"),
		"HOME=" + w.folder, "TMPDIR=" + w.folder,
		w.files[binaries.ArgoCD], name,
	}, args...)
	return controlplane.NewComponent(name, "/usr/bin/env", args, w.folder, ready)
}

func (w *test) kubectl(args ...string) string {
	w.t.Helper()
	out, err := w.cluster.Kubectl(w.ctx, args...)
	w.Expect(err).NotTo(HaveOccurred())
	return out
}

// repository is the folder of the git repository.
func (w *test) repository() string { return filepath.Join(w.folder, "platform") }

func (w *test) git(args ...string) {
	w.t.Helper()
	cmd := exec.CommandContext(w.ctx, "git", append([]string{"-C", w.repository(), "-c", "user.name=test", "-c", "user.email=test@example.com"}, args...)...)
	out, err := cmd.CombinedOutput()
	w.Expect(err).NotTo(HaveOccurred(), string(out))
}

// commit writes an object into the repository.
func (w *test) commit(object *unstructured.Unstructured) {
	w.t.Helper()
	data, err := yaml.Marshal(object)
	w.Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(w.repository(), "targets", object.GetName()+".yaml")
	w.Expect(os.WriteFile(path, data, 0o600)).To(Succeed())
	w.git("add", ".")
	w.git("commit", "--message=Change "+object.GetName())
}

// sample is an object of config/samples.
func (w *test) sample(path string) *unstructured.Unstructured {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.root, "config", "samples", path))
	w.Expect(err).NotTo(HaveOccurred())
	object := &unstructured.Unstructured{}
	w.Expect(yaml.Unmarshal(data, &object.Object)).To(Succeed())
	return object
}

func (w *test) set(object *unstructured.Unstructured, value any, path ...string) {
	w.t.Helper()
	w.Expect(unstructured.SetNestedField(object.Object, value, path...)).To(Succeed())
}

// app reads the Application.
func (w *test) app(g Gomega) *unstructured.Unstructured {
	app := &unstructured.Unstructured{}
	app.SetGroupVersionKind(application)
	g.Expect(w.kube.Get(w.ctx, client.ObjectKey{Namespace: argoNamespace, Name: "dispatch-targets"}, app)).To(Succeed())
	return app
}

func field[T any](g Gomega, object map[string]any, path ...string) T {
	value, _, err := unstructured.NestedFieldNoCopy(object, path...)
	g.Expect(err).NotTo(HaveOccurred())
	typed, _ := value.(T) // the zero value where it is absent
	return typed
}

// maps are the entries of a list of objects.
func maps(list []any) []map[string]any {
	var all []map[string]any
	for _, entry := range list {
		if object, ok := entry.(map[string]any); ok {
			all = append(all, object)
		}
	}
	return all
}

// resource is what the Application says of one object.
func (w *test) resource(g Gomega, name string) map[string]any {
	for _, resource := range maps(field[[]any](g, w.app(g).Object, "status", "resources")) {
		if resource["name"] == name {
			return resource
		}
	}
	return nil
}

// eventuallyHealth waits for an object's health.
func (w *test) eventuallyHealth(name, status string, message gomegatypes.GomegaMatcher) {
	w.t.Helper()
	begin := time.Now()
	w.Eventually(func(g Gomega) {
		resource := w.resource(g, name)
		g.Expect(field[string](g, resource, "health", "status")).To(Equal(status), "%v", resource)
		g.Expect(field[string](g, resource, "health", "message")).To(message)
	}).Should(Succeed(), "health of %s", name)
	w.t.Logf("%s: %s %q after %s", name, status, field[string](w, w.resource(w, name), "health", "message"), time.Since(begin).Round(100*time.Millisecond))
}

// refresh has the Application compared with what is in git now, as `argocd app get --hard-refresh` does.
func (w *test) refresh() {
	w.t.Helper()
	const annotation = "argocd.argoproj.io/refresh"
	w.kubectl("annotate", "application", "dispatch-targets", "-n", argoNamespace, annotation+"=hard")
	w.Eventually(func(g Gomega) {
		g.Expect(w.app(g).GetAnnotations()).NotTo(HaveKey(annotation))
	}).Should(Succeed(), "compared")
}

// sync syncs by hand, as `argocd app sync` does, and returns what Argo CD did with each object.
func (w *test) sync() map[string]string {
	w.t.Helper()
	begin := time.Now()
	options, err := yaml.Marshal(map[string]any{"operation": map[string]any{
		"initiatedBy": map[string]any{"username": "test"},
		"sync":        map[string]any{"syncOptions": field[[]any](w, w.app(w).Object, "spec", "syncPolicy", "syncOptions")},
	}})
	w.Expect(err).NotTo(HaveOccurred())
	w.kubectl("patch", "application", "dispatch-targets", "-n", argoNamespace, "--type=merge", "--patch", string(options))
	messages := map[string]string{}
	w.Eventually(func(g Gomega) {
		app := w.app(g).Object
		g.Expect(app).NotTo(HaveKey("operation"))
		g.Expect(field[string](g, app, "status", "operationState", "operation", "initiatedBy", "username")).To(Equal("test"))
		g.Expect(field[string](g, app, "status", "operationState", "phase")).To(Equal("Succeeded"), "%v", app["status"])
		started, err := time.Parse(time.RFC3339, field[string](g, app, "status", "operationState", "startedAt"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(started).NotTo(BeTemporally("<", begin.Truncate(time.Second)))
		clear(messages)
		for _, resource := range maps(field[[]any](g, app, "status", "operationState", "syncResult", "resources")) {
			messages[field[string](g, resource, "name")] = field[string](g, resource, "message")
		}
	}).Should(Succeed(), "synced by hand")
	return messages
}

// expectSynced wants no difference between git and the cluster.
func (w *test) expectSynced(g Gomega) {
	status := field[map[string]any](g, w.app(g).Object, "status")
	g.Expect(field[string](g, status, "sync", "status")).To(Equal("Synced"), "%v", status)
	resources := maps(field[[]any](g, status, "resources"))
	g.Expect(resources).NotTo(BeEmpty())
	for _, resource := range resources {
		g.Expect(resource).To(HaveKeyWithValue("status", "Synced"))
	}
}

// eventuallyDeployed waits until what is committed is in the cluster.
func (w *test) eventuallyDeployed() {
	w.t.Helper()
	head, err := exec.CommandContext(w.ctx, "git", "-C", w.repository(), "rev-parse", "HEAD").Output()
	w.Expect(err).NotTo(HaveOccurred())
	w.refresh()
	w.Eventually(func(g Gomega) {
		status := field[map[string]any](g, w.app(g).Object, "status")
		g.Expect(field[string](g, status, "operationState", "syncResult", "revision")+"\n").To(Equal(string(head)), "%v", status)
		g.Expect(field[string](g, status, "operationState", "phase")).To(Equal("Succeeded"), "%v", status)
		w.expectSynced(g)
	}).Should(Succeed(), "deployed")
}

// capture keeps an object as a case of the health checks' tests, if that was asked for.
func (w *test) capture(kind, name, file string) {
	w.t.Helper()
	if !*update {
		return
	}
	namespace := "default"
	text := w.kubectl("get", kind, name, "-n", namespace, "-o", "yaml")
	folder := filepath.Join(w.root, customizations, kind, "testdata")
	w.Expect(os.MkdirAll(folder, 0o755)).To(Succeed())
	w.Expect(os.WriteFile(filepath.Join(folder, file+".yaml"), []byte(text), 0o600)).To(Succeed())
}

// setStopPolicy drains the ClusterQueue, which evicts what runs, or lets it go on.
func (w *test) setStopPolicy(policy string) {
	w.t.Helper()
	w.kubectl("patch", "clusterqueue", "gpu", "--type=merge", "--patch", fmt.Sprintf(`{"spec":{"stopPolicy":%q}}`, policy))
}

// admissions is spec.admissions of a DispatchJob in the cluster.
func (w *test) admissions(name string) int32 {
	w.t.Helper()
	var job v1alpha1.DispatchJob
	w.Expect(w.kube.Get(w.ctx, client.ObjectKey{Namespace: "default", Name: name}, &job)).To(Succeed())
	return job.Spec.Admissions
}
