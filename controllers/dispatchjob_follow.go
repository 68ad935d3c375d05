package controllers

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/adapter"
	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// soon is when to look at a job that was just sent: its grant comes with the reservation of quota.
const soon = time.Second

// follow brings the status up to date with the target, grants what the spec grants, and lets a job go whose
// end is recorded.
func (r *DispatchJobReconciler) follow(ctx context.Context, target *adapter.Target, dt *v1alpha1.DispatchTarget, job *v1alpha1.DispatchJob, status *v1alpha1.DispatchJobStatus) (ctrl.Result, bool, error) {
	if !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.FinishedCondition) {
		inspection, err := target.Inspect(ctx, jobOf(job))
		switch {
		case errors.Is(err, adapter.ErrJobNotFound):
			lost(status, err.Error())
			return ctrl.Result{}, false, nil
		case err != nil:
			return r.explain(job, status, err)
		}
		picture(status, inspection)
	}
	if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.FinishedCondition) {
		return r.release(ctx, target, job, status)
	}
	if status.Admissions != nil && status.Admissions.Granted < job.Spec.Admissions {
		allowed, err := r.allowed(ctx, dt, job.Namespace)
		if err != nil {
			return ctrl.Result{}, false, err
		}
		if !allowed {
			hold(job, status, v1alpha1.NamespaceNotAllowedReason, "the DispatchTarget does not allow this namespace to send jobs to it, nor to let them start again")
			return ctrl.Result{}, false, nil
		}
		if err := target.Grant(ctx, jobOf(job), job.Spec.Admissions); err != nil && !errors.Is(err, adapter.ErrNoGrant) {
			return r.explain(job, status, err)
		}
	}
	pause := resync
	if dt.Spec.Kueue == nil {
		pause = plainResync
	}
	return ctrl.Result{RequeueAfter: wait.Jitter(pause, 0.2)}, false, nil
}

// release lets the job go, after its end is in the status. Where more than one request to create it was
// sent, the name stays taken until the others cannot arrive any more.
func (r *DispatchJobReconciler) release(ctx context.Context, target *adapter.Target, job *v1alpha1.DispatchJob, status *v1alpha1.DispatchJobStatus) (ctrl.Result, bool, error) {
	status.ObservedGeneration = job.Generation
	if err := r.writeStatus(ctx, job, status); err != nil {
		return ctrl.Result{}, false, err
	}
	if s := status.Submission; s.Attempts > 1 {
		if left := s.LastAttempt.Add(settle).Sub(r.Clock.Now()); left > 0 {
			return ctrl.Result{RequeueAfter: left}, false, nil
		}
	}
	if err := target.Release(ctx, jobOf(job)); err != nil {
		return r.explain(job, status, err)
	}
	clearAbnormal(status)
	status.Submission.Released = true
	return ctrl.Result{}, false, nil
}

// cancel deletes the job, and lets the DispatchJob go when it is gone.
func (r *DispatchJobReconciler) cancel(ctx context.Context, target *adapter.Target, job *v1alpha1.DispatchJob, status *v1alpha1.DispatchJobStatus) (ctrl.Result, bool, error) {
	gone, err := target.Cancel(ctx, jobOf(job))
	if err != nil {
		return r.explain(job, status, err)
	}
	clearAbnormal(status)
	if gone && (status.Submission.Job == nil || status.Submission.Attempts > 1) {
		// A request to create it may still be under way. None was sent after the deletion.
		since := status.Submission.LastAttempt.Time
		if status.Submission.Job == nil && job.DeletionTimestamp.After(since) {
			since = job.DeletionTimestamp.Time
		}
		if left := since.Add(settle).Sub(r.Clock.Now()); left > 0 {
			status.Phase = v1alpha1.JobCancelling
			setReason(status, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.CancellingReason,
				"the job is not on the target; looking once more when no request to create it can be under way")
			return ctrl.Result{RequeueAfter: left}, false, nil
		}
	}
	if gone {
		return ctrl.Result{}, true, r.setFinalizer(ctx, job, false)
	}
	status.Phase = v1alpha1.JobCancelling
	setReason(status, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.CancellingReason, "the job is being deleted on the target")
	return ctrl.Result{RequeueAfter: cancelRetry}, false, nil
}

// lost records that the job is not there any more. It is the end: what cannot be found is not created anew.
func lost(status *v1alpha1.DispatchJobStatus, message string) {
	clearAbnormal(status)
	status.Phase = v1alpha1.JobLost
	status.Submission.Released = true
	setReason(status, v1alpha1.FinishedCondition, metav1.ConditionTrue, v1alpha1.LostReason, message)
	setReason(status, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.LostReason, message)
}

// picture puts what was seen on the target into the status.
func picture(status *v1alpha1.DispatchJobStatus, i adapter.Inspection) {
	clearAbnormal(status)
	status.Phase, status.Check, status.Eviction = i.Phase, i.Check, i.Eviction
	if i.Admissions != nil {
		status.Admissions = i.Admissions
	}
	if len(i.Conditions) > 0 || i.Finished == nil {
		// Taken as a whole: a Workload that was made anew has none of its predecessor's.
		for _, name := range []string{kueue.WorkloadQuotaReserved, kueue.WorkloadAdmitted, kueue.WorkloadEvicted} {
			meta.RemoveStatusCondition(&status.Conditions, name)
		}
	}
	for _, c := range i.Conditions {
		c.ObservedGeneration = 0 // that of the Workload, which is not here
		meta.SetStatusCondition(&status.Conditions, c)
	}
	ready := metav1.ConditionFalse
	switch i.Reason {
	case v1alpha1.RunningReason, v1alpha1.RunningUncheckedReason, v1alpha1.JobSucceededReason:
		ready = metav1.ConditionTrue
	}
	setReason(status, v1alpha1.ReadyCondition, ready, i.Reason, i.Message)
}
