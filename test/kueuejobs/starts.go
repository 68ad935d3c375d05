package kueuejobs

import (
	"context"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"
)

// Starts counts how often each Job of a cluster has been started: its suspend field went from true to
// false. A watch sees every version of a Job, so no start is missed.
type Starts struct {
	seen []func(job *batchv1.Job, starts int)

	mu   sync.Mutex
	jobs map[types.UID]*jobStarts
}

type jobStarts struct {
	suspended bool
	starts    int
	last      time.Time
}

// WatchStarts counts from now on, until the context ends. It calls seen for every version of every Job, in
// order, with the starts so far.
func WatchStarts(ctx context.Context, config *rest.Config, seen ...func(job *batchv1.Job, starts int)) (*Starts, error) {
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	jobs := clientset.BatchV1().Jobs(metav1.NamespaceAll)
	list, err := jobs.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing Jobs: %w", err)
	}
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return jobs.Watch(ctx, options)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching Jobs: %w", err)
	}
	s := &Starts{seen: seen, jobs: map[types.UID]*jobStarts{}}
	for i := range list.Items {
		s.see(&list.Items[i])
	}
	go func() {
		for event := range watcher.ResultChan() {
			if job, ok := event.Object.(*batchv1.Job); ok {
				s.see(job)
			}
		}
	}()
	return s, nil
}

func (s *Starts) see(job *batchv1.Job) {
	starts := s.count(job)
	for _, seen := range s.seen {
		seen(job, starts)
	}
}

func (s *Starts) count(job *batchv1.Job) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, found := s.jobs[job.UID]
	if !found {
		seen = &jobStarts{suspended: true}
		s.jobs[job.UID] = seen
	}
	suspended := ptr.Deref(job.Spec.Suspend, false)
	if seen.suspended && !suspended {
		seen.starts++
		seen.last = time.Now()
	}
	seen.suspended = suspended
	return seen.starts
}

// Of is how often the Job has started.
func (s *Starts) Of(uid types.UID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seen, found := s.jobs[uid]; found {
		return seen.starts
	}
	return 0
}

// Last is when the Job's last start was seen.
func (s *Starts) Last(uid types.UID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seen, found := s.jobs[uid]; found {
		return seen.last
	}
	return time.Time{}
}
