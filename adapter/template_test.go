package adapter

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

func submission(t *testing.T, template string) *Submission {
	t.Helper()
	s := &Submission{ID: "id", Namespace: "team", Name: "train", LocalQueue: "gpu", Template: &unstructured.Unstructured{}}
	NewWithT(t).Expect(yaml.Unmarshal([]byte(template), &s.Template.Object)).To(Succeed())
	return s
}

func TestVet(t *testing.T) {
	for _, tc := range []struct {
		name, template, field string
		err                   error
	}{
		{"nothing", `{}`, "apiVersion and kind", ErrTemplateRefused},
		{"no kind", `{apiVersion: batch/v1, spec: {}}`, "apiVersion and kind", ErrTemplateRefused},
		{"a kind outside the table", `{apiVersion: apps/v1, kind: Deployment, spec: {}}`, `"Deployment"`, ErrKindNotSupported},
		{"another version", `{apiVersion: batch/v1beta1, kind: Job, spec: {}}`, `"batch/v1beta1"`, ErrKindNotSupported},
		{"no spec", `{apiVersion: batch/v1, kind: Job}`, "template.spec", ErrTemplateRefused},
		{"a status", `{apiVersion: batch/v1, kind: Job, spec: {}, status: {}}`, "template.status", ErrTemplateRefused},
		{"a field of its own", `{apiVersion: batch/v1, kind: Job, spec: {}, extra: 1}`, "template.extra", ErrTemplateRefused},
		{"an owner", `{apiVersion: batch/v1, kind: Job, metadata: {ownerReferences: []}, spec: {}}`, "template.metadata.ownerReferences", ErrTemplateRefused},
		{"a finalizer", `{apiVersion: batch/v1, kind: Job, metadata: {finalizers: [a/b]}, spec: {}}`, "template.metadata.finalizers", ErrTemplateRefused},
		{"another name", `{apiVersion: batch/v1, kind: Job, metadata: {name: other}, spec: {}}`, "template.metadata.name", ErrTemplateRefused},
		{"another namespace", `{apiVersion: batch/v1, kind: Job, metadata: {namespace: other}, spec: {}}`, "template.metadata.namespace", ErrTemplateRefused},
		{"labels that are no strings", `{apiVersion: batch/v1, kind: Job, metadata: {labels: {a: 1}}, spec: {}}`, "template.metadata.labels", ErrTemplateRefused},
		{"metadata that is none", `{apiVersion: batch/v1, kind: Job, metadata: 1, spec: {}}`, "template.metadata", ErrTemplateRefused},
		{"another manager", `{apiVersion: batch/v1, kind: Job, spec: {managedBy: a/b}}`, "template.spec.managedBy", ErrTemplateRefused},
		{"another manager in a run policy", `{apiVersion: kubeflow.org/v1, kind: PyTorchJob, spec: {runPolicy: {managedBy: a/b}}}`, "template.spec.runPolicy.managedBy", ErrTemplateRefused},
		{"a run policy that is no object", `{apiVersion: kubeflow.org/v1, kind: PyTorchJob, spec: {runPolicy: 1}}`, "template.spec.runPolicy.suspend", ErrTemplateRefused},
		{"a queue of its own", `{apiVersion: batch/v1, kind: Job, metadata: {labels: {kueue.x-k8s.io/queue-name: open}}, spec: {}}`, `template.metadata.labels["kueue.x-k8s.io/queue-name"]`, ErrTemplateRefused},
		{"a key of Kueue's on its pods", `{apiVersion: batch/v1, kind: Job, spec: {template: {metadata: {labels: {kueue.x-k8s.io/queue-name: open}}}}}`, `template.spec.template.metadata.labels["kueue.x-k8s.io/queue-name"]`, ErrTemplateRefused},
		{"a key of Kueue's in a list", `{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, spec: {replicatedJobs: [{metadata: {annotations: {provreq.kueue.x-k8s.io/x: y}}}]}}`, `template.spec.replicatedJobs[0].metadata.annotations["provreq.kueue.x-k8s.io/x"]`, ErrTemplateRefused},
		{"a key of dispatch's", `{apiVersion: batch/v1, kind: Job, metadata: {labels: {dispatch.dev/submission: other}}, spec: {}}`, `template.metadata.labels["dispatch.dev/submission"]`, ErrTemplateRefused},
	} {
		t.Run("refuses "+tc.name, func(t *testing.T) {
			_, _, err := newJob(submission(t, tc.template), "west", false)
			NewWithT(t).Expect(err).To(And(MatchError(tc.err), MatchError(ContainSubstring(tc.field))))
		})
	}

	t.Run("makes a job that is suspended, in its queue, marked and held", func(t *testing.T) {
		g := NewWithT(t)
		job, _, err := newJob(submission(t, `{apiVersion: batch/v1, kind: Job, metadata: {name: train, labels: {a: b}}, spec: {suspend: false}}`), "west", false)
		g.Expect(err).NotTo(HaveOccurred())
		want := &unstructured.Unstructured{}
		g.Expect(yaml.Unmarshal([]byte(`{apiVersion: batch/v1, kind: Job, metadata: {namespace: team, name: train,
			labels: {a: b, dispatch.dev/submission: id, kueue.x-k8s.io/queue-name: gpu},
			annotations: {dispatch.dev/target: west}, finalizers: [dispatch.dev/submission]}, spec: {suspend: true}}`), &want.Object)).To(Succeed())
		g.Expect(job).To(Equal(want))
	})

	t.Run("makes a job that runs at once in plain mode, and no other kind", func(t *testing.T) {
		g := NewWithT(t)
		job, _, err := newJob(submission(t, `{apiVersion: batch/v1, kind: Job, spec: {suspend: true}}`), "", true)
		g.Expect(err).NotTo(HaveOccurred())
		suspend, _, _ := unstructured.NestedBool(job.Object, "spec", "suspend")
		g.Expect(suspend).To(BeFalse())
		g.Expect(job.GetLabels()).To(Equal(map[string]string{v1alpha1.SubmissionLabel: "id"}))
		_, _, err = newJob(submission(t, `{apiVersion: ray.io/v1, kind: RayJob, spec: {}}`), "", true)
		g.Expect(err).To(MatchError(ErrKindNotSupported))
	})
}
