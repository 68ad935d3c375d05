package election

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// ErrLeaseLost is why a leader stops on its own. The process must exit with a
// code other than zero; whoever started it starts a new one.
var ErrLeaseLost = errors.New("lease lost")

// term is the time in which this process may act as the leader: from the first
// renewal of its Lease until the Lease has not been renewed for as long as it
// lasts. It is taken from the answers to the Lease client's own requests, and
// measured on the local monotonic clock from the moment a request was sent.
// Others may lead from when they saw the Lease unchanged for that long, which
// is later.
//
// A term that has ended does not begin again: the process stops, and the next
// one starts from what is true then.
type term struct {
	clock    clock.Clock
	duration time.Duration
	leases   string // path of the Lease's collection, below the server's own
	name     string // of the Lease, in metrics

	mu       sync.Mutex
	answered bool
	renewed  time.Time // zero: never the leader
}

// expiry returns when the term ends; false before it has begun.
func (t *term) expiry() (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.renewed.Add(t.duration), !t.renewed.IsZero()
}

// over says why the term has ended; nil before it has begun.
func (t *term) over() error {
	end, led := t.expiry()
	if now := t.clock.Now(); led && !now.Before(end) {
		age := now.Sub(end.Add(-t.duration))
		return fmt.Errorf("%w: last renewed %s ago, and valid for %s", ErrLeaseLost, age.Round(time.Millisecond), t.duration)
	}
	return nil
}

// fence refuses to send what would change an object once the term is over. A
// process that was suspended resumes in the middle of whatever it did, and has
// its old caches: nothing that it then decides is to reach the cluster. That
// goes for its Lease as well, which is another's by now.
func (t *term) fence(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if reads(req) {
			return next.RoundTrip(req)
		}
		if err := t.over(); err != nil {
			return nil, err
		}
		return next.RoundTrip(req)
	})
}

// observe takes the term from the answers to the Lease client's requests. Only
// a leader's, or a new leader's, write of the Lease succeeds: every write
// carries the version that was read before.
func (t *term) observe(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		sent := t.clock.Now()
		resp, err := next.RoundTrip(req)
		if !strings.Contains(req.URL.Path, t.leases) {
			return resp, err
		}
		if !reads(req) {
			renewalSeconds.WithLabelValues(t.name).Observe(t.clock.Since(sent).Seconds())
		}
		if err != nil {
			return resp, err
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		done := resp.StatusCode < http.StatusMultipleChoices
		if done && !reads(req) {
			t.renewed = sent
			lastRenewal.WithLabelValues(t.name).Set(float64(sent.UnixMilli()) / 1000)
		}
		// No Lease yet is an answer too; one that is refused or throttled is not.
		if done || resp.StatusCode == http.StatusNotFound {
			t.answered = true
		}
		return resp, nil
	})
}

// Start ends the process when the term ends. controller-runtime runs it, as
// everything that needs no more than Start, while this process leads.
func (t *term) Start(ctx context.Context) error {
	for {
		if err := t.over(); err != nil {
			return err
		}
		end, _ := t.expiry()
		select {
		case <-ctx.Done():
			return nil
		case <-t.clock.After(end.Sub(t.clock.Now())):
		}
	}
}

// live is the liveness check: it fails on a process that should have stopped
// and has not.
func (t *term) live(*http.Request) error {
	return t.over()
}

// standing says whether this process takes part in the election. It does so
// only once its caches are synced.
func (t *term) standing() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answered
}

func reads(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Method == http.MethodHead
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
