package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/dispatch-dev/dispatch/adapter"
	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/clusters"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

const (
	// jobWorkers is how many DispatchJobs are looked at side by side, and jobsPerTarget how many of them on
	// one target, so that a target that hangs does not take all workers.
	jobWorkers, jobsPerTarget = 32, 8
	// busyRetry is how soon to look again at a job whose target had no worker left.
	busyRetry = 200 * time.Millisecond
	// refusedRetry is how often a submission is tried anew that the target refused: nothing tells when that
	// changes there.
	refusedRetry = 30 * time.Second
	// proofRetry is how soon to try again where a proof was about to end: it is renewed without any news.
	proofRetry = time.Second
	// cancelRetry is how often a cancelled job is looked for until it is gone.
	cancelRetry = time.Second
	// resync is how often a job is looked at without news. AdmissionGrants tell of all that Kueue does, but
	// not of a job that somebody else deletes.
	resync = time.Minute
	// plainResync is the same in plain mode, where there are no grants.
	plainResync = 10 * time.Second
	// settle is how long a request to create a job, whose answer was lost, may still be under way. It is well
	// above what the client waits, after which the connection is reset.
	settle = 3 * clusters.RequestTimeout
)

// DispatchJobReconciler sends each DispatchJob to its target, follows it there, and cancels it when the
// DispatchJob is deleted.
//
// It decides from its cache. What makes that safe: a job is only created after a status write that names the
// version decided on, so that an old read, or another leader's, creates nothing; on the target every job is
// named by its uid; and a uid that is recorded is never replaced.
type DispatchJobReconciler struct {
	Client client.Client
	// Targets is the set of connections.
	Targets *clusters.Set
	// Recorder gets an event for each transition of a condition.
	Recorder events.EventRecorder
	// Clock stamps what is written. Default: the real clock.
	Clock clock.PassiveClock

	slots slots
}

// +kubebuilder:rbac:groups=dispatch.dev,resources=dispatchjobs,verbs=list;watch;patch
// +kubebuilder:rbac:groups=dispatch.dev,resources=dispatchjobs/status,verbs=patch
// +kubebuilder:rbac:groups=dispatch.dev,resources=dispatchtargets,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile does what one DispatchJob needs next.
func (r *DispatchJobReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var job v1alpha1.DispatchJob
	if err := r.Client.Get(ctx, req.NamespacedName, &job); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if isDone(&job) {
		return ctrl.Result{}, nil
	}
	done, ok := r.slots.take(job.Spec.TargetRef.Name, jobsPerTarget)
	if !ok {
		return ctrl.Result{RequeueAfter: wait.Jitter(busyRetry, 1)}, nil
	}
	defer done()
	status := job.Status.DeepCopy()
	result, gone, err := r.reconcile(ctx, &job, status)
	if !gone && !apierrors.IsConflict(err) {
		// With an error, too: it is told what was found out on the way there.
		status.ObservedGeneration = job.Generation
		err = errors.Join(err, client.IgnoreNotFound(r.writeStatus(ctx, &job, status)))
	}
	switch {
	case apierrors.IsConflict(err):
		// What was decided on is old. What is newer may be a status, which is not told.
		return ctrl.Result{RequeueAfter: wait.Jitter(busyRetry, 1)}, nil
	case gone:
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return result, err
}

// isDone: nothing more is to be done, unless it is deleted.
func isDone(job *v1alpha1.DispatchJob) bool {
	return job.DeletionTimestamp.IsZero() && job.Status.Submission != nil && job.Status.Submission.Released
}

// reconcile changes status to what it is to be. It has also written those parts that had to be written
// before something else was done. gone: the DispatchJob is no more.
func (r *DispatchJobReconciler) reconcile(ctx context.Context, job *v1alpha1.DispatchJob, status *v1alpha1.DispatchJobStatus) (_ ctrl.Result, gone bool, _ error) {
	deleted := !job.DeletionTimestamp.IsZero()
	if deleted && (!controllerutil.ContainsFinalizer(job, v1alpha1.CancelFinalizer) || status.Submission == nil || job.Annotations[v1alpha1.AbandonAnnotation] == "true") {
		// Nothing was ever sent, or it is given up. Refused by the API server if the read is old.
		return ctrl.Result{}, true, r.setFinalizer(ctx, job, false)
	}
	target, dt, err := r.target(ctx, job)
	switch {
	case err != nil:
	case deleted:
		return r.cancel(ctx, target, job, status)
	case status.Submission == nil || status.Submission.Job == nil:
		return r.submit(ctx, target, dt, job, status)
	default:
		return r.follow(ctx, target, dt, job, status)
	}
	// There is no connection to the target.
	var held *heldError
	if !errors.As(err, &held) {
		return ctrl.Result{}, false, err
	}
	if !held.soon || meta.FindStatusCondition(status.Conditions, v1alpha1.ReadyCondition) == nil {
		hold(job, status, held.reason, held.message)
	}
	return ctrl.Result{}, false, nil
}

// heldError is why there is no connection to a target. soon: it is only that nothing is known of the target
// yet. Of that a job is told which has no status; those of a manager that starts anew would all be written
// twice for nothing.
type heldError struct {
	reason, message string
	soon            bool
}

func (e *heldError) Error() string { return e.message }

// target is the connection that the job needs.
func (r *DispatchJobReconciler) target(ctx context.Context, job *v1alpha1.DispatchJob) (*adapter.Target, *v1alpha1.DispatchTarget, error) {
	name := job.Spec.TargetRef.Name
	var dt v1alpha1.DispatchTarget
	err := r.Client.Get(ctx, types.NamespacedName{Name: name}, &dt)
	if apierrors.IsNotFound(err) {
		return nil, nil, &heldError{reason: v1alpha1.TargetNotFoundReason, message: fmt.Sprintf("DispatchTarget %s does not exist", name)}
	}
	if err != nil {
		return nil, nil, err
	}
	snapshot, ok := r.Targets.Snapshot(name, dt.Spec)
	if !ok {
		snapshot.Verdict = gate.Judge(dt.Spec.Kueue, gate.Evidence{}, gate.Instant{})
	}
	soon := snapshot.Preflighting()
	if cluster := r.Targets.Cluster(name, dt.Spec); cluster != nil && !soon {
		return adapter.Over(cluster, name, dt.Spec.ObserveOnly), &dt, nil
	}
	f := snapshot.Reachable
	return nil, nil, &heldError{
		reason: v1alpha1.TargetObserveOnlyReason, soon: soon,
		message: fmt.Sprintf("%s (%s): %s", v1alpha1.ReachableCondition, f.Reason, f.Message),
	}
}

// setFinalizer adds or takes away our finalizer, if the DispatchJob is as it was read.
func (r *DispatchJobReconciler) setFinalizer(ctx context.Context, job *v1alpha1.DispatchJob, on bool) error {
	base := job.DeepCopy()
	changed := on && controllerutil.AddFinalizer(job, v1alpha1.CancelFinalizer) || !on && controllerutil.RemoveFinalizer(job, v1alpha1.CancelFinalizer)
	if !changed {
		return nil
	}
	if err := r.Client.Patch(ctx, job, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("writing the finalizer: %w", err)
	}
	return nil
}

// writeStatus writes the status, if it is new and the DispatchJob is as it was read, and then tells of the
// transition that it made.
func (r *DispatchJobReconciler) writeStatus(ctx context.Context, job *v1alpha1.DispatchJob, status *v1alpha1.DispatchJobStatus) error {
	if equality.Semantic.DeepEqual(*status, job.Status) {
		return nil
	}
	if err := writeStatus(ctx, r.Client, "DispatchJob", job, status, managerFieldOwner); err != nil {
		return err
	}
	before := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ReadyCondition)
	job.Status = *status.DeepCopy()
	if now := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ReadyCondition); now != nil {
		r.announce(job, before, now)
	}
	return nil
}

// announce tells of a transition of Ready, once it is written.
func (r *DispatchJobReconciler) announce(job *v1alpha1.DispatchJob, before, now *metav1.Condition) {
	if now.Reason == v1alpha1.SubmittingReason || before != nil && before.Status == now.Status && before.Reason == now.Reason {
		return
	}
	eventType := corev1.EventTypeNormal
	switch now.Reason {
	case v1alpha1.JobFailedReason, v1alpha1.JobDeletedReason, v1alpha1.LostReason, v1alpha1.TargetForbiddenReason,
		v1alpha1.ClusterChangedReason, v1alpha1.EvictionStuckReason, v1alpha1.MovedQueueReason, v1alpha1.RunningUncheckedReason, v1alpha1.CancelHeldReason:
		eventType = corev1.EventTypeWarning
	}
	r.Recorder.Eventf(job, nil, eventType, now.Reason, "Dispatch", "%s", now.Message)
}

// templateOf reads the template. What is no object has no kind, which the adapter refuses.
func templateOf(job *v1alpha1.DispatchJob) *unstructured.Unstructured {
	template := &unstructured.Unstructured{}
	if err := json.Unmarshal(job.Spec.Template.Raw, &template.Object); err != nil || template.Object == nil {
		template.Object = map[string]any{}
	}
	return template
}

// jobOf names the job on the target.
func jobOf(job *v1alpha1.DispatchJob) adapter.Job {
	named := adapter.Job{
		GroupVersionKind: templateOf(job).GroupVersionKind(), Namespace: job.Namespace, Name: job.Name,
		Submission: string(job.UID), LocalQueue: job.Spec.LocalQueue,
	}
	if s := job.Status.Submission; s != nil {
		named.ClusterUID = s.ClusterUID
		if s.Job != nil {
			named.UID = s.Job.UID
		}
	}
	return named
}

func stampOf(c clock.PassiveClock) metav1.Time { return metav1.NewTime(c.Now().Truncate(time.Second)) }
