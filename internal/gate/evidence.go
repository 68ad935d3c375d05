package gate

import (
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Instant is one moment on two clocks.
type Instant struct {
	// Wall is compared with what other machines wrote. Anyone may step it.
	Wall time.Time
	// Mono is the time since some fixed moment of this process. Nobody can step it, so it alone says how
	// long ago this process saw something. It is above zero: in a Verdict, zero means never.
	Mono time.Duration
}

// Add is the moment d later, on both clocks.
func (i Instant) Add(d time.Duration) Instant {
	return Instant{Wall: i.Wall.Add(d), Mono: i.Mono + d}
}

// Read is what is known of one object on the target. The zero value: nothing yet.
type Read[T any] struct {
	// Object is the last answer, nil where the answer was an error.
	Object *T
	// Err is the last answer where that was not the object: an API error that says not found, forbidden
	// or unauthorized, or that the API is not served.
	Err error
	// At is when that answer came.
	At time.Duration
	// Failing says why the object cannot be read at present; nil while a watch stands or polls succeed.
	// Its text goes into messages, so it must neither change from try to try nor repeat what the target
	// sent.
	Failing error
	// FailingSince is when Failing was first set.
	FailingSince time.Duration
}

var (
	errNoAnswer  = errors.New("the target gave no usable answer")
	errNoLeases  = errors.New("the target does not serve Leases: is it a Kubernetes API server?")
	errSilent    = errors.New("no answer came before the admission controller's Lease expired")
	errNoVersion = errors.New("the target has no version: is it a Kubernetes API server?")
)

// Answer records an answer: the object, or an error that is one (IsAnswer). Anything else counts as a
// failure, since taken for an answer it could open the gate.
func (r *Read[T]) Answer(object *T, err error, now time.Duration) {
	switch {
	case IsAnswer(err):
		// A client hands out an object with an error, too, but an empty one.
		*r = Read[T]{Err: err, At: now}
	case err != nil || object == nil:
		r.Fail(errNoAnswer, now)
	default:
		*r = Read[T]{Object: object, At: now}
	}
}

// Fail records that the object could not be read. What was answered before stands until it is too old.
func (r *Read[T]) Fail(err error, now time.Duration) {
	if r.Failing == nil {
		r.FailingSince = now
	}
	r.Failing = err
}

func (r *Read[T]) answered() bool { return r.Object != nil || r.Err != nil }

// pending: neither answered nor failed.
func (r *Read[T]) pending() bool { return !r.answered() && r.Failing == nil }

// lost: there is no answer, or one that could not be confirmed for longer than grace.
func (r *Read[T]) lost(grace, now time.Duration) bool {
	return r.Failing != nil && (!r.answered() || now > r.FailingSince+grace)
}

// Evidence is all that a verdict rests on.
type Evidence struct {
	ClusterQueue   Read[kueue.ClusterQueue]
	AdmissionCheck Read[kueue.AdmissionCheck]
	Lease          Read[coordinationv1.Lease]
	// Renewal is the last change of the Lease that this process saw.
	Renewal Renewal
	// Server is the read of the server's version, which alone counts in plain mode.
	Server Read[string]
}

// SawLease records an answer to a read of the Lease and what it says of its renewal.
func (e *Evidence) SawLease(lease *coordinationv1.Lease, err error, now time.Duration) {
	if NotServed(err) {
		// Every API server has Leases: whatever says so is none.
		e.Lease.Fail(errNoLeases, now)
		return
	}
	e.Lease.Answer(lease, err, now)
	if err == nil && lease != nil {
		e.Renewal.saw(lease, now)
	}
}

// Renewal remembers when, on this process's own monotonic clock, a Lease was last seen to change. It
// bounds what a wrong clock, the holder's or ours, can do: a Lease nobody renews stops changing, whatever
// the clocks say. The kubelet's node leases and Karmada's cluster leases are judged like this too.
type Renewal struct {
	uid       types.UID
	holder    string
	renewTime time.Time
	// at is when the three were first seen as they are.
	at time.Duration
}

func (r *Renewal) saw(lease *coordinationv1.Lease, now time.Duration) {
	next := Renewal{uid: lease.UID, at: now}
	if lease.Spec.HolderIdentity != nil {
		next.holder = *lease.Spec.HolderIdentity
	}
	if lease.Spec.RenewTime != nil {
		next.renewTime = lease.Spec.RenewTime.Time
	}
	if r.uid == next.uid && r.holder == next.holder && r.renewTime.Equal(next.renewTime) {
		return
	}
	*r = next
}
