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
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
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
	// admission is dispatch-admission.
	admission *controlplane.Component
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
		AdmissionPlugins: []string{"OwnerReferencesPermissionEnforcement"},
		ConfigureKueue: func(config *kueueconfig.Configuration) {
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
	admission, err = install.Process{Program: "dispatch-admission", Folder: folder, Config: config}.New()
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
	if g := grant(ctx, job); g != nil {
		return int(ptr.Deref(g.Status.Admissions, 0))
	}
	return 0
}

func workloadCondition(ctx context.Context, job *batchv1.Job, kind string) bool {
	GinkgoHelper()
	wl := workload(ctx, job)
	return wl != nil && meta.IsStatusConditionTrue(wl.Status.Conditions, kind)
}

// entry is the state and message of a check on the Job's Workload.
func entry(ctx context.Context, job *batchv1.Job, check string) kueuev1beta2.AdmissionCheckState {
	GinkgoHelper()
	if wl := workload(ctx, job); wl != nil {
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
		g.Expect(entry(ctx, job, kueuejobs.Check)).To(And(
			HaveField("State", kueuev1beta2.CheckStatePending),
			HaveField("Message", And(
				HavePrefix("admission %d waits since ", n),
				HaveSuffix("raise spec.admissions of AdmissionGrant %s/%s to %d", current.Namespace, current.Name, n))),
		))
		g.Expect(suspended(ctx, job)).To(BeTrue())
	}).Should(Succeed())
	Consistently(func(g Gomega) {
		g.Expect(suspended(ctx, job)).To(BeTrue())
		g.Expect(starts.Of(job.UID)).To(Equal(n - 1))
		g.Expect(entry(ctx, job, kueuejobs.Check)).To(HaveField("State", kueuev1beta2.CheckStatePending))
	}).Should(Succeed())
}

// raise grants the Job's nth admission as a person would.
func raise(ctx context.Context, job *batchv1.Job, n int) {
	GinkgoHelper()
	out, err := cluster.Kubectl(ctx, "patch", "admissiongrant", grant(ctx, job).Name, "-n", job.Namespace,
		"--type=merge", "-p", fmt.Sprintf(`{"spec":{"admissions":%d}}`, n))
	Expect(err).NotTo(HaveOccurred(), out)
}

// events are the reasons and notes of the events on the Job.
func events(ctx context.Context, job *batchv1.Job) string {
	GinkgoHelper()
	list := &corev1.EventList{}
	Expect(kube.List(ctx, list, client.InNamespace(job.Namespace))).To(Succeed())
	var lines []string
	for _, event := range list.Items {
		if event.InvolvedObject.UID == job.UID {
			lines = append(lines, event.Reason+": "+event.Message)
		}
	}
	return strings.Join(lines, "\n")
}
