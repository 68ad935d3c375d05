package gate

import (
	"errors"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// scene is a target, its admission controller and us, each with a clock.
type scene struct {
	e Evidence
	// now is our moment. Time passes on both clocks; only Wall is ever stepped.
	now Instant
	// lease is what the target has.
	lease *leaseWrapper
	// holderAhead is how far the holder's clock is ahead of start's.
	holderAhead time.Duration
}

func makeScene() *scene {
	return &scene{e: makeEvidence().obj(), now: start, lease: goodLease()}
}

func (s *scene) passes(d time.Duration)      { s.now = s.now.Add(d) }
func (s *scene) stepOurs(d time.Duration)    { s.now.Wall = s.now.Wall.Add(d) }
func (s *scene) stepHolders(d time.Duration) { s.holderAhead += d }

// renews has the holder renew its Lease, by its own clock.
func (s *scene) renews() {
	s.lease.renewed(start.Wall.Add(s.now.Mono - start.Mono + s.holderAhead))
}

// seen is an answer with what the target has, by watch or by a live read.
func (s *scene) seen() {
	s.e.SawLease(s.lease.obj(), nil, s.now.Mono)
}

func (s *scene) renewsSeen() {
	s.renews()
	s.seen()
}

func (s *scene) gate() Finding {
	return Judge(kueueSpec(), s.e, s.now).ReadmissionGate
}

// provedFor tells that the gate is proved up to now + d, and then is not.
func (s *scene) provedFor(t *testing.T, d time.Duration) {
	t.Helper()
	if v := Judge(kueueSpec(), s.e, s.now); v.ReadmissionGate != proved || v.Expires != s.now.Mono+d {
		t.Errorf("%q until %s from now, want %s", v.ReadmissionGate, v.Expires-s.now.Mono, d)
	}
	if got := Judge(kueueSpec(), s.e, s.now.Add(d)).ReadmissionGate; got != proved {
		t.Errorf("at the limit: %q", got)
	}
	if got := Judge(kueueSpec(), s.e, s.now.Add(d+1)).ReadmissionGate; got.Status == metav1.ConditionTrue {
		t.Errorf("after the limit: %q", got)
	}
}

func (s *scene) says(t *testing.T, want Finding) {
	t.Helper()
	if got := s.gate(); got != want {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
}

// dies lets time pass up to a moment without a renewal, with a last look at it.
func (s *scene) dies(d time.Duration) {
	s.passes(d)
	s.seen()
}

func TestClocks(t *testing.T) {
	const s = time.Second
	for name, play := range map[string]func(*testing.T, *scene){
		"both right": func(t *testing.T, sc *scene) {
			sc.provedFor(t, 30*s)
			sc.passes(10 * s)
			sc.renewsSeen()
			sc.provedFor(t, 30*s)
			sc.dies(30*s + 1)
			sc.says(t, stale("31s", "30s"))
		},
		"a renewal is seen late": func(t *testing.T, sc *scene) {
			sc.passes(10 * s)
			sc.renews()
			sc.passes(4 * s)
			sc.seen()
			sc.provedFor(t, 26*s)
		},
		"the holder's clock is ahead": func(t *testing.T, sc *scene) {
			sc.stepHolders(10 * s)
			sc.passes(2 * s)
			sc.renewsSeen()
			sc.provedFor(t, 30*s) // the rule alone would say 40 s
			sc.dies(30*s + 1)
			sc.says(t, stale("31s", "30s"))
		},
		"the holder's clock is ahead by its duration": func(t *testing.T, sc *scene) {
			sc.stepHolders(15 * s)
			sc.passes(2 * s)
			sc.renewsSeen()
			sc.provedFor(t, 30*s)
		},
		"the holder's clock is further ahead": func(t *testing.T, sc *scene) {
			sc.stepHolders(15*s + 1)
			sc.passes(2 * s)
			sc.renewsSeen()
			sc.says(t, skewed("16s", "15s"))
			sc.passes(1) // by now it is 15 s in our future
			sc.provedFor(t, 30*s-1)
		},
		"the holder's clock is far ahead, and the holder dies": func(t *testing.T, sc *scene) {
			sc.stepHolders(100 * s)
			sc.renewsSeen()
			sc.passes(85*s - 1)
			sc.seen()
			sc.says(t, skewed("16s", "15s"))
			sc.passes(1) // no more skewed, but long unchanged
			sc.says(t, stale("1m25s", "30s"))
		},
		"the holder's clock is behind": func(t *testing.T, sc *scene) {
			sc.stepHolders(-20 * s)
			sc.passes(2 * s)
			sc.renewsSeen()
			sc.provedFor(t, 10*s)
			sc.dies(10*s + 1)
			sc.says(t, stale("31s", "30s"))
		},
		"the holder's clock is behind by the window": func(t *testing.T, sc *scene) {
			sc.stepHolders(-30 * s)
			sc.passes(2 * s)
			sc.renewsSeen()
			sc.provedFor(t, 0)
		},
		"the holder's clock is further behind": func(t *testing.T, sc *scene) {
			sc.stepHolders(-30*s - 1)
			for range 5 {
				sc.passes(2 * s)
				sc.renewsSeen()
				sc.says(t, stale("31s", "30s"))
			}
		},
		"our clock is stepped back": func(t *testing.T, sc *scene) {
			sc.passes(20 * s)
			sc.stepOurs(-20 * s)
			sc.provedFor(t, 10*s) // the rule alone would say 30 s
			sc.dies(10*s + 1)
			sc.says(t, stale("31s", "30s"))
		},
		"our clock is stepped back again and again": func(t *testing.T, sc *scene) {
			for range 30 {
				sc.passes(s)
				sc.stepOurs(-s)
				if got := sc.gate(); got != proved {
					t.Errorf("within the window: %q", got)
				}
			}
			sc.dies(1)
			sc.says(t, stale("31s", "30s"))
		},
		"our clock is stepped far back": func(t *testing.T, sc *scene) {
			sc.passes(2 * s)
			sc.stepOurs(-time.Hour)
			sc.says(t, skewed("59m58s", "15s"))
			sc.renewsSeen()
			sc.says(t, skewed("1h0m0s", "15s"))
			sc.stepOurs(time.Hour)
			sc.provedFor(t, 30*s)
		},
		"our clock is stepped forward": func(t *testing.T, sc *scene) {
			sc.passes(2 * s)
			sc.stepOurs(20 * s)
			sc.provedFor(t, 8*s)
			sc.renewsSeen()
			sc.provedFor(t, 10*s)
		},
		"our clock is stepped far forward": func(t *testing.T, sc *scene) {
			sc.passes(2 * s)
			sc.stepOurs(time.Hour)
			sc.says(t, stale("1h0m2s", "30s"))
			sc.renewsSeen()
			sc.says(t, stale("1h0m0s", "30s"))
		},
		"the same again is no renewal": func(t *testing.T, sc *scene) {
			for range 3 {
				sc.passes(10 * s)
				sc.stepOurs(-10 * s)
				sc.seen()
			}
			sc.provedFor(t, 0)
		},
		"created anew with the same renewTime": func(t *testing.T, sc *scene) {
			sc.stepHolders(15 * s)
			sc.renewsSeen()
			sc.passes(20 * s)
			sc.lease.UID = "lease-2"
			sc.seen()
			sc.provedFor(t, 25*s) // a change, but the rule still counts from renewTime
		},
		"another holder with the same renewTime": func(t *testing.T, sc *scene) {
			sc.stepHolders(10 * s)
			sc.renewsSeen()
			sc.passes(20 * s)
			sc.lease.holder("pod-b")
			sc.seen()
			want := proved
			want.Message = "the admission controller's Lease is held by pod-b and freshly renewed"
			sc.says(t, want)
			if v := Judge(kueueSpec(), sc.e, sc.now); v.Expires != sc.now.Mono+20*s {
				t.Errorf("until %s from now", v.Expires-sc.now.Mono)
			}
		},
		"a changed duration is no renewal": func(t *testing.T, sc *scene) {
			sc.stepOurs(-10 * s)
			sc.passes(20 * s)
			sc.lease.seconds(10)
			sc.seen()
			sc.provedFor(t, 0)
		},
		"gone and back unchanged is no renewal": func(t *testing.T, sc *scene) {
			sc.stepOurs(-10 * s)
			sc.passes(20 * s)
			sc.e.SawLease(&coordinationv1.Lease{}, err404(leases, "dispatch-admission"), sc.now.Mono)
			sc.seen()
			sc.provedFor(t, 10*s)
		},
		"released and taken up again": func(t *testing.T, sc *scene) {
			sc.passes(2 * s)
			sc.lease.holder("").seconds(1)
			sc.renewsSeen()
			sc.says(t, notHeld)
			sc.passes(2 * s)
			sc.lease.holder("pod-a").seconds(15)
			sc.renewsSeen()
			sc.provedFor(t, 30*s)
		},
		"stale and alive again": func(t *testing.T, sc *scene) {
			sc.dies(time.Hour)
			sc.says(t, stale("1h0m0s", "30s"))
			sc.renewsSeen()
			sc.provedFor(t, 30*s)
		},
	} {
		t.Run(name, func(t *testing.T) { play(t, makeScene()) })
	}
}

// An expiry that no answer confirms tells nothing of the controller, and only then is the target
// unreachable; the next answer tells.
func TestUnconfirmedExpiry(t *testing.T) {
	s := makeScene()
	s.passes(30 * time.Second)
	if v := Judge(kueueSpec(), s.e, s.now); v.ReadmissionGate != proved || v.Reachable != reachable {
		t.Errorf("at the limit: %+v", v)
	}
	s.passes(1)
	if v := Judge(kueueSpec(), s.e, s.now); v.ReadmissionGate != leaseSilent || v.Reachable != silent || v.QueueActive != queueActive {
		t.Errorf("after the limit: %+v", v)
	}
	s.e.Lease.Fail(errTimeout, s.now.Mono)
	if v := Judge(kueueSpec(), s.e, s.now); v.ReadmissionGate != leaseTimedOut || v.Reachable != timedOut {
		t.Errorf("after a failure: %+v", v)
	}
	s.seen()
	if v := Judge(kueueSpec(), s.e, s.now); v.ReadmissionGate != stale("31s", "30s") || v.Reachable != reachable {
		t.Errorf("after an answer: %+v", v)
	}
}

// A read that fails for a while, and then longer, is one transition, not two.
func TestFailingSaysTheSame(t *testing.T) {
	s := makeScene()
	s.e.Lease.Fail(errTimeout, s.now.Mono+20*time.Second)
	for _, d := range []time.Duration{30*time.Second + 1, 50 * time.Second, 50*time.Second + 1, time.Hour} {
		if v := Judge(kueueSpec(), s.e, s.now.Add(d)); v.ReadmissionGate != leaseTimedOut || v.Reachable != timedOut {
			t.Errorf("after %s: %+v", d, v)
		}
	}
}

// Times are given from start; zero is none.
func TestTimes(t *testing.T) {
	const s = time.Second
	never := Evidence{Lease: Read[coordinationv1.Lease]{Failing: errTimeout, FailingSince: start.Mono}}
	failing := func(set func(*Evidence) (failing *error, since *time.Duration), at time.Duration) func(*Evidence) {
		return func(e *Evidence) {
			err, since := set(e)
			*err, *since = errTimeout, start.Mono+at
		}
	}
	queue := func(e *Evidence) (*error, *time.Duration) {
		return &e.ClusterQueue.Failing, &e.ClusterQueue.FailingSince
	}
	check := func(e *Evidence) (*error, *time.Duration) {
		return &e.AdmissionCheck.Failing, &e.AdmissionCheck.FailingSince
	}
	lease := func(e *Evidence) (*error, *time.Duration) { return &e.Lease.Failing, &e.Lease.FailingSince }
	server := func(e *Evidence) (*error, *time.Duration) { return &e.Server.Failing, &e.Server.FailingSince }

	for _, row := range []struct {
		name                                    string
		plain                                   bool
		evidence                                Evidence
		after                                   time.Duration
		expires, confirmAt, confirmBy, reviewAt time.Duration
	}{
		{name: "proved", evidence: makeEvidence().obj(), expires: 30 * s, confirmAt: 28 * s, confirmBy: 30 * s, reviewAt: 30*s + 1},
		{name: "proved, a while later", evidence: makeEvidence().obj(), after: 20 * s, expires: 30 * s, confirmAt: 28 * s, confirmBy: 30 * s, reviewAt: 30*s + 1},
		{name: "at the limit", evidence: makeEvidence().obj(), after: 30 * s, expires: 30 * s, confirmAt: 28 * s, confirmBy: 30 * s, reviewAt: 30*s + 1},
		{name: "unconfirmed", evidence: makeEvidence().obj(), after: 30*s + 1},
		{name: "confirmed already", evidence: makeEvidence().confirmed(28 * s).obj(), after: 28 * s, expires: 30 * s, reviewAt: 30*s + 1},
		{name: "not quite confirmed", evidence: makeEvidence().confirmed(28*s - 1).obj(), after: 28 * s,
			expires: 30 * s, confirmAt: 28 * s, confirmBy: 30 * s, reviewAt: 30*s + 1},
		{name: "a short window", evidence: makeEvidence().lease(goodLease().seconds(2).obj(), nil).obj(), expires: 4 * s, confirmAt: 3 * s, confirmBy: 4 * s, reviewAt: 4*s + 1},
		{name: "a long window", evidence: makeEvidence().lease(goodLease().seconds(60).obj(), nil).obj(),
			expires: 120 * s, confirmAt: 118 * s, confirmBy: 120 * s, reviewAt: 120*s + 1},
		{name: "the holder's clock behind", evidence: makeEvidence().lease(goodLease().renewed(start.Wall.Add(-10*s)).obj(), nil).obj(),
			expires: 20 * s, confirmAt: 18 * s, confirmBy: 20 * s, reviewAt: 20*s + 1},
		{name: "the holder's clock ahead", evidence: makeEvidence().lease(goodLease().renewed(start.Wall.Add(10*s)).obj(), nil).obj(),
			expires: 30 * s, confirmAt: 28 * s, confirmBy: 30 * s, reviewAt: 30*s + 1},
		{name: "skewed", evidence: makeEvidence().lease(goodLease().renewed(start.Wall.Add(100*s)).obj(), nil).obj(),
			confirmAt: 83*s - 1, confirmBy: 85*s - 1, reviewAt: 85 * s},
		{name: "stale", evidence: makeEvidence().lease(goodLease().renewed(start.Wall.Add(-60*s)).obj(), nil).obj()},
		{name: "not held", evidence: makeEvidence().lease(goodLease().holder("").obj(), nil).obj()},
		{name: "no Lease", evidence: makeEvidence().lease(nil, err404(leases, "x")).obj()},
		{name: "nothing yet", evidence: Evidence{}},

		// The Lease is confirmed whatever the other rules say.
		{name: "no ClusterQueue", evidence: makeEvidence().queue(nil, err404(queues, "gpu")).obj(), confirmAt: 28 * s, confirmBy: 30 * s},
		{name: "no AdmissionCheck", evidence: makeEvidence().check(nil, err404(checks, "dispatch")).obj(), confirmAt: 28 * s, confirmBy: 30 * s},

		// An answer that cannot be confirmed stands for a window.
		{name: "ClusterQueue failing", evidence: makeEvidence().with(failing(queue, -10*s)).obj(),
			expires: 20 * s, confirmAt: 28 * s, confirmBy: 30 * s, reviewAt: 20*s + 1},
		{name: "AdmissionCheck failing", evidence: makeEvidence().with(failing(check, -20*s)).obj(),
			expires: 10 * s, confirmAt: 28 * s, confirmBy: 30 * s, reviewAt: 10*s + 1},
		{name: "Lease failing", evidence: makeEvidence().with(failing(lease, 5*s)).obj(), after: 5 * s,
			expires: 30 * s, confirmAt: 28 * s, confirmBy: 30 * s, reviewAt: 30*s + 1},
		{name: "Lease failing, proved no more", evidence: makeEvidence().with(failing(lease, 5*s)).obj(), after: 30*s + 1, reviewAt: 35*s + 1},
		{name: "both failing", evidence: makeEvidence().with(failing(queue, -10*s)).with(failing(check, -20*s)).obj(),
			expires: 10 * s, confirmAt: 28 * s, confirmBy: 30 * s, reviewAt: 10*s + 1},
		{name: "ClusterQueue lost", evidence: makeEvidence().with(failing(queue, -40*s)).obj(), confirmAt: 28 * s, confirmBy: 30 * s},
		{name: "no ClusterQueue and failing", evidence: makeEvidence().queue(nil, err404(queues, "gpu")).with(failing(queue, 0)).obj(),
			confirmAt: 28 * s, confirmBy: 30 * s, reviewAt: 30*s + 1},
		{name: "no Lease and failing", evidence: makeEvidence().lease(nil, err404(leases, "x")).with(failing(lease, 1*s)).obj(), after: 1 * s, reviewAt: 31*s + 1},
		{name: "never read", evidence: never},

		{name: "plain", plain: true, evidence: makeEvidence().obj()},
		{name: "plain, failing", plain: true, evidence: makeEvidence().with(failing(server, 2*s)).obj(), after: 2 * s, reviewAt: 32*s + 1},
		{name: "plain, failing at the limit", plain: true, evidence: makeEvidence().with(failing(server, 2*s)).obj(), after: 32 * s, reviewAt: 32*s + 1},
		{name: "plain, lost", plain: true, evidence: makeEvidence().with(failing(server, 2*s)).obj(), after: 32*s + 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			spec := kueueSpec()
			if row.plain {
				spec = nil
			}
			v := Judge(spec, row.evidence, start.Add(row.after))
			for _, at := range []struct {
				name      string
				got, want time.Duration
			}{
				{"Expires", v.Expires, row.expires},
				{"ConfirmAt", v.ConfirmAt, row.confirmAt},
				{"ConfirmBy", v.ConfirmBy, row.confirmBy},
				{"ReviewAt", v.ReviewAt, row.reviewAt},
			} {
				want := at.want
				if want != 0 {
					want += start.Mono
				}
				if at.got != want {
					t.Errorf("%s: %s, want %s", at.name, at.got-start.Mono, at.want)
				}
			}
		})
	}
}

// model plays a target at random and keeps its own, plainly written account of what may be believed.
type model struct {
	*scene
	queue, check modelRead
	leaseRead    modelRead
	leaseFound   *coordinationv1.Lease
	// The last change that was seen.
	uid       types.UID
	holder    string
	renewTime time.Time
	changed   time.Duration
}

type modelRead struct {
	answered, good bool
	at             time.Duration
	failing        bool
	since          time.Duration
}

func (r *modelRead) answer(good bool, now time.Duration) {
	*r = modelRead{answered: true, good: good, at: now}
}

func (r *modelRead) fail(now time.Duration) {
	if !r.failing {
		r.failing, r.since = true, now
	}
}

func (r *modelRead) usable(window, now time.Duration) bool {
	return r.answered && (!r.failing || now-r.since <= window)
}

func (m *model) seen() {
	m.scene.seen()
	m.leaseFound = m.lease.obj()
	m.leaseRead.answer(true, m.now.Mono)
	var holder string
	var renewTime time.Time
	if m.lease.Spec.HolderIdentity != nil {
		holder = *m.lease.Spec.HolderIdentity
	}
	if m.lease.Spec.RenewTime != nil {
		renewTime = m.lease.Spec.RenewTime.Time
	}
	if m.uid != m.lease.UID || m.holder != holder || !m.renewTime.Equal(renewTime) {
		m.uid, m.holder, m.renewTime, m.changed = m.lease.UID, holder, renewTime, m.now.Mono
	}
}

func (m *model) window() time.Duration {
	if m.leaseFound == nil || m.leaseFound.Spec.LeaseDurationSeconds == nil {
		return 30 * time.Second
	}
	return max(0, 2*time.Duration(*m.leaseFound.Spec.LeaseDurationSeconds)*time.Second)
}

// leaseReason is the fourth rule, to the letter, and what makes it stricter.
func (m *model) leaseReason() string {
	switch {
	case !m.leaseRead.answered && !m.leaseRead.failing:
		return "Preflighting"
	case !m.leaseRead.usable(m.window(), m.now.Mono):
		return "Unreachable"
	case m.leaseFound == nil:
		return "LeaseNotFound"
	}
	spec := m.leaseFound.Spec
	switch {
	case spec.HolderIdentity == nil || *spec.HolderIdentity == "":
		return "LeaseNotHeld"
	case spec.RenewTime == nil || spec.LeaseDurationSeconds == nil:
		return "LeaseNeverRenewed"
	}
	duration := time.Duration(*spec.LeaseDurationSeconds) * time.Second
	byRule, byChange := m.now.Wall.Sub(spec.RenewTime.Time)-2*duration, m.now.Mono-m.changed-2*duration
	switch {
	case spec.RenewTime.Sub(m.now.Wall) > duration:
		return "ClockSkew"
	case byRule <= 0 && byChange <= 0:
		return "Proved"
	// Too old by so much, and last answered so long before that.
	case m.now.Mono-m.leaseRead.at > max(byRule, byChange)+min(2*time.Second, m.window()/4):
		return "Unreachable"
	}
	return "LeaseStale"
}

func (m *model) gateReason() string {
	for _, r := range []struct {
		*modelRead
		bad string
	}{{&m.queue, "ClusterQueueNotFound"}, {&m.check, "ForeignController"}} {
		switch {
		case !r.answered && !r.failing:
			return "Preflighting"
		case !r.usable(m.window(), m.now.Mono):
			return "Unreachable"
		case !r.good:
			return r.bad
		}
	}
	return m.leaseReason()
}

func sameFindings(a, b Verdict) bool {
	return a.Reachable.Says(b.Reachable) && a.QueueActive.Says(b.QueueActive) && a.ReadmissionGate.Says(b.ReadmissionGate)
}

// judged compares the verdict with the model's and with the verdicts on the same evidence later.
func (m *model) judged(t *rapid.T) {
	v := Judge(kueueSpec(), m.e, m.now)
	if want := m.gateReason(); v.ReadmissionGate.Reason != want {
		t.Fatalf("got %q, want %s", v.ReadmissionGate, want)
	}
	isProved := v.ReadmissionGate.Status == metav1.ConditionTrue
	// What must never happen, however the model came to its reason.
	if isProved && (m.now.Mono-m.changed > m.window() || m.now.Wall.Sub(m.renewTime) > m.window()) {
		t.Fatalf("proved beyond the window")
	}
	if isProved && v.Reachable.Status != metav1.ConditionTrue {
		t.Fatalf("proved, but %q", v.Reachable)
	}
	if v.Reachable.Status == metav1.ConditionFalse && v.ReadmissionGate.Reason == "LeaseStale" {
		t.Fatalf("stale by an answer, but %q", v.Reachable)
	}
	if isProved != (v.Expires != 0) || isProved && v.Expires < m.now.Mono {
		t.Fatalf("%q, but expires at %s", v.ReadmissionGate, v.Expires)
	}
	if (v.ConfirmAt == 0) != (v.ConfirmBy == 0) || v.ConfirmAt > v.ConfirmBy || v.ConfirmBy != 0 && v.ConfirmBy < m.now.Mono {
		t.Fatalf("to be confirmed from %s to %s", v.ConfirmAt, v.ConfirmBy)
	}
	if v.ReviewAt != 0 && v.ReviewAt <= m.now.Mono {
		t.Fatalf("to be reviewed at %s, which is past", v.ReviewAt)
	}

	// Until the review, judging again says the same.
	last := 1000 * time.Hour
	if v.ReviewAt != 0 {
		last = min(last, v.ReviewAt-1-m.now.Mono)
	}
	for _, d := range []time.Duration{0, min(last, 1), time.Duration(rapid.Int64Range(0, int64(last)).Draw(t, "later")), last} {
		later := Judge(kueueSpec(), m.e, m.now.Add(d))
		if !sameFindings(v, later) || v.Expires != later.Expires || v.ReviewAt != later.ReviewAt {
			t.Fatalf("without new evidence, %s later:\n%+v\nbecame\n%+v", d, v, later)
		}
	}
	// A proof ends at its expiry and not before.
	if isProved && Judge(kueueSpec(), m.e, m.now.Add(v.Expires-m.now.Mono+1)).ReadmissionGate.Status == metav1.ConditionTrue {
		t.Fatalf("proved beyond its expiry")
	}
}

func TestAnyHistory(t *testing.T) {
	lengths := []time.Duration{1, time.Second, 2 * time.Second, 7500 * time.Millisecond, 15 * time.Second, 28 * time.Second, 30 * time.Second, 30*time.Second + 1, 2 * time.Minute}
	length := rapid.OneOf(rapid.SampledFrom(lengths), rapid.Map(rapid.Int64Range(0, int64(time.Minute)), func(n int64) time.Duration { return time.Duration(n) }))
	step := rapid.Custom(func(t *rapid.T) time.Duration {
		return length.Draw(t, "by") * time.Duration(rapid.SampledFrom([]int{-100, -1, 1, 100}).Draw(t, "times"))
	})
	reasons := map[string]int{}
	want := []string{"Proved", "LeaseStale", "ClockSkew", "Unreachable", "LeaseNotHeld", "LeaseNotFound", "LeaseNeverRenewed", "Preflighting"}
	missing := func() []string {
		return slices.DeleteFunc(slices.Clone(want), func(reason string) bool { return reasons[reason] > 0 })
	}

	history := func(t *rapid.T) {
		m := &model{scene: &scene{now: start, lease: goodLease()}}
		queueRead := func(good bool) {
			if good {
				m.e.ClusterQueue.Answer(goodQueue().obj(), nil, m.now.Mono)
			} else {
				m.e.ClusterQueue.Answer(nil, err404(queues, "gpu"), m.now.Mono)
			}
			m.queue.answer(good, m.now.Mono)
		}
		checkRead := func(good bool) {
			w := goodCheck()
			if !good {
				w.controller("other")
			}
			m.e.AdmissionCheck.Answer(w.obj(), nil, m.now.Mono)
			m.check.answer(good, m.now.Mono)
		}
		// Most histories begin well, or most would be of closed gates.
		if rapid.IntRange(0, 9).Draw(t, "begins") > 0 {
			queueRead(true)
			checkRead(true)
			m.seen()
		}

		t.Repeat(map[string]func(*rapid.T){
			"time passes":            func(t *rapid.T) { m.passes(length.Draw(t, "d")) },
			"our clock is stepped":   func(t *rapid.T) { m.stepOurs(step.Draw(t, "d")) },
			"their clock is stepped": func(t *rapid.T) { m.stepHolders(step.Draw(t, "d")) },
			"to the edge": func(t *rapid.T) {
				v := Judge(kueueSpec(), m.e, m.now)
				at := rapid.SampledFrom([]time.Duration{v.ReviewAt, v.Expires, v.ConfirmAt}).Draw(t, "at")
				if d := at + rapid.SampledFrom([]time.Duration{-1, 0, 1}).Draw(t, "beside") - m.now.Mono; d > 0 && d < time.Hour {
					m.passes(d)
				}
			},
			"renewal, seen": func(*rapid.T) {
				m.renews()
				m.seen()
			},
			"renewal, unseen": func(*rapid.T) { m.renews() },
			"Lease read":      func(*rapid.T) { m.seen() },
			"Lease read fails": func(*rapid.T) {
				m.e.Lease.Fail(errTimeout, m.now.Mono)
				m.leaseRead.fail(m.now.Mono)
			},
			"Lease gone": func(*rapid.T) {
				m.e.SawLease(nil, err404(leases, "dispatch-admission"), m.now.Mono)
				m.leaseFound = nil
				m.leaseRead.answer(true, m.now.Mono)
			},
			"another holder": func(t *rapid.T) {
				m.lease.holder(rapid.SampledFrom([]string{"", "pod-a", "pod-a", "pod-b"}).Draw(t, "holder"))
			},
			"another uid": func(t *rapid.T) {
				m.lease.UID = rapid.SampledFrom([]types.UID{"lease-1", "lease-2"}).Draw(t, "uid")
			},
			"another duration": func(t *rapid.T) {
				m.lease.seconds(rapid.SampledFrom([]int32{15, 15, 15, 1, 60, 0, -1, -1 << 31, 1<<31 - 1}).Draw(t, "seconds"))
			},
			"fields lost": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "really") == 0 {
					m.lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: m.lease.Spec.HolderIdentity}
				}
			},
			"ClusterQueue": func(t *rapid.T) { queueRead(rapid.IntRange(0, 4).Draw(t, "good") > 0) },
			"ClusterQueue read fails": func(*rapid.T) {
				m.e.ClusterQueue.Fail(errTimeout, m.now.Mono)
				m.queue.fail(m.now.Mono)
			},
			"AdmissionCheck": func(t *rapid.T) { checkRead(rapid.IntRange(0, 4).Draw(t, "good") > 0) },
			"AdmissionCheck read fails": func(*rapid.T) {
				m.e.AdmissionCheck.Fail(errTimeout, m.now.Mono)
				m.check.fail(m.now.Mono)
			},
			"": func(t *rapid.T) {
				m.judged(t)
				reasons[m.gateReason()]++
			},
		})
	}
	// Some reasons are rare, and with -short there are few histories in one round.
	for round := 0; round == 0 || round < 20 && len(missing()) > 0; round++ {
		rapid.Check(t, history)
	}
	if reasons := missing(); len(reasons) > 0 {
		t.Errorf("no history came to %v", reasons)
	}
	t.Log(reasons)
}

// Answers and failures of one read.
func TestRead(t *testing.T) {
	var r Read[kueue.ClusterQueue]
	r.Fail(errTimeout, 1)
	r.Fail(errors.New("refused"), 2)
	if r.FailingSince != 1 || r.Failing.Error() != "refused" {
		t.Errorf("of two failures the first counts and the last is told: %+v", r)
	}
	r.Answer(&kueue.ClusterQueue{}, nil, 3)
	if r.Failing != nil || r.At != 3 || r.Object == nil {
		t.Errorf("an answer ends a failure: %+v", r)
	}
	r.Answer(&kueue.ClusterQueue{}, err404(queues, "gpu"), 4)
	if r.Object != nil || r.Err == nil || r.At != 4 {
		t.Errorf("an object beside an error is none: %+v", r)
	}
	r.Answer(&kueue.ClusterQueue{}, err500, 5)
	if r.At != 4 || r.Err == nil || r.FailingSince != 5 {
		t.Errorf("no answer leaves the last one standing: %+v", r)
	}
}
