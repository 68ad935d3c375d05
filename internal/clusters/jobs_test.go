package clusters

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/jobkind"
	"github.com/dispatch-dev/dispatch/test/faultproxy"
)

// A leader that is deposed must change nothing on a target either.
func TestNoConnectionOfASetGetsAroundItsFence(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	errDeposed := errors.New("deposed")
	var deposed atomic.Bool
	s := NewSet(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method != http.MethodGet && deposed.Load() {
				return nil, errDeposed
			}
			return next.RoundTrip(req)
		})
	})
	t.Cleanup(s.Close)
	spec := v1alpha1.DispatchTargetSpec{}
	f.Expect(s.Connect("west", spec, "1", f.cfg)).To(Succeed())
	jobs := s.Cluster("west", spec).Jobs()
	job := func(name string) *unstructured.Unstructured {
		j := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"suspend": true, "template": map[string]any{
			"spec": map[string]any{"restartPolicy": "Never", "containers": []any{map[string]any{"name": "main", "image": "none"}}}}}}}
		j.SetGroupVersionKind(jobkind.Table[0].GroupVersionKind)
		j.SetNamespace(f.namespace)
		j.SetName(name)
		return j
	}
	f.Expect(jobs.Create(t.Context(), job("before"))).To(Succeed())
	deposed.Store(true)
	f.Expect(jobs.Create(t.Context(), job("after"))).To(MatchError(errDeposed))
	f.Expect(jobs.Delete(t.Context(), job("before"))).To(MatchError(errDeposed))
	f.Expect(jobs.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, &corev1.Namespace{})).To(Succeed())
}

func TestGrantsThatMayNotBeWatchedAreAskedForRarelyUntilAJobIsSent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cfg := f.account("get", "list", "watch")
	api, err := faultproxy.NewAPI(cfg)
	f.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(api.Close)
	s := NewSet(unfenced)
	t.Cleanup(s.Close)
	began := make(chan struct{}, 10)
	s.OnGrant(func(_ string, job *types.NamespacedName) {
		if job == nil {
			began <- struct{}{}
		}
	})
	spec := v1alpha1.DispatchTargetSpec{Kueue: f.spec()}
	f.Expect(s.Connect("west", spec, "1", api.Config(cfg))).To(Succeed())
	tries := func() int { return api.Count(faultproxy.Path("/apis/" + v1alpha1.GroupVersion.String())) }
	f.Eventually(tries).Should(Equal(1))

	name := f.namespace + "-grants"
	f.Expect(rbacClient(f).Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"admissiongrants"}, Verbs: []string{"list", "watch"}}},
	})).To(Succeed())
	f.Expect(rbacClient(f).Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: f.namespace, Name: f.namespace}},
	})).To(Succeed())
	// Twice as long as what is merely polled is waited for.
	f.Consistently(tries).WithTimeout(2*pollPeriod).Should(Equal(1), "a refusal is not asked about again soon")
	s.Cluster("west", spec).Submitted()
	f.Eventually(began).WithTimeout(5 * time.Second).Should(Receive())
	f.Expect(tries()).To(Equal(3), "one try was refused, one listed, one watches")
}
