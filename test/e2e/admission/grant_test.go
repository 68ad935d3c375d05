package admission

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

var _ = Describe("An AdmissionGrant", func() {
	var (
		s   site
		job *batchv1.Job
	)
	BeforeEach(func(ctx SpecContext) {
		s = newSite(ctx, kueuejobs.Check)
		job = s.submit(ctx, "train", kueuejobs.UntilEvicted, priority("low"))
		eventuallyRuns(ctx, job, 1)
	})
	// held evicts the job and looks that its count was not reset.
	held := func(ctx SpecContext) {
		GinkgoHelper()
		s.submit(ctx, "urgent", time.Second, priority("high"))
		eventuallyHeld(ctx, job, 2)
	}
	kubectl := func(ctx SpecContext, args ...string) (string, error) {
		return cluster.Kubectl(ctx, append([]string{"-n", s.name}, args...)...)
	}

	It("shows what is granted and used", func(ctx SpecContext) {
		current := grant(ctx, job)
		Expect(current.Finalizers).To(ConsistOf(dispatchv1alpha1.AdmissionCountFinalizer))
		Expect(current.OwnerReferences).To(ConsistOf(metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}))
		Expect(kubectl(ctx, "get", "ag", current.Name)).To(MatchRegexp(
			`NAME +JOB +GRANTED +USED +WAITING +AGE\n%s +train +1 +1 +False +\d+s`, current.Name))
	})

	It("keeps the count when it is deleted, and goes with its job", func(ctx SpecContext) {
		_, err := kubectl(ctx, "delete", "ag", grant(ctx, job).Name, "--wait=false")
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() *metav1.Time { return grant(ctx, job).DeletionTimestamp }).ShouldNot(BeNil())
		held(ctx)
		raise(ctx, job, 2)
		eventuallyRuns(ctx, job, 2)
		Expect(kube.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationForeground))).To(Succeed())
		Eventually(grant).WithArguments(ctx, job).WithTimeout(time.Minute).Should(BeNil())
	})

	It("cannot be lowered, given another job, or have its count taken away", func(ctx SpecContext) {
		name := grant(ctx, job).Name
		raise(ctx, job, 1)
		for change, refusal := range map[string]string{
			`{"spec":{"admissions":0}}`:             "should be greater than or equal to 1",
			`{"spec":{"jobRef":{"uid":"another"}}}`: "jobRef cannot be changed",
			`{"spec":null}`:                         "spec: Required value",
			`{"spec":{"admissions":null}}`:          "spec.admissions: Required value",
		} {
			out, err := kubectl(ctx, "patch", "ag", name, "--type=merge", "-p", change)
			Expect(err).To(MatchError(ContainSubstring(refusal)), out)
		}
		for _, change := range []string{`{"status":null}`, `{"status":{"admissions":null}}`, `{"status":{"admissions":0}}`} {
			out, err := kubectl(ctx, "patch", "ag", name, "--subresource=status", "--type=merge", "-p", change)
			Expect(err).To(MatchError(ContainSubstring("status.admissions can only grow")), out)
		}
		held(ctx)
		raise(ctx, job, 2)
		out, err := kubectl(ctx, "patch", "ag", name, "--type=merge", "-p", `{"spec":{"admissions":1}}`)
		Expect(err).To(MatchError(ContainSubstring("admissions can only be raised")), out)
	})

	It("keeps the count when the rest of its status is emptied", func(ctx SpecContext) {
		_, err := kubectl(ctx, "patch", "ag", grant(ctx, job).Name, "--subresource=status", "--type=merge",
			"-p", `{"status":{"accounted":null,"conditions":null}}`)
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() *dispatchv1alpha1.AccountedWorkload { return grant(ctx, job).Status.Accounted }).ShouldNot(BeNil())
		Expect(used(ctx, job)).To(Equal(1))
		held(ctx)
	})

	It("that a user made for the job counts all the same", func(ctx SpecContext) {
		// The name is Kueue's, and known once there is a Workload.
		queue := newSite(ctx, kueuejobs.Check)
		blocker := queue.submit(ctx, "blocker", kueuejobs.UntilEvicted, priority("high"))
		eventuallyRuns(ctx, blocker, 1)
		stopped := queue.submit(ctx, "later", kueuejobs.UntilEvicted, priority("low"))
		Eventually(workload).WithArguments(ctx, stopped).ShouldNot(BeNil())
		Expect(kube.Create(ctx, userGrant(workload(ctx, stopped).Name, stopped, stopped.UID))).To(Succeed())
		Expect(kube.Delete(ctx, blocker, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		eventuallyRuns(ctx, stopped, 1)
		Expect(grant(ctx, stopped)).To(And(
			HaveField("Finalizers", ConsistOf(dispatchv1alpha1.AdmissionCountFinalizer)),
			HaveField("OwnerReferences", HaveLen(1))), "it is adopted")
		queue.submit(ctx, "urgent", time.Second, priority("high"))
		eventuallyHeld(ctx, stopped, 2)
	})

	It("that a user made for another job holds the job until it is deleted", func(ctx SpecContext) {
		Expect(kube.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		blocker := s.submit(ctx, "blocker", kueuejobs.UntilEvicted, priority("high"))
		eventuallyRuns(ctx, blocker, 1)
		later := s.submit(ctx, "later", kueuejobs.UntilEvicted, priority("low"))
		Eventually(workload).WithArguments(ctx, later).ShouldNot(BeNil())
		wrong := userGrant(workload(ctx, later).Name, blocker, blocker.UID)
		Expect(kube.Create(ctx, wrong)).To(Succeed())
		By("giving the queue room for both")
		s.setCPUs(ctx, 2)
		Eventually(entry).WithArguments(ctx, later, kueuejobs.Check).Should(HaveField("Message", ContainSubstring("is another job's")))
		Expect(suspended(ctx, later)).To(BeTrue())
		Expect(kube.Delete(ctx, wrong)).To(Succeed())
		eventuallyRuns(ctx, later, 1)
	})

	It("may be raised and not made or deleted by who has the granting role, and seen by who may view", func(ctx SpecContext) {
		for user, role := range map[string]string{"granter": "dispatch-admission-granter", "viewer": "view"} {
			out, err := kubectl(ctx, "create", "rolebinding", user, "--clusterrole="+role, "--user="+user)
			Expect(err).NotTo(HaveOccurred(), out)
		}
		can := func(user, verb string) func() string {
			return func() string {
				out, _ := kubectl(ctx, "auth", "can-i", verb, "admissiongrants.dispatch.dev", "--as="+user)
				return out
			}
		}
		for verb, allowed := range map[string]string{"patch": "yes", "update": "yes", "get": "yes", "create": "no", "delete": "no"} {
			Eventually(can("granter", verb)).Should(HavePrefix(allowed), verb)
		}
		Expect(can("viewer", "patch")()).To(HavePrefix("no"))
	})
})

// userGrant is a grant as a user would write it.
func userGrant(name string, job *batchv1.Job, uid types.UID) *dispatchv1alpha1.AdmissionGrant {
	return &dispatchv1alpha1.AdmissionGrant{
		ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: name},
		Spec: dispatchv1alpha1.AdmissionGrantSpec{
			JobRef:     dispatchv1alpha1.JobReference{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: uid},
			Admissions: 1,
		},
	}
}
