package dispatchjob

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/faultproxy"
	"github.com/dispatch-dev/dispatch/test/install"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

// refusalPeriod is how soon what a target refused is tried again, as docs/dispatchjobs.md has it, and some
// time for a loaded machine.
const refusalPeriod = (36 + 15) * time.Second

// Each of these waits, most of the time, for something that takes a while by design.
var _ = Describe("On a target", func() {
	It("each job comes to the end that it was given, side by side", func(ctx SpecContext) {
		together(
			func() { finishedAndDeletedAtOnce(ctx) },
			func() { lostOnTheTarget(ctx) },
			func() { deletedOnTheTarget(ctx) },
			func() { takenName(ctx) },
			func() { targetThatComesAndGoes(ctx) },
			func() { plainMode(ctx) },
			func() { permissionsThatAreMissing(ctx) },
			func() { cancelledWhileReadyIsUnderWay(ctx) },
		)
	})
})

// creations is how many requests to create a job of this name had an effect.
func creations(t *target, name string) int {
	GinkgoHelper()
	return len(slices.DeleteFunc(writesBy(t), func(w write) bool { return w.verb != "create" || w.name != name || w.code != http.StatusCreated }))
}

func reason(ctx context.Context, name, conditionType string) string {
	GinkgoHelper()
	return condition(ctx, team, name, conditionType).Reason
}

func finishedAndDeletedAtOnce(ctx context.Context) {
	const name = "ttl"
	apply(ctx, team, name, "east", "gpu", fmt.Sprintf(`{apiVersion: batch/v1, kind: Job, spec: {ttlSecondsAfterFinished: 0, template: {
		metadata: {annotations: {%q: 1s}}, spec: {restartPolicy: Never, containers: [{name: main, image: nothing, resources: {requests: {cpu: 1}}}]}}}}`,
		controlplane.CompletionDelayAnnotation))
	Eventually(func(g Gomega) {
		status := get(ctx, team, name).Status
		g.Expect(status.Phase).To(Equal(v1alpha1.JobSucceeded))
		g.Expect(status.Submission.Released).To(BeTrue())
	}).WithTimeout(time.Minute).Should(Succeed())
	Eventually(east.job).WithArguments(ctx, team, name).Should(BeNil())
	Consistently(func(g Gomega) {
		g.Expect(creations(east, name)).To(Equal(1))
		g.Expect(phase(ctx, name)).To(Equal(v1alpha1.JobSucceeded))
	}).WithTimeout(3 * time.Second).WithPolling(time.Second).Should(Succeed())
}

func lostOnTheTarget(ctx context.Context) {
	const name = "lost"
	apply(ctx, team, name, "east", "gpu", template(time.Hour))
	Eventually(phase).WithArguments(ctx, name).Should(Equal(v1alpha1.JobRunning))
	job := east.job(ctx, team, name)
	Expect(east.kube.Patch(ctx, job, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	Expect(east.kube.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
	Eventually(reason).WithArguments(ctx, name, v1alpha1.FinishedCondition).WithTimeout(90 * time.Second).Should(Equal(v1alpha1.LostReason))
	Expect(phase(ctx, name)).To(Equal(v1alpha1.JobLost))
	Expect(get(ctx, team, name).Status.Submission.Job.UID).To(Equal(job.UID))
	Consistently(func() *batchv1.Job { return east.job(ctx, team, name) }).WithTimeout(3 * time.Second).Should(BeNil())
	Expect(creations(east, name)).To(Equal(1), "it is not created anew")
	remove(ctx, name)
	Eventually(exists).WithArguments(ctx, name).Should(BeFalse())
}

func deletedOnTheTarget(ctx context.Context) {
	const name = "taken-away"
	apply(ctx, team, name, "east", "gpu", template(time.Hour))
	Eventually(phase).WithArguments(ctx, name).Should(Equal(v1alpha1.JobRunning))
	Expect(east.kube.Delete(ctx, east.job(ctx, team, name), client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
	// Nothing tells of it but the look that is taken once a minute.
	Eventually(reason).WithArguments(ctx, name, v1alpha1.FinishedCondition).WithTimeout(90 * time.Second).Should(Equal(v1alpha1.JobDeletedReason))
	Eventually(east.job).WithArguments(ctx, team, name).Should(BeNil(), "it is let go once its end is recorded")
	Expect(phase(ctx, name)).To(Equal(v1alpha1.JobFailed))
	Expect(creations(east, name)).To(Equal(1))
}

func takenName(ctx context.Context) {
	const name = "theirs"
	Expect(east.kube.Create(ctx, kueuejobs.Job(team, name, "none", time.Hour))).To(Succeed())
	uid := east.job(ctx, team, name).UID
	apply(ctx, team, name, "east", "gpu", template(time.Hour))
	Eventually(reason).WithArguments(ctx, name, v1alpha1.SubmittedCondition).Should(Equal(v1alpha1.NameTakenReason))
	remove(ctx, name)
	// Sooner than a request could be believed to be under way: the target has refused it.
	Eventually(exists).WithArguments(ctx, name).WithTimeout(20 * time.Second).Should(BeFalse())
	Expect(east.job(ctx, team, name)).To(And(HaveField("UID", uid), HaveField("DeletionTimestamp", BeNil()), HaveField("Finalizers", BeEmpty())))
}

func targetThatComesAndGoes(ctx context.Context) {
	const name = "abandoned"
	apply(ctx, team, name, "nowhere", "gpu", template(time.Hour))
	Eventually(reason).WithArguments(ctx, name, v1alpha1.SubmittedCondition).Should(Equal(v1alpha1.TargetNotFoundReason))
	target := dispatchTarget("nowhere")
	Expect(hubClient.Create(ctx, target)).To(Succeed())
	Eventually(condition).WithArguments(ctx, team, name, v1alpha1.SubmittedCondition).Should(And(
		HaveField("Reason", v1alpha1.TargetObserveOnlyReason), HaveField("Message", ContainSubstring("Reachable (KubeConfigNotFound)"))))
	setKubeConfig(ctx, "nowhere", east.hub)
	Eventually(phase).WithArguments(ctx, name).Should(Equal(v1alpha1.JobRunning))

	Expect(hubClient.Delete(ctx, target)).To(Succeed())
	Eventually(reason).WithArguments(ctx, name, v1alpha1.ReadyCondition).Should(Equal(v1alpha1.TargetNotFoundReason))
	remove(ctx, name)
	Eventually(condition).WithArguments(ctx, team, name, v1alpha1.ReadyCondition).Should(And(
		HaveField("Reason", v1alpha1.CancelHeldReason), HaveField("Message", ContainSubstring(v1alpha1.AbandonAnnotation))))
	Consistently(exists).WithArguments(ctx, name).WithTimeout(time.Second).Should(BeTrue())
	patch(ctx, name, fmt.Sprintf(`{"metadata":{"annotations":{%q:"true"}}}`, v1alpha1.AbandonAnnotation))
	Eventually(exists).WithArguments(ctx, name).Should(BeFalse())
	Expect(east.job(ctx, team, name)).To(And(HaveField("DeletionTimestamp", BeNil()), HaveField("Finalizers", ContainElement(v1alpha1.SubmissionFinalizer))))
}

func plainMode(ctx context.Context) {
	setKubeConfig(ctx, "plain", east.hub)
	target := dispatchTarget("plain")
	target.Spec.Kueue = nil
	Expect(hubClient.Create(ctx, target)).To(Succeed())
	for name, runs := range map[string]time.Duration{"plain-short": 2 * time.Second, "plain-long": time.Hour} {
		apply(ctx, team, name, "plain", "", template(runs))
	}
	Eventually(phase).WithArguments(ctx, "plain-long").Should(Equal(v1alpha1.JobRunning))
	Eventually(phase).WithArguments(ctx, "plain-short").Should(Equal(v1alpha1.JobSucceeded))
	Expect(east.job(ctx, team, "plain-long").Labels).NotTo(HaveKey(kueuejobs.QueueLabel))

	// It is looked at every 12 s at most.
	version := get(ctx, team, "plain-long").ResourceVersion
	Consistently(func() string { return get(ctx, team, "plain-long").ResourceVersion }).WithTimeout(15*time.Second).WithPolling(time.Second).
		Should(Equal(version), "nothing is written while nothing happens")
	remove(ctx, "plain-long")
	Eventually(exists).WithArguments(ctx, "plain-long").Should(BeFalse())
	Expect(east.job(ctx, team, "plain-long")).To(BeNil())
}

// limited is a ServiceAccount that has what preflight needs, and more as it is bound.
func permissionsThatAreMissing(ctx context.Context) {
	const limited, name, withdrawn = "limited", "barred", "barred-and-withdrawn"
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: install.Namespace, Name: limited}}
	bind := func(role string) {
		Expect(east.kube.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: limited + "-" + role}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		})).To(Succeed())
	}
	Expect(east.kube.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: limited}})).To(Succeed())
	Expect(east.kube.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: limited}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "dispatch-target-preflight"},
	})).To(Succeed())
	bind("dispatch-target-preflight")
	config, err := east.ServiceAccountConfig(ctx, install.Namespace, limited)
	Expect(err).NotTo(HaveOccurred())
	setKubeConfig(ctx, limited, config)
	Expect(hubClient.Create(ctx, dispatchTarget(limited))).To(Succeed())

	// By("the role is not bound at all")
	for _, job := range []string{name, withdrawn} {
		apply(ctx, team, job, limited, "gpu", template(time.Hour))
	}
	for _, job := range []string{name, withdrawn} {
		Eventually(condition).WithArguments(ctx, team, job, v1alpha1.TargetForbiddenCondition).Should(And(
			HaveField("Status", metav1.ConditionTrue), HaveField("Message", ContainSubstring(`cannot get resource "localqueues"`))))
		Expect(condition(ctx, team, job, v1alpha1.SubmittedCondition)).To(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.TargetForbiddenReason)))
		Expect(east.job(ctx, team, job)).To(BeNil())
	}

	// By("it may do all but grant and cancel")
	role := &rbacv1.ClusterRole{}
	Expect(east.kube.Get(ctx, client.ObjectKey{Name: "dispatch-target-write"}, role)).To(Succeed())
	partial := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "partial"}, Rules: role.Rules}
	for i := range partial.Rules {
		rule := &partial.Rules[i]
		forbidden := map[string]string{"admissiongrants": "patch", "jobs": "delete"}[rule.Resources[0]]
		rule.Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool { return verb == forbidden })
	}
	Expect(east.kube.Create(ctx, partial)).To(Succeed())
	bind("partial")
	bound := time.Now()
	for _, job := range []string{name, withdrawn} {
		Eventually(phase).WithArguments(ctx, job).WithTimeout(refusalPeriod).Should(Equal(v1alpha1.JobRunning))
		Expect(condition(ctx, team, job, v1alpha1.TargetForbiddenCondition)).To(BeZero())
	}
	AddReportEntry("seconds from the role to the jobs running", time.Since(bound).Seconds())
	remove(ctx, withdrawn)
	east.evict(ctx, name)
	Eventually(reason).WithArguments(ctx, name, v1alpha1.ReadyCondition).Should(Equal(v1alpha1.WaitingForGrantReason))
	patch(ctx, name, `{"spec":{"admissions":2}}`)
	Eventually(condition).WithArguments(ctx, team, name, v1alpha1.TargetForbiddenCondition).Should(
		HaveField("Message", ContainSubstring(`cannot patch resource "admissiongrants"`)))
	Eventually(condition).WithArguments(ctx, team, withdrawn, v1alpha1.TargetForbiddenCondition).Should(
		HaveField("Message", ContainSubstring(`cannot delete resource "jobs"`)))
	Expect(reason(ctx, withdrawn, v1alpha1.ReadyCondition)).To(Equal(v1alpha1.CancelHeldReason))
	Expect(east.job(ctx, team, withdrawn).DeletionTimestamp).To(BeNil())
	Expect(*east.job(ctx, team, name).Spec.Suspend).To(BeTrue())

	// By("it may do all")
	bind("dispatch-target-write")
	bound = time.Now()
	Eventually(phase).WithArguments(ctx, name).WithTimeout(refusalPeriod).Should(Equal(v1alpha1.JobRunning))
	Eventually(exists).WithArguments(ctx, withdrawn).WithTimeout(refusalPeriod).Should(BeFalse())
	AddReportEntry("seconds from the rest of the role to the grant and the cancellation", time.Since(bound).Seconds())
	Eventually(func(g Gomega) {
		g.Expect(get(ctx, team, name).Status.Admissions.Summary).To(Equal("2/2"))
		g.Expect(condition(ctx, team, name, v1alpha1.TargetForbiddenCondition)).To(BeZero())
	}).Should(Succeed())
}

// A job is cancelled between the decision to let it through and its arrival.
func cancelledWhileReadyIsUnderWay(ctx context.Context) {
	const name, ours = "withdrawn", "test.dispatch.dev/looked-at"
	release := make(chan struct{})
	held := east.network.Handle(faultproxy.HoldRequest(release), faultproxy.Method(http.MethodPatch),
		faultproxy.Path("/apis/"+kueuev1beta2.GroupVersion.String()+"/namespaces/"+team+"/workloads/job-"+name+"-"))
	defer held.Remove()
	apply(ctx, team, name, "east", "gpu", template(time.Hour))
	Eventually(held.Hits).Should(BeNumerically(">", 0), "our Ready is under way")
	Eventually(phase).WithArguments(ctx, name).Should(Equal(v1alpha1.JobWaiting))
	// It stays to be looked at.
	job := east.job(ctx, team, name)
	before := job.DeepCopy()
	job.Finalizers = append(job.Finalizers, ours)
	Expect(east.kube.Patch(ctx, job, client.MergeFrom(before))).To(Succeed())
	remove(ctx, name)
	Eventually(func() *metav1.Time { return east.job(ctx, team, name).DeletionTimestamp }).ShouldNot(BeNil())
	held.Remove()
	close(release)
	Consistently(func() *bool { return east.job(ctx, team, name).Spec.Suspend }).WithTimeout(5*time.Second).
		Should(HaveValue(BeTrue()), "a cancelled job does not start")
	Expect(exists(ctx, name)).To(BeTrue(), "the DispatchJob stays as long as its job")
	Expect(east.kube.Patch(ctx, job, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	Eventually(exists).WithArguments(ctx, name).Should(BeFalse())
}

// evict takes the admission of a job away, and lets Kueue reserve quota for it again.
func (t *target) evict(ctx context.Context, name string) {
	GinkgoHelper()
	var workloads kueuev1beta2.WorkloadList
	Expect(t.kube.List(ctx, &workloads, client.InNamespace(team), client.MatchingLabels{"kueue.x-k8s.io/job-uid": string(t.job(ctx, team, name).UID)})).To(Succeed())
	Expect(workloads.Items).To(HaveLen(1))
	key := client.ObjectKeyFromObject(&workloads.Items[0])
	active := func(active bool) {
		workload := &kueuev1beta2.Workload{}
		Expect(t.kube.Get(ctx, key, workload)).To(Succeed())
		before := workload.DeepCopy()
		workload.Spec.Active = ptr.To(active)
		Expect(t.kube.Patch(ctx, workload, client.MergeFrom(before))).To(Succeed())
	}
	active(false)
	Eventually(func() bool { return *t.job(ctx, team, name).Spec.Suspend }).Should(BeTrue())
	active(true)
}
