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

// inheritedFrom is what a slice of an elastic job takes over from the job's earlier slices, or nil if there
// are none. The count of those is only looked for where the slice's own is not known.
func (r *WorkloadReconciler) inheritedFrom(ctx context.Context, wl *kueuev1beta2.Workload, counted bool) (*inheritedCount, error) {
	if wl.Annotations[elasticJobAnnotation] != elasticJobAnnotationTrue {
		return nil, nil
	}
	var inherited *inheritedCount
	if !counted {
		var err error
		if inherited, err = r.countOfSlices(ctx, wl); err != nil {
			return nil, err
		}
	}
	replaced, err := r.replacedSlice(ctx, wl)
	if err != nil || replaced == nil || findCondition(replaced, kueuev1beta2.WorkloadAdmitted) == nil {
		return inherited, err
	}
	if inherited == nil {
		inherited = &inheritedCount{granted: 1}
	}
	inherited.used = max(inherited.used, 1) // it has run, with or without a grant
	inherited.fromRunning = isTrue(replaced, kueuev1beta2.WorkloadAdmitted) && !isTrue(replaced, kueuev1beta2.WorkloadEvicted)
	return inherited, nil
}

// countOfSlices is the count by the grants of the job's other slices, or nil if there are none. It asks the
// API server, since no precondition of a later write would tell that one of them has changed.
func (r *WorkloadReconciler) countOfSlices(ctx context.Context, wl *kueuev1beta2.Workload) (*inheritedCount, error) {
	grants := &dispatchv1alpha1.AdmissionGrantList{}
	if err := r.reader.List(ctx, grants, client.InNamespace(wl.Namespace)); err != nil {
		return nil, fmt.Errorf("list grants: %w", err)
	}
	var count *inheritedCount
	for i := range grants.Items {
		grant := &grants.Items[i]
		if grant.Name == wl.Name || !hasOwner(workloadOwners(wl), grant.Spec.JobRef.UID) {
			continue
		}
		used := ptr.Deref(grant.Status.Admissions, 0)
		if grant.Status.Opened != nil {
			used = max(used, grant.Status.Opened.Number) // it may have been used; nobody looks at that slice any more
		}
		if count == nil {
			count = &inheritedCount{}
		}
		count.granted, count.used = max(count.granted, grant.Spec.Admissions), max(count.used, used)
	}
	return count, nil
}

// replacedSlice is the Workload that Kueue made wl in place of, or nil.
func (r *WorkloadReconciler) replacedSlice(ctx context.Context, wl *kueuev1beta2.Workload) (*kueuev1beta2.Workload, error) {
	_, name, found := strings.Cut(wl.Annotations[sliceReplacesAnnotation], "/")
	if !found {
		return nil, nil
	}
	replaced := &kueuev1beta2.Workload{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: wl.Namespace, Name: name}, replaced); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read replaced slice: %w", err)
	}
	return replaced, nil
}

// continuesRunningJob says whether the Workload is a slice that takes over from one that ran, of a job
// that has run ever since: to let it through starts nothing. Kueue leaves such a job unsuspended until
// the slice is admitted. Once the slice is evicted, the job is stopped, and the slice is a start as any
// other; that it is unsuspended then is no proof, since Kueue leaves that to whoever did it.
func continuesRunningJob(s situation) bool {
	return s.inherited != nil && s.inherited.fromRunning &&
		s.job.generation != 0 && !s.job.suspended && !s.job.ending &&
		evictions(s.workload) == 0 && findCondition(s.workload, kueuev1beta2.WorkloadEvicted) == nil &&
		findCondition(s.workload, kueuev1beta2.WorkloadAdmitted) == nil
}
