package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// admissionFieldOwner is the field manager of everything that dispatch-admission applies: the
// condition Active of its AdmissionChecks, its entries on Workloads, its AdmissionGrants.
const admissionFieldOwner = client.FieldOwner("dispatch-admission")

// AdmissionCheckReconciler tells Kueue that somebody answers for the AdmissionChecks of one controller
// name. It never takes that back: the condition is no heartbeat (Kueue scans every ClusterQueue when
// an AdmissionCheck changes), and a queue that stops for the length of a rollout helps nobody. Whether
// dispatch-admission lives is told by its Lease.
type AdmissionCheckReconciler struct {
	// Client of the cluster that Kueue runs on. Required.
	Client client.Client
	// ControllerName is the spec.controllerName of the AdmissionChecks to answer for. Required.
	ControllerName string
	// Clock stamps the condition. Default: the real clock.
	Clock clock.PassiveClock
}

// +kubebuilder:rbac:groups=kueue.x-k8s.io,resources=admissionchecks,verbs=list;watch
// +kubebuilder:rbac:groups=kueue.x-k8s.io,resources=admissionchecks/status,verbs=patch

// SetupWithManager registers the reconciler.
func (r *AdmissionCheckReconciler) SetupWithManager(mgr ctrl.Manager) error {
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&kueuev1beta2.AdmissionCheck{}).
		Complete(r)
}

// Reconcile sets Active on one AdmissionCheck.
func (r *AdmissionCheckReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	check := &kueuev1beta2.AdmissionCheck{}
	if err := r.Client.Get(ctx, req.NamespacedName, check); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	active := activeCondition(check, r.ControllerName)
	if active == nil {
		return ctrl.Result{}, nil
	}
	active.LastTransitionTime = metav1.NewTime(r.Clock.Now())
	if err := r.apply(ctx, check, active); apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return ctrl.Result{}, nil // what has changed comes as an event
	} else if err != nil {
		return ctrl.Result{}, err
	}
	ctrl.LoggerFrom(ctx).Info("AdmissionCheck set active", "admissionCheck", check.Name)
	return ctrl.Result{}, nil
}

// activeCondition is the condition that the AdmissionCheck should get, without a time; nil if it is
// not ours or has the condition already.
func activeCondition(check *kueuev1beta2.AdmissionCheck, controllerName string) *metav1.Condition {
	if check.Spec.ControllerName != controllerName || !check.DeletionTimestamp.IsZero() {
		return nil
	}
	if have := meta.FindStatusCondition(check.Status.Conditions, kueuev1beta2.AdmissionCheckActive); have != nil &&
		have.Status == metav1.ConditionTrue && have.ObservedGeneration == check.Generation {
		return nil
	}
	return &metav1.Condition{
		Type:               kueuev1beta2.AdmissionCheckActive,
		Status:             metav1.ConditionTrue,
		Reason:             "Active",
		Message:            "dispatch-admission decides about readmissions",
		ObservedGeneration: check.Generation,
	}
}

// apply writes that one condition and leaves the others to whoever owns them, if the AdmissionCheck is
// still as it was read: it may have been deleted and made anew for another controller.
func (r *AdmissionCheckReconciler) apply(ctx context.Context, check *kueuev1beta2.AdmissionCheck, active *metav1.Condition) error {
	condition, err := runtime.DefaultUnstructuredConverter.ToUnstructured(active)
	if err != nil {
		return fmt.Errorf("convert condition: %w", err)
	}
	apply := preconditioned(kueuev1beta2.GroupVersion.WithKind("AdmissionCheck"), check)
	apply.Object["status"] = map[string]any{"conditions": []any{condition}}
	if err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(apply),
		admissionFieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("set AdmissionCheck %s active: %w", check.Name, err)
	}
	return nil
}
