// Package dispatchjob sends jobs for real: a hub, and two targets that run Kueue, with every program of
// dispatch as a process under its own ServiceAccount.
package dispatchjob

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/faultproxy"
	"github.com/dispatch-dev/dispatch/test/install"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

// team is the namespace, on the hub and the targets, that may send jobs; outsiders may not.
const team, outsiders = "team-a", "outsiders"

// target is one target cluster and the admission controller there.
type target struct {
	*controlplane.Cluster
	kube      client.WithWatch
	admission *controlplane.Component
	// network is what the admission controller reaches the API server through.
	network *faultproxy.API
	// hub is what the hub's ServiceAccount needs to reach it.
	hub *rest.Config
}

var (
	hub        *controlplane.Cluster
	hubClient  client.WithWatch
	west, east *target
	manager    *controlplane.Component
	programs   string
)

func TestDispatchJob(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(45 * time.Second)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	RunSpecs(t, "dispatchjob")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	programs = GinkgoT().TempDir()
	Expect(install.Programs(ctx, programs)).To(Succeed())
	together(
		func() {
			hub = startCluster(ctx, controlplane.Options{})
			hubClient = newClient(hub)
			Expect(install.Hub(ctx, hub)).To(Succeed())
		},
		func() { west = newTarget(ctx, "west") },
		func() { east = newTarget(ctx, "east") },
	)
	Expect([]any{hubClient, west, east}).NotTo(ContainElement(BeNil()), "all clusters have started")
	for _, name := range []string{team, outsiders} {
		Expect(hubClient.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	}
	config, err := hub.ServiceAccountConfig(ctx, install.Namespace, install.ManagerAccount)
	Expect(err).NotTo(HaveOccurred())
	manager = startProgram(ctx, config, "dispatch-manager", "manager")
	for name, t := range map[string]*target{"west": west, "east": east} {
		setKubeConfig(ctx, name, t.hub)
		Expect(hubClient.Create(ctx, dispatchTarget(name))).To(Succeed())
	}
	for _, name := range []string{"west", "east"} {
		Eventually(gateOf).WithArguments(ctx, name).Should(Equal(v1alpha1.ProvedReason))
	}
}, NodeTimeout(15*time.Minute))

// together does things side by side, to share the time that each waits.
func together(all ...func()) {
	GinkgoHelper()
	var running sync.WaitGroup
	for _, f := range all {
		running.Go(func() {
			defer GinkgoRecover()
			f()
		})
	}
	running.Wait()
}

func startCluster(ctx context.Context, options controlplane.Options) *controlplane.Cluster {
	GinkgoHelper()
	cluster, err := controlplane.Start(ctx, options)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(cluster.Stop)
	return cluster
}

func newClient(cluster *controlplane.Cluster) client.WithWatch {
	GinkgoHelper()
	c, err := kueuejobs.NewClient(cluster.Config())
	Expect(err).NotTo(HaveOccurred())
	return c
}

// newTarget has two queues: gpu, which is gated, and open, which is not.
func newTarget(ctx context.Context, name string) *target {
	GinkgoHelper()
	t := &target{Cluster: startCluster(ctx, controlplane.Options{
		Kueue: true, ControllerManager: true, Scheduler: true, KWOK: true, AuditLevel: auditv1.LevelMetadata,
		Controllers: []string{
			"job-controller", "garbage-collector-controller", "namespace-controller", "serviceaccount-controller",
			"ttl-after-finished-controller",
		},
	})}
	t.kube = newClient(t.Cluster)
	Expect(install.Target(ctx, t.Cluster)).To(Succeed())
	Expect(install.TargetWrite(ctx, t.Cluster)).To(Succeed())
	for _, o := range []client.Object{
		kueuejobs.ResourceFlavor(),
		kueuejobs.AdmissionCheck(kueuejobs.Check, v1alpha1.DefaultControllerName),
		kueuejobs.ClusterQueue("gpu", 16, kueuejobs.Check), kueuejobs.ClusterQueue("open", 8),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: outsiders}},
		kueuejobs.LocalQueue(team, "gpu"), kueuejobs.LocalQueue(team, "open"), kueuejobs.LocalQueue(outsiders, "gpu"),
	} {
		Expect(t.kube.Create(ctx, o)).To(Succeed())
	}
	var err error
	t.hub, err = t.ServiceAccountConfig(ctx, install.Namespace, install.HubAccount)
	Expect(err).NotTo(HaveOccurred())
	config, err := t.ServiceAccountConfig(ctx, install.Namespace, install.AdmissionAccount)
	Expect(err).NotTo(HaveOccurred())
	t.network, err = faultproxy.NewAPI(config)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(t.network.Close)
	t.admission = startProgram(ctx, t.network.Config(config), "dispatch-admission", "admission-"+name)
	return t
}

func startProgram(ctx context.Context, config *rest.Config, program, name string) *controlplane.Component {
	GinkgoHelper()
	process, err := install.Process{Program: program, Name: name, Folder: programs, Config: config}.New()
	Expect(err).NotTo(HaveOccurred())
	Expect(process.Start(ctx)).To(Succeed())
	DeferCleanup(process.Stop)
	return process
}

var _ = AfterEach(func() {
	if CurrentSpecReport().Failed() {
		log, err := os.ReadFile(manager.LogPath())
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry(filepath.Base(manager.LogPath()), ReportEntryVisibilityFailureOrVerbose, string(log[max(0, len(log)-8000):]))
	}
})

// setKubeConfig makes the Secret lead to where config does.
func setKubeConfig(ctx context.Context, name string, config *rest.Config) {
	GinkgoHelper()
	data, err := controlplane.Kubeconfig(config)
	Expect(err).NotTo(HaveOccurred())
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: name}}
	secret.Data = map[string][]byte{"kubeconfig": data}
	err = hubClient.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		err = hubClient.Update(ctx, secret)
	}
	Expect(err).NotTo(HaveOccurred())
}

func dispatchTarget(name string) *v1alpha1.DispatchTarget {
	return &v1alpha1.DispatchTarget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.DispatchTargetSpec{
			KubeConfig: &v1alpha1.KubeConfigSource{SecretRef: &v1alpha1.KubeConfigSecretReference{Name: name}},
			Kueue:      &v1alpha1.KueueSpec{ClusterQueue: "gpu"},
			AllowedNamespaces: &v1alpha1.AllowedNamespaces{
				From:     v1alpha1.NamespacesFromSelector,
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: team}},
			},
		},
	}
}

func gateOf(ctx context.Context, name string) string {
	GinkgoHelper()
	var t v1alpha1.DispatchTarget
	Expect(hubClient.Get(ctx, client.ObjectKey{Name: name}, &t)).To(Succeed())
	return ptr.Deref(meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ReadmissionGateCondition), metav1.Condition{}).Reason
}

// template is a batch Job that runs for so long.
func template(runs time.Duration) string {
	return fmt.Sprintf(`{apiVersion: batch/v1, kind: Job, spec: {template: {
		metadata: {annotations: {%q: %q}},
		spec: {restartPolicy: Never, terminationGracePeriodSeconds: 0, containers: [{name: main, image: nothing, resources: {requests: {cpu: 1}}}]}}}}`,
		controlplane.CompletionDelayAnnotation, runs)
}

// apply makes a DispatchJob with kubectl, as a user would. Without a queue it is one for plain mode.
func apply(ctx context.Context, namespace, name, target, queue, template string) {
	GinkgoHelper()
	if queue != "" {
		queue = "localQueue: " + queue + ","
	}
	Expect(hub.ApplyYAML(ctx, fmt.Appendf(nil,
		`{apiVersion: dispatch.dev/v1alpha1, kind: DispatchJob, metadata: {namespace: %s, name: %s}, spec: {targetRef: {name: %s}, %s template: %s}}`,
		namespace, name, target, queue, template))).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		job := &v1alpha1.DispatchJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		Expect(client.IgnoreNotFound(hubClient.Delete(ctx, job))).To(Succeed())
	})
}

func get(ctx context.Context, namespace, name string) *v1alpha1.DispatchJob {
	GinkgoHelper()
	var job v1alpha1.DispatchJob
	Expect(hubClient.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &job)).To(Succeed())
	return &job
}

func phase(ctx context.Context, name string) v1alpha1.JobPhase {
	GinkgoHelper()
	return get(ctx, team, name).Status.Phase
}

// condition is the zero value where it is absent.
func condition(ctx context.Context, namespace, name, conditionType string) metav1.Condition {
	GinkgoHelper()
	return ptr.Deref(meta.FindStatusCondition(get(ctx, namespace, name).Status.Conditions, conditionType), metav1.Condition{})
}

// job is the Job on the target, or nil.
func (t *target) job(ctx context.Context, namespace, name string) *batchv1.Job {
	GinkgoHelper()
	var job batchv1.Job
	err := t.kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &job)
	Expect(client.IgnoreNotFound(err)).To(Succeed())
	if err != nil {
		return nil
	}
	return &job
}

// patch merges content into a DispatchJob.
func patch(ctx context.Context, name, content string) {
	GinkgoHelper()
	job := &v1alpha1.DispatchJob{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name}}
	Expect(hubClient.Patch(ctx, job, client.RawPatch(types.MergePatchType, []byte(content)))).To(Succeed())
}

func remove(ctx context.Context, name string) {
	GinkgoHelper()
	Expect(hubClient.Delete(ctx, &v1alpha1.DispatchJob{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name}})).To(Succeed())
}

func exists(ctx context.Context, name string) bool {
	GinkgoHelper()
	err := hubClient.Get(ctx, client.ObjectKey{Namespace: team, Name: name}, &v1alpha1.DispatchJob{})
	Expect(client.IgnoreNotFound(err)).To(Succeed())
	return err == nil
}
