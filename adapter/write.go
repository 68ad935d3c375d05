package adapter

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/clusters"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

// proofMargin is how long before the proof's expiry a request to write must have ended: what was on its way
// then has arrived by the expiry.
const proofMargin = time.Second

// write sends one request that changes something on the target, with a context that ends before the proof
// does that it rests on. The proof is taken here, right before the request, from what is known at this moment.
// It is the only way in this package to a write.
func (t *Target) write(ctx context.Context, request func(ctx context.Context, c client.Client) error) error {
	remaining, err := t.mayWrite()
	if err != nil {
		return err
	}
	ctx, cancel := t.cluster.JobContext(ctx, remaining)
	defer cancel()
	return request(ctx, t.cluster.Jobs())
}

// mayWrite says for how long a request to write may last that is sent now.
func (t *Target) mayWrite() (time.Duration, error) {
	return mayWrite(t.cluster.Snapshot().Verdict, t.observeOnly, t.cluster.KueueSpec() == nil, clusters.Now().Mono)
}

func mayWrite(verdict gate.Verdict, observeOnly, plain bool, now time.Duration) (time.Duration, error) {
	if mode, ready := verdict.Ready(observeOnly); mode != v1alpha1.ModeReadWrite {
		return 0, forbiddenBy(verdict, observeOnly, ready)
	}
	if plain {
		return clusters.RequestTimeout, nil
	}
	// A verdict that is proved has an expiry. Should it ever lack one, this refuses.
	remaining := verdict.Expires - proofMargin - now
	if remaining <= 0 {
		return 0, &ObserveOnlyError{
			Condition: v1alpha1.ReadmissionGateCondition, Reason: verdict.ReadmissionGate.Reason,
			Message: "its proof ends in less than a second unless it is renewed", Soon: true, sentinel: ErrObserveOnly,
		}
	}
	return remaining, nil
}

func forbiddenBy(verdict gate.Verdict, observeOnly bool, ready gate.Finding) *ObserveOnlyError {
	for _, c := range []struct {
		name    string
		finding gate.Finding
	}{
		{v1alpha1.ReachableCondition, verdict.Reachable},
		{v1alpha1.ReadmissionGateCondition, verdict.ReadmissionGate},
	} {
		if c.finding.Status != metav1.ConditionTrue {
			return &ObserveOnlyError{Condition: c.name, Reason: c.finding.Reason, Message: c.finding.Message, sentinel: ErrObserveOnly}
		}
	}
	message := ready.Message
	if observeOnly {
		message = "the target's observeOnly is set: nothing is written to it"
	}
	return &ObserveOnlyError{Reason: ready.Reason, Message: message, sentinel: ErrObserveOnly}
}

// identify reads live which cluster answers, and compares it with the one that is expected. An empty want
// expects none in particular.
func (t *Target) identify(ctx context.Context, want types.UID) (types.UID, error) {
	var kubeSystem corev1.Namespace
	err := t.read(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, &kubeSystem)
	switch {
	case apierrors.IsForbidden(err):
		return "", refuse(ErrClusterUnidentified, "the namespace kube-system may not be read (403): its uid tells whether this is still the same cluster: grant get on it to the credentials in use on the target")
	case err != nil:
		return "", failed("reading which cluster answers", err)
	case kubeSystem.UID == "":
		return "", refuse(ErrClusterUnidentified, "the namespace kube-system has no uid: is it a Kubernetes API server?")
	case want != "" && kubeSystem.UID != want:
		return "", refuse(ErrClusterChanged, "another cluster (uid %s) answers than the one that the job was sent to (uid %s)", gate.Quote(string(kubeSystem.UID)), want)
	}
	return kubeSystem.UID, nil
}

func (t *Target) read(ctx context.Context, key client.ObjectKey, object client.Object) error {
	ctx, cancel := t.cluster.JobContext(ctx, clusters.RequestTimeout)
	defer cancel()
	return t.cluster.Jobs().Get(ctx, key, object)
}

func (t *Target) list(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	ctx, cancel := t.cluster.JobContext(ctx, clusters.RequestTimeout)
	defer cancel()
	return t.cluster.Jobs().List(ctx, list, opts...)
}
