package v1alpha1_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
)

// newAPIServer is a client of an API server that has the CRDs.
func newAPIServer(t *testing.T) client.Client {
	t.Helper()
	g := NewWithT(t)
	cluster := controlplane.StartForTest(t, controlplane.Options{})
	g.Expect(cluster.Apply(t.Context(), filepath.Join("..", "..", "config", "crd"))).To(Succeed())
	_, err := cluster.Kubectl(t.Context(), "wait", "--for=condition=Established", "crd", "--all")
	g.Expect(err).NotTo(HaveOccurred())
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	c, err := client.New(cluster.Config(), client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	return c
}

func targetFromYAML(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	target := &unstructured.Unstructured{}
	NewWithT(t).Expect(yaml.Unmarshal([]byte(spec), &target.Object)).To(Succeed())
	target.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("DispatchTarget"))
	target.SetName(name)
	return target
}

func TestDispatchTarget(t *testing.T) {
	c := newAPIServer(t)

	t.Run("gets its defaults, and is never current before it was looked at", func(t *testing.T) {
		g := NewWithT(t)
		given := targetFromYAML(t, "defaults", `{spec: {kubeConfig: {secretRef: {name: s}}, kueue: {clusterQueue: gpu}}}`)
		g.Expect(c.Create(t.Context(), given)).To(Succeed())
		var got v1alpha1.DispatchTarget
		g.Expect(c.Get(t.Context(), client.ObjectKey{Name: "defaults"}, &got)).To(Succeed())
		want := &v1alpha1.KueueSpec{ClusterQueue: "gpu"}
		want.SetDefaults()
		g.Expect(got.Spec.Kueue).To(Equal(want), "the CRD's defaults are those of SetDefaults")
		g.Expect(want.AdmissionCheck).To(Equal("dispatch"))
		g.Expect(want.ControllerName).To(Equal("dispatch.dev/admission"))
		g.Expect(want.AdmissionLease.String()).To(Equal("dispatch-system/dispatch-admission"))
		g.Expect(got.Spec.KubeConfig.SecretRef.Key).To(Equal(v1alpha1.DefaultKubeConfigKey))
		g.Expect(got.Spec.ObserveOnly).To(BeFalse())
		g.Expect(got.Status.ObservedGeneration).To(Equal(int64(-1)))
	})

	for name, spec := range map[string]string{
		"the manager's own cluster in plain mode": `{spec: {}}`,
		"names with dots":                         `{spec: {kueue: {clusterQueue: gpu.west.example, admissionCheck: my.check, admissionLease: {namespace: kueue, name: my.lease}}}}`,
		"a controllerName of any characters":      `{spec: {kueue: {clusterQueue: gpu, controllerName: "Example.com/Their Controller"}}}`,
		"a controllerName of 253 characters":      `{spec: {kueue: {clusterQueue: gpu, controllerName: ` + strings.Repeat("n", 253) + `}}}`,
		"an admissionLease of null":               `{spec: {kueue: {clusterQueue: gpu, admissionLease: null}}}`,
	} {
		t.Run("may have "+name, func(t *testing.T) {
			target := targetFromYAML(t, "accepted", spec)
			NewWithT(t).Expect(c.Create(t.Context(), target)).To(Succeed())
			NewWithT(t).Expect(c.Delete(t.Context(), target)).To(Succeed())
		})
	}

	long := strings.Repeat("n", 254)
	for _, tc := range []struct{ name, spec, field, cure string }{
		{"no spec", `{}`, "spec", "Required value"},
		{"no clusterQueue", `{spec: {kueue: {}}}`, "spec.kueue.clusterQueue", "clusterQueue is required: the ClusterQueue on the target that jobs are sent to"},
		{"an empty clusterQueue", `{spec: {kueue: {clusterQueue: ""}}}`, "spec.kueue.clusterQueue", "must be the name of a ClusterQueue: lower case letters"},
		{"a malformed clusterQueue", `{spec: {kueue: {clusterQueue: GPU}}}`, "spec.kueue.clusterQueue", "must be the name of a ClusterQueue: lower case letters"},
		{"a clusterQueue that is too long", `{spec: {kueue: {clusterQueue: ` + long + `}}}`, "spec.kueue.clusterQueue", "may not be more than 253 bytes"},
		{"a malformed admissionCheck", `{spec: {kueue: {clusterQueue: gpu, admissionCheck: my_check}}}`, "spec.kueue.admissionCheck", "must be the name of an AdmissionCheck: lower case letters"},
		{"an empty admissionCheck", `{spec: {kueue: {clusterQueue: gpu, admissionCheck: ""}}}`, "spec.kueue.admissionCheck", "must be the name of an AdmissionCheck: lower case letters"},
		{"an empty controllerName", `{spec: {kueue: {clusterQueue: gpu, controllerName: ""}}}`, "spec.kueue.controllerName", "should be at least 1 chars long"},
		{"a controllerName of 254 characters", `{spec: {kueue: {clusterQueue: gpu, controllerName: ` + long + `}}}`, "spec.kueue.controllerName", "may not be more than 253 bytes"},
		{"an admissionLease without namespace", `{spec: {kueue: {clusterQueue: gpu, admissionLease: {name: l}}}}`, "spec.kueue.admissionLease.namespace", "give both, or leave admissionLease out for dispatch-system/dispatch-admission"},
		{"an admissionLease without name", `{spec: {kueue: {clusterQueue: gpu, admissionLease: {namespace: l}}}}`, "spec.kueue.admissionLease.name", "give both, or leave admissionLease out for dispatch-system/dispatch-admission"},
		{"an admissionLease with a namespace that is none", `{spec: {kueue: {clusterQueue: gpu, admissionLease: {namespace: a.b, name: l}}}}`, "spec.kueue.admissionLease.namespace", "must be a namespace: lower case letters"},
		{"an admissionLease with a malformed name", `{spec: {kueue: {clusterQueue: gpu, admissionLease: {namespace: a, name: -l}}}}`, "spec.kueue.admissionLease.name", "must be the name of a Lease: lower case letters"},
		{"a kubeConfig without secretRef", `{spec: {kubeConfig: {}}}`, "spec.kubeConfig.secretRef", "name the Secret that holds the kubeconfig, or leave kubeConfig out"},
		{"a secretRef without name", `{spec: {kubeConfig: {secretRef: {key: k}}}}`, "spec.kubeConfig.secretRef.name", "name is required: the Secret, in the manager's own namespace"},
		{"a malformed Secret name", `{spec: {kubeConfig: {secretRef: {name: "../other/secret"}}}}`, "spec.kubeConfig.secretRef.name", "must be the name of a Secret: lower case letters"},
		{"a malformed key", `{spec: {kubeConfig: {secretRef: {name: s, key: "a b"}}}}`, "spec.kubeConfig.secretRef.key", "must be a key of a Secret"},
	} {
		t.Run("is refused with "+tc.name+", in one message that names the field and the cure", func(t *testing.T) {
			expectOneCause(t, c.Create(t.Context(), targetFromYAML(t, "refused", tc.spec)), tc.field, tc.cure)
		})
	}

	for name, change := range map[string][2]string{
		"adding":   {`{spec: {}}`, `{"spec": {"kueue": {"clusterQueue": "gpu"}}}`},
		"removing": {`{spec: {kueue: {clusterQueue: gpu}}}`, `{"spec": {"kueue": null}}`},
	} {
		t.Run("refuses "+name+" kueue later", func(t *testing.T) {
			target := targetFromYAML(t, "change", change[0])
			NewWithT(t).Expect(c.Create(t.Context(), target)).To(Succeed())
			err := c.Patch(t.Context(), target, client.RawPatch(types.MergePatchType, []byte(change[1])))
			expectOneCause(t, err, "spec.kueue", "Delete this DispatchTarget and create one with another name")
			NewWithT(t).Expect(c.Delete(t.Context(), target)).To(Succeed())
		})
	}

	t.Run("lets kueue be changed", func(t *testing.T) {
		target := targetFromYAML(t, "changed", `{spec: {kueue: {clusterQueue: gpu}}}`)
		NewWithT(t).Expect(c.Create(t.Context(), target)).To(Succeed())
		change := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"kueue": {"clusterQueue": "cpu"}}}`))
		NewWithT(t).Expect(c.Patch(t.Context(), target, change)).To(Succeed())
	})
}

// expectOneCause expects that an object was refused as invalid, for one thing.
func expectOneCause(t *testing.T, err error, field, cure string) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "got: %v", err)
	var status apierrors.APIStatus
	g.Expect(errors.As(err, &status)).To(BeTrue())
	// Where a field is missing or too long, the API server says itself that it looked no further.
	causes := slices.DeleteFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "<nil>" })
	g.Expect(causes).To(HaveLen(1))
	g.Expect(causes[0].Field).To(Equal(field))
	g.Expect(causes[0].Message).To(ContainSubstring(cure))
}
