package controllers

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// at is a moment n seconds into the test.
func at(n int) time.Time { return time.Unix(int64(1000+n), 0).UTC() }

func TestDecide(t *testing.T) {
	const (
		pendingState = kueuev1beta2.CheckStatePending
		readyState   = kueuev1beta2.CheckStateReady
		retryState   = kueuev1beta2.CheckStateRetry
	)
	suspendedJob, runningJob := jobState{generation: 1, suspended: true}, jobState{generation: 2}
	slice := makeWorkload("w2").version("5").reserved(at(30)).obj()
	// before is the Workload as it was when its first admission was opened.
	before := makeWorkload("w1").version("5").reserved(at(1)).obj()
	// evictedOnce is the Workload of a job that has run, was evicted, and has quota again.
	evictedOnce := func() *workloadWrapper {
		return makeWorkload("w1").version("20").reserved(at(30)).admitted(false, at(20)).
			evicted(false, at(30), "Previously: Preempted to make room").evictions(1)
	}
	running := makeWorkload("w1").version("15").reserved(at(1)).admitted(true, at(2)).check(ourCheck, readyState).obj()
	held := "admission 2 waits since 1970-01-01T00:17:10Z: evicted (Preempted to make room), 1 of 1 granted used; " +
		"to let it start again, raise spec.admissions of AdmissionGrant team-a/job-train-3f2a1 to 2"

	for name, tc := range map[string]struct {
		workload  *workloadWrapper
		own       []kueuev1beta2.AdmissionCheckReference // default: ourCheck
		listed    []kueuev1beta2.AdmissionCheckReference // default: ourCheck and otherCheck
		grant     *grantWrapper
		blocked   string
		job       jobState
		inherited *inheritedCount

		action     action
		states     string // of our entries, if they are written
		message    string // of our first entry, if it is written
		needsGrant bool
		noStatus   bool // the grant's status is not written
		used       int32
		opened     int32 // number of the opened admission; 0: none
		starts     int32
		ungranted  int32
		waiting    string // reason of Waiting
	}{
		"no quota yet": {
			workload: makeWorkload("w1"), job: suspendedJob,
			action: actionNone, noStatus: true,
		},
		"first admission": {
			workload: makeWorkload("w1").reserved(at(1)), job: suspendedJob,
			action: actionOpen, states: "Ready", message: "admission 1 of 1 granted", needsGrant: true, opened: 1, waiting: "NotWaiting",
		},
		"first admission, after a crash before the status": {
			workload: makeWorkload("w1").reserved(at(1)), job: suspendedJob,
			grant:  &grantWrapper{newGrant(before, 1)},
			action: actionOpen, states: "Ready", opened: 1, waiting: "NotWaiting",
		},
		"first admission, after a crash before Ready": {
			workload: makeWorkload("w1").version("5").reserved(at(1)), job: suspendedJob,
			grant:  makeGrant(before, 1, 0).opened(before, 1),
			action: actionOpen, states: "Ready", opened: 1, waiting: "NotWaiting",
		},
		"two checks of ours share the admission": {
			workload: makeWorkload("w1").reserved(at(1)).check("ours-too", readyState), job: suspendedJob,
			own: []kueuev1beta2.AdmissionCheckReference{ourCheck, "ours-too"}, listed: []kueuev1beta2.AdmissionCheckReference{ourCheck, "ours-too"},
			action: actionOpen, states: "Ready Ready", needsGrant: true, opened: 1, waiting: "NotWaiting",
		},
		"another controller's check is not ours": {
			workload: makeWorkload("w1").reserved(at(1)).check(otherCheck, pendingState), job: suspendedJob,
			action: actionOpen, states: "Ready", needsGrant: true, opened: 1, waiting: "NotWaiting",
		},
		"Ready, not admitted yet": {
			workload: makeWorkload("w1").version("12").reserved(at(1)).check(ourCheck, readyState), job: suspendedJob,
			grant:  makeGrant(before, 1, 0).opened(before, 1),
			action: actionNone, opened: 1, waiting: "NotWaiting",
		},
		"it starts": {
			workload: makeWorkload("w1").version("15").reserved(at(1)).admitted(true, at(2)).check(ourCheck, readyState),
			grant:    makeGrant(before, 1, 0).opened(before, 1),
			action:   actionNone, used: 1, starts: 1, waiting: "NotWaiting",
		},
		"it started and was evicted unseen": {
			workload: evictedOnce(), job: jobState{generation: 3, suspended: true},
			grant:  makeGrant(before, 1, 0).opened(before, 1),
			action: actionWait, states: "Pending", message: held, used: 1, starts: 1, waiting: "NotGranted",
		},
		"evicted, quota not released yet": {
			workload: makeWorkload("w1").version("17").reserved(at(1)).admitted(true, at(2)).evicted(true, at(20), "Preempted"),
			grant:    makeGrant(running, 1, 1),
			action:   actionNone, used: 1, waiting: "NotWaiting",
		},
		"readmission without a grant": {
			workload: evictedOnce(), job: suspendedJob, grant: makeGrant(running, 1, 1),
			action: actionWait, states: "Pending", message: held, used: 1, waiting: "NotGranted",
		},
		"readmission with a grant": {
			workload: evictedOnce(), job: suspendedJob, grant: makeGrant(running, 2, 1),
			action: actionOpen, states: "Ready", message: "admission 2 of 2 granted", used: 1, opened: 2, waiting: "NotWaiting",
		},
		"one readmission more than granted": {
			workload: evictedOnce(), job: suspendedJob, grant: makeGrant(running, 3, 3),
			action: actionWait, states: "Pending", used: 3, waiting: "NotGranted",
		},
		"the Workload was deleted after it ran": {
			workload: makeWorkload("w2").version("30").reserved(at(30)), job: jobState{generation: 3, suspended: true},
			grant:  makeGrant(running, 1, 1),
			action: actionWait, states: "Pending", used: 1, waiting: "NotGranted",
		},
		"the Workload was deleted, and its start was not seen": {
			workload: makeWorkload("w2").version("30").reserved(at(30)), job: jobState{generation: 3, suspended: true},
			grant:  makeGrant(before, 1, 0).opened(before, 1),
			action: actionWait, states: "Pending", used: 1, starts: 1, waiting: "NotGranted",
		},
		"the Workload was deleted before it started": {
			workload: makeWorkload("w2").version("30").reserved(at(30)), job: suspendedJob,
			grant:  makeGrant(before, 1, 0).opened(before, 1),
			action: actionOpen, states: "Ready", opened: 1, waiting: "NotWaiting",
		},
		"the Workload was deleted, and whether it started is not known": {
			workload: makeWorkload("w2").version("30").reserved(at(30)),
			grant:    makeGrant(before, 1, 0).opened(before, 0),
			action:   actionWait, states: "Pending", used: 1, starts: 1, waiting: "NotGranted",
		},
		"a Ready that led to no start leaves the grant": {
			workload: makeWorkload("w1").version("20").reserved(at(30)).evicted(false, at(30), "Previously: At least one admission check is false").evictions(10),
			job:      suspendedJob, grant: makeGrant(before, 1, 0).opened(before, 1),
			action: actionOpen, states: "Ready", message: "admission 1 of 1 granted", opened: 1, waiting: "NotWaiting",
		},
		"evicted from a copy older than its admission, and the job ran": {
			workload: makeWorkload("w1").version("20").reserved(at(30)).evicted(false, at(30), "Previously: Preempted").evictions(1),
			job:      jobState{generation: 3, suspended: true}, grant: makeGrant(before, 1, 0).opened(before, 1),
			action: actionWait, states: "Pending", used: 1, starts: 1, waiting: "NotGranted",
		},
		"started and evicted within the second of its reservation, job without a suspend field": {
			workload: evictedOnce().admitted(false, at(30)).evictions(2),
			grant:    makeGrant(evictedOnce().admitted(false, at(30)).obj(), 2, 1).opened(evictedOnce().admitted(false, at(30)).obj(), 0),
			action:   actionWait, states: "Pending", used: 2, starts: 1, waiting: "NotGranted",
		},
		"evicted without a start, job without a suspend field": {
			workload: evictedOnce().evictions(2), grant: makeGrant(evictedOnce().obj(), 2, 1).opened(evictedOnce().obj(), 0),
			action: actionOpen, states: "Ready", used: 1, opened: 2, waiting: "NotWaiting",
		},
		"Ready outlives its reservation": {
			workload: makeWorkload("w1").version("20").condition(kueuev1beta2.WorkloadQuotaReserved, false, at(20), "").check(ourCheck, readyState),
			grant:    makeGrant(before, 1, 0).opened(before, 1),
			action:   actionSetBack, states: "Pending", opened: 1, waiting: "NotWaiting",
		},
		"Ready while evicted": {
			workload: makeWorkload("w1").version("20").reserved(at(1)).evicted(true, at(20), "Preempted").check(ourCheck, readyState),
			grant:    makeGrant(before, 1, 0).opened(before, 1),
			action:   actionSetBack, states: "Pending", opened: 1, waiting: "NotWaiting",
		},
		"Ready that no admission is opened for": {
			workload: evictedOnce().check(ourCheck, readyState), job: suspendedJob, grant: makeGrant(running, 1, 1),
			action: actionSetBack, states: "Pending", used: 1, waiting: "NotWaiting",
		},
		"Ready on the next reservation": {
			workload: makeWorkload("w1").version("20").reserved(at(30)).check(ourCheck, readyState), job: suspendedJob,
			grant:  makeGrant(before, 1, 0).opened(before, 1),
			action: actionRenew, opened: 1, waiting: "NotWaiting",
		},
		"a start that nobody granted": {
			workload: evictedOnce().admitted(true, at(31)).check(ourCheck, readyState), grant: makeGrant(running, 1, 1),
			action: actionNone, used: 2, starts: 1, ungranted: 1, waiting: "NotWaiting",
		},
		"an old condition Admitted that Kueue's scheduler wrote back": {
			workload: makeWorkload("w1").version("20").reserved(at(1)).admitted(true, at(2)).evicted(true, at(25), "Preempted").evictions(2),
			grant:    makeGrant(evictedOnce().obj(), 1, 1),
			action:   actionNone, used: 1, waiting: "NotWaiting",
		},
		"the check was added while the job ran": {
			workload: makeWorkload("w1").reserved(at(1)).admitted(true, at(2)),
			action:   actionNone, needsGrant: true, used: 1, waiting: "NotWaiting",
		},
		"the check was added after the job ran": {
			workload: evictedOnce(), job: suspendedJob,
			action: actionWait, states: "Pending", needsGrant: true, used: 1, waiting: "NotGranted",
		},
		"the count is lost, and it ran": {
			workload: evictedOnce(), job: suspendedJob, grant: &grantWrapper{newGrant(before, 3)},
			action: actionWait, states: "Pending", used: 3, waiting: "NotGranted",
		},
		"a check says Retry": {
			workload: evictedOnce().check(ourCheck, retryState), job: suspendedJob, grant: makeGrant(running, 2, 1),
			action: actionNone, used: 1, waiting: "NotWaiting",
		},
		"deactivated": {
			workload: evictedOnce().active(false), job: suspendedJob, grant: makeGrant(running, 2, 1),
			action: actionNone, used: 1, waiting: "NotWaiting",
		},
		"the Workload is being deleted": {
			workload: makeWorkload("w1").reserved(at(1)).deleting(at(5)), job: suspendedJob,
			action: actionNone, noStatus: true,
		},
		"the job is being deleted": {
			workload: makeWorkload("w1").reserved(at(1)), job: jobState{ending: true},
			action: actionNone, noStatus: true,
		},
		"the job is being deleted, readmission granted": {
			workload: evictedOnce(), job: jobState{ending: true}, grant: makeGrant(running, 2, 1),
			action: actionNone, used: 1, waiting: "NotWaiting",
		},
		"the job may not be read": {
			workload: makeWorkload("w1").reserved(at(1)), job: jobState{unreadable: "may not get Job train"},
			action: actionWait, states: "Pending", message: "may not get Job train", needsGrant: true, waiting: "JobUnreadable",
		},
		"the grant is another job's": {
			workload: makeWorkload("w1").reserved(at(1)), job: suspendedJob, blocked: "it is another job's",
			action: actionWait, states: "Pending", message: "it is another job's", noStatus: true,
		},
		"the queue does not list the check any more": {
			workload: evictedOnce(), job: suspendedJob, grant: makeGrant(running, 2, 1), listed: []kueuev1beta2.AdmissionCheckReference{otherCheck},
			action: actionNone, used: 1, waiting: "NotWaiting",
		},
		"no check of ours, no grant": {
			workload: makeWorkload("w1").noChecks().reserved(at(1)).admitted(true, at(2)),
			action:   actionNone, noStatus: true,
		},
		"no check of ours any more": {
			workload: evictedOnce().noChecks().admitted(true, at(31)), grant: makeGrant(running, 1, 1),
			action: actionNone, used: 2, starts: 1, ungranted: 1, waiting: "NotWaiting",
		},
		"finished": {
			workload: makeWorkload("w1").version("40").reserved(at(1)).admitted(true, at(2)).finished(at(40)).check(ourCheck, readyState),
			grant:    makeGrant(running, 1, 1),
			action:   actionNone, used: 1, waiting: "NotWaiting",
		},
		"finished, no grant": {
			workload: makeWorkload("w1").reserved(at(1)).admitted(true, at(2)).finished(at(40)).check(ourCheck, readyState),
			action:   actionNone, noStatus: true,
		},
		"a slice of a held job": {
			workload: makeWorkload("w2").reserved(at(30)), job: suspendedJob, inherited: &inheritedCount{granted: 2, used: 2},
			action: actionWait, states: "Pending", needsGrant: true, used: 2, waiting: "NotGranted",
		},
		"a slice of a job with an admission left": {
			workload: makeWorkload("w2").reserved(at(30)), job: suspendedJob, inherited: &inheritedCount{granted: 2, used: 1},
			action: actionOpen, states: "Ready", needsGrant: true, used: 1, opened: 2, waiting: "NotWaiting",
		},
		"a slice that takes over from a running one uses up nothing": {
			workload: makeWorkload("w2").reserved(at(30)), job: runningJob, inherited: &inheritedCount{granted: 3, used: 2, fromRunning: true},
			action: actionOpen, states: "Ready", message: "admission 2 of 3 granted", needsGrant: true, used: 2, opened: 2, waiting: "NotWaiting",
		},
		"that slice, after a crash before Ready": {
			workload: makeWorkload("w2").reserved(at(30)), job: runningJob, inherited: &inheritedCount{granted: 1, used: 1, fromRunning: true},
			grant:  makeGrant(slice, 1, 1).openedAs(slice, 1),
			action: actionOpen, states: "Ready", used: 1, opened: 1, waiting: "NotWaiting",
		},
		"that slice, with quota again after its queue was held": {
			workload: makeWorkload("w2").reserved(at(40)), job: runningJob, inherited: &inheritedCount{granted: 1, used: 1, fromRunning: true},
			grant:  makeGrant(slice, 1, 1).openedAs(slice, 1),
			action: actionOpen, states: "Ready", used: 1, opened: 1, waiting: "NotWaiting",
		},
		"that slice, Ready and not admitted yet, of a job that is not read": {
			workload: makeWorkload("w2").version("12").reserved(at(30)).check(ourCheck, readyState),
			grant:    makeGrant(slice, 1, 1).openedAs(slice, 1),
			action:   actionNone, used: 1, opened: 1, waiting: "NotWaiting",
		},
		"that slice is admitted": {
			workload: makeWorkload("w2").reserved(at(30)).admitted(true, at(31)).check(ourCheck, readyState),
			grant:    makeGrant(slice, 1, 1).openedAs(slice, 1),
			action:   actionNone, used: 1, waiting: "NotWaiting",
		},
		"that slice is evicted before it was admitted, and its job with it": {
			workload: makeWorkload("w2").reserved(at(40)).evicted(false, at(40), "Previously: Preempted").evictions(1), job: suspendedJob,
			inherited: &inheritedCount{granted: 1, used: 1, fromRunning: true},
			grant:     makeGrant(slice, 1, 1).openedAs(slice, 1),
			action:    actionWait, states: "Pending", used: 1, waiting: "NotGranted",
		},
		"that slice, after a crash before Ready, of a job that was suspended meanwhile": {
			workload: makeWorkload("w2").reserved(at(30)), job: suspendedJob, inherited: &inheritedCount{granted: 1, used: 1, fromRunning: true},
			grant:  makeGrant(slice, 1, 1).openedAs(slice, 1),
			action: actionWait, states: "Pending", used: 1, waiting: "NotGranted",
		},
		"a Ready that has survived the eviction of that slice": {
			workload: makeWorkload("w2").reserved(at(40)).evicted(false, at(40), "Previously: Preempted").evictions(1).check(ourCheck, readyState),
			job:      suspendedJob, inherited: &inheritedCount{granted: 1, used: 1, fromRunning: true},
			grant:  makeGrant(slice, 1, 1).openedAs(slice, 1),
			action: actionSetBack, states: "Pending", used: 1, waiting: "NotWaiting",
		},
		"an evicted slice whose job somebody has unsuspended": {
			workload: makeWorkload("w2").reserved(at(40)).evicted(false, at(40), "Previously: Preempted").evictions(1), job: runningJob,
			inherited: &inheritedCount{granted: 1, used: 1, fromRunning: true},
			grant:     makeGrant(slice, 1, 1),
			action:    actionWait, states: "Pending", used: 1, waiting: "NotGranted",
		},
		"a slice in place of a running one, of a job that is suspended": {
			workload: makeWorkload("w2").reserved(at(30)), job: suspendedJob, inherited: &inheritedCount{granted: 1, used: 1, fromRunning: true},
			action: actionWait, states: "Pending", needsGrant: true, used: 1, waiting: "NotGranted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := situation{
				workload: tc.workload.obj(), own: checkNames{}, listed: checkNames{},
				blocked: tc.blocked, job: tc.job, inherited: tc.inherited, now: at(60),
			}
			if tc.grant != nil {
				s.grant = tc.grant.obj()
			}
			if tc.own == nil {
				tc.own = []kueuev1beta2.AdmissionCheckReference{ourCheck}
			}
			if tc.listed == nil {
				tc.listed = []kueuev1beta2.AdmissionCheckReference{ourCheck, otherCheck}
			}
			for _, check := range tc.own {
				s.own[check] = true
			}
			for _, check := range tc.listed {
				s.listed[check] = true
			}
			read := s.workload.DeepCopy()

			d := decide(s)

			if diff := cmp.Diff(read, s.workload); diff != "" {
				t.Errorf("the Workload that was read is changed:\n%s", diff)
			}
			if d.action != tc.action || d.needsGrant != tc.needsGrant || d.starts != tc.starts || d.ungranted != tc.ungranted {
				t.Errorf("got %s, needsGrant %t, starts %d, ungranted %d", d.action, d.needsGrant, d.starts, d.ungranted)
			}
			var states []string
			for _, entry := range d.entries {
				states = append(states, string(entry.State))
			}
			if got := strings.Join(states, " "); got != tc.states {
				t.Errorf("entries are set to %q, want %q", got, tc.states)
			}
			if tc.message != "" && len(d.entries) > 0 && d.entries[0].Message != tc.message {
				t.Errorf("message %q, want %q", d.entries[0].Message, tc.message)
			}
			if (d.status == nil) != tc.noStatus {
				t.Fatalf("status written: %t", d.status != nil)
			}
			if d.status == nil {
				return
			}
			opened := int32(0)
			if d.status.Opened != nil {
				opened = d.status.Opened.Number
			}
			if *d.status.Admissions != tc.used || opened != tc.opened {
				t.Errorf("%d used, opened %d; want %d, %d", *d.status.Admissions, opened, tc.used, tc.opened)
			}
			waiting := meta.FindStatusCondition(d.status.Conditions, dispatchv1alpha1.WaitingCondition)
			if waiting == nil || waiting.Reason != tc.waiting || (waiting.Status == metav1.ConditionTrue) != (tc.action == actionWait) {
				t.Errorf("Waiting is %+v, want reason %s", waiting, tc.waiting)
			}
			if got := meta.IsStatusConditionTrue(d.status.Conditions, dispatchv1alpha1.UngrantedStartCondition); got != (tc.ungranted > 0) {
				t.Errorf("UngrantedStart is %t", got)
			}
			for _, kind := range []string{kueuev1beta2.WorkloadQuotaReserved, kueuev1beta2.WorkloadAdmitted, kueuev1beta2.WorkloadEvicted, kueuev1beta2.WorkloadFinished} {
				if diff := cmp.Diff(findCondition(s.workload, kind), meta.FindStatusCondition(d.status.Conditions, kind)); diff != "" {
					t.Errorf("condition %s is not the Workload's:\n%s", kind, diff)
				}
			}
		})
	}
}

// TestDecideOnce looks that a decision that was carried out leads to nothing more.
func TestDecideOnce(t *testing.T) {
	for name, wl := range map[string]*workloadWrapper{
		"let through": makeWorkload("w1").reserved(at(1)),
		"held":        makeWorkload("w1").reserved(at(1)).admitted(false, at(0)),
	} {
		t.Run(name, func(t *testing.T) {
			s := situation{
				workload: wl.obj(), own: checkNames{ourCheck: true}, listed: checkNames{ourCheck: true},
				job: jobState{generation: 1, suspended: true}, now: at(60),
			}
			d := decide(s)
			s.grant = newGrant(s.workload, d.newGranted)
			s.grant.Status = *d.status
			s.workload.Status.AdmissionChecks = d.entries
			s.workload.ResourceVersion = "11"
			s.now = at(61)

			if again := decide(s); again.status != nil || again.entries != nil || again.needsGrant {
				t.Errorf("decides again: %+v", again)
			}
		})
	}
}

// TestOpenKeepsTheSnapshot looks that opening an admission again never takes the job's state from a
// later moment: it could hide a start. The property test found this.
func TestOpenKeepsTheSnapshot(t *testing.T) {
	first := makeWorkload("w1").version("5").reserved(at(1)).obj()
	for name, wl := range map[string]*kueuev1beta2.Workload{
		"same reservation": first,
		"next reservation": makeWorkload("w1").version("9").reserved(at(9)).obj(),
	} {
		t.Run(name, func(t *testing.T) {
			status := &dispatchv1alpha1.AdmissionGrantStatus{Admissions: ptr.To(int32(0))}
			open(status, situation{workload: first, job: jobState{generation: 1, suspended: true}, now: at(1)})
			open(status, situation{workload: wl, job: jobState{generation: 3, suspended: true}, now: at(10)})
			if status.Opened.SuspendedGeneration != 1 {
				t.Errorf("snapshot is of generation %d", status.Opened.SuspendedGeneration)
			}
		})
	}
}

// TestReadyFollowsAWriteOfTheGrant looks that going on after a crash between the two writes, where the
// grant's status is complete, still writes it: that write fails if the grant in the cache is old.
func TestReadyFollowsAWriteOfTheGrant(t *testing.T) {
	s := situation{
		workload: makeWorkload("w1").reserved(at(1)).obj(), own: checkNames{ourCheck: true}, listed: checkNames{ourCheck: true},
		job: jobState{generation: 1, suspended: true}, now: at(60),
	}
	d := decide(s)
	s.grant = newGrant(s.workload, d.newGranted)
	s.grant.Status = *d.status

	again := decide(s)

	if again.action != actionOpen || again.entries == nil || again.status == nil || !sameStatus(again.status, &s.grant.Status) {
		t.Errorf("goes on with %+v", again)
	}
}
