package dispatchjob

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

var _ = Describe("A DispatchJob", Ordered, func() {
	It("runs and finishes on its target, and is gone there once it is deleted", func(ctx SpecContext) {
		apply(ctx, team, "short", "west", "gpu", template(2*time.Second))
		Eventually(phase).WithArguments(ctx, "short").Should(Equal(v1alpha1.JobRunning))
		Expect(west.job(ctx, team, "short").Finalizers).To(ContainElement(v1alpha1.SubmissionFinalizer))
		Eventually(phase).WithArguments(ctx, "short").Should(Equal(v1alpha1.JobSucceeded))
		Eventually(func(g Gomega) {
			g.Expect(get(ctx, team, "short").Status.Submission.Released).To(BeTrue())
		}).Should(Succeed())
		status := get(ctx, team, "short").Status
		Expect(status.Submission.Job.UID).To(Equal(west.job(ctx, team, "short").UID))
		Expect(status.Submission.Attempts).To(BeEquivalentTo(1))
		Expect(status.Admissions.Summary).To(Equal("1/1"))
		Expect(condition(ctx, team, "short", v1alpha1.ReadyCondition)).To(And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.JobSucceededReason)))
		Expect(west.job(ctx, team, "short").Finalizers).NotTo(ContainElement(v1alpha1.SubmissionFinalizer))
		deleteAndExpectGone(ctx, "short")
	})

	It("is held after an eviction until spec.admissions is raised, and then runs again", func(ctx SpecContext) {
		apply(ctx, team, "evicted", "west", "gpu", template(time.Hour))
		Eventually(phase).WithArguments(ctx, "evicted").Should(Equal(v1alpha1.JobRunning))

		By("evicting it on the target")
		stop(ctx, kueuev1beta2.HoldAndDrain)
		Eventually(phase).WithArguments(ctx, "evicted").Should(Equal(v1alpha1.JobEvicted))
		stop(ctx, kueuev1beta2.None)
		Eventually(func(g Gomega) {
			g.Expect(condition(ctx, team, "evicted", v1alpha1.ReadyCondition)).To(And(
				HaveField("Reason", v1alpha1.WaitingForGrantReason), HaveField("Message", ContainSubstring("raise spec.admissions to 2"))))
		}).Should(Succeed())
		out, err := hub.Kubectl(ctx, "get", "dispatchjobs", "-n", team, "evicted")
		Expect(err).NotTo(HaveOccurred())
		lines := strings.Split(strings.TrimSpace(out), "\n")
		Expect(strings.Fields(lines[0])).To(Equal([]string{"NAME", "TARGET", "PHASE", "ADMISSIONS", "WHY", "AGE"}))
		Expect(strings.Fields(lines[1])).To(HaveExactElements("evicted", "west", "Waiting", "1/1", "WaitingForGrant", Not(BeEmpty())))
		held := get(ctx, team, "evicted")
		Consistently(func(g Gomega) {
			g.Expect(*west.job(ctx, team, "evicted").Spec.Suspend).To(BeTrue())
			g.Expect(get(ctx, team, "evicted").ResourceVersion).To(Equal(held.ResourceVersion), "written to while nothing happens")
		}).WithTimeout(5 * time.Second).Should(Succeed())

		By("granting it")
		_, err = hub.Kubectl(ctx, "patch", "dispatchjob", "-n", team, "evicted", "--type=merge", "-p", `{"spec":{"admissions":2}}`)
		Expect(err).NotTo(HaveOccurred())
		Eventually(phase).WithArguments(ctx, "evicted").Should(Equal(v1alpha1.JobRunning))
		Eventually(func(g Gomega) { g.Expect(get(ctx, team, "evicted").Status.Admissions.Summary).To(Equal("2/2")) }).Should(Succeed())

		By("deleting it while it runs")
		deleteAndExpectGone(ctx, "evicted")
	})
})

func deleteAndExpectGone(ctx context.Context, name string) {
	GinkgoHelper()
	_, err := hub.Kubectl(ctx, "delete", "dispatchjob", "-n", team, name, "--wait=false")
	Expect(err).NotTo(HaveOccurred())
	Eventually(exists).WithArguments(ctx, name).Should(BeFalse())
	Expect(west.job(ctx, team, name)).To(BeNil(), "the DispatchJob outlives its job")
	Eventually(func(g Gomega) {
		var workloads kueuev1beta2.WorkloadList
		g.Expect(west.kube.List(ctx, &workloads, client.InNamespace(team))).To(Succeed())
		g.Expect(workloads.Items).To(BeEmpty())
		var grants v1alpha1.AdmissionGrantList
		g.Expect(west.kube.List(ctx, &grants, client.InNamespace(team))).To(Succeed())
		g.Expect(grants.Items).To(BeEmpty())
	}).WithTimeout(time.Minute).Should(Succeed())
}

func stop(ctx context.Context, policy kueuev1beta2.StopPolicy) {
	GinkgoHelper()
	queue := &kueuev1beta2.ClusterQueue{}
	Expect(west.kube.Get(ctx, client.ObjectKey{Name: "gpu"}, queue)).To(Succeed())
	before := queue.DeepCopy()
	queue.Spec.StopPolicy = ptr.To(policy)
	Expect(west.kube.Patch(ctx, queue, client.MergeFrom(before))).To(Succeed())
}
