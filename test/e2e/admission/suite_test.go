// Package admission tries readmissions on a real cluster: Kueue evicts and readmits for real, and
// dispatch-admission runs as a process under its own ServiceAccount.
package admission

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/controlplane/ports"
	"github.com/dispatch-dev/dispatch/test/install"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

const (
	// podsReadyTimeout is short, so that a job whose pods are never ready is evicted soon.
	podsReadyTimeout = 5 * time.Second
	// heldFor is how long a held job is looked at.
	heldFor = 3 * time.Second
)

var (
	cluster *controlplane.Cluster
	// kube is an administrator's client.
	kube client.WithWatch
	// starts of all Jobs.
	starts *kueuejobs.Starts
	// admission is dispatch-admission, and metricsAddress where it serves its metrics.
	admission      *controlplane.Component
	metricsAddress string
)

func TestAdmission(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(30 * time.Second)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	SetDefaultConsistentlyDuration(heldFor)
	SetDefaultConsistentlyPollingInterval(100 * time.Millisecond)
	RunSpecs(t, "admission")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	folder := GinkgoT().TempDir()
	Expect(install.Programs(ctx, folder)).To(Succeed())
	var err error
	cluster, err = controlplane.Start(ctx, controlplane.Options{
		Kueue: true, ControllerManager: true, Scheduler: true, KWOK: true,
		Controllers: []string{
			"job-controller", "statefulset-controller", "garbage-collector-controller", "namespace-controller", "serviceaccount-controller",
		},
		AdmissionPlugins: []string{"OwnerReferencesPermissionEnforcement"},
		ConfigureKueue: func(config *kueueconfig.Configuration) {
			config.FeatureGates["ElasticJobsViaWorkloadSlices"] = true
			config.Integrations.Frameworks = append(config.Integrations.Frameworks,
				"pod", "statefulset", "leaderworkerset.x-k8s.io/leaderworkerset")
			config.WaitForPodsReady = &kueueconfig.WaitForPodsReady{
				Timeout: metav1.Duration{Duration: podsReadyTimeout},
				RequeuingStrategy: &kueueconfig.RequeuingStrategy{
					BackoffBaseSeconds: ptr.To[int32](1), BackoffMaxSeconds: ptr.To[int32](1),
				},
			}
		},
	})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(cluster.Stop)
	kube, err = kueuejobs.NewClient(cluster.Config())
	Expect(err).NotTo(HaveOccurred())
	Expect(install.Target(ctx, cluster)).To(Succeed())
	// Kueue sets up the kinds that are there when it starts; one that comes later it serves at some time.
	installLeaderWorkerSets(ctx)
	cluster.Kueue.Stop()
	Expect(cluster.Kueue.Start(ctx)).To(Succeed())

	// The suite's context ends with this node.
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	DeferCleanup(stop)
	starts, err = kueuejobs.WatchStarts(watching, cluster.Config())
	Expect(err).NotTo(HaveOccurred())

	Expect(kube.Create(ctx, kueuejobs.ResourceFlavor())).To(Succeed())
	Expect(kube.Create(ctx, kueuejobs.AdmissionCheck(kueuejobs.Check, dispatchv1alpha1.DefaultControllerName))).To(Succeed())
	other := kueuejobs.AdmissionCheck(kueuejobs.OtherCheck, "example.com/other")
	Expect(kube.Create(ctx, other)).To(Succeed())
	setActive(ctx, other)
	for name, value := range map[string]int32{"low": 1, "high": 100} {
		Expect(kube.Create(ctx, &kueuev1beta2.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value})).To(Succeed())
	}

	config, err := cluster.ServiceAccountConfig(ctx, install.Namespace, install.AdmissionAccount)
	Expect(err).NotTo(HaveOccurred())
	port, release, err := ports.Reserve()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(release)
	metricsAddress = fmt.Sprintf("127.0.0.1:%d", port)
	admission, err = install.Process{
		Program: "dispatch-admission", Folder: folder, Config: config,
		Args: []string{"-metrics-bind-address=" + metricsAddress},
	}.New()
	Expect(err).NotTo(HaveOccurred())
	Expect(admission.Start(ctx)).To(Succeed())
	DeferCleanup(admission.Stop)
}, NodeTimeout(15*time.Minute))

var _ = AfterEach(func() {
	if CurrentSpecReport().Failed() {
		log, err := os.ReadFile(admission.LogPath())
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry(filepath.Base(admission.LogPath()), ReportEntryVisibilityFailureOrVerbose, string(log))
	}
})

// site is a namespace with a queue of its own, which leads to a ClusterQueue of the same name.
type site struct{ name string }

var sites atomic.Int32

// newSite makes a site whose ClusterQueue has one CPU and lists the checks.
func newSite(ctx context.Context, checks ...string) site {
	GinkgoHelper()
	s := site{name: fmt.Sprintf("site-%d", sites.Add(1))}
	Expect(kube.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}})).To(Succeed())
	Expect(kube.Create(ctx, kueuejobs.ClusterQueue(s.name, 1, checks...))).To(Succeed())
	Expect(kube.Create(ctx, kueuejobs.LocalQueue(s.name, s.name))).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Expect(kube.DeleteAllOf(ctx, &batchv1.Job{}, client.InNamespace(s.name), client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		if CurrentSpecReport().Failed() {
			return
		}
		Eventually(func(g Gomega) {
			grants := &dispatchv1alpha1.AdmissionGrantList{}
			g.Expect(kube.List(ctx, grants, client.InNamespace(s.name))).To(Succeed())
			g.Expect(grants.Items).To(BeEmpty(), "grants outlive their jobs")
		}).WithTimeout(time.Minute).Should(Succeed())
	})
	return s
}

// setCPUs gives the site's ClusterQueue another quota.
func (s site) setCPUs(ctx context.Context, cpus int64) {
	GinkgoHelper()
	s.editClusterQueue(ctx, func(queue *kueuev1beta2.ClusterQueue) {
		queue.Spec.ResourceGroups[0].Flavors[0].Resources[0].NominalQuota = *resource.NewQuantity(cpus, resource.DecimalSI)
	})
}

// setChecks makes the site's ClusterQueue list the checks and no others.
func (s site) setChecks(ctx context.Context, checks ...string) {
	GinkgoHelper()
	s.editClusterQueue(ctx, func(queue *kueuev1beta2.ClusterQueue) {
		queue.Spec.AdmissionChecksStrategy = kueuejobs.Checks(checks...)
	})
}

// stop holds or drains the site's ClusterQueue, or releases it.
func (s site) stop(ctx context.Context, policy kueuev1beta2.StopPolicy) {
	GinkgoHelper()
	s.editClusterQueue(ctx, func(queue *kueuev1beta2.ClusterQueue) { queue.Spec.StopPolicy = ptr.To(policy) })
}

// stopLocal does so with its LocalQueue.
func (s site) stopLocal(ctx context.Context, policy kueuev1beta2.StopPolicy) {
	GinkgoHelper()
	queue := &kueuev1beta2.LocalQueue{}
	Expect(kube.Get(ctx, client.ObjectKey{Namespace: s.name, Name: s.name}, queue)).To(Succeed())
	before := queue.DeepCopy()
	queue.Spec.StopPolicy = ptr.To(policy)
	Expect(kube.Patch(ctx, queue, client.MergeFrom(before))).To(Succeed())
}

func (s site) editClusterQueue(ctx context.Context, edit func(*kueuev1beta2.ClusterQueue)) {
	GinkgoHelper()
	queue := &kueuev1beta2.ClusterQueue{}
	Expect(kube.Get(ctx, client.ObjectKey{Name: s.name}, queue)).To(Succeed())
	before := queue.DeepCopy()
	edit(queue)
	Expect(kube.Patch(ctx, queue, client.MergeFrom(before))).To(Succeed())
}

// submit creates a Job at the site.
func (s site) submit(ctx context.Context, name string, runs time.Duration, change ...func(*batchv1.Job)) *batchv1.Job {
	GinkgoHelper()
	job := kueuejobs.Job(s.name, name, s.name, runs)
	for _, c := range change {
		c(job)
	}
	Expect(kube.Create(ctx, job)).To(Succeed())
	return job
}

func priority(class string) func(*batchv1.Job) {
	return func(job *batchv1.Job) { job.Labels[kueuejobs.PriorityLabel] = class }
}

// setActive does for a check of the tests' own what its controller would do.
func setActive(ctx context.Context, check *kueuev1beta2.AdmissionCheck) {
	GinkgoHelper()
	before := check.DeepCopy()
	meta.SetStatusCondition(&check.Status.Conditions, metav1.Condition{
		Type: kueuev1beta2.AdmissionCheckActive, Status: metav1.ConditionTrue, Reason: "Active", Message: "for tests",
	})
	Expect(kube.Status().Patch(ctx, check, client.MergeFrom(before))).To(Succeed())
}

// workload is the Job's Workload, or nil.
func workload(ctx context.Context, job *batchv1.Job) *kueuev1beta2.Workload {
	GinkgoHelper()
	list := &kueuev1beta2.WorkloadList{}
	Expect(kube.List(ctx, list, client.InNamespace(job.Namespace), client.MatchingLabels{"kueue.x-k8s.io/job-uid": string(job.UID)})).To(Succeed())
	if len(list.Items) == 0 {
		return nil
	}
	return &list.Items[0]
}

// grant is the Job's AdmissionGrant, or nil.
func grant(ctx context.Context, job *batchv1.Job) *dispatchv1alpha1.AdmissionGrant {
	GinkgoHelper()
	list := &dispatchv1alpha1.AdmissionGrantList{}
	Expect(kube.List(ctx, list, client.InNamespace(job.Namespace))).To(Succeed())
	for i := range list.Items {
		if list.Items[i].Spec.JobRef.UID == job.UID {
			return &list.Items[i]
		}
	}
	return nil
}

func used(ctx context.Context, job *batchv1.Job) int {
	GinkgoHelper()
	return usedOf(grant(ctx, job))
}

func usedOf(grant *dispatchv1alpha1.AdmissionGrant) int {
	if grant == nil {
		return 0
	}
	return int(ptr.Deref(grant.Status.Admissions, 0))
}

// workloadNamed is the Workload of the name, or nil.
func workloadNamed(ctx context.Context, namespace, name string) *kueuev1beta2.Workload {
	GinkgoHelper()
	wl := &kueuev1beta2.Workload{}
	if err := kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, wl); apierrors.IsNotFound(err) {
		return nil
	} else {
		Expect(err).NotTo(HaveOccurred())
	}
	return wl
}

// grantNamed is the AdmissionGrant of the name, or nil.
func grantNamed(ctx context.Context, namespace, name string) *dispatchv1alpha1.AdmissionGrant {
	GinkgoHelper()
	grant := &dispatchv1alpha1.AdmissionGrant{}
	if err := kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, grant); apierrors.IsNotFound(err) {
		return nil
	} else {
		Expect(err).NotTo(HaveOccurred())
	}
	return grant
}

// hasCondition says whether the condition of the Workload, which may be nil, is True.
func hasCondition(wl *kueuev1beta2.Workload, kind string) bool {
	return wl != nil && meta.IsStatusConditionTrue(wl.Status.Conditions, kind)
}

func workloadCondition(ctx context.Context, job *batchv1.Job, kind string) bool {
	GinkgoHelper()
	return hasCondition(workload(ctx, job), kind)
}

// entry is the state and message of a check on the Job's Workload.
func entry(ctx context.Context, job *batchv1.Job, check string) kueuev1beta2.AdmissionCheckState {
	GinkgoHelper()
	return entryOf(workload(ctx, job), check)
}

func entryOf(wl *kueuev1beta2.Workload, check string) kueuev1beta2.AdmissionCheckState {
	if wl != nil {
		for _, entry := range wl.Status.AdmissionChecks {
			if string(entry.Name) == check {
				return entry
			}
		}
	}
	return kueuev1beta2.AdmissionCheckState{}
}

func suspended(ctx context.Context, job *batchv1.Job) bool {
	GinkgoHelper()
	current := &batchv1.Job{}
	Expect(kube.Get(ctx, client.ObjectKeyFromObject(job), current)).To(Succeed())
	return ptr.Deref(current.Spec.Suspend, false)
}

func succeeded(ctx context.Context, job *batchv1.Job) bool {
	GinkgoHelper()
	current := &batchv1.Job{}
	Expect(kube.Get(ctx, client.ObjectKeyFromObject(job), current)).To(Succeed())
	return current.Status.Succeeded == 1
}

// eventuallyRuns waits until the Job has started for the nth time and that is counted.
func eventuallyRuns(ctx context.Context, job *batchv1.Job, n int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(starts.Of(job.UID)).To(Equal(n), "starts")
		g.Expect(used(ctx, job)).To(Equal(n), "counted starts")
	}).Should(Succeed())
}

// eventuallyHeld waits until the Job's nth admission is held back while quota is reserved, and looks
// that it stays so.
func eventuallyHeld(ctx context.Context, job *batchv1.Job, n int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		current := grant(ctx, job)
		g.Expect(current).NotTo(BeNil())
		g.Expect(meta.IsStatusConditionTrue(current.Status.Conditions, dispatchv1alpha1.WaitingCondition)).To(BeTrue())
		g.Expect(meta.IsStatusConditionTrue(current.Status.Conditions, kueuev1beta2.WorkloadQuotaReserved)).To(BeTrue())
		g.Expect(entry(ctx, job, kueuejobs.Check)).To(beHeld(current, n))
		g.Expect(suspended(ctx, job)).To(BeTrue())
	}).Should(Succeed())
	Consistently(func(g Gomega) {
		g.Expect(suspended(ctx, job)).To(BeTrue())
		g.Expect(starts.Of(job.UID)).To(Equal(n - 1))
		g.Expect(entry(ctx, job, kueuejobs.Check)).To(HaveField("State", kueuev1beta2.CheckStatePending))
	}).Should(Succeed())
}

// beHeld matches the check's entry on a Workload whose nth admission waits for its grant.
func beHeld(grant *dispatchv1alpha1.AdmissionGrant, n int) gomegatypes.GomegaMatcher {
	return And(
		HaveField("State", kueuev1beta2.CheckStatePending),
		HaveField("Message", And(
			HavePrefix("admission %d waits since ", n),
			HaveSuffix("raise spec.admissions of AdmissionGrant %s/%s to %d", grant.Namespace, grant.Name, n))))
}

// raise grants the Job's nth admission as a person would.
func raise(ctx context.Context, job *batchv1.Job, n int) {
	GinkgoHelper()
	raiseGrant(ctx, grant(ctx, job), n)
}

func raiseGrant(ctx context.Context, grant *dispatchv1alpha1.AdmissionGrant, n int) {
	GinkgoHelper()
	out, err := cluster.Kubectl(ctx, "patch", "admissiongrant", grant.Name, "-n", grant.Namespace,
		"--type=merge", "-p", fmt.Sprintf(`{"spec":{"admissions":%d}}`, n))
	Expect(err).NotTo(HaveOccurred(), out)
}

// events are the reasons and notes of the events on the Job or other object.
func events(ctx context.Context, job client.Object) string {
	GinkgoHelper()
	list := &corev1.EventList{}
	Expect(kube.List(ctx, list, client.InNamespace(job.GetNamespace()))).To(Succeed())
	var lines []string
	for _, event := range list.Items {
		if event.InvolvedObject.UID == job.GetUID() {
			lines = append(lines, event.Reason+": "+event.Message)
		}
	}
	return strings.Join(lines, "\n")
}
