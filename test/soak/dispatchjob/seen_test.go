package dispatchjob

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// seen is what watches on both clusters have told, by submission. What must never be is an error of the test
// at the moment at which it is seen.
type seen struct {
	t *testing.T

	mu          sync.Mutex
	submissions map[types.UID]*submission
	// intent is closed, and replaced, when a job is about to be created.
	intent chan struct{}
	// statuses is how many statuses of DispatchJobs were seen, and waiting who waits for how many.
	statuses int
	waiting  map[chan struct{}]int
}

type submission struct {
	// granted is the most that the user has granted; it is raised before the request is sent.
	granted int32
	// jobs are the uids on the target.
	jobs     sets.Set[types.UID]
	starts   int
	attempts int32
	// between is between intent and uid.
	between bool
	// job is the newest version that was seen, and ended whether any has succeeded.
	job   *batchv1.Job
	ended bool
}

func newSeen(t *testing.T) *seen {
	return &seen{t: t, submissions: map[types.UID]*submission{}, intent: make(chan struct{}), waiting: map[chan struct{}]int{}}
}

// submission is called with the lock held.
func (s *seen) submission(id types.UID) *submission {
	if s.submissions[id] == nil {
		s.submissions[id] = &submission{granted: 1, jobs: sets.New[types.UID]()}
	}
	return s.submissions[id]
}

// grant is called before the user grants.
func (s *seen) grant(id types.UID, admissions int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.submission(id).granted = admissions
}

// job is called for every version of every Job on the target.
func (s *seen) job(job *batchv1.Job, starts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.submission(idOf(job))
	j.jobs.Insert(job.UID)
	j.starts = max(j.starts, starts)
	j.job = job
	j.ended = j.ended || job.Status.CompletionTime != nil
	if len(j.jobs) > 1 {
		s.t.Errorf("job %s was submitted %d times: %v", job.Name, len(j.jobs), sets.List(j.jobs))
	}
	if j.starts > int(j.granted) {
		s.t.Errorf("job %s started %d times and was granted %d", job.Name, j.starts, j.granted)
	}
}

// dispatchJob is called for every version of every DispatchJob that the watch tells of.
func (s *seen) dispatchJob(dj *v1alpha1.DispatchJob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statuses++
	for waiting, statuses := range s.waiting {
		if s.statuses >= statuses {
			close(waiting)
			delete(s.waiting, waiting)
		}
	}
	record := dj.Status.Submission
	if record == nil {
		return
	}
	j := s.submission(dj.UID)
	if record.Job == nil && record.Attempts > j.attempts {
		close(s.intent)
		s.intent = make(chan struct{})
	}
	j.between = record.Job == nil
	j.attempts = record.Attempts
}

// gone is called when a DispatchJob is no more.
func (s *seen) gone(dj *v1alpha1.DispatchJob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.submission(dj.UID).between = false
}

// ended says whether the job was seen to have succeeded on the target.
func (s *seen) ended(id types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.submission(id).ended
}

// after is closed once so many more statuses were seen.
func (s *seen) after(statuses int) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := make(chan struct{})
	s.waiting[waiting] = s.statuses + statuses
	return waiting
}

// nextIntent is closed when the next job is about to be created.
func (s *seen) nextIntent() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.intent
}

// anyBetween says whether any job is between intent and uid.
func (s *seen) anyBetween() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.submissions {
		if j.between {
			return true
		}
	}
	return false
}

// running are the Jobs on the target that run, in the order of their names.
func (s *seen) running() []*batchv1.Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	var jobs []*batchv1.Job
	for _, j := range s.submissions {
		if j.job != nil && !ptr.Deref(j.job.Spec.Suspend, false) && j.job.Status.CompletionTime == nil && j.job.DeletionTimestamp.IsZero() {
			jobs = append(jobs, j.job)
		}
	}
	slices.SortFunc(jobs, func(a, b *batchv1.Job) int { return strings.Compare(a.Name, b.Name) })
	return jobs
}

// followDispatchJobs reads the DispatchJobs of the hub from a watch from now on.
func (s *soak) followDispatchJobs(ctx context.Context) {
	var err error
	s.jobs, err = cache.New(s.hub.Config(), cache.Options{Scheme: s.hubClient.Scheme()})
	s.Expect(err).NotTo(HaveOccurred())
	go func() { _ = s.jobs.Start(ctx) }() // ends with the context
	informer, err := s.jobs.GetInformer(ctx, &v1alpha1.DispatchJob{})
	s.Expect(err).NotTo(HaveOccurred())
	handle := func(do func(*v1alpha1.DispatchJob)) func(any) {
		return func(o any) {
			if job, ok := o.(*v1alpha1.DispatchJob); ok {
				do(job)
			}
		}
	}
	changed := handle(s.seen.dispatchJob)
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: handle(s.seen.gone),
	})
	s.Expect(err).NotTo(HaveOccurred())
}

// starts is how often the job was seen to start.
func (s *seen) starts(job *batchv1.Job) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.submission(idOf(job)).starts
}

// idOf is the uid of the DispatchJob that the job was sent for.
func idOf(job *batchv1.Job) types.UID { return types.UID(job.Labels[v1alpha1.SubmissionLabel]) }

type sums struct{ submissions, jobs, starts, granted, retried int }

func (s *seen) sum() sums {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sum sums
	for _, j := range s.submissions {
		if j.attempts > 0 {
			sum.submissions++
		}
		sum.jobs += len(j.jobs)
		sum.starts += j.starts
		if len(j.jobs) > 0 {
			sum.granted += int(j.granted)
		}
		if j.attempts > 1 {
			sum.retried++
		}
	}
	return sum
}
