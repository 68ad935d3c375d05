package admission

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

var _ = Describe("A held job", func() {
	It("stays held when its queues are held and released, and starts when it is granted meanwhile", func(ctx SpecContext) {
		s := newSite(ctx, kueuejobs.Check)
		job := s.submit(ctx, "train", kueuejobs.UntilEvicted, priority("low"))
		eventuallyRuns(ctx, job, 1)
		s.submit(ctx, "urgent", time.Second, priority("high"))
		eventuallyHeld(ctx, job, 2)
		for name, stop := range map[string]func(policy kueuev1beta2.StopPolicy){
			"ClusterQueue": func(policy kueuev1beta2.StopPolicy) { s.stop(ctx, policy) },
			"LocalQueue":   func(policy kueuev1beta2.StopPolicy) { s.stopLocal(ctx, policy) },
		} {
			for _, policy := range []kueuev1beta2.StopPolicy{kueuev1beta2.Hold, kueuev1beta2.HoldAndDrain} {
				By(name + " " + string(policy))
				stop(policy)
				Eventually(workloadCondition).WithArguments(ctx, job, kueuev1beta2.WorkloadQuotaReserved).Should(BeFalse())
				Eventually(func() bool {
					return meta.IsStatusConditionTrue(grant(ctx, job).Status.Conditions, dispatchv1alpha1.WaitingCondition)
				}).Should(BeFalse(), "it waits for its queue now")
				stop(kueuev1beta2.None)
				Eventually(func(g Gomega) {
					g.Expect(workloadCondition(ctx, job, kueuev1beta2.WorkloadQuotaReserved)).To(BeTrue())
					g.Expect(entry(ctx, job, kueuejobs.Check)).To(beHeld(grant(ctx, job), 2))
				}).Should(Succeed())
			}
		}
		By("granting it while its queue is held: it starts with the queue")
		s.stop(ctx, kueuev1beta2.Hold)
		Eventually(workloadCondition).WithArguments(ctx, job, kueuev1beta2.WorkloadQuotaReserved).Should(BeFalse())
		raise(ctx, job, 2)
		Consistently(suspended).WithArguments(ctx, job).Should(BeTrue())
		s.stop(ctx, kueuev1beta2.None)
		eventuallyRuns(ctx, job, 2)
	})

	It("starts nothing and holds nothing up when its ClusterQueue is deleted", func(ctx SpecContext) {
		s := newSite(ctx, kueuejobs.Check)
		s.setCPUs(ctx, 2)
		job := s.submit(ctx, "train", kueuejobs.UntilEvicted, priority("low"))
		eventuallyRuns(ctx, job, 1)
		Expect(kube.Delete(ctx, workload(ctx, job))).To(Succeed())
		eventuallyHeld(ctx, job, 2)
		other := s.submit(ctx, "other", kueuejobs.UntilEvicted)
		eventuallyRuns(ctx, other, 1)

		queue := &kueuev1beta2.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
		Expect(kube.Delete(ctx, queue)).To(Succeed())
		Consistently(func(g Gomega) {
			g.Expect(kube.Get(ctx, client.ObjectKeyFromObject(queue), queue)).To(Succeed(), "Kueue keeps it while a job holds quota")
			g.Expect(queue.DeletionTimestamp).NotTo(BeNil())
			g.Expect(starts.Of(job.UID)).To(Equal(1))
			g.Expect(suspended(ctx, other)).To(BeFalse())
		}).Should(Succeed())

		By("deleting the one that runs, then evicting the held one, upon which the queue goes")
		deleteJob(ctx, s, other.Name)
		Expect(entry(ctx, job, kueuejobs.Check)).To(beHeld(grant(ctx, job), 2))
		Expect(kube.Delete(ctx, workload(ctx, job))).To(Succeed())
		Eventually(func() error { return kube.Get(ctx, client.ObjectKeyFromObject(queue), queue) }).Should(MatchError(ContainSubstring("not found")))
		Expect(starts.Of(job.UID)).To(Equal(1))
		Expect(used(ctx, job)).To(Equal(1))
		Eventually(func() bool {
			return meta.IsStatusConditionTrue(grant(ctx, job).Status.Conditions, dispatchv1alpha1.WaitingCondition)
		}).Should(BeFalse())

		By("making a queue of that name anew: the job is held again, with its count")
		Expect(kube.Create(ctx, kueuejobs.ClusterQueue(s.name, 1, kueuejobs.Check))).To(Succeed())
		eventuallyHeld(ctx, job, 2)
		raise(ctx, job, 2)
		eventuallyRuns(ctx, job, 2)
	})

	It("stays held while its AdmissionCheck is edited, or waits to be deleted", func(ctx SpecContext) {
		check := kueuejobs.AdmissionCheck("edited", dispatchv1alpha1.DefaultControllerName)
		Expect(kube.Create(ctx, check)).To(Succeed())
		s := newSite(ctx, check.Name)
		job := s.submit(ctx, "train", kueuejobs.UntilEvicted, priority("low"))
		eventuallyRuns(ctx, job, 1)
		urgent := s.submit(ctx, "urgent", time.Second, priority("high"))
		Eventually(succeeded).WithArguments(ctx, urgent).Should(BeTrue())
		stillHeld := func() {
			GinkgoHelper()
			Eventually(entry).WithArguments(ctx, job, check.Name).Should(beHeld(grant(ctx, job), 2))
			Consistently(func(g Gomega) {
				g.Expect(starts.Of(job.UID)).To(Equal(1))
				g.Expect(entry(ctx, job, check.Name)).To(beHeld(grant(ctx, job), 2))
			}).Should(Succeed())
		}
		stillHeld()

		By("editing it")
		Expect(kube.Get(ctx, client.ObjectKeyFromObject(check), check)).To(Succeed())
		before := check.DeepCopy()
		check.Spec.Parameters = &kueuev1beta2.AdmissionCheckParametersReference{APIGroup: "example.com", Kind: "Parameters", Name: "any"}
		Expect(kube.Patch(ctx, check, client.MergeFrom(before))).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(kube.Get(ctx, client.ObjectKeyFromObject(check), check)).To(Succeed())
			g.Expect(meta.FindStatusCondition(check.Status.Conditions, kueuev1beta2.AdmissionCheckActive)).To(And(
				HaveField("Status", metav1.ConditionTrue), HaveField("ObservedGeneration", check.Generation)))
			g.Expect(check.Generation).To(Equal(before.Generation + 1))
		}).Should(Succeed())
		stillHeld()

		By("deleting it while the queue lists it")
		Expect(kube.Delete(ctx, check)).To(Succeed())
		Eventually(func() *metav1.Time {
			Expect(kube.Get(ctx, client.ObjectKeyFromObject(check), check)).To(Succeed(), "Kueue keeps it while a queue lists it")
			return check.DeletionTimestamp
		}).ShouldNot(BeNil())
		stillHeld()
		raise(ctx, job, 2)
		eventuallyRuns(ctx, job, 2)
		s.setChecks(ctx)
		Eventually(func() error { return kube.Get(ctx, client.ObjectKeyFromObject(check), check) }).Should(MatchError(ContainSubstring("not found")))
	})

	It("is let go by an admin who takes the check off the queue, and counted when it is back", func(ctx SpecContext) {
		s := newSite(ctx, kueuejobs.Check)
		job := s.submit(ctx, "train", kueuejobs.UntilEvicted, priority("low"))
		eventuallyRuns(ctx, job, 1)
		s.submit(ctx, "urgent", time.Second, priority("high"))
		eventuallyHeld(ctx, job, 2)

		s.setChecks(ctx)
		Eventually(starts.Of).WithArguments(job.UID).Should(Equal(2))
		s.setChecks(ctx, kueuejobs.Check)
		eventuallyRuns(ctx, job, 2)
		Expect(meta.FindStatusCondition(grant(ctx, job).Status.Conditions, dispatchv1alpha1.UngrantedStartCondition)).To(And(
			Not(BeNil()), HaveField("Message", ContainSubstring("start 2"))))
		s.submit(ctx, "again", time.Second, priority("high"))
		eventuallyHeld(ctx, job, 3)
	})
})
