package clusters

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

const (
	// grantsPerSecond and grantBurst bound what a target that floods us with events can cost.
	grantsPerSecond, grantBurst = 200, 1000
	// grantsPeriod is how often it is tried anew to watch the grants of a target that refuses it or does not
	// serve them: one that no jobs are sent to. Documented in docs/dispatchjobs.md.
	grantsPeriod = time.Minute
)

// followGrants tells of every change of an AdmissionGrant on the target by the name of its job, until the
// cluster is closed. Nothing is kept: the one who is told reads what it needs. It calls relisted after it
// may have missed some. It has no part in the verdict: where grants may not be watched, a target is still
// read and proved.
func (c *Cluster) followGrants(changed func(job types.NamespacedName), relisted func()) {
	backoff := newBackoff()
	limiter := rate.NewLimiter(grantsPerSecond, grantBurst)
	for c.ctx.Err() == nil {
		began := time.Now()
		err := c.watchGrants(limiter, changed, relisted)
		if time.Since(began) > settledWatch {
			backoff = newBackoff()
		}
		pause := backoff.Step()
		if err != nil && gate.IsAnswer(err) && !apierrors.IsUnauthorized(err) {
			backoff = newBackoff()
			pause = wait.Jitter(grantsPeriod, 0.2)
		}
		if !sleep(c.ctx, pause, c.rewatchGrants) {
			return
		}
	}
}

// Submitted says that a job was just created on the target. Where its AdmissionGrants could not be watched
// before, they may be now.
func (c *Cluster) Submitted() {
	if !c.watchingGrants.Load() {
		signal(c.rewatchGrants)
	}
}

func (c *Cluster) watchGrants(limiter *rate.Limiter, changed func(types.NamespacedName), relisted func()) error {
	var list v1alpha1.AdmissionGrantList
	// Only the version to watch from is wanted: what there is, is looked at by relisted.
	if err := c.listGrants(&list); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	stream, err := c.jobs.Watch(ctx, &v1alpha1.AdmissionGrantList{}, &client.ListOptions{
		Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion},
	})
	if err != nil {
		return err
	}
	defer stream.Stop()
	c.watchingGrants.Store(true)
	defer c.watchingGrants.Store(false)
	relisted()
	for event := range stream.ResultChan() {
		switch event.Type {
		case watch.Added, watch.Modified, watch.Deleted:
			if grant, ok := event.Object.(*v1alpha1.AdmissionGrant); ok {
				if err := limiter.Wait(ctx); err != nil {
					return nil
				}
				changed(types.NamespacedName{Namespace: grant.Namespace, Name: grant.Spec.JobRef.Name})
			}
		default: // an error, such as a version that is too old
			return nil
		}
	}
	return nil
}

func (c *Cluster) listGrants(list *v1alpha1.AdmissionGrantList) error {
	ctx, cancel := context.WithTimeout(c.ctx, requestTimeout)
	defer cancel()
	return c.jobs.List(ctx, list, client.Limit(1))
}
