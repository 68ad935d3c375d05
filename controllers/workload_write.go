package controllers

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// preconditioned begins an apply that the API server refuses as a conflict unless the object is still
// the one that was read: the same object, and not changed by anybody since. It is the resourceVersion
// that does it; on a status the API server ignores a uid, which here says the same to a reader.
func preconditioned(kind schema.GroupVersionKind, read client.Object) *unstructured.Unstructured {
	apply := &unstructured.Unstructured{}
	apply.SetGroupVersionKind(kind)
	apply.SetNamespace(read.GetNamespace())
	apply.SetName(read.GetName())
	apply.SetUID(read.GetUID())
	apply.SetResourceVersion(read.GetResourceVersion())
	return apply
}

// writeEntries writes our entries of status.admissionChecks and nothing else, if the Workload is still
// as it was read. The Workload gets the resourceVersion of the result.
func (r *WorkloadReconciler) writeEntries(ctx context.Context, wl *kueuev1beta2.Workload, entries []kueuev1beta2.AdmissionCheckState) error {
	list := make([]any, 0, len(entries))
	for _, entry := range entries {
		// All four are required; an entry that others co-own is refused without them.
		list = append(list, map[string]any{
			"name":               string(entry.Name),
			"state":              string(entry.State),
			"lastTransitionTime": entry.LastTransitionTime.UTC().Format(time.RFC3339),
			"message":            entry.Message,
		})
	}
	apply := preconditioned(kueuev1beta2.GroupVersion.WithKind("Workload"), wl)
	apply.Object["status"] = map[string]any{"admissionChecks": list}
	if err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(apply),
		admissionFieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("write admission checks of Workload %s/%s: %w", wl.Namespace, wl.Name, err)
	}
	wl.ResourceVersion = apply.GetResourceVersion()
	return nil
}
