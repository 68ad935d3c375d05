package adapter_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-dev/dispatch/adapter"
	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

const pausing = `{apiVersion: batch/v1, kind: Job, spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: none}]}}}}`

// plainTarget is a namespace of a cluster without Kueue, and a Target that reaches the cluster.
type plainTarget struct {
	*WithT
	*adapter.Target
	t         *testing.T
	admin     client.Client
	namespace string
}

func newPlainTarget(t *testing.T) *plainTarget {
	t.Helper()
	p := &plainTarget{WithT: NewWithT(t), t: t}
	p.SetDefaultEventuallyTimeout(30 * time.Second)
	var err error
	p.admin, err = client.New(clusterFor(t).Config(), client.Options{})
	p.Expect(err).NotTo(HaveOccurred())
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "jobs-"}}
	p.Expect(p.admin.Create(t.Context(), namespace)).To(Succeed())
	p.namespace = namespace.Name
	p.Target = p.open(clusterFor(t).Config())
	return p
}

func (p *plainTarget) open(cfg *rest.Config) *adapter.Target {
	p.t.Helper()
	target, err := adapter.Open(p.t.Context(), cfg, adapter.Options{Name: "west"})
	p.Expect(err).NotTo(HaveOccurred())
	p.t.Cleanup(target.Close)
	p.Expect(target.Preflight().Mode).To(Equal(v1alpha1.ModeReadWrite))
	return target
}

func (p *plainTarget) submission(id, name string) adapter.Submission {
	p.t.Helper()
	data, err := yaml.YAMLToJSON([]byte(pausing))
	p.Expect(err).NotTo(HaveOccurred())
	template := &unstructured.Unstructured{}
	p.Expect(template.UnmarshalJSON(data)).To(Succeed())
	return adapter.Submission{ID: id, Namespace: p.namespace, Name: name, Template: template}
}

func (p *plainTarget) submit(id, name string) adapter.Job {
	p.t.Helper()
	job, err := p.Submit(p.t.Context(), p.submission(id, name))
	p.Expect(err).NotTo(HaveOccurred())
	return job
}

// get is the Job of this name, or nil.
func (p *plainTarget) get(name string) *batchv1.Job {
	p.t.Helper()
	job := &batchv1.Job{}
	err := p.admin.Get(p.t.Context(), client.ObjectKey{Namespace: p.namespace, Name: name}, job)
	p.Expect(client.IgnoreNotFound(err)).To(Succeed())
	if apierrors.IsNotFound(err) {
		return nil
	}
	return job
}

func (p *plainTarget) eventuallyCancelled(job adapter.Job) {
	p.t.Helper()
	p.Eventually(func(g Gomega) {
		gone, err := p.Cancel(p.t.Context(), job)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(gone).To(BeTrue())
	}).Should(Succeed())
	p.Expect(p.get(job.Name)).To(BeNil())
}

func TestAJobOfAPlainTarget(t *testing.T) {
	t.Run("is marked, runs at once, and is the same one for each try of a submission", func(t *testing.T) {
		p := newPlainTarget(t)
		job := p.submit("one", "train")
		got := p.get("train")
		p.Expect(got.UID).To(Equal(job.UID))
		p.Expect(*got.Spec.Suspend).To(BeFalse())
		p.Expect(got.Labels).To(And(HaveKeyWithValue(v1alpha1.SubmissionLabel, "one"), Not(HaveKey("kueue.x-k8s.io/queue-name"))))
		p.Expect(got.Annotations).To(HaveKeyWithValue(v1alpha1.TargetAnnotation, "west"))
		p.Expect(got.Finalizers).To(ContainElement(v1alpha1.SubmissionFinalizer))

		p.Expect(p.submit("one", "train")).To(Equal(job))
		lost := job
		lost.UID = ""
		p.Expect(p.Find(t.Context(), lost)).To(Equal(job))
		inspection, err := p.Inspect(t.Context(), job)
		p.Expect(err).NotTo(HaveOccurred())
		p.Expect(inspection.Phase).To(Equal(v1alpha1.JobRunning))
		p.Expect(inspection.AdmissionController.Reason).To(Equal(v1alpha1.NotRequiredReason))
	})

	t.Run("is gone once it is cancelled, however often", func(t *testing.T) {
		p := newPlainTarget(t)
		job := p.submit("one", "train")
		p.eventuallyCancelled(job)
		p.eventuallyCancelled(job)
		_, err := p.Inspect(t.Context(), job)
		p.Expect(err).To(MatchError(adapter.ErrJobNotFound))
		_, err = p.Find(t.Context(), job)
		p.Expect(err).To(MatchError(adapter.ErrJobNotFound))
	})

	t.Run("that somebody else deletes is held until its end is recorded", func(t *testing.T) {
		p := newPlainTarget(t)
		job := p.submit("one", "train")
		p.Expect(p.admin.Delete(t.Context(), p.get("train"), client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		inspection, err := p.Inspect(t.Context(), job)
		p.Expect(err).NotTo(HaveOccurred())
		p.Expect(inspection.Finished).To(HaveValue(HaveField("Reason", v1alpha1.JobDeletedReason)))
		p.Expect(p.submit("one", "train").UID).To(Equal(job.UID), "nothing is sent anew in its place")
		p.Expect(p.Release(t.Context(), job)).To(Succeed())
		p.Eventually(func() *batchv1.Job { return p.get("train") }).Should(BeNil())
		p.Expect(p.Release(t.Context(), job)).To(Succeed())
	})

	t.Run("is left alone when it is somebody else's", func(t *testing.T) {
		p := newPlainTarget(t)
		theirs := &batchv1.Job{}
		p.Expect(yaml.Unmarshal([]byte(pausing), theirs)).To(Succeed())
		theirs.Namespace, theirs.Name = p.namespace, "theirs"
		suspend := true // so that nobody else changes it either
		theirs.Spec.Suspend = &suspend
		p.Expect(p.admin.Create(t.Context(), theirs)).To(Succeed())
		p.Eventually(func() []batchv1.JobCondition { return p.get("theirs").Status.Conditions }).ShouldNot(BeEmpty())
		before := p.get("theirs")

		_, err := p.Submit(t.Context(), p.submission("one", "theirs"))
		p.Expect(err).To(And(MatchError(adapter.ErrNameTaken), MatchError(ContainSubstring("left alone"))))
		named := adapter.Job{GroupVersionKind: batchv1.SchemeGroupVersion.WithKind("Job"), Namespace: p.namespace, Name: "theirs"}
		for name, job := range map[string]adapter.Job{
			"of a submission":         {GroupVersionKind: named.GroupVersionKind, Namespace: p.namespace, Name: "theirs", Submission: "one"},
			"with another uid":        {GroupVersionKind: named.GroupVersionKind, Namespace: p.namespace, Name: "theirs", UID: "other"},
			"with uid and submission": {GroupVersionKind: named.GroupVersionKind, Namespace: p.namespace, Name: "theirs", UID: "other", Submission: "one"},
		} {
			gone, err := p.Cancel(t.Context(), job)
			p.Expect(err).NotTo(HaveOccurred(), name)
			p.Expect(gone).To(BeTrue(), name)
			p.Expect(p.Release(t.Context(), job)).To(Succeed(), name)
		}
		_, err = p.Cancel(t.Context(), named)
		p.Expect(err).To(MatchError(ContainSubstring("UID or its Submission is required")))
		p.Expect(p.get("theirs")).To(Equal(before))
	})

	t.Run("is neither sent to another cluster nor believed gone there", func(t *testing.T) {
		p := newPlainTarget(t)
		job := p.submit("one", "train")
		job.ClusterUID = "another"
		_, err := p.Cancel(t.Context(), job)
		p.Expect(err).To(MatchError(adapter.ErrClusterChanged))
		_, err = p.Inspect(t.Context(), job)
		p.Expect(err).To(MatchError(adapter.ErrClusterChanged))
		p.Expect(p.Release(t.Context(), job)).To(MatchError(adapter.ErrClusterChanged))
		elsewhere := p.submission("two", "other")
		elsewhere.ClusterUID = "another"
		_, err = p.Submit(t.Context(), elsewhere)
		p.Expect(err).To(MatchError(adapter.ErrClusterChanged))
		p.Expect(p.get("other")).To(BeNil())
		p.Expect(p.get("train").DeletionTimestamp).To(BeNil())
	})

	t.Run("is refused in one clear error where its namespace does not exist, or it is another kind", func(t *testing.T) {
		p := newPlainTarget(t)
		nowhere := p.submission("one", "train")
		nowhere.Namespace = "nowhere"
		_, err := p.Submit(t.Context(), nowhere)
		p.Expect(err).To(And(MatchError(adapter.ErrNamespaceNotFound), MatchError("namespace nowhere does not exist on the target")))
		queued := p.submission("one", "train")
		queued.LocalQueue = "gpu"
		_, err = p.Submit(t.Context(), queued)
		p.Expect(err).To(And(MatchError(adapter.ErrQueueMismatch), MatchError(ContainSubstring("leave it out"))))
	})

	t.Run("is not created when the intent cannot be written down", func(t *testing.T) {
		p := newPlainTarget(t)
		s := p.submission("one", "train")
		s.Intend = func(context.Context, types.UID) error { return context.Canceled }
		_, err := p.Submit(t.Context(), s)
		p.Expect(err).To(MatchError(context.Canceled))
		p.Expect(p.get("train")).To(BeNil())
	})
}

// What the target refuses names the permission, changes nothing, and goes as soon as the role is bound.
func TestAPermissionThatIsMissing(t *testing.T) {
	p := newPlainTarget(t)
	ctx := t.Context()
	p.Expect(p.admin.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "hub"}})).To(Succeed())
	bind := func(name string, rule rbacv1.PolicyRule) {
		t.Helper()
		name = p.namespace + "-" + name
		p.Expect(p.admin.Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}})).To(Succeed())
		p.Expect(p.admin.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: p.namespace, Name: "hub"}},
		})).To(Succeed())
	}
	cfg, err := clusterFor(t).ServiceAccountConfig(ctx, p.namespace, "hub")
	p.Expect(err).NotTo(HaveOccurred())
	hub := p.open(cfg)

	_, err = hub.Submit(ctx, p.submission("one", "train"))
	p.Expect(err).To(And(MatchError(adapter.ErrClusterUnidentified), MatchError(ContainSubstring("grant get on it"))))
	bind("identify", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{"kube-system"}, Verbs: []string{"get"}})

	submit := func() error {
		_, err := hub.Submit(ctx, p.submission("one", "train"))
		return err
	}
	p.Eventually(submit).Should(And(MatchError(adapter.ErrForbidden), MatchError(ContainSubstring(`cannot create resource "jobs"`))))
	p.Expect(p.get("train")).To(BeNil())
	bind("create", rbacv1.PolicyRule{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"get", "create"}})
	p.Eventually(submit).Should(Succeed())

	job := p.submit("one", "train")
	cancel := func() error {
		_, err := hub.Cancel(ctx, job)
		return err
	}
	p.Expect(cancel()).To(And(MatchError(adapter.ErrForbidden), MatchError(ContainSubstring(`cannot delete resource "jobs"`))))
	p.Expect(hub.Release(ctx, job)).To(And(MatchError(adapter.ErrForbidden), MatchError(ContainSubstring(`cannot patch resource "jobs"`))))
	p.Expect(p.get("train")).To(And(HaveField("DeletionTimestamp", BeNil()), HaveField("Finalizers", ContainElement(v1alpha1.SubmissionFinalizer))))
	bind("cancel", rbacv1.PolicyRule{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"delete", "patch"}})
	p.Eventually(cancel).Should(Succeed())
	p.eventuallyCancelled(job)
}
