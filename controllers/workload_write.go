package controllers

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

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
