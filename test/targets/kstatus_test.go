package targets

import (
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/faultproxy"
)

// kstatus is what an independent reader makes of an object.
func kstatus(g Gomega, object *unstructured.Unstructured) status.Status {
	result, err := status.Compute(object)
	g.Expect(err).NotTo(HaveOccurred())
	return result.Status
}

func newUnstructured(list bool) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	gvk := v1alpha1.GroupVersion.WithKind("DispatchTarget")
	if list {
		gvk.Kind += "List"
	}
	object.SetGroupVersionKind(gvk)
	return object
}

// presentKstatus is a function for Eventually.
func (t *test) presentKstatus(name string) func(Gomega) status.Status {
	return func(g Gomega) status.Status {
		object := newUnstructured(false)
		g.Expect(hub.client.Get(t.ctx, client.ObjectKey{Name: name}, object)).To(Succeed())
		return kstatus(g, object)
	}
}

// kubectlWait is `kubectl wait` for the gate.
func (t *test) kubectlWait(name, timeout string) error {
	_, err := hub.Kubectl(t.ctx, "wait", "--for=condition=ReadmissionGate", "dispatchtarget/"+name, "--timeout="+timeout)
	return err
}

func TestKstatusIsRightAtEveryMoment(t *testing.T) {
	t.Parallel()
	w := newTest(t)
	// Every version of the object from the first on, as any reader would see them.
	list := &unstructured.UnstructuredList{Object: newUnstructured(true).Object}
	stream, err := hub.client.Watch(w.ctx, list, &client.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, "kstatus"),
	})
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(stream.Stop)
	seen := &sequence{}
	go func() {
		for event := range stream.ResultChan() {
			if object, ok := event.Object.(*unstructured.Unstructured); ok {
				result, err := status.Compute(object)
				if err != nil {
					t.Error(err)
					return
				}
				seen.add(result.Status)
			}
		}
	}()

	api, err := faultproxy.NewAPI(hub.Config())
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(api.Close)
	release := make(chan struct{})
	held := api.Handle(faultproxy.HoldRequest(release))
	w.createTarget("kstatus", api.Config(hub.hub))

	w.Eventually(func(g Gomega) {
		g.Expect(w.condition("kstatus", v1alpha1.ReconcilingCondition)(g)).To(And(
			HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.PreflightingReason)))
	}).WithTimeout(8 * time.Second).Should(Succeed())
	w.Expect(w.presentKstatus("kstatus")(w)).To(Equal(status.InProgressStatus), "while it is preflighting")
	close(release)
	held.Remove()

	w.eventuallyGate("there is no Lease", "kstatus", v1alpha1.LeaseNotFoundReason)
	w.Expect(w.presentKstatus("kstatus")(w)).To(Equal(status.InProgressStatus), "with its gate closed")
	w.Expect(w.kubectlWait("kstatus", "1s")).To(MatchError(ContainSubstring("timed out")))

	setObserveOnly := func(on bool) {
		target := w.get("kstatus")
		target.Spec.ObserveOnly = on
		w.Expect(hub.client.Update(w.ctx, target)).To(Succeed())
	}
	begin := time.Now()
	setObserveOnly(true)
	w.Eventually(w.presentKstatus("kstatus")).Should(Equal(status.CurrentStatus), "an admin's own observeOnly")
	took := time.Since(begin)
	t.Logf("observeOnly: in the status after %s", took.Round(time.Millisecond))
	w.Expect(took).To(BeNumerically("<", soon))
	setObserveOnly(false)
	w.Eventually(func(g Gomega) {
		target := w.get("kstatus")
		g.Expect(target.Status.ObservedGeneration).To(Equal(target.Generation))
	}).Should(Succeed())
	w.Expect(w.presentKstatus("kstatus")(w)).To(Equal(status.InProgressStatus))

	w.heartbeat(hub, "kstatus", 15, time.Second)
	w.Expect(w.kubectlWait("kstatus", "30s")).To(Succeed())
	w.Expect(w.presentKstatus("kstatus")(w)).To(Equal(status.CurrentStatus), "with its gate proved")

	// The refused one.
	secret, err := kubeConfigSecret("kstatus", hub.hub)
	w.Expect(err).NotTo(HaveOccurred())
	secret.Data["kubeconfig"] = []byte("{")
	w.Expect(hub.client.Update(w.ctx, secret)).To(Succeed())
	w.Eventually(w.presentKstatus("kstatus")).Should(Equal(status.FailedStatus), "with its kubeconfig refused")

	// Fresh, preflighting and closed; observeOnly; closed; proved; refused.
	w.Eventually(seen.all).Should(Equal([]status.Status{
		status.InProgressStatus, status.CurrentStatus, status.InProgressStatus, status.CurrentStatus, status.FailedStatus,
	}))
}

// sequence is what was seen, one after the other.
type sequence struct {
	mu   sync.Mutex
	seen []status.Status
}

func (s *sequence) add(next status.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) == 0 || s.seen[len(s.seen)-1] != next {
		s.seen = append(s.seen, next)
	}
}

func (s *sequence) all() []status.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}
