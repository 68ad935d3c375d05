package prometheus

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/controlplane/ports"
	"github.com/dispatch-dev/dispatch/test/install"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

const queue = "gpu"

// test has one cluster that is hub and target, and both programs.
type test struct {
	*WithT
	t       *testing.T
	folder  string
	cluster *controlplane.Cluster
	kube    client.Client
}

// start starts a program under its ServiceAccount and returns where it serves metrics.
func (t *test) start(program, account string) string {
	config, err := t.cluster.ServiceAccountConfig(t.t.Context(), install.Namespace, account)
	t.Expect(err).NotTo(HaveOccurred())
	port, release, err := ports.Reserve()
	t.Expect(err).NotTo(HaveOccurred())
	t.t.Cleanup(release)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	process, err := install.Process{
		Program: program, Folder: t.folder, Config: config, Args: []string{"-metrics-bind-address=" + address},
	}.New()
	t.Expect(err).NotTo(HaveOccurred())
	t.Expect(process.Start(t.t.Context())).To(Succeed())
	t.t.Cleanup(process.Stop)
	return "http://" + address + "/metrics"
}

func (t *test) create(objects ...client.Object) {
	for _, object := range objects {
		t.Expect(t.kube.Create(t.t.Context(), object)).To(Succeed())
	}
}

// setStopPolicy drains the ClusterQueue, which evicts what runs, or lets it go on.
func (t *test) setStopPolicy(policy kueuev1beta2.StopPolicy) {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"stopPolicy":%q}}`, policy))
	object := &kueuev1beta2.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: queue}}
	t.Expect(t.kube.Patch(t.t.Context(), object, patch)).To(Succeed())
}

// series is one line of what a process serves, by the name of the metric and its labels.
type series struct {
	name   string
	labels map[string]string
}

var (
	sampleLine = regexp.MustCompile(`(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? \S+$`)
	label      = regexp.MustCompile(`([a-zA-Z_]\w*)="([^"]*)"`)
	// selector is a metric with labels or without; the rules have no other names with these prefixes.
	selector = regexp.MustCompile(`\b((?:dispatch|leader)_\w+)(?:\{([^}]*)\})?`)
	grouping = regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`)
	// attached are labels that Prometheus itself gives each series of a pod, besides le, which is a histogram's own.
	attached = map[string]bool{"namespace": true, "pod": true}
)

func parseLabels(text string) map[string]string {
	labels := map[string]string{}
	for _, match := range label.FindAllStringSubmatch(text, -1) {
		labels[match[1]] = match[2]
	}
	return labels
}

func scrape(g Gomega, url string) []series {
	response, err := http.Get(url)
	g.Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	g.Expect(err).NotTo(HaveOccurred())
	var all []series
	for _, match := range sampleLine.FindAllStringSubmatch(string(body), -1) {
		all = append(all, series{name: match[1], labels: parseLabels(match[2])})
	}
	return all
}

func (s series) matches(name string, labels map[string]string) bool {
	if s.name != name {
		return false
	}
	for key, value := range labels {
		if s.labels[key] != value {
			return false
		}
	}
	return true
}

func TestAlertsNameMetricsThatARunServes(t *testing.T) {
	ctx := t.Context()
	w := &test{WithT: NewWithT(t), t: t, folder: t.TempDir()}
	w.SetDefaultEventuallyTimeout(time.Minute)
	w.SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	w.Expect(install.Programs(ctx, w.folder)).To(Succeed())
	w.cluster = controlplane.StartForTest(t, controlplane.Options{Kueue: true})
	var err error
	w.kube, err = kueuejobs.NewClient(w.cluster.Config())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(install.Hub(ctx, w.cluster)).To(Succeed())
	w.Expect(install.Target(ctx, w.cluster)).To(Succeed())
	urls := map[string]string{
		"admission": w.start("dispatch-admission", install.AdmissionAccount),
		"manager":   w.start("dispatch-manager", install.ManagerAccount),
	}

	hub, err := w.cluster.ServiceAccountConfig(ctx, install.Namespace, install.HubAccount)
	w.Expect(err).NotTo(HaveOccurred())
	kubeConfig, err := controlplane.Kubeconfig(hub)
	w.Expect(err).NotTo(HaveOccurred())
	job := kueuejobs.Job("default", "train", queue, kueuejobs.UntilEvicted)
	w.create(
		kueuejobs.ResourceFlavor(),
		kueuejobs.AdmissionCheck(kueuejobs.Check, v1alpha1.DefaultControllerName),
		kueuejobs.ClusterQueue(queue, 1, kueuejobs.Check),
		kueuejobs.LocalQueue("default", queue),
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "gpu-west"},
			Data:       map[string][]byte{v1alpha1.DefaultKubeConfigKey: kubeConfig},
		},
		&v1alpha1.DispatchTarget{
			ObjectMeta: metav1.ObjectMeta{Name: "gpu-west"},
			Spec: v1alpha1.DispatchTargetSpec{
				KubeConfig: &v1alpha1.KubeConfigSource{SecretRef: &v1alpha1.KubeConfigSecretReference{Name: "gpu-west"}},
				Kueue:      &v1alpha1.KueueSpec{ClusterQueue: queue},
			},
		},
		job,
	)
	// A job that starts, is evicted and waits for a grant.
	w.eventuallySuspended(job, false)
	w.setStopPolicy(kueuev1beta2.HoldAndDrain)
	w.eventuallySuspended(job, true)
	w.setStopPolicy(kueuev1beta2.None)
	w.Eventually(func(g Gomega) {
		var grants v1alpha1.AdmissionGrantList
		g.Expect(w.kube.List(ctx, &grants, client.InNamespace(job.Namespace))).To(Succeed())
		g.Expect(grants.Items).To(HaveLen(1))
		g.Expect(meta.IsStatusConditionTrue(grants.Items[0].Status.Conditions, v1alpha1.WaitingCondition)).To(BeTrue())
	}).Should(Succeed())
	w.Eventually(func(g Gomega) {
		var target v1alpha1.DispatchTarget
		g.Expect(w.kube.Get(ctx, client.ObjectKey{Name: "gpu-west"}, &target)).To(Succeed())
		g.Expect(target.Status.Mode).To(Equal(v1alpha1.ModeReadWrite))
	}).Should(Succeed())

	for _, component := range components {
		served := scrape(w, urls[component])
		rule, err := rules(component)
		w.Expect(err).NotTo(HaveOccurred())
		for _, group := range rule.Spec.Groups {
			for _, alert := range group.Rules {
				w.expectServed(served, alert.Alert, alert.Expr.StrVal)
			}
		}
	}
}

func (t *test) eventuallySuspended(job *batchv1.Job, want bool) {
	t.t.Helper()
	t.Eventually(func(g Gomega) {
		var current batchv1.Job
		g.Expect(t.kube.Get(context.Background(), client.ObjectKeyFromObject(job), &current)).To(Succeed())
		g.Expect(ptr.Deref(current.Spec.Suspend, false)).To(Equal(want))
	}).Should(Succeed(), "suspended: %t", want)
}

// expectServed wants each metric of the expression, with the labels that it asks for and groups by.
func (t *test) expectServed(served []series, alert, expr string) {
	t.t.Helper()
	selectors := selector.FindAllStringSubmatch(expr, -1)
	t.Expect(selectors).NotTo(BeEmpty(), alert)
	for _, match := range selectors {
		var found *series
		for i := range served {
			if served[i].matches(match[1], parseLabels(match[2])) {
				found = &served[i]
			}
		}
		t.Expect(found).NotTo(BeNil(), "%s: nobody serves %s", alert, match[0])
		for _, group := range grouping.FindAllStringSubmatch(expr, -1) {
			for name := range strings.SplitSeq(group[1], ", ") {
				if !attached[name] {
					t.Expect(found.labels).To(HaveKey(name), "%s: %s has no such label", alert, match[0])
				}
			}
		}
	}
}
