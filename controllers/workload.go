package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// WorkloadReconciler lets Workloads through the AdmissionChecks of one controller name.
type WorkloadReconciler struct {
	// Client of the cluster that Kueue runs on. Required.
	Client client.Client
	// ControllerName is the spec.controllerName of the AdmissionChecks to answer for. Required.
	ControllerName string
	// Clock stamps what is written. Default: the real clock.
	Clock clock.PassiveClock
}

// +kubebuilder:rbac:groups=kueue.x-k8s.io,resources=workloads,verbs=get;list;watch
// +kubebuilder:rbac:groups=kueue.x-k8s.io,resources=workloads/status,verbs=patch
// +kubebuilder:rbac:groups=kueue.x-k8s.io,resources=admissionchecks,verbs=get;list;watch

// SetupWithManager registers the reconciler.
func (r *WorkloadReconciler) SetupWithManager(mgr ctrl.Manager) error {
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&kueuev1beta2.Workload{}).
		Complete(r)
}

// Reconcile answers for one Workload.
func (r *WorkloadReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	wl := &kueuev1beta2.Workload{}
	if err := r.Client.Get(ctx, req.NamespacedName, wl); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	checks := &kueuev1beta2.AdmissionCheckList{}
	if err := r.Client.List(ctx, checks); err != nil {
		return ctrl.Result{}, fmt.Errorf("list AdmissionChecks: %w", err)
	}
	entries := letThrough(wl, ownChecks(checks.Items, r.ControllerName), metav1.NewTime(r.Clock.Now()))
	if entries == nil {
		return ctrl.Result{}, nil
	}
	if err := r.applyEntries(ctx, wl, entries); err != nil {
		if apierrors.IsConflict(err) {
			// The Workload has changed since it was read: decide again when that change arrives.
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	ctrl.LoggerFrom(ctx).Info("Workload let through", "workload", req.String())
	return ctrl.Result{}, nil
}

// ownChecks are the names of the AdmissionChecks that this controller answers for.
func ownChecks(checks []kueuev1beta2.AdmissionCheck, controllerName string) map[kueuev1beta2.AdmissionCheckReference]bool {
	own := map[kueuev1beta2.AdmissionCheckReference]bool{}
	for i := range checks {
		if checks[i].Spec.ControllerName == controllerName {
			own[kueuev1beta2.AdmissionCheckReference(checks[i].Name)] = true
		}
	}
	return own
}

// letThrough returns our entries as they should be written, all of them (an entry that an apply leaves
// out is an entry given up), or nil if there is nothing to write.
func letThrough(wl *kueuev1beta2.Workload, own map[kueuev1beta2.AdmissionCheckReference]bool, now metav1.Time) []kueuev1beta2.AdmissionCheckState {
	conditions := wl.Status.Conditions
	if !meta.IsStatusConditionTrue(conditions, kueuev1beta2.WorkloadQuotaReserved) ||
		meta.IsStatusConditionTrue(conditions, kueuev1beta2.WorkloadEvicted) ||
		meta.IsStatusConditionTrue(conditions, kueuev1beta2.WorkloadFinished) ||
		meta.IsStatusConditionTrue(conditions, kueuev1beta2.WorkloadAdmitted) ||
		!ptr.Deref(wl.Spec.Active, true) || !wl.DeletionTimestamp.IsZero() {
		return nil
	}
	var entries []kueuev1beta2.AdmissionCheckState
	changed := false
	for _, entry := range wl.Status.AdmissionChecks {
		if !own[entry.Name] {
			continue
		}
		if entry.State == kueuev1beta2.CheckStatePending {
			changed = true
			entry = kueuev1beta2.AdmissionCheckState{
				Name: entry.Name, State: kueuev1beta2.CheckStateReady, LastTransitionTime: now, Message: "Let through",
			}
		}
		entries = append(entries, entry)
	}
	if !changed {
		return nil
	}
	return entries
}

// applyEntries writes our entries of status.admissionChecks and nothing else. With uid and
// resourceVersion in it, it is refused as a conflict unless the Workload is still the one that was
// decided upon.
func (r *WorkloadReconciler) applyEntries(ctx context.Context, wl *kueuev1beta2.Workload, entries []kueuev1beta2.AdmissionCheckState) error {
	list := make([]any, 0, len(entries))
	for _, entry := range entries {
		list = append(list, map[string]any{
			"name":               string(entry.Name),
			"state":              string(entry.State),
			"lastTransitionTime": entry.LastTransitionTime.UTC().Format("2006-01-02T15:04:05Z"),
			"message":            entry.Message,
		})
	}
	apply := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{
			"name":            wl.Name,
			"namespace":       wl.Namespace,
			"uid":             string(wl.UID),
			"resourceVersion": wl.ResourceVersion,
		},
		"status": map[string]any{"admissionChecks": list},
	}}
	apply.SetGroupVersionKind(kueuev1beta2.GroupVersion.WithKind("Workload"))
	if err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(apply),
		admissionFieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("write admission checks of Workload %s/%s: %w", wl.Namespace, wl.Name, err)
	}
	return nil
}
