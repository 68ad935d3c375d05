package controllers

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/dispatch-dev/dispatch/adapter"
	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// submit sends the job. Before it, the intent is in the status; after it, the job's uid. So whatever was
// written when the process dies, the next one knows that a job may be there, and on which cluster.
func (r *DispatchJobReconciler) submit(ctx context.Context, target *adapter.Target, dt *v1alpha1.DispatchTarget, job *v1alpha1.DispatchJob, status *v1alpha1.DispatchJobStatus) (ctrl.Result, bool, error) {
	if status.Submission != nil {
		// The answer to a request was lost: it may have had its effect.
		switch found, err := target.Find(ctx, jobOf(job)); {
		case err == nil:
			submitted(status, found)
			return ctrl.Result{RequeueAfter: soon}, false, nil
		case !errors.Is(err, adapter.ErrJobNotFound):
			return r.explain(job, status, err)
		}
	}
	allowed, err := r.allowed(ctx, dt, job.Namespace)
	if err != nil {
		return ctrl.Result{}, false, err
	}
	if !allowed {
		hold(job, status, v1alpha1.NamespaceNotAllowedReason,
			fmt.Sprintf("DispatchTarget %s does not allow namespace %s to send jobs to it: see its spec.allowedNamespaces", dt.Name, job.Namespace))
		return ctrl.Result{}, false, nil
	}
	if err := r.setFinalizer(ctx, job, true); err != nil {
		return ctrl.Result{}, false, err
	}
	named, before := jobOf(job), status.Submission.DeepCopy()
	found, err := target.Submit(ctx, adapter.Submission{
		ID: named.Submission, Namespace: named.Namespace, Name: named.Name, ClusterUID: named.ClusterUID,
		LocalQueue: job.Spec.LocalQueue, Template: templateOf(job),
		Intend: func(ctx context.Context, clusterUID types.UID) error {
			intend(status, clusterUID, stampOf(r.Clock))
			status.ObservedGeneration = job.Generation
			return r.writeStatus(ctx, job, status)
		},
	})
	if err != nil {
		if !errors.Is(err, adapter.ErrRequest) {
			status.Submission = before // this request has created nothing; an earlier one may have
		}
		return r.explain(job, status, err)
	}
	submitted(status, found)
	return ctrl.Result{RequeueAfter: soon}, false, nil
}

// intend records that a request to create the job is about to be sent.
func intend(status *v1alpha1.DispatchJobStatus, clusterUID types.UID, now metav1.Time) {
	attempts := int32(1)
	if status.Submission != nil {
		attempts += status.Submission.Attempts
	}
	status.Submission = &v1alpha1.SubmissionRecord{ClusterUID: clusterUID, Attempts: attempts, LastAttempt: now}
	status.Phase = v1alpha1.JobPending
	setReason(status, v1alpha1.SubmittedCondition, metav1.ConditionUnknown, v1alpha1.SubmittingReason, "the job is being created on the target")
	setReason(status, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.SubmittingReason, "the job is being created on the target")
}

// submitted records the job that is on the target.
func submitted(status *v1alpha1.DispatchJobStatus, job adapter.Job) {
	status.Submission.Job = &v1alpha1.JobReference{
		APIVersion: job.GroupVersion().String(), Kind: job.Kind, Name: job.Name, UID: job.UID,
	}
	status.Phase = v1alpha1.JobQueued
	clearAbnormal(status)
	setReason(status, v1alpha1.SubmittedCondition, metav1.ConditionTrue, v1alpha1.SubmittedReason, "the job is on the target")
	setReason(status, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.WaitingForQuotaReason, "Kueue has not looked at the job yet")
}

// explain makes a status of an error of the adapter's, and says when to try again.
func (r *DispatchJobReconciler) explain(job *v1alpha1.DispatchJob, status *v1alpha1.DispatchJobStatus, err error) (ctrl.Result, bool, error) {
	reason := reasonOf(err)
	if reason == "" {
		return ctrl.Result{}, false, err // the hub's own
	}
	if apierrors.IsConflict(err) {
		// The job has changed since it was read there, a moment ago.
		return ctrl.Result{RequeueAfter: busyRetry}, false, nil
	}
	switch reason {
	case v1alpha1.TargetForbiddenReason, v1alpha1.ClusterChangedReason:
		clearAbnormal(status)
		setReason(status, reason, metav1.ConditionTrue, reason, err.Error()) // type and reason are the same word
	}
	hold(job, status, reason, err.Error())

	var observeOnly *adapter.ObserveOnlyError
	switch {
	case errors.As(err, &observeOnly) && observeOnly.Soon:
		return ctrl.Result{RequeueAfter: proofRetry}, false, nil
	case errors.As(err, &observeOnly):
		return ctrl.Result{}, false, nil // the verdict's change is told
	case reason == v1alpha1.TargetUnreachableReason:
		return ctrl.Result{}, false, err // paced by the queue
	}
	return ctrl.Result{RequeueAfter: wait.Jitter(refusedRetry, 0.2)}, false, nil
}

// reasonOf is the reason that an error of the adapter's gives a condition; empty for any other error.
func reasonOf(err error) string {
	for _, r := range []struct {
		err    error
		reason string
	}{
		{adapter.ErrObserveOnly, v1alpha1.TargetObserveOnlyReason},
		{adapter.ErrQueueInactive, v1alpha1.QueueInactiveReason},
		{adapter.ErrTemplateRefused, v1alpha1.TemplateRefusedReason},
		{adapter.ErrKindNotSupported, v1alpha1.KindNotSupportedReason},
		{adapter.ErrKindNotServed, v1alpha1.KindNotServedReason},
		{adapter.ErrQueueMismatch, v1alpha1.QueueMismatchReason},
		{adapter.ErrNamespaceNotFound, v1alpha1.NamespaceNotFoundReason},
		{adapter.ErrNameTaken, v1alpha1.NameTakenReason},
		{adapter.ErrForbidden, v1alpha1.TargetForbiddenReason},
		{adapter.ErrClusterChanged, v1alpha1.ClusterChangedReason},
		{adapter.ErrClusterUnidentified, v1alpha1.ClusterUnidentifiedReason},
		{adapter.ErrRequest, v1alpha1.TargetUnreachableReason},
	} {
		if errors.Is(err, r.err) {
			return r.reason
		}
	}
	return ""
}

// hold says why nothing goes on.
func hold(job *v1alpha1.DispatchJob, status *v1alpha1.DispatchJobStatus, reason, message string) {
	switch {
	case !job.DeletionTimestamp.IsZero():
		status.Phase = v1alpha1.JobCancelling
		setReason(status, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.CancelHeldReason,
			fmt.Sprintf("the job cannot be cancelled now: %s: %s. To give it up, set the annotation %s to \"true\"", reason, message, v1alpha1.AbandonAnnotation))
		return
	case status.Submission == nil || status.Submission.Job == nil:
		status.Phase = v1alpha1.JobPending
		submitting := metav1.ConditionFalse
		if reason == v1alpha1.TargetUnreachableReason && status.Submission != nil {
			submitting = metav1.ConditionUnknown
		}
		setReason(status, v1alpha1.SubmittedCondition, submitting, reason, message)
	case meta.IsStatusConditionTrue(status.Conditions, v1alpha1.FinishedCondition):
		return // how it ended is said already
	}
	setReason(status, v1alpha1.ReadyCondition, metav1.ConditionFalse, reason, message)
}

func setReason(status *v1alpha1.DispatchJobStatus, condition string, value metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: condition, Status: value, Reason: reason, Message: message})
}

// clearAbnormal takes back what is said only while it is so.
func clearAbnormal(status *v1alpha1.DispatchJobStatus) {
	meta.RemoveStatusCondition(&status.Conditions, v1alpha1.TargetForbiddenCondition)
	meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ClusterChangedCondition)
}
