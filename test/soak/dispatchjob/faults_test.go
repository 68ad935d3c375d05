package dispatchjob

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/faultproxy"
)

// killAtRandom kills the manager and starts it again, until all kills are done. Half of the kills come when a
// job is just about to be created.
func (s *soak) killAtRandom(ctx context.Context, manager *controlplane.Component, random *rand.Rand) error {
	for s.left.Add(-1) >= 0 {
		if !s.letGoOn(ctx, random, 40, time.Minute) {
			return nil
		}
		if random.IntN(2) == 0 {
			select {
			case <-s.seen.nextIntent():
			case <-time.After(10 * time.Second): // nobody sends anything now
			}
		}
		pause(ctx, random, 0, 100*time.Millisecond)
		manager.Kill()
		s.counts.killed.Add(1)
		if s.seen.anyBetween() {
			s.counts.killedBetween.Add(1)
		}
		if err := manager.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// keepAdmission starts dispatch-admission again, as a Deployment does, when it ends: on a machine so busy that
// it cannot renew its Lease it does, and the target is observe-only until it is back.
func (s *soak) keepAdmission(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
		if !s.admission.Running() {
			s.counts.admissionRestarted.Add(1)
			if err := s.admission.Start(ctx); err != nil {
				return err
			}
		}
	}
}

// letGoOn waits until up to so many statuses have been written, or nothing goes on for long, and says whether to
// go on. Time is measured by statuses, so that jobs get done between two faults however slow the machine is.
func (s *soak) letGoOn(ctx context.Context, random *rand.Rand, statuses int, long time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-s.seen.after(1 + random.IntN(statuses)):
	case <-time.After(long):
	}
	return true
}

func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)))
}

// pause lasts for some time between least and most.
func pause(ctx context.Context, random *rand.Rand, least, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(between(random, least, most)):
	}
}

// disturbNetwork cuts and delays connections to the target at random moments. What a fault holds back arrives
// when it ends, or never.
func (s *soak) disturbNetwork(ctx context.Context, random *rand.Rand) error {
	for s.letGoOn(ctx, random, 30, 20*time.Second) {
		switch random.IntN(4) {
		case 0:
			s.counts.cut.Add(1)
			s.network.Existing(faultproxy.All(faultproxy.Cut))
			continue
		case 1:
			s.counts.refused.Add(1)
			s.network.Refuse()
			s.network.Existing(faultproxy.All(faultproxy.Cut))
			pause(ctx, random, 100*time.Millisecond, 2*time.Second)
			if err := s.network.Listen(); err != nil {
				return err
			}
			continue
		case 2:
			s.counts.delayed.Add(1)
			s.network.Every(faultproxy.All(faultproxy.Delay(between(random, 20*time.Millisecond, 200*time.Millisecond))))
			pause(ctx, random, time.Second, 4*time.Second)
		case 3:
			s.counts.blackHoled.Add(1)
			s.network.Every(faultproxy.All(faultproxy.BlackHole))
			pause(ctx, random, 200*time.Millisecond, 3*time.Second)
		}
		if random.IntN(2) == 0 {
			s.counts.cut.Add(1)
			s.network.Existing(faultproxy.All(faultproxy.Cut))
		}
		s.network.Every(faultproxy.All(faultproxy.Pass))
	}
	return nil
}

// mostEvictions is how often a job is evicted, but for those when the whole queue is drained.
const mostEvictions = 2

// evictAtRandom takes jobs' admissions away, by one of several ways.
func (s *soak) evictAtRandom(ctx context.Context, random *rand.Rand) error {
	for s.letGoOn(ctx, random, 15, 20*time.Second) {
		// None is evicted so often that it never ends.
		running := slices.DeleteFunc(s.seen.running(), func(job *batchv1.Job) bool { return s.seen.starts(job) > mostEvictions })
		if len(running) == 0 {
			continue
		}
		job := running[random.IntN(len(running))]
		evict := s.deleteWorkload
		switch n := random.IntN(20); {
		case n == 0:
			evict = s.drainQueue
		case n < 10:
			evict = s.deactivate
		}
		if err := evict(context.WithoutCancel(ctx), job); err != nil {
			return err
		}
	}
	return nil
}

func (s *soak) deleteWorkload(ctx context.Context, job *batchv1.Job) error {
	wl, err := s.workload(ctx, job)
	if wl == nil {
		return err
	}
	s.counts.workloadsDeleted.Add(1)
	return client.IgnoreNotFound(s.targetClient.Delete(ctx, wl, client.Preconditions{UID: &wl.UID}))
}

func (s *soak) deactivate(ctx context.Context, job *batchv1.Job) error {
	s.counts.deactivated.Add(1)
	setActive := func(active bool) error {
		wl, err := s.workload(ctx, job)
		if wl == nil {
			return err
		}
		before := wl.DeepCopy()
		wl.Spec.Active = ptr.To(active)
		return client.IgnoreNotFound(s.targetClient.Patch(ctx, wl, client.MergeFrom(before)))
	}
	if err := setActive(false); err != nil {
		return err
	}
	if err := s.waitUntilStopped(ctx, job); err != nil {
		return err
	}
	return setActive(true)
}

func (s *soak) drainQueue(ctx context.Context, _ *batchv1.Job) error {
	s.counts.drained.Add(1)
	stop := func(policy kueuev1beta2.StopPolicy) error {
		queue := &kueuev1beta2.ClusterQueue{}
		if err := s.targetClient.Get(ctx, client.ObjectKey{Name: namespace}, queue); err != nil {
			return err
		}
		before := queue.DeepCopy()
		queue.Spec.StopPolicy = ptr.To(policy)
		return s.targetClient.Patch(ctx, queue, client.MergeFrom(before))
	}
	if err := stop(kueuev1beta2.HoldAndDrain); err != nil {
		return err
	}
	if err := s.waitUntilStopped(ctx, nil); err != nil {
		return err
	}
	return stop(kueuev1beta2.None)
}

// waitUntilStopped waits until the job, or any if it is nil, does not run.
func (s *soak) waitUntilStopped(ctx context.Context, job *batchv1.Job) error {
	return poll(ctx, func(context.Context) (string, bool, error) {
		running := s.seen.running()
		if job != nil {
			running = slices.DeleteFunc(running, func(r *batchv1.Job) bool { return r.UID != job.UID })
		}
		return fmt.Sprintf("%d jobs that were evicted run", len(running)), len(running) == 0, nil
	})
}

// workload is the Job's Workload; nil if it has none now.
func (s *soak) workload(ctx context.Context, job *batchv1.Job) (*kueuev1beta2.Workload, error) {
	list := &kueuev1beta2.WorkloadList{}
	err := s.targetClient.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{"kueue.x-k8s.io/job-uid": string(job.UID)})
	if err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return &list.Items[0], nil
}
