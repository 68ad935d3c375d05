package clusters

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

const (
	// requestTimeout bounds every request to a target but a watch, from dialling to the last byte.
	requestTimeout = 10 * time.Second
	// identityPeriod is how often a target's version and uid are read anew in Kueue mode. They are read
	// at once when the connection was lost and comes back.
	identityPeriod = 10 * time.Minute
	// plainPeriod is how often a target in plain mode is asked for its version, which is all that there
	// tells whether it can be reached.
	plainPeriod = 10 * time.Second
)

// processStart is the fixed moment that gate.Instant.Mono counts from.
var processStart = time.Now()

// Now is this moment on the wall clock and on the process's monotonic clock.
func Now() gate.Instant {
	now := time.Now()
	return gate.Instant{Wall: now, Mono: now.Sub(processStart)}
}

// Cluster follows one target cluster and holds the verdict on it.
type Cluster struct {
	cfg      *rest.Config
	conn     *connection
	jobs     *jobConnection
	kueue    *v1alpha1.KueueSpec
	onChange func()
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup
	// reidentify asks for the target's identity to be read at once.
	reidentify chan struct{}
	// rewatchLease ends the watch on the Lease, so that it is begun anew.
	rewatchLease chan struct{}
	// rewatchGrants ends the pause before AdmissionGrants are watched anew.
	rewatchGrants  chan struct{}
	watchingGrants atomic.Bool

	mu         sync.Mutex
	closed     bool
	evidence   gate.Evidence
	polled     sets.Set[string]
	identity   v1alpha1.ClusterIdentity
	identified bool
	snapshot   Snapshot
	failures   map[string]uint64
	began      time.Duration
	preflight  time.Duration
	review     *time.Timer
	confirm    *time.Timer
	// confirming: the Lease is being read live.
	confirming bool
}

// Snapshot is what is known of a target at one moment.
type Snapshot struct {
	gate.Verdict
	// Identity is the zero value until it was read.
	Identity v1alpha1.ClusterIdentity
}

// says tells whether two snapshots say the same. When a proof ends is no part of it: a renewal that
// changes nothing else is no news.
func (s Snapshot) says(other Snapshot) bool {
	return s.Reachable.Says(other.Reachable) && s.QueueActive.Says(other.QueueActive) &&
		s.ReadmissionGate.Says(other.ReadmissionGate) && s.Identity == other.Identity
}

// Connect begins to follow the cluster behind cfg. A nil kueueSpec is plain mode; what is missing in another
// has its default.
// onChange is called, without any lock held, whenever what Snapshot returns has changed, and must not
// block. An error is one of cfg itself: nothing is dialled before Connect returns. Close ends it.
func Connect(cfg *rest.Config, kueueSpec *v1alpha1.KueueSpec, onChange func()) (*Cluster, error) {
	conn, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	jobs, err := connectJobs(cfg)
	if err != nil {
		return nil, err
	}
	if kueueSpec != nil {
		kueueSpec = kueueSpec.DeepCopy()
		kueueSpec.SetDefaults()
	}
	// client-go would log each try at a target that is broken. The status and the metrics tell of it.
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	c := &Cluster{
		cfg: cfg, conn: conn, jobs: jobs, kueue: kueueSpec, onChange: onChange, ctx: ctx, cancel: cancel,
		reidentify: make(chan struct{}, 1), rewatchLease: make(chan struct{}, 1), rewatchGrants: make(chan struct{}, 1),
		polled: sets.New[string](), failures: map[string]uint64{}, began: Now().Mono,
	}
	c.mu.Lock()
	c.review = time.AfterFunc(0, func() { c.update(func(*gate.Evidence, time.Duration) {}) })
	c.confirm = time.AfterFunc(0, c.confirmLease)
	c.rejudge(Now())
	c.mu.Unlock()

	c.running.Go(c.followIdentity)
	if kueueSpec != nil {
		c.running.Go(func() {
			follow(c, &watched[kueue.ClusterQueue, *kueue.ClusterQueue]{
				name: "ClusterQueue", key: client.ObjectKey{Name: kueueSpec.ClusterQueue}, list: &kueue.ClusterQueueList{},
				answer: func(e *gate.Evidence, queue *kueue.ClusterQueue, err error, now time.Duration) {
					e.ClusterQueue.Answer(queue, err, now)
				},
				fail: func(e *gate.Evidence, err error, now time.Duration) { e.ClusterQueue.Fail(err, now) },
			})
		})
		c.running.Go(func() {
			follow(c, &watched[kueue.AdmissionCheck, *kueue.AdmissionCheck]{
				name: "AdmissionCheck", key: client.ObjectKey{Name: kueueSpec.AdmissionCheck}, list: &kueue.AdmissionCheckList{},
				answer: func(e *gate.Evidence, check *kueue.AdmissionCheck, err error, now time.Duration) {
					e.AdmissionCheck.Answer(check, err, now)
				},
				fail: func(e *gate.Evidence, err error, now time.Duration) { e.AdmissionCheck.Fail(err, now) },
			})
		})
		c.running.Go(func() {
			follow(c, &watched[coordinationv1.Lease, *coordinationv1.Lease]{
				name: "Lease", key: c.leaseKey(), list: &coordinationv1.LeaseList{}, rewatch: c.rewatchLease,
				older: olderLease, answer: c.sawLease,
				fail: func(e *gate.Evidence, err error, now time.Duration) { e.Lease.Fail(err, now) },
			})
		})
	}
	return c, nil
}

// Close ends all that Connect began and waits for it. onChange is not called after it.
func (c *Cluster) Close() {
	c.mu.Lock()
	c.closed = true
	c.review.Stop()
	c.confirm.Stop()
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
	c.conn.closeAll()
	c.jobs.closeAll()
}

// Snapshot judges what is known at this moment.
func (c *Cluster) Snapshot() Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.judge(Now())
}

// update changes the evidence, judges it and tells of the news, if there is any.
func (c *Cluster) update(change func(e *gate.Evidence, now time.Duration)) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.running.Add(1) // Close waits for onChange, too
	defer c.running.Done()
	now := Now()
	change(&c.evidence, now.Mono)
	news := c.rejudge(now)
	c.mu.Unlock()
	if news {
		c.onChange()
	}
}

// rejudge sets the snapshot and the timers, and tells whether the snapshot says anything new. c.mu is held.
func (c *Cluster) rejudge(now gate.Instant) bool {
	previous := c.snapshot
	c.snapshot = c.judge(now)
	c.settle(now.Mono)
	schedule(c.review, c.snapshot.ReviewAt, now)
	schedule(c.confirm, c.snapshot.ConfirmAt, now)
	return !c.snapshot.says(previous)
}

// schedule sets the timer to at. A moment that has passed already is now: the timer may be about to fire
// for it, and must not be stopped by news that come in between.
func schedule(timer *time.Timer, at time.Duration, now gate.Instant) {
	if at == 0 {
		timer.Stop()
		return
	}
	timer.Reset(max(0, at-now.Mono))
}

// judge gives the verdict of package gate, which is preflighting until everything was tried, so that the
// first status is whole. The Lease is confirmed in time all the same. c.mu is held.
func (c *Cluster) judge(now gate.Instant) Snapshot {
	verdict := gate.Judge(c.kueue, c.evidence, now)
	if !c.identified || verdict.Preflighting() {
		whole := gate.Judge(c.kueue, gate.Evidence{}, now)
		whole.ConfirmAt, whole.ConfirmBy, whole.ReviewAt = verdict.ConfirmAt, verdict.ConfirmBy, verdict.ReviewAt
		return Snapshot{Verdict: whole}
	}
	if verdict.Reachable.Reason == v1alpha1.ConnectedReason && c.polled.Len() > 0 {
		verdict.Reachable.Message = fmt.Sprintf("the API server answers, but refuses to let %s be watched: read every %s instead",
			strings.Join(sets.List(c.polled), ", "), pollPeriod)
	}
	return Snapshot{Verdict: verdict, Identity: c.identity}
}

// setPolled records that an object is polled, because it may not be watched.
func (c *Cluster) setPolled(name string, polled bool) {
	c.update(func(*gate.Evidence, time.Duration) {
		if polled {
			c.polled.Insert(name)
		} else {
			c.polled.Delete(name)
		}
	})
}

func (c *Cluster) leaseKey() client.ObjectKey {
	return client.ObjectKey{Namespace: c.kueue.AdmissionLease.Namespace, Name: c.kueue.AdmissionLease.Name}
}

// sawLease records an answer to a read of the Lease. Where it ends an outage, the cluster is identified
// anew: another one may have come back in its place.
func (c *Cluster) sawLease(e *gate.Evidence, lease *coordinationv1.Lease, err error, now time.Duration) {
	if e.Lease.Failing != nil {
		signal(c.reidentify)
	}
	e.SawLease(lease, err, now)
}

// olderLease tells a Lease that is older than the one at hand. Taken for a change, it would count as a sign
// of life.
func olderLease(e *gate.Evidence, lease *coordinationv1.Lease) bool {
	held := e.Lease.Object
	if held == nil || held.UID != lease.UID {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(lease.ResourceVersion, held.ResourceVersion)
	return err == nil && order < 0
}

// confirmLease reads the Lease live, shortly before what it proves expires, so that at the expiry it is
// known whether the controller is dead or just the watch is. It tries until the expiry.
func (c *Cluster) confirmLease() {
	c.mu.Lock()
	if c.closed || c.confirming || c.snapshot.ConfirmBy == 0 {
		c.mu.Unlock()
		return
	}
	c.confirming = true
	c.running.Add(1)
	defer c.running.Done()
	began, by, seen := Now().Mono, c.snapshot.ConfirmBy, c.evidence.Lease.Object
	c.mu.Unlock()

	// There is no time left where this process was frozen until after the expiry.
	ctx, cancel := context.WithTimeout(c.ctx, by-began)
	defer cancel()
	var lease *coordinationv1.Lease
	var err error
	_ = wait.PollUntilContextCancel(ctx, confirmRetry, true, func(ctx context.Context) (bool, error) {
		lease, err = c.readLease(ctx, (by-began)/4)
		return err == nil || gate.IsAnswer(err), nil
	})
	answered := err == nil || gate.IsAnswer(err)
	if !answered || lease != nil && seen != nil && lease.ResourceVersion != seen.ResourceVersion {
		// The watch may be as dead, or should have told us: it is begun anew.
		signal(c.rewatchLease)
	}
	c.update(func(e *gate.Evidence, now time.Duration) {
		c.confirming = false
		// What the watch has told since the read began may be later news: that the Lease is gone, say.
		if answered && e.Lease.At <= began {
			c.sawLease(e, lease, err, now)
		}
	})
}

// readLease reads the Lease by the connection that the watches use and, if that does not answer within
// patience, by a fresh one: a connection can be dead without either end knowing.
func (c *Cluster) readLease(ctx context.Context, patience time.Duration) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	short, cancel := context.WithTimeout(ctx, patience)
	err := c.conn.Get(short, c.leaseKey(), lease)
	cancel()
	if err == nil {
		return lease, nil
	}
	if gate.IsAnswer(err) {
		return nil, err
	}
	fresh, err := connect(c.cfg)
	if err != nil {
		return nil, err
	}
	defer fresh.closeAll()
	if err := fresh.Get(ctx, c.leaseKey(), lease); err != nil {
		return nil, err
	}
	return lease, nil
}

// followIdentity reads the target's identity, which in plain mode is also what tells whether the target
// can be reached.
func (c *Cluster) followIdentity() {
	period := identityPeriod
	if c.kueue == nil {
		period = plainPeriod
	}
	backoff := newBackoff()
	for {
		identity, err := c.conn.identify(c.ctx)
		c.update(func(e *gate.Evidence, now time.Duration) {
			c.identified = true
			c.count(err)
			switch {
			case err == nil:
				c.identity = identity
				e.Server.Answer(&identity.KubernetesVersion, nil, now)
			case apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err):
				e.Server.Answer(nil, err, now)
			default:
				e.Server.Fail(failure(describe(err)), now)
			}
		})
		pause := wait.Jitter(period, 0.1)
		if err != nil {
			pause = min(pause, backoff.Step())
		} else {
			backoff = newBackoff()
		}
		if !sleep(c.ctx, pause, c.reidentify) {
			return
		}
	}
}
