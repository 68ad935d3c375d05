package controllers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/clusters"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

const (
	// managerFieldOwner is the field owner of what dispatch-manager writes.
	managerFieldOwner = client.FieldOwner("dispatch-manager")
	// targetWorkers is how many statuses are written side by side. Nothing that a worker does waits for a
	// target, so this is about the hub's API server alone.
	targetWorkers = 10
)

// DispatchTargetReconciler writes the verdict on each target into the status of its DispatchTarget. It
// reads no target itself: TargetConnectionReconciler keeps the connections, and each tells when its
// verdict changes.
type DispatchTargetReconciler struct {
	Client client.Client
	// Targets is the set of connections.
	Targets *clusters.Set
	// Recorder gets an event for each transition of a condition.
	Recorder events.EventRecorder
}

// +kubebuilder:rbac:groups=dispatch.dev,resources=dispatchtargets,verbs=list;watch
// +kubebuilder:rbac:groups=dispatch.dev,resources=dispatchtargets/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the reconciler.
func (r *DispatchTargetReconciler) SetupWithManager(mgr ctrl.Manager) error {
	verdicts := source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		r.Targets.OnChange(func(name string) {
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		})
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("dispatchtarget").
		For(&v1alpha1.DispatchTarget{}).
		WatchesRawSource(verdicts).
		WithOptions(controller.Options{MaxConcurrentReconciles: targetWorkers, EnableWarmup: ptr.To(true)}).
		Complete(r)
}

// Reconcile brings the status of one DispatchTarget up to date.
func (r *DispatchTargetReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var target v1alpha1.DispatchTarget
	if err := r.Client.Get(ctx, req.NamespacedName, &target); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	snapshot, ok := r.Targets.Snapshot(target.Name, target.Spec)
	if !ok {
		snapshot = clusters.Snapshot{Verdict: gate.Judge(target.Spec.Kueue, gate.Evidence{}, gate.Instant{})}
	}
	if snapshot.Preflighting() && target.Status.ObservedGeneration == target.Generation {
		// The first verdict of a new connection is about to come: a new leader's, or one by a rotated
		// kubeconfig. Until then the last one stands in the status; nobody writes to a target by it.
		return ctrl.Result{}, nil
	}
	status := targetStatus(&target, snapshot)
	if equality.Semantic.DeepEqual(*status, target.Status) {
		return ctrl.Result{}, nil
	}
	if err := writeStatus(ctx, r.Client, "DispatchTarget", &target, status, managerFieldOwner); apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// The cache lags behind. What it has yet to tell brings us back here.
		return ctrl.Result{}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	r.announce(ctx, &target, status)
	return ctrl.Result{}, nil
}

// targetStatus is the status that a snapshot makes of a DispatchTarget's present one.
func targetStatus(target *v1alpha1.DispatchTarget, snapshot clusters.Snapshot) *v1alpha1.DispatchTargetStatus {
	status := target.Status.DeepCopy()
	verdict := snapshot.Verdict
	for condition, finding := range map[string]*gate.Finding{
		v1alpha1.ReachableCondition:       &verdict.Reachable,
		v1alpha1.QueueActiveCondition:     &verdict.QueueActive,
		v1alpha1.ReadmissionGateCondition: &verdict.ReadmissionGate,
	} {
		// What says the same as before is left as it is, to the letter.
		if c := meta.FindStatusCondition(status.Conditions, condition); c != nil && c.ObservedGeneration == target.Generation {
			if before := (gate.Finding{Status: c.Status, Reason: c.Reason, Message: c.Message}); finding.Says(before) {
				*finding = before
			}
		}
	}
	mode, conditions := verdict.Conditions(target.Spec.ObserveOnly)
	status.ObservedGeneration = target.Generation
	status.Mode = mode
	if snapshot.Identity != (v1alpha1.ClusterIdentity{}) {
		status.Cluster = &snapshot.Identity
	}
	for _, abnormal := range []string{v1alpha1.ReconcilingCondition, v1alpha1.StalledCondition} {
		if meta.FindStatusCondition(conditions, abnormal) == nil {
			meta.RemoveStatusCondition(&status.Conditions, abnormal)
		}
	}
	for _, condition := range conditions {
		condition.ObservedGeneration = target.Generation
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	return status
}

// announce tells of the transitions that a status write made, once it has succeeded.
func (r *DispatchTargetReconciler) announce(ctx context.Context, target *v1alpha1.DispatchTarget, status *v1alpha1.DispatchTargetStatus) {
	for _, condition := range []string{v1alpha1.ReachableCondition, v1alpha1.QueueActiveCondition, v1alpha1.ReadmissionGateCondition} {
		now := meta.FindStatusCondition(status.Conditions, condition)
		before := meta.FindStatusCondition(target.Status.Conditions, condition)
		if now.Reason == v1alpha1.PreflightingReason || before != nil && before.Status == now.Status && before.Reason == now.Reason {
			continue
		}
		if first := before == nil || before.Reason == v1alpha1.PreflightingReason; first && now.Status == metav1.ConditionTrue && condition != v1alpha1.ReadmissionGateCondition {
			continue // that a new target is in order is told once, by its gate
		}
		eventType := corev1.EventTypeWarning
		if now.Status == metav1.ConditionTrue {
			eventType = corev1.EventTypeNormal
		}
		r.Recorder.Eventf(target, nil, eventType, now.Reason, "Preflight", "%s is %s: %s", condition, now.Status, now.Message)
		log.FromContext(ctx).Info("condition changed", "condition", condition, "status", now.Status, "reason", now.Reason, "message", now.Message, "mode", status.Mode)
	}
}
