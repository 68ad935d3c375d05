package admission

import (
	"context"
	"fmt"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

var _ = Describe("An elastic job", func() {
	const cpus = 4
	elastic := func(job *batchv1.Job) {
		job.Annotations = map[string]string{"kueue.x-k8s.io/elastic-job": "true"}
		job.Spec.Parallelism, job.Spec.Completions = ptr.To[int32](1), ptr.To[int32](cpus)
	}
	all := func(job *batchv1.Job) {
		job.Spec.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *resource.NewQuantity(cpus, resource.DecimalSI)
	}
	scale := func(ctx context.Context, job *batchv1.Job, parallelism int32) {
		GinkgoHelper()
		_, err := cluster.Kubectl(ctx, "patch", "job", job.Name, "-n", job.Namespace, "--type=merge",
			"-p", fmt.Sprintf(`{"spec":{"parallelism":%d}}`, parallelism))
		Expect(err).NotTo(HaveOccurred())
		job.Spec.Parallelism = &parallelism
	}

	// evict preempts the job and gives its quota back.
	evict := func(ctx context.Context, s site, job *batchv1.Job) {
		GinkgoHelper()
		s.submit(ctx, "urgent", kueuejobs.UntilEvicted, priority("high"), all)
		Eventually(func(g Gomega) {
			g.Expect(suspended(ctx, job)).To(BeTrue())
			g.Expect(hasCondition(sliceOf(ctx, job, *job.Spec.Parallelism), kueuev1beta2.WorkloadEvicted)).To(BeTrue())
			g.Expect(hasCondition(sliceOf(ctx, job, *job.Spec.Parallelism), kueuev1beta2.WorkloadQuotaReserved)).To(BeFalse())
		}).Should(Succeed())
		deleteJob(ctx, s, "urgent")
	}

	It("passes with a slice that replaces a running one, and is held as any other once it is evicted", func(ctx SpecContext) {
		s := newSite(ctx, kueuejobs.Check)
		s.setCPUs(ctx, cpus)
		job := s.submit(ctx, "train", kueuejobs.UntilEvicted, priority("low"), elastic)
		eventuallyRuns(ctx, job, 1)
		first := sliceOf(ctx, job, 1)

		By("scaling it up while it runs")
		scale(ctx, job, 2)
		var second *kueuev1beta2.Workload
		Eventually(func(g Gomega) {
			second = sliceOf(ctx, job, 2)
			g.Expect(hasCondition(second, kueuev1beta2.WorkloadAdmitted)).To(BeTrue())
			g.Expect(second.Name).NotTo(Equal(first.Name))
			g.Expect(usedOf(grantNamed(ctx, s.name, second.Name))).To(Equal(1))
			g.Expect(grantNamed(ctx, s.name, second.Name).Status.Opened).To(BeNil())
			g.Expect(runningPods(ctx, job)).To(Equal(2))
		}).Should(Succeed())
		Expect(grantNamed(ctx, s.name, second.Name).Spec.Admissions).To(Equal(int32(1)))
		Expect(grantNamed(ctx, s.name, second.Name).Status.Conditions).NotTo(ContainElement(
			HaveField("Type", dispatchv1alpha1.UngrantedStartCondition)))
		Expect(starts.Of(job.UID)).To(Equal(1))

		By("evicting it")
		evict(ctx, s, job)
		eventuallySliceHeld(ctx, job, second.Name, 2)

		By("granting it")
		forgetSlice(ctx, job)
		raiseGrant(ctx, grantNamed(ctx, s.name, second.Name), 2)
		Eventually(starts.Of).WithArguments(job.UID).Should(Equal(2))
		Eventually(func() int { return usedOf(grantNamed(ctx, s.name, second.Name)) }).Should(Equal(2))

		By("granting an admission in advance, which the next slice leaves alone")
		raiseGrant(ctx, grantNamed(ctx, s.name, second.Name), 3)
		scale(ctx, job, 3)
		Eventually(func(g Gomega) {
			third := sliceOf(ctx, job, 3)
			g.Expect(hasCondition(third, kueuev1beta2.WorkloadAdmitted)).To(BeTrue())
			g.Expect(grantNamed(ctx, s.name, third.Name)).To(HaveField("Spec.Admissions", Equal(int32(3))))
			g.Expect(usedOf(grantNamed(ctx, s.name, third.Name))).To(Equal(2))
			g.Expect(grantNamed(ctx, s.name, third.Name).Status.Opened).To(BeNil())
		}).Should(Succeed())
		Expect(starts.Of(job.UID)).To(Equal(2))
	})

	It("does not start by being scaled up while it is held", func(ctx SpecContext) {
		s := newSite(ctx, kueuejobs.Check)
		s.setCPUs(ctx, cpus)
		job := s.submit(ctx, "train", kueuejobs.UntilEvicted, priority("low"), elastic)
		eventuallyRuns(ctx, job, 1)
		evict(ctx, s, job)
		eventuallySliceHeld(ctx, job, sliceOf(ctx, job, 1).Name, 2)

		scale(ctx, job, 2)
		var second *kueuev1beta2.Workload
		Eventually(func() *kueuev1beta2.Workload {
			second = sliceOf(ctx, job, 2)
			return second
		}).ShouldNot(BeNil())
		eventuallySliceHeld(ctx, job, second.Name, 2)
		raiseGrant(ctx, grantNamed(ctx, s.name, second.Name), 2)
		Eventually(starts.Of).WithArguments(job.UID).Should(Equal(2))
		Eventually(func() int { return usedOf(grantNamed(ctx, s.name, second.Name)) }).Should(Equal(2))
	})

	It("is held when it was evicted while its new slice was still waiting for another check", func(ctx SpecContext) {
		s := newSite(ctx, kueuejobs.Check, kueuejobs.OtherCheck)
		s.setCPUs(ctx, cpus)
		job := s.submit(ctx, "train", kueuejobs.UntilEvicted, priority("low"), elastic)
		eventuallyReadyWhileOtherPending(ctx, job)
		decideOther(ctx, job, kueuev1beta2.CheckStateReady)
		eventuallyRuns(ctx, job, 1)

		scale(ctx, job, 2)
		var second *kueuev1beta2.Workload
		Eventually(func(g Gomega) {
			second = sliceOf(ctx, job, 2)
			g.Expect(entryOf(second, kueuejobs.Check)).To(HaveField("State", kueuev1beta2.CheckStateReady))
			g.Expect(entryOf(second, kueuejobs.OtherCheck)).To(HaveField("State", kueuev1beta2.CheckStatePending))
		}).Should(Succeed())
		Expect(suspended(ctx, job)).To(BeFalse(), "it runs on, in its old size")

		By("evicting it, and letting it through where the other check is concerned")
		decideOtherOn(ctx, second, kueuev1beta2.CheckStateRetry)
		Eventually(suspended).WithArguments(ctx, job).Should(BeTrue())
		Eventually(func(g Gomega) {
			second = workloadNamed(ctx, s.name, second.Name)
			g.Expect(evictionsOf(second)).To(Equal(int32(1)))
			g.Expect(hasCondition(second, kueuev1beta2.WorkloadQuotaReserved)).To(BeTrue())
			g.Expect(hasCondition(second, kueuev1beta2.WorkloadEvicted)).To(BeFalse())
		}).Should(Succeed())
		forgetSlice(ctx, job)
		decideOtherOn(ctx, second, kueuev1beta2.CheckStateReady)
		eventuallySliceHeld(ctx, job, second.Name, 2)
		raiseGrant(ctx, grantNamed(ctx, s.name, second.Name), 2)
		Eventually(starts.Of).WithArguments(job.UID).Should(Equal(2))
		Eventually(func() int { return usedOf(grantNamed(ctx, s.name, second.Name)) }).Should(Equal(2))
	})
})

// forgetSlice takes the name of an earlier slice off the held Job. Kueue v0.17.0 leaves it there when it
// stops a Job that was scaled up, and then cannot start the Job again (kueue#12993).
func forgetSlice(ctx context.Context, job *batchv1.Job) {
	GinkgoHelper()
	Eventually(func() error { // the Job takes it once its pods are gone
		_, err := cluster.Kubectl(ctx, "patch", "job", job.Name, "-n", job.Namespace, "--type=merge",
			"-p", `{"spec":{"template":{"metadata":{"annotations":{"kueue.x-k8s.io/workload":null}}}}}`)
		return err
	}).Should(Succeed())
}

// sliceOf is the Job's unfinished Workload that has so many pods, or nil.
func sliceOf(ctx context.Context, job *batchv1.Job, pods int32) *kueuev1beta2.Workload {
	GinkgoHelper()
	list := &kueuev1beta2.WorkloadList{}
	Expect(kube.List(ctx, list, client.InNamespace(job.Namespace), client.MatchingLabels{"kueue.x-k8s.io/job-uid": string(job.UID)})).To(Succeed())
	i := slices.IndexFunc(list.Items, func(wl kueuev1beta2.Workload) bool {
		return wl.Spec.PodSets[0].Count == pods && !hasCondition(&wl, kueuev1beta2.WorkloadFinished)
	})
	if i < 0 {
		return nil
	}
	return &list.Items[i]
}

// eventuallySliceHeld is eventuallyHeld for one Workload of several.
func eventuallySliceHeld(ctx context.Context, job *batchv1.Job, slice string, n int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		current := grantNamed(ctx, job.Namespace, slice)
		g.Expect(current).NotTo(BeNil())
		g.Expect(entryOf(workloadNamed(ctx, job.Namespace, slice), kueuejobs.Check)).To(beHeld(current, n))
	}).Should(Succeed())
	Consistently(func(g Gomega) {
		g.Expect(suspended(ctx, job)).To(BeTrue())
		g.Expect(starts.Of(job.UID)).To(Equal(n - 1))
	}).Should(Succeed())
}

func runningPods(ctx context.Context, job *batchv1.Job) int {
	GinkgoHelper()
	list := &corev1.PodList{}
	Expect(kube.List(ctx, list, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name})).To(Succeed())
	n := 0
	for _, pod := range list.Items {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp.IsZero() {
			n++
		}
	}
	return n
}

func deleteJob(ctx context.Context, s site, name string) {
	GinkgoHelper()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}}
	Expect(kube.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
	Eventually(func() error { return kube.Get(ctx, client.ObjectKeyFromObject(job), job) }).Should(MatchError(ContainSubstring("not found")))
}
