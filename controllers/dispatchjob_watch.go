package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

const (
	// targetRefIndex finds the DispatchJobs of a DispatchTarget.
	targetRefIndex = ".spec.targetRef.name"
	// minJobBackoff and maxJobBackoff pace the tries to reach a target that gives no answer.
	minJobBackoff, maxJobBackoff = 200 * time.Millisecond, 30 * time.Second
)

// SetupWithManager registers the reconciler.
func (r *DispatchJobReconciler) SetupWithManager(mgr ctrl.Manager) error {
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.DispatchJob{}, targetRefIndex, func(o client.Object) []string {
		job, ok := o.(*v1alpha1.DispatchJob)
		if !ok {
			return nil
		}
		return []string{job.Spec.TargetRef.Name}
	})
	if err != nil {
		return fmt.Errorf("indexing DispatchJobs by target: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("dispatchjob").
		// Our own status writes are no news.
		For(&v1alpha1.DispatchJob{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&v1alpha1.DispatchTarget{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.jobs(ctx, client.MatchingFields{targetRefIndex: o.GetName()})
		}), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.jobs(ctx, client.InNamespace(o.GetName()))
		}), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesRawSource(source.Func(r.watchTargets)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: jobWorkers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minJobBackoff, maxJobBackoff),
		}).
		Complete(r)
}

// watchTargets enqueues a job whose AdmissionGrant has changed, and all jobs of a target whose verdict has:
// those that were held go out at once.
func (r *DispatchJobReconciler) watchTargets(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	// The names of targets are collected, because whoever tells of them must not wait for a list.
	targets := workqueue.NewTyped[string]()
	r.Targets.OnChange(func(name string) { targets.Add(name) })
	r.Targets.OnGrant(func(target string, job *types.NamespacedName) {
		if job == nil {
			targets.Add(target)
		} else {
			queue.Add(reconcile.Request{NamespacedName: *job})
		}
	})
	go func() {
		<-ctx.Done()
		targets.ShutDown()
	}()
	go func() {
		for {
			name, shutdown := targets.Get()
			if shutdown {
				return
			}
			for _, request := range r.jobs(ctx, client.MatchingFields{targetRefIndex: name}) {
				queue.Add(request)
			}
			targets.Done(name)
		}
	}()
	return nil
}

func (r *DispatchJobReconciler) jobs(ctx context.Context, which client.ListOption) []reconcile.Request {
	var list v1alpha1.DispatchJobList
	if err := r.Client.List(ctx, &list, which, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "DispatchJobs not looked at again") // the cache answers; it fails only while stopping
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if !isDone(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// slots bound how many workers one target has.
type slots struct {
	mu    sync.Mutex
	taken map[string]int
}

// take takes one, if there is one left of so many, and returns what gives it back.
func (s *slots) take(target string, most int) (done func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[target] >= most {
		return nil, false
	}
	if s.taken == nil {
		s.taken = map[string]int{}
	}
	s.taken[target]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.taken[target]--; s.taken[target] == 0 {
			delete(s.taken, target)
		}
	}, true
}
