package dispatchjob

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
)

// use sends one job after the other, all under one name, as long as kills are to come.
func (s *soak) use(ctx context.Context, name string, random *rand.Rand) error {
	for {
		if err := s.sendOne(ctx, name, random); err != nil {
			return fmt.Errorf("DispatchJob %s: %w", name, err)
		}
		if s.left.Load() <= 0 {
			return nil
		}
	}
}

// sendOne sends a job and grants it what it needs until it has succeeded, or deletes it before.
func (s *soak) sendOne(ctx context.Context, name string, random *rand.Rand) error {
	ttl := random.IntN(2) == 0
	job := dispatchJob(name, ttl, time.Duration(random.IntN(3000))*time.Millisecond)
	var cancelled <-chan time.Time
	if random.IntN(3) == 0 {
		cancelled = time.After(time.Duration(random.IntN(8000)) * time.Millisecond)
	}
	// The end is recorded before the job is let go; it may be deleted in between.
	untilReleased := random.IntN(2) == 0
	if err := s.hubClient.Create(ctx, job); err != nil {
		return err
	}
	s.counts.sent.Add(1)
	if ttl {
		s.counts.ttl.Add(1)
	}
	current := &v1alpha1.DispatchJob{}
	err := poll(ctx, func(ctx context.Context) (string, bool, error) {
		select {
		case <-cancelled:
			s.counts.cancelled.Add(1)
			return "", true, nil
		default:
		}
		err := s.jobs.Get(ctx, client.ObjectKeyFromObject(job), current)
		if apierrors.IsNotFound(err) || err == nil && current.UID != job.UID {
			return "the watch has not told of it", false, nil
		}
		if err != nil {
			return "", false, err
		}
		if finished := meta.FindStatusCondition(current.Status.Conditions, v1alpha1.FinishedCondition); finished != nil {
			if finished.Reason != v1alpha1.JobSucceededReason || !s.seen.ended(job.UID) {
				return "", false, fmt.Errorf("it is lost: %s", statusOf(current))
			}
			if current.Status.Submission.Released || !untilReleased {
				s.counts.succeeded.Add(1)
				return "", true, nil
			}
			return statusOf(current), false, nil
		}
		return statusOf(current), false, s.grantIfAsked(ctx, current)
	})
	if err != nil {
		return fmt.Errorf("waiting for its end: %w", err)
	}
	if err := s.hubClient.Delete(ctx, job, client.Preconditions{UID: &job.UID}); err != nil {
		return fmt.Errorf("deleting it: %w", err)
	}
	err = poll(ctx, func(ctx context.Context) (string, bool, error) {
		err := s.hubClient.Get(ctx, client.ObjectKeyFromObject(job), current)
		return statusOf(current), apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("waiting until it is gone: %w", err)
	}
	return nil
}

func statusOf(job *v1alpha1.DispatchJob) string {
	data, err := json.Marshal(job.Status)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// grantIfAsked lets a job start again whose status says that it waits for that.
func (s *soak) grantIfAsked(ctx context.Context, job *v1alpha1.DispatchJob) error {
	ready := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ReadyCondition)
	if ready == nil || ready.Reason != v1alpha1.WaitingForGrantReason || job.Status.Admissions.Granted < job.Spec.Admissions {
		return nil
	}
	before := job.DeepCopy()
	job.Spec.Admissions++
	s.seen.grant(job.UID, job.Spec.Admissions)
	s.counts.grants.Add(1)
	return s.hubClient.Patch(ctx, job, client.MergeFrom(before))
}

// dispatchJob runs for so long. With ttl, the target deletes the job as soon as it has finished.
func dispatchJob(name string, ttl bool, runs time.Duration) *v1alpha1.DispatchJob {
	spec := ""
	if ttl {
		spec = `"ttlSecondsAfterFinished": 0, `
	}
	return &v1alpha1.DispatchJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.DispatchJobSpec{
			TargetRef: v1alpha1.TargetReference{Name: "target"}, LocalQueue: namespace,
			Template: runtime.RawExtension{Raw: fmt.Appendf(nil, `{"apiVersion": "batch/v1", "kind": "Job", "spec": {%s"template": {
				"metadata": {"annotations": {%q: %q}},
				"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [
					{"name": "main", "image": "nothing", "resources": {"requests": {"cpu": "1"}}}]}}}}`,
				spec, controlplane.CompletionDelayAnnotation, runs)},
		},
	}
}
