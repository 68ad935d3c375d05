package adapter

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// Cancel deletes the job with everything that belongs to it, and says whether it is gone; call it again
// until it is. A job that is being deleted is never let through any more. Where the uid is empty it is the
// job of the submission, if there is one. It is deleted in the foreground, so that once it is gone none of
// its pods runs.
func (t *Target) Cancel(ctx context.Context, job Job) (gone bool, err error) {
	if _, err := t.mayWrite(); err != nil {
		return false, err
	}
	object, err := t.ours(ctx, &job, true)
	if err != nil || object == nil {
		return err == nil, err
	}
	if object.GetDeletionTimestamp().IsZero() {
		err := t.write(ctx, func(ctx context.Context, c client.Client) error {
			return c.Delete(ctx, object, client.Preconditions{UID: ptr.To(object.GetUID())},
				client.PropagationPolicy(metav1.DeletePropagationForeground))
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return false, failed("deleting "+job.String(), err)
		}
		if object, err = t.ours(ctx, &job, true); err != nil || object == nil {
			return err == nil, err
		}
		if object.GetDeletionTimestamp().IsZero() { // another one; the next call deletes it
			return false, nil
		}
	}
	if err := t.letGo(ctx, &job, object); apierrors.IsConflict(err) {
		return false, nil // it was changed, as a job is whose pods end
	} else if err != nil {
		return false, err
	}
	object, err = t.ours(ctx, &job, true)
	return err == nil && object == nil, err
}

// Release lets the job go whose end was recorded: it takes v1alpha1.SubmissionFinalizer away. A job that is
// gone needs no more.
func (t *Target) Release(ctx context.Context, job Job) error {
	if _, err := t.mayWrite(); err != nil {
		return err
	}
	object, err := t.ours(ctx, &job, false)
	if err != nil || object == nil {
		return err
	}
	return t.letGo(ctx, &job, object)
}

// letGo takes our finalizer away, if the job is as it was read.
func (t *Target) letGo(ctx context.Context, job *Job, object *unstructured.Unstructured) error {
	if !controllerutil.ContainsFinalizer(object, v1alpha1.SubmissionFinalizer) {
		return nil
	}
	released := object.DeepCopy()
	controllerutil.RemoveFinalizer(released, v1alpha1.SubmissionFinalizer)
	err := t.write(ctx, func(ctx context.Context, c client.Client) error {
		return c.Patch(ctx, released, client.MergeFromWithOptions(object, client.MergeFromWithOptimisticLock{}))
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return failed("taking the finalizer off "+job.String(), err)
}

// ours is the job itself, and with duplicates also one of the same submission under another uid, which a
// request that was late can have made; nil if there is none. Of a job whose uid is known, a kind that is not
// served any more says nothing: it may be served in another version.
func (t *Target) ours(ctx context.Context, job *Job, duplicates bool) (*unstructured.Unstructured, error) {
	if job.UID == "" && job.Submission == "" {
		return nil, fmt.Errorf("%s: the job's UID or its Submission is required", job.String())
	}
	if _, err := t.identify(ctx, job.ClusterUID); err != nil {
		return nil, err
	}
	object, err := t.readJob(ctx, job)
	if job.UID == "" && errors.Is(err, ErrKindNotServed) {
		return nil, nil
	}
	if err != nil || object == nil {
		return nil, err
	}
	sent := job.Submission != "" && object.GetLabels()[v1alpha1.SubmissionLabel] == job.Submission
	if object.GetUID() == job.UID || sent && (job.UID == "" || duplicates) {
		return object, nil
	}
	return nil, nil
}
