package adapter

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

// Submission is a job that is to be sent.
type Submission struct {
	// ID identifies the submission for good. A job that carries it is never created twice as long as the
	// first one exists, and that does until Release or Cancel. Required: up to 63 letters, digits, '-', '_'
	// and '.'.
	ID string
	// Namespace and Name are the job's. Required.
	Namespace, Name string
	// LocalQueue in that namespace. Required in Kueue mode, and none in plain mode.
	LocalQueue string
	// Template is the job: apiVersion, kind and spec, and in metadata labels and annotations. Required.
	Template *unstructured.Unstructured
	// ClusterUID is the cluster that the job must go to. Default: whichever answers.
	ClusterUID types.UID
	// Intend is called with the uid of the cluster when everything was checked, right before the job is
	// created: the place to write down that it is about to be. An error ends the submission, and nothing is
	// created. Default: nothing.
	Intend func(ctx context.Context, clusterUID types.UID) error
}

// Job names a job on a target.
type Job struct {
	schema.GroupVersionKind
	Namespace, Name string
	// UID of the job; empty where it is not known whether there is one.
	UID types.UID
	// Submission is the id by which it was sent.
	Submission string
	// ClusterUID is the cluster that it was sent to.
	ClusterUID types.UID
	// LocalQueue that it was sent to; empty in plain mode.
	LocalQueue string
}

func (j *Job) String() string { return fmt.Sprintf("%s %s/%s", j.Kind, j.Namespace, j.Name) }

func (j *Job) key() client.ObjectKey { return client.ObjectKey{Namespace: j.Namespace, Name: j.Name} }

// Submit creates the job, suspended and in its queue (in plain mode: to run at once), unless a job of the
// same submission is there, which it then returns. It checks live that the LocalQueue leads to the
// ClusterQueue whose gate is proved. The job carries v1alpha1.SubmissionFinalizer, so that it does not
// vanish before its end was seen: call Release then, or Cancel before.
//
// After ErrRequest the job may or may not be there: call Submit again.
func (t *Target) Submit(ctx context.Context, s Submission) (Job, error) {
	if s.ID == "" || len(validation.IsValidLabelValue(s.ID)) > 0 || s.Namespace == "" || s.Name == "" {
		return Job{}, refuse(ErrTemplateRefused, "submission: ID, Namespace and Name are required, and ID must be fit for a label")
	}
	spec := t.cluster.KueueSpec()
	object, kind, err := newJob(&s, t.name, spec == nil)
	if err != nil {
		return Job{}, err
	}
	// Asked first, so that a target that may not be written to is not read either.
	if _, err := t.mayWrite(); err != nil {
		return Job{}, err
	}
	if active := t.cluster.Snapshot().QueueActive; active.Status != metav1.ConditionTrue {
		return Job{}, &ObserveOnlyError{Condition: v1alpha1.QueueActiveCondition, Reason: active.Reason, Message: active.Message, sentinel: ErrQueueInactive}
	}
	clusterUID, err := t.identify(ctx, s.ClusterUID)
	if err != nil {
		return Job{}, err
	}
	if err := t.checkQueue(ctx, &s, spec); err != nil {
		return Job{}, err
	}
	if s.Intend != nil {
		if err := s.Intend(ctx, clusterUID); err != nil {
			return Job{}, err
		}
	}
	job := Job{
		GroupVersionKind: kind.GroupVersionKind, Namespace: s.Namespace, Name: s.Name,
		Submission: s.ID, ClusterUID: clusterUID, LocalQueue: s.LocalQueue,
	}
	err = t.write(ctx, func(ctx context.Context, c client.Client) error { return c.Create(ctx, object) })
	if apierrors.IsAlreadyExists(err) {
		return t.adopt(ctx, job)
	}
	if err != nil {
		return Job{}, notCreated(&job, err)
	}
	t.cluster.Submitted()
	job.UID = object.GetUID()
	return job, nil
}

// adopt returns the job that has the name already, if it is of the same submission.
func (t *Target) adopt(ctx context.Context, job Job) (Job, error) {
	object, err := t.readJob(ctx, &job)
	if err != nil {
		return Job{}, err
	}
	if object == nil {
		return Job{}, &requestError{doing: "creating " + job.String(), err: apierrors.NewConflict(schema.GroupResource{}, job.Name, nil)}
	}
	if object.GetLabels()[v1alpha1.SubmissionLabel] != job.Submission {
		return Job{}, refuse(ErrNameTaken, "%s is on the target already and was not sent by this submission: it is left alone", job.String())
	}
	job.UID = object.GetUID()
	return job, nil
}

// Find looks for the job of a submission whose answer was lost, and returns it with its uid. It works in
// every mode. A job that is not there is ErrJobNotFound: it may still be under way.
func (t *Target) Find(ctx context.Context, job Job) (Job, error) {
	object, err := t.ours(ctx, &job, false)
	if err != nil {
		return Job{}, err
	}
	if object == nil {
		return Job{}, refuse(ErrJobNotFound, "%s is not on the target", job.String())
	}
	job.UID = object.GetUID()
	return job, nil
}

// readJob returns nil if no job has the name.
func (t *Target) readJob(ctx context.Context, job *Job) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(job.GroupVersionKind)
	err := t.read(ctx, job.key(), object)
	if apierrors.IsNotFound(err) && !gate.NotServed(err) {
		return nil, nil
	}
	if err != nil {
		return nil, failed("reading "+job.String(), err)
	}
	return object, nil
}

func (t *Target) checkQueue(ctx context.Context, s *Submission, spec *v1alpha1.KueueSpec) error {
	switch {
	case spec == nil && s.LocalQueue == "":
		return nil
	case spec == nil:
		return refuse(ErrQueueMismatch, "localQueue: a target in plain mode has no queues: leave it out")
	case s.LocalQueue == "":
		return refuse(ErrQueueMismatch, "localQueue: is required, and must lead to ClusterQueue %s", spec.ClusterQueue)
	}
	var queue kueue.LocalQueue
	err := t.read(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.LocalQueue}, &queue)
	switch {
	case apierrors.IsNotFound(err) && !gate.NotServed(err):
		return refuse(ErrQueueMismatch, "LocalQueue %s/%s does not exist on the target", s.Namespace, s.LocalQueue)
	case err != nil:
		return failed(fmt.Sprintf("reading LocalQueue %s/%s", s.Namespace, s.LocalQueue), err)
	case string(queue.Spec.ClusterQueue) != spec.ClusterQueue:
		return refuse(ErrQueueMismatch, "LocalQueue %s/%s leads to ClusterQueue %s, not to %s, whose readmission gate is proved",
			s.Namespace, s.LocalQueue, gate.Quote(string(queue.Spec.ClusterQueue)), spec.ClusterQueue)
	case !queue.DeletionTimestamp.IsZero():
		return refuse(ErrQueueMismatch, "LocalQueue %s/%s is being deleted", s.Namespace, s.LocalQueue)
	}
	return nil
}

// notCreated tells apart why the target created no job.
func notCreated(job *Job, err error) error {
	var status apierrors.APIStatus
	isStatus := errors.As(err, &status)
	switch {
	case apierrors.IsNotFound(err) && isStatus && status.Status().Details != nil && status.Status().Details.Kind == "namespaces":
		return refuse(ErrNamespaceNotFound, "namespace %s does not exist on the target", job.Namespace)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err),
		// A webhook that refuses without a code of its own is answered with 403, as a missing permission is.
		apierrors.IsForbidden(err) && strings.Contains(err.Error(), "admission webhook"):
		return refuse(ErrTemplateRefused, "the target refuses %s: %s", job.String(), gate.Quote(err.Error()))
	}
	return failed("creating "+job.String(), err)
}
