package admission

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

var _ = Describe("A queue with another controller's check beside ours", func() {
	var (
		s   site
		job *batchv1.Job
	)
	BeforeEach(func(ctx SpecContext) {
		s = newSite(ctx, kueuejobs.Check, kueuejobs.OtherCheck)
		job = s.submit(ctx, "train", kueuejobs.UntilEvicted)
		eventuallyReadyWhileOtherPending(ctx, job)
	})

	It("starts nothing twice, and leaves nothing waiting, when the LocalQueue is held and released", func(ctx SpecContext) {
		s.stopLocal(ctx, kueuev1beta2.Hold)
		Eventually(func(g Gomega) {
			g.Expect(workloadCondition(ctx, job, kueuev1beta2.WorkloadQuotaReserved)).To(BeFalse())
			g.Expect(entry(ctx, job, kueuejobs.Check)).To(HaveField("State", kueuev1beta2.CheckStatePending), "a stale Ready is set back")
		}).Should(Succeed())
		s.stopLocal(ctx, kueuev1beta2.None)
		eventuallyReadyWhileOtherPending(ctx, job)
		Expect(starts.Of(job.UID)).To(Equal(0))
		Expect(used(ctx, job)).To(Equal(0))

		decideOther(ctx, job, kueuev1beta2.CheckStateReady)
		eventuallyRuns(ctx, job, 1)
		neverWaited(ctx, job)
	})

	It("leaves the grant usable however often the other check says Retry", func(ctx SpecContext) {
		for range 10 {
			before := workload(ctx, job)
			decideOther(ctx, job, kueuev1beta2.CheckStateRetry)
			Eventually(func(g Gomega) {
				now := workload(ctx, job)
				g.Expect(evictionsOf(now)).To(Equal(evictionsOf(before) + 1))
			}).Should(Succeed())
			eventuallyReadyWhileOtherPending(ctx, job)
		}
		Expect(used(ctx, job)).To(Equal(0))
		decideOther(ctx, job, kueuev1beta2.CheckStateReady)
		eventuallyRuns(ctx, job, 1)
		neverWaited(ctx, job)
	})

	It("leaves the grant usable when a reserved job is preempted", func(ctx SpecContext) {
		wl := workload(ctx, job)
		urgent := s.submit(ctx, "urgent", kueuejobs.UntilEvicted, priority("high"))
		Eventually(func() int32 { return evictionsOf(workload(ctx, job)) }).Should(Equal(evictionsOf(wl) + 1))
		eventuallyReadyWhileOtherPending(ctx, urgent)
		Expect(kube.Delete(ctx, urgent, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		eventuallyReadyWhileOtherPending(ctx, job)
		decideOther(ctx, job, kueuev1beta2.CheckStateReady)
		eventuallyRuns(ctx, job, 1)
		neverWaited(ctx, job)
	})
})

// eventuallyReadyWhileOtherPending waits until we have let the Job through and the other has not.
func eventuallyReadyWhileOtherPending(ctx context.Context, job *batchv1.Job) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(workloadCondition(ctx, job, kueuev1beta2.WorkloadQuotaReserved)).To(BeTrue())
		g.Expect(entry(ctx, job, kueuejobs.Check)).To(HaveField("State", kueuev1beta2.CheckStateReady))
		g.Expect(entry(ctx, job, kueuejobs.OtherCheck)).To(HaveField("State", kueuev1beta2.CheckStatePending))
	}).Should(Succeed())
}

// decideOther is the other check's controller.
func decideOther(ctx context.Context, job *batchv1.Job, state kueuev1beta2.CheckState) {
	GinkgoHelper()
	decideOtherOn(ctx, workload(ctx, job), state)
}

func decideOtherOn(ctx context.Context, wl *kueuev1beta2.Workload, state kueuev1beta2.CheckState) {
	GinkgoHelper()
	Eventually(func() error {
		wl := workloadNamed(ctx, wl.Namespace, wl.Name)
		for i := range wl.Status.AdmissionChecks {
			if entry := &wl.Status.AdmissionChecks[i]; entry.Name == kueuejobs.OtherCheck {
				entry.State, entry.Message, entry.LastTransitionTime = state, "decided by the test", metav1.Now()
			}
		}
		return kube.Status().Update(ctx, wl)
	}).Should(Succeed())
}

func evictionsOf(wl *kueuev1beta2.Workload) int32 {
	n := int32(0)
	if wl != nil && wl.Status.SchedulingStats != nil {
		for _, eviction := range wl.Status.SchedulingStats.Evictions {
			n += eviction.Count
		}
	}
	return n
}

// neverWaited looks that no person was asked for anything.
func neverWaited(ctx context.Context, job *batchv1.Job) {
	GinkgoHelper()
	Expect(events(ctx, job)).NotTo(ContainSubstring("AdmissionHeld"))
	Expect(grant(ctx, job).Spec.Admissions).To(Equal(int32(1)))
}

var _ = Describe("An AdmissionCheck", func() {
	It("that is added to the queue while a job runs counts that run", func(ctx SpecContext) {
		s := newSite(ctx)
		job := s.submit(ctx, "train", kueuejobs.UntilEvicted, priority("low"))
		Eventually(starts.Of).WithArguments(job.UID).Should(Equal(1))
		Expect(grant(ctx, job)).To(BeNil())

		s.setChecks(ctx, kueuejobs.Check)
		eventuallyRuns(ctx, job, 1)
		Consistently(suspended).WithArguments(ctx, job).Should(BeFalse())

		s.submit(ctx, "urgent", time.Second, priority("high"))
		eventuallyHeld(ctx, job, 2)
	})

	It("that shares the queue with a second one of ours shares the admission with it", func(ctx SpecContext) {
		second := kueuejobs.AdmissionCheck("dispatch-too", dispatchv1alpha1.DefaultControllerName)
		Expect(kube.Create(ctx, second)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(kube.Get(ctx, client.ObjectKeyFromObject(second), second)).To(Succeed())
			g.Expect(meta.IsStatusConditionTrue(second.Status.Conditions, kueuev1beta2.AdmissionCheckActive)).To(BeTrue())
		}).Should(Succeed())
		s := newSite(ctx, kueuejobs.Check, second.Name)
		job := s.submit(ctx, "train", kueuejobs.UntilEvicted, priority("low"))
		eventuallyRuns(ctx, job, 1)
		s.submit(ctx, "urgent", time.Second, priority("high"))
		eventuallyHeld(ctx, job, 2)
		Expect(entry(ctx, job, second.Name)).To(HaveField("State", kueuev1beta2.CheckStatePending))
		raise(ctx, job, 2)
		eventuallyRuns(ctx, job, 2)
	})

	It("that is deleted and made again for another controller is no longer answered", func(ctx SpecContext) {
		check := kueuejobs.AdmissionCheck("moving", dispatchv1alpha1.DefaultControllerName)
		Expect(kube.Create(ctx, check)).To(Succeed())
		s := newSite(ctx, "moving")
		job := s.submit(ctx, "first", kueuejobs.UntilEvicted, priority("low"))
		eventuallyRuns(ctx, job, 1)

		By("taking it off the queue, and putting another controller's on it")
		s.setChecks(ctx, kueuejobs.OtherCheck)
		Expect(kube.Delete(ctx, check)).To(Succeed())
		Eventually(func() error { return kube.Get(ctx, client.ObjectKeyFromObject(check), check) }).Should(MatchError(ContainSubstring("not found")))
		again := kueuejobs.AdmissionCheck("moving", "example.com/other")
		Expect(kube.Create(ctx, again)).To(Succeed())
		setActive(ctx, again)
		s.setChecks(ctx, "moving")
		urgent := s.submit(ctx, "urgent", kueuejobs.UntilEvicted, priority("high"))
		Eventually(workloadCondition).WithArguments(ctx, urgent, kueuev1beta2.WorkloadQuotaReserved).Should(BeTrue())
		Consistently(entry).WithArguments(ctx, urgent, "moving").Should(HaveField("State", kueuev1beta2.CheckStatePending))
		Expect(grant(ctx, urgent)).To(BeNil())
		Expect(used(ctx, job)).To(Equal(1), "the count of a job is kept without the check")
	})

	It("that a queue lists for the first time holds what Kueue would have readmitted", func(ctx SpecContext) {
		s := newSite(ctx)
		job := s.submit(ctx, "train", kueuejobs.UntilEvicted, priority("low"))
		Eventually(starts.Of).WithArguments(job.UID).Should(Equal(1))
		urgent := s.submit(ctx, "urgent", kueuejobs.UntilEvicted, priority("high"))
		Eventually(starts.Of).WithArguments(urgent.UID).Should(Equal(1))
		s.setChecks(ctx, kueuejobs.Check)
		Eventually(entry).WithArguments(ctx, job, kueuejobs.Check).Should(HaveField("State", kueuev1beta2.CheckStatePending))
		Expect(kube.Delete(ctx, urgent, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		eventuallyHeld(ctx, job, 2)
	})
})

var _ = Describe("A Ready that somebody else writes", func() {
	It("is set back or, where Kueue was faster, reported as a start that nobody granted", func(ctx SpecContext) {
		s := newSite(ctx, kueuejobs.Check)
		job := s.submit(ctx, "train", kueuejobs.UntilEvicted, priority("low"))
		eventuallyRuns(ctx, job, 1)
		s.submit(ctx, "urgent", time.Second, priority("high"))
		eventuallyHeld(ctx, job, 2)
		wl := workload(ctx, job)
		wl.Status.AdmissionChecks[0].State = kueuev1beta2.CheckStateReady
		Expect(kube.Status().Update(ctx, wl)).To(Succeed())
		Eventually(func(g Gomega) {
			current := grant(ctx, job)
			if entry(ctx, job, kueuejobs.Check).State == kueuev1beta2.CheckStatePending {
				g.Expect(used(ctx, job)).To(Equal(1))
				return
			}
			g.Expect(used(ctx, job)).To(Equal(2))
			g.Expect(meta.FindStatusCondition(current.Status.Conditions, dispatchv1alpha1.UngrantedStartCondition)).To(And(
				Not(BeNil()), HaveField("Message", ContainSubstring("start 2"))))
			g.Expect(events(ctx, job)).To(ContainSubstring("UngrantedStart: start 2"))
		}).Should(Succeed())
	})
})
