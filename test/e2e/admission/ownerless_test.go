package admission

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

var _ = Describe("A Workload that was made before its job", func() {
	It("has a grant of its own, which goes on as that of the job that adopts it", func(ctx SpecContext) {
		s := newSite(ctx, kueuejobs.Check)
		job := kueuejobs.Job(s.name, "train", s.name, kueuejobs.UntilEvicted)
		priority("low")(job)
		job.Labels["kueue.x-k8s.io/prebuilt-workload-name"] = "prebuilt"
		prebuilt := ownerlessWorkload(ctx, s, "prebuilt", job)
		Expect(kube.Create(ctx, prebuilt)).To(Succeed())
		Eventually(func() bool {
			return hasCondition(workloadNamed(ctx, s.name, prebuilt.Name), kueuev1beta2.WorkloadAdmitted)
		}).Should(BeTrue())
		current := eventuallyUsed(ctx, s.name, prebuilt.Name, 1)
		Expect(current.Spec.JobRef).To(Equal(dispatchv1alpha1.JobReference{
			APIVersion: kueuev1beta2.GroupVersion.String(), Kind: "Workload", Name: prebuilt.Name, UID: prebuilt.UID,
		}))

		By("adopting it")
		Expect(kube.Create(ctx, job)).To(Succeed())
		Eventually(starts.Of).WithArguments(job.UID).Should(Equal(1))
		Eventually(func() []metav1.OwnerReference { return grantNamed(ctx, s.name, prebuilt.Name).OwnerReferences }).Should(ConsistOf(
			HaveField("UID", prebuilt.UID), metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}))
		eventuallyUsed(ctx, s.name, prebuilt.Name, 1)

		By("evicting it")
		urgent := s.submit(ctx, "urgent", time.Second, priority("high"))
		Eventually(succeeded).WithArguments(ctx, urgent).Should(BeTrue())
		Eventually(func() kueuev1beta2.AdmissionCheckState {
			return entryOf(workloadNamed(ctx, s.name, prebuilt.Name), kueuejobs.Check)
		}).Should(beHeld(current, 2))
		Consistently(func(g Gomega) {
			g.Expect(suspended(ctx, job)).To(BeTrue())
			g.Expect(starts.Of(job.UID)).To(Equal(1))
		}).Should(Succeed())

		By("granting it, and deleting the grant, which stays for as long as the job")
		raiseGrant(ctx, current, 2)
		Eventually(starts.Of).WithArguments(job.UID).Should(Equal(2))
		eventuallyUsed(ctx, s.name, prebuilt.Name, 2)
		Expect(kube.Delete(ctx, current)).To(Succeed())
		Eventually(func() *metav1.Time { return grantNamed(ctx, s.name, prebuilt.Name).DeletionTimestamp }).ShouldNot(BeNil())
		Consistently(grantNamed).WithArguments(ctx, s.name, prebuilt.Name).ShouldNot(BeNil())
		Expect(kube.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		Eventually(grantNamed).WithArguments(ctx, s.name, prebuilt.Name).WithTimeout(time.Minute).Should(BeNil())
	})

	It("is let through once if nobody adopts it, and its grant goes with it", func(ctx SpecContext) {
		s := newSite(ctx, kueuejobs.Check)
		alone := ownerlessWorkload(ctx, s, "alone", kueuejobs.Job(s.name, "train", s.name, kueuejobs.UntilEvicted))
		Expect(kube.Create(ctx, alone)).To(Succeed())
		Eventually(func() bool {
			return hasCondition(workloadNamed(ctx, s.name, alone.Name), kueuev1beta2.WorkloadAdmitted)
		}).Should(BeTrue())
		current := eventuallyUsed(ctx, s.name, alone.Name, 1)
		Expect(current.Finalizers).To(ConsistOf(dispatchv1alpha1.AdmissionCountFinalizer))

		By("deleting its grant, which stays as long as the Workload")
		Expect(kube.Delete(ctx, current)).To(Succeed())
		Consistently(func() *metav1.Time { return grantNamed(ctx, s.name, alone.Name).DeletionTimestamp }).ShouldNot(BeNil())
		Expect(usedOf(grantNamed(ctx, s.name, alone.Name))).To(Equal(1))

		By("deleting it")
		deleteWorkload(ctx, s.name, alone.Name)
		Eventually(workloadNamed).WithArguments(ctx, s.name, alone.Name).Should(BeNil())
		Eventually(grantNamed).WithArguments(ctx, s.name, alone.Name).Should(BeNil())
	})
})

// ownerlessWorkload fits the Job as the API server completes it.
func ownerlessWorkload(ctx context.Context, s site, name string, job *batchv1.Job) *kueuev1beta2.Workload {
	GinkgoHelper()
	job = job.DeepCopy()
	Expect(kube.Create(ctx, job, client.DryRunAll)).To(Succeed())
	template := job.Spec.Template.DeepCopy()
	for key := range job.Spec.Selector.MatchLabels {
		delete(template.Labels, key)
	}
	return &kueuev1beta2.Workload{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name},
		Spec: kueuev1beta2.WorkloadSpec{
			QueueName: kueuev1beta2.LocalQueueName(s.name),
			PodSets:   []kueuev1beta2.PodSet{{Name: "main", Count: 1, Template: *template}},
		},
	}
}
