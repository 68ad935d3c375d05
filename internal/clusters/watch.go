package clusters

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-dev/dispatch/internal/gate"
)

const (
	// pollPeriod is how often an object is read that may not be watched, and one that may not be read or
	// whose kind is not served, since nothing tells when that changes. Documented in docs/targets.md.
	pollPeriod = 5 * time.Second
	// settledWatch is how long a watch must have stood for the next to begin at once.
	settledWatch = 5 * time.Second
	// eventsPerSecond and eventBurst bound what a target that floods us with events can cost. One that
	// has more to say is read late, and in the end anew: API servers cut off readers that fall behind.
	eventsPerSecond, eventBurst = 20, 100
	// confirmRetry is the pause between tries to confirm the Lease before its proof expires.
	confirmRetry = 200 * time.Millisecond
)

// newBackoff paces the tries to reach a target that gives no answer: from 0.2 s to 10 s, each up to half
// as long again.
func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 10 * time.Second}
}

// failure is why an object cannot be read, in words that are fit for a status.
type failure string

func (f failure) Error() string { return string(f) }

// object is a pointer to T that is a client.Object.
type object[T any] interface {
	*T
	client.Object
}

// watched is one object on the target and where news of it goes.
type watched[T any, P object[T]] struct {
	name string
	key  client.ObjectKey
	list client.ObjectList
	// rewatch, if not nil, ends the present watch.
	rewatch chan struct{}
	// older, if not nil, tells a watch event that lags behind what was read beside the watch.
	older  func(e *gate.Evidence, object *T) bool
	answer func(e *gate.Evidence, object *T, err error, now time.Duration)
	fail   func(e *gate.Evidence, err error, now time.Duration)
}

// follow reads an object and watches it from there, again and again until the cluster is closed. It is
// not client-go's Reflector because what it must tell apart, a Reflector hides: an answer that something
// does not exist or may not be read is evidence at once, while no answer leaves the last one standing
// until it is too old.
func follow[T any, P object[T]](c *Cluster, w *watched[T, P]) {
	backoff := newBackoff()
	for c.ctx.Err() == nil {
		began := time.Now()
		var pause time.Duration
		switch readAndWatch(c, w) {
		case watchEnded:
			if time.Since(began) > settledWatch {
				backoff = newBackoff()
				continue
			}
			pause = backoff.Step()
		case notWatchable:
			backoff = newBackoff()
			pause = wait.Jitter(pollPeriod, 0.2)
		case noAnswer:
			pause = backoff.Step()
		}
		if !sleep(c.ctx, pause, w.rewatch) {
			return
		}
	}
}

// outcome is how a round of reading and watching ended.
type outcome int

const (
	// watchEnded: the watch stood and has ended, as every watch does after some minutes.
	watchEnded outcome = iota
	// notWatchable: the target answered, but there is nothing that can be watched.
	notWatchable
	// noAnswer: the target gave no usable answer, or did not accept the credentials.
	noAnswer
)

func readAndWatch[T any, P object[T]](c *Cluster, w *watched[T, P]) outcome {
	got := P(new(T))
	err := c.get(w.key, got)
	switch {
	case err == nil:
		c.update(func(e *gate.Evidence, now time.Duration) { w.answer(e, got, nil, now) })
	case !gate.IsAnswer(err):
		c.update(func(e *gate.Evidence, now time.Duration) {
			c.count(err)
			w.fail(e, failure(describe(err)), now)
		})
		return noAnswer
	default:
		c.update(func(e *gate.Evidence, now time.Duration) {
			c.count(err)
			w.answer(e, nil, err, now)
		})
		if apierrors.IsUnauthorized(err) {
			return noAnswer
		}
		if !apierrors.IsNotFound(err) || gate.NotServed(err) {
			return notWatchable
		}
	}

	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	// An object that does not exist has no version to watch from. Without one, a watch begins with what
	// exists, so that nothing is missed in between.
	stream, err := c.conn.Watch(ctx, w.list, client.InNamespace(w.key.Namespace), &client.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, w.key.Name),
		Raw:           &metav1.ListOptions{ResourceVersion: got.GetResourceVersion()},
	})
	switch {
	case apierrors.IsForbidden(err):
		c.setPolled(w.name, true)
		return notWatchable
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
		return watchEnded
	case err != nil:
		c.update(func(e *gate.Evidence, now time.Duration) {
			c.count(err)
			w.fail(e, failure(describe(err)), now)
		})
		return noAnswer
	}
	defer stream.Stop()
	c.setPolled(w.name, false)
	limiter := rate.NewLimiter(eventsPerSecond, eventBurst)
	for {
		if err := limiter.Wait(ctx); err != nil {
			return watchEnded
		}
		select {
		case <-w.rewatch:
			return watchEnded
		case event, ok := <-stream.ResultChan():
			if !ok {
				return watchEnded
			}
			switch event.Type {
			case watch.Added, watch.Modified:
				if got, ok := event.Object.(P); ok {
					c.update(func(e *gate.Evidence, now time.Duration) {
						if w.older == nil || !w.older(e, got) {
							w.answer(e, got, nil, now)
						}
					})
				}
			case watch.Deleted:
				gone := apierrors.NewNotFound(schema.GroupResource{Resource: w.name}, w.key.Name)
				c.update(func(e *gate.Evidence, now time.Duration) { w.answer(e, nil, gone, now) })
			default: // an error, such as a version that is too old
				return watchEnded
			}
		}
	}
}

func (c *Cluster) get(key client.ObjectKey, object client.Object) error {
	ctx, cancel := context.WithTimeout(c.ctx, requestTimeout)
	defer cancel()
	return c.conn.Get(ctx, key, object)
}

// sleep returns after d, or before when it is woken, and tells whether to go on.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-wake:
	}
	return true
}

// signal wakes whoever waits on a channel of one place, now or later.
func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
