package v1alpha1_test

import (
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

func jobFromYAML(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	job := &unstructured.Unstructured{}
	NewWithT(t).Expect(yaml.Unmarshal([]byte(spec), &job.Object)).To(Succeed())
	job.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("DispatchJob"))
	job.SetNamespace("default")
	job.SetName(name)
	return job
}

func TestDispatchJob(t *testing.T) {
	c := newAPIServer(t)
	const spec = `{spec: {targetRef: {name: gpu}, localQueue: q, template: {apiVersion: batch/v1, kind: Job, metadata: {labels: {a: b}}, spec: {parallelism: 2, template: {deep: [1, {k: v}]}}}}}`

	t.Run("gets its defaults and keeps its template to the letter", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(c.Create(t.Context(), jobFromYAML(t, "defaults", spec))).To(Succeed())
		var got v1alpha1.DispatchJob
		g.Expect(c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "defaults"}, &got)).To(Succeed())
		g.Expect(got.Spec.Admissions).To(BeEquivalentTo(1))
		g.Expect(got.Status.ObservedGeneration).To(BeEquivalentTo(-1))
		g.Expect(string(got.Spec.Template.Raw)).To(MatchJSON(
			`{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"labels": {"a": "b"}}, "spec": {"parallelism": 2, "template": {"deep": [1, {"k": "v"}]}}}`))
	})

	for _, tc := range []struct{ name, spec, field, cure string }{
		{"no admissions", `{spec: {targetRef: {name: gpu}, admissions: 0, template: {}}}`, "spec.admissions", "greater than or equal to 1"},
		{"a malformed LocalQueue", `{spec: {targetRef: {name: gpu}, localQueue: "-", template: {}}}`, "spec.localQueue", "must be the name of a LocalQueue"},
		{"no target", `{spec: {targetRef: {}, template: {}}}`, "spec.targetRef.name", "Required"},
	} {
		t.Run("is refused with "+tc.name, func(t *testing.T) {
			expectOneCause(t, c.Create(t.Context(), jobFromYAML(t, "refused", tc.spec)), tc.field, tc.cure)
		})
	}

	for _, tc := range []struct{ name, patch, field string }{
		{"another target", `{"spec": {"targetRef": {"name": "other"}}}`, "spec.targetRef"},
		{"another queue", `{"spec": {"localQueue": "other"}}`, "spec.localQueue"},
		{"no queue", `{"spec": {"localQueue": null}}`, "spec.localQueue"},
		{"another kind", `{"spec": {"template": {"kind": "JobSet"}}}`, "spec.template"},
		{"another value deep in its template", `{"spec": {"template": {"spec": {"template": {"deep": [1, {"k": "w"}]}}}}}`, "spec.template"},
		{"one field more in its template", `{"spec": {"template": {"spec": {"more": 1}}}}`, "spec.template"},
		{"one field less in its template", `{"spec": {"template": {"metadata": null}}}`, "spec.template"},
		{"fewer admissions", `{"spec": {"admissions": 1}}`, "spec.admissions"},
	} {
		t.Run("cannot later get "+tc.name, func(t *testing.T) {
			g := NewWithT(t)
			job := jobFromYAML(t, "change", spec)
			g.Expect(unstructured.SetNestedField(job.Object, int64(2), "spec", "admissions")).To(Succeed())
			g.Expect(client.IgnoreAlreadyExists(c.Create(t.Context(), job))).To(Succeed())
			err := c.Patch(t.Context(), job, client.RawPatch(types.MergePatchType, []byte(tc.patch)))
			g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "got: %v", err)
			expectOneCause(t, err, tc.field, "")
		})
	}

	t.Run("can be granted more admissions", func(t *testing.T) {
		g := NewWithT(t)
		job := jobFromYAML(t, "raised", spec)
		g.Expect(c.Create(t.Context(), job)).To(Succeed())
		g.Expect(c.Patch(t.Context(), job, client.RawPatch(types.MergePatchType, []byte(`{"spec": {"admissions": 2}}`)))).To(Succeed())
	})

	t.Run("names its namespaces in one way", func(t *testing.T) {
		g := NewWithT(t)
		target := targetFromYAML(t, "allows", `{spec: {}}`)
		g.Expect(c.Create(t.Context(), target)).To(Succeed())
		var got v1alpha1.DispatchTarget
		g.Expect(c.Get(t.Context(), client.ObjectKey{Name: "allows"}, &got)).To(Succeed())
		g.Expect(got.Spec.AllowedNamespaces).To(Equal(&v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromNone}))
		expectOneCause(t, c.Create(t.Context(), targetFromYAML(t, "refused", `{spec: {allowedNamespaces: {from: All, selector: {}}}}`)),
			"spec.allowedNamespaces.selector", "selector goes with from: Selector")
		expectOneCause(t, c.Create(t.Context(), targetFromYAML(t, "refused", `{spec: {allowedNamespaces: {from: Selector}}}`)),
			"spec.allowedNamespaces.selector", "selector goes with from: Selector")
	})
}
