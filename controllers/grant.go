package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// How soon to look again whether the job of a deleted grant is gone. Kinds of jobs are many and are not
// watched; a grant outlives its job by no more than this.
const (
	endingJobRetry = time.Second
	livingJobRetry = 30 * time.Second
)

// workloadOwners are the objects that the Workload was made for, as owners that a grant can have: not
// its controller, and not in the way of a foreground deletion. A Workload that nothing owns stands for
// itself.
func workloadOwners(wl *kueuev1beta2.Workload) []metav1.OwnerReference {
	if len(wl.OwnerReferences) == 0 {
		return []metav1.OwnerReference{{
			APIVersion: kueuev1beta2.GroupVersion.String(), Kind: "Workload", Name: wl.Name, UID: wl.UID,
		}}
	}
	owners := make([]metav1.OwnerReference, 0, len(wl.OwnerReferences))
	for _, owner := range wl.OwnerReferences {
		owners = append(owners, metav1.OwnerReference{
			APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID,
		})
	}
	return owners
}

// newGrant is the grant of the Workload's job.
func newGrant(wl *kueuev1beta2.Workload, admissions int32) *dispatchv1alpha1.AdmissionGrant {
	owners := workloadOwners(wl)
	job := owners[0]
	if controller := metav1.GetControllerOf(wl); controller != nil {
		job = *controller
	}
	return &dispatchv1alpha1.AdmissionGrant{
		ObjectMeta: metav1.ObjectMeta{
			Name:            wl.Name,
			Namespace:       wl.Namespace,
			Finalizers:      []string{dispatchv1alpha1.AdmissionCountFinalizer},
			OwnerReferences: owners,
		},
		Spec: dispatchv1alpha1.AdmissionGrantSpec{
			JobRef: dispatchv1alpha1.JobReference{
				APIVersion: job.APIVersion, Kind: job.Kind, Name: job.Name, UID: job.UID,
			},
			Admissions: admissions,
		},
	}
}

// grantOwners are the objects that the grant belongs to: its job and, where pods of a group or a job
// that adopted a prebuilt Workload came later, those as well.
func grantOwners(grant *dispatchv1alpha1.AdmissionGrant) []metav1.OwnerReference {
	job := grant.Spec.JobRef
	owners := []metav1.OwnerReference{{APIVersion: job.APIVersion, Kind: job.Kind, Name: job.Name, UID: job.UID}}
	for _, owner := range grant.OwnerReferences {
		if owner.UID != job.UID {
			owners = append(owners, owner)
		}
	}
	return owners
}

// grantIsFor says whether the grant is that of the Workload's job, and not one that merely has the name.
func grantIsFor(grant *dispatchv1alpha1.AdmissionGrant, wl *kueuev1beta2.Workload) bool {
	return slices.ContainsFunc(grantOwners(grant), func(owner metav1.OwnerReference) bool {
		return owner.UID == wl.UID || hasOwner(workloadOwners(wl), owner.UID)
	})
}

func hasOwner(owners []metav1.OwnerReference, uid types.UID) bool {
	return slices.ContainsFunc(owners, func(owner metav1.OwnerReference) bool { return owner.UID == uid })
}

// adoption is what the grant's metadata lacks, as something to apply; nil if it is complete. It lacks
// something if a user made it, or removed something, or if the Workload has got a further owner.
func adoption(grant *dispatchv1alpha1.AdmissionGrant, wl *kueuev1beta2.Workload) *unstructured.Unstructured {
	owners, missing := slices.Clone(grant.OwnerReferences), false
	for _, owner := range workloadOwners(wl) {
		if !hasOwner(owners, owner.UID) {
			owners, missing = append(owners, owner), true
		}
	}
	if !grant.DeletionTimestamp.IsZero() || // nothing may be added any more
		(!missing && controllerutil.ContainsFinalizer(grant, dispatchv1alpha1.AdmissionCountFinalizer)) {
		return nil
	}
	apply := preconditioned(dispatchv1alpha1.GroupVersion.WithKind("AdmissionGrant"), grant)
	apply.SetFinalizers([]string{dispatchv1alpha1.AdmissionCountFinalizer})
	apply.SetOwnerReferences(owners)
	return apply
}

// writeGrantStatus makes status the grant's whole status, if the grant is still as it was read. The
// grant gets the resourceVersion of the result. It is no server-side apply, which would leave a field
// that status lacks where somebody else has written it as well.
func (r *WorkloadReconciler) writeGrantStatus(ctx context.Context, grant *dispatchv1alpha1.AdmissionGrant, status *dispatchv1alpha1.AdmissionGrantStatus) error {
	patch := client.MergeFromWithOptions(grant.DeepCopy(), client.MergeFromWithOptimisticLock{})
	status.DeepCopyInto(&grant.Status)
	if err := r.Client.Status().Patch(ctx, grant, patch, admissionFieldOwner); err != nil {
		return fmt.Errorf("write status of AdmissionGrant %s/%s: %w", grant.Namespace, grant.Name, err)
	}
	return nil
}

// settleGrant does what a grant needs that is being deleted, or that no Workload holds any more: once
// everything it belongs to is gone, it goes too. It returns whether it went or, for one that is being
// deleted, when to look again.
func (r *WorkloadReconciler) settleGrant(ctx context.Context, grant *dispatchv1alpha1.AdmissionGrant, hasWorkload bool) (settled bool, retry time.Duration, err error) {
	deleted := !grant.DeletionTimestamp.IsZero()
	if deleted && !controllerutil.ContainsFinalizer(grant, dispatchv1alpha1.AdmissionCountFinalizer) {
		return false, 0, nil // somebody else's finalizer holds it
	}
	for _, owner := range grantOwners(grant) {
		job, err := r.readJob(ctx, grant.Namespace, owner)
		switch {
		case meta.IsNoMatchError(err) && !hasWorkload:
			// The kind is not served any more, so there is no job. With a Workload there, better wait.
			continue
		case meta.IsNoMatchError(err) || apierrors.IsForbidden(err):
			ctrl.LoggerFrom(ctx).Info("Grant kept, since its job cannot be read", "grant", client.ObjectKeyFromObject(grant), "error", err.Error())
		case err != nil:
			return false, 0, err
		case job == nil:
			continue
		}
		switch {
		case !deleted:
			return false, 0, nil // the garbage collector deletes it with the last of its owners
		case job != nil && !job.GetDeletionTimestamp().IsZero():
			return false, endingJobRetry, nil
		default:
			return false, livingJobRetry, nil
		}
	}
	if !deleted {
		return true, 0, r.Client.Delete(ctx, grant, client.Preconditions{ResourceVersion: &grant.ResourceVersion})
	}
	released := grant.DeepCopy()
	controllerutil.RemoveFinalizer(released, dispatchv1alpha1.AdmissionCountFinalizer)
	return true, 0, r.Client.Patch(ctx, released, client.MergeFromWithOptions(grant, client.MergeFromWithOptimisticLock{}))
}

// jobState reads the Workload's job from the API server. The job is asked for after the Workload was
// read; that a job is deleted right afterwards cannot be ruled out, and Kueue then does not start it.
func (r *WorkloadReconciler) jobState(ctx context.Context, wl *kueuev1beta2.Workload) (jobState, error) {
	if len(wl.OwnerReferences) != 1 {
		// A Workload of its own, or a group of pods of which each comes and goes.
		return jobState{}, nil
	}
	owner := wl.OwnerReferences[0]
	job, err := r.readJob(ctx, wl.Namespace, owner)
	switch {
	case meta.IsNoMatchError(err) || apierrors.IsForbidden(err):
		return jobState{unreadable: fmt.Sprintf("dispatch-admission may not get %s %s (%s), and so cannot tell whether it is being deleted: bind a ClusterRole with that permission to its ServiceAccount",
			owner.Kind, owner.Name, owner.APIVersion)}, nil
	case err != nil:
		return jobState{}, err
	case job == nil:
		return jobState{ending: true}, nil
	}
	return jobState{
		ending:     !job.GetDeletionTimestamp().IsZero(),
		generation: job.GetGeneration(),
		suspended:  suspended(job),
	}, nil
}

// readJob returns nil if the object does not exist or has another uid.
func (r *WorkloadReconciler) readJob(ctx context.Context, namespace string, ref metav1.OwnerReference) (*unstructured.Unstructured, error) {
	job := &unstructured.Unstructured{}
	job.SetAPIVersion(ref.APIVersion)
	job.SetKind(ref.Kind)
	if err := r.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, job); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("read %s %s/%s: %w", ref.Kind, namespace, ref.Name, err)
	}
	if job.GetUID() != ref.UID {
		return nil, nil
	}
	return job, nil
}

// suspended says whether the job is suspended by one of the fields that kinds have for it.
func suspended(job *unstructured.Unstructured) bool {
	for _, field := range [][]string{{"spec", "suspend"}, {"spec", "runPolicy", "suspend"}} {
		if value, found, err := unstructured.NestedBool(job.Object, field...); err == nil && found {
			return value
		}
	}
	return false
}
