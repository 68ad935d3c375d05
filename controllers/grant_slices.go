package controllers

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// Annotations by which Kueue marks the Workloads of an elastic job. Such a job has a new Workload, with a
// new name and so with a new grant, for each time it is scaled up.
const (
	elasticJobAnnotation     = "kueue.x-k8s.io/elastic-job"
	sliceReplacesAnnotation  = "kueue.x-k8s.io/workload-slice-replacement-for"
	elasticJobAnnotationTrue = "true"
)

// inheritedFrom is the count that a slice of an elastic job takes over from the job's earlier slices,
// or nil if it begins with one admission of its own. It begins anew if it replaces a slice that runs:
// the job runs already, and scaling it is no readmission. Otherwise scaling a held job up would start it.
func (r *WorkloadReconciler) inheritedFrom(ctx context.Context, wl *kueuev1beta2.Workload) (*inheritedCount, error) {
	if wl.Annotations[elasticJobAnnotation] != elasticJobAnnotationTrue {
		return nil, nil
	}
	if _, name, found := strings.Cut(wl.Annotations[sliceReplacesAnnotation], "/"); found {
		replaced := &kueuev1beta2.Workload{}
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: wl.Namespace, Name: name}, replaced)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read replaced slice: %w", err)
		}
		if !apierrors.IsNotFound(err) && isTrue(replaced, kueuev1beta2.WorkloadAdmitted) &&
			!isTrue(replaced, kueuev1beta2.WorkloadEvicted) {
			return nil, nil
		}
	}
	grants := &dispatchv1alpha1.AdmissionGrantList{}
	if err := r.Client.List(ctx, grants, client.InNamespace(wl.Namespace)); err != nil {
		return nil, fmt.Errorf("list grants: %w", err)
	}
	var inherited *inheritedCount
	for i := range grants.Items {
		grant := &grants.Items[i]
		if grant.Name == wl.Name || !hasOwner(workloadOwners(wl), grant.Spec.JobRef.UID) {
			continue
		}
		used := ptr.Deref(grant.Status.Admissions, 0)
		if grant.Status.Opened != nil {
			used++ // it may have been used; nobody looks at that slice any more
		}
		if inherited == nil || used > inherited.used {
			inherited = &inheritedCount{granted: grant.Spec.Admissions, used: used}
		}
	}
	return inherited, nil
}
