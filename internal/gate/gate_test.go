package gate

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// start is when the tests' evidence is read. Its odd nanoseconds show where a time is cut off.
var start = Instant{Wall: time.Date(2026, 7, 1, 12, 0, 0, 123456789, time.UTC), Mono: time.Hour}

// Errors as client-go makes them.
var (
	queues = schema.GroupResource{Group: "kueue.x-k8s.io", Resource: "clusterqueues"}
	checks = schema.GroupResource{Group: "kueue.x-k8s.io", Resource: "admissionchecks"}
	leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

	err401       = apierrors.NewUnauthorized("Unauthorized")
	errNotServed = apierrors.NewGenericServerResponse(http.StatusNotFound, "GET", queues, "gpu", "404 page not found\n", 0, true)
	errNoKind    = &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "kueue.x-k8s.io", Kind: "ClusterQueue"}, SearchedVersions: []string{"v1beta2"}}
	err500       = apierrors.NewInternalError(errors.New("etcd is down"))
	errTimeout   = errors.New("no answer within 10s")
)

func err403(resource schema.GroupResource, name string) error {
	return apierrors.NewForbidden(resource, name, errors.New("no role binding"))
}

func err404(resource schema.GroupResource, name string) error {
	return apierrors.NewNotFound(resource, name)
}

func kueueSpec() *v1alpha1.KueueSpec {
	spec := &v1alpha1.KueueSpec{ClusterQueue: "gpu"}
	spec.SetDefaults()
	return spec
}

// Findings that many rows expect. Reasons and messages are written out in this file, not taken from the
// constants, because both are API.
var (
	reachable     = Finding{metav1.ConditionTrue, "Connected", "the API server answers"}
	notAuthorized = Finding{metav1.ConditionFalse, "Unauthorized",
		"the API server does not accept the credentials (401): renew the token or certificate in the kubeconfig"}
	timedOut      = Finding{metav1.ConditionFalse, "Unreachable", "no answer within 10s"}
	noAnswerYet   = Finding{metav1.ConditionUnknown, "Preflighting", "the target has not answered yet"}
	queueActive   = Finding{metav1.ConditionTrue, "QueueActive", "ClusterQueue gpu admits workloads"}
	proved        = Finding{metav1.ConditionTrue, "Proved", "the admission controller's Lease is held by pod-a and freshly renewed"}
	notRequired   = Finding{metav1.ConditionTrue, "NotRequired", "plain mode: no queue and no readmission gate"}
	noKueue       = Finding{metav1.ConditionFalse, "KueueNotInstalled", "the target does not serve Kueue's API kueue.x-k8s.io/v1beta2"}
	noQueue       = Finding{metav1.ConditionFalse, "ClusterQueueNotFound", "ClusterQueue gpu does not exist"}
	queueRefused  = Finding{metav1.ConditionUnknown, "Forbidden", "ClusterQueue gpu may not be read (403): grant get on clusterqueues.kueue.x-k8s.io to the credentials in use on the target"}
	queueTimedOut = Finding{metav1.ConditionUnknown, "Unreachable", "ClusterQueue gpu cannot be read: no answer within 10s"}
	checkTimedOut = Finding{metav1.ConditionUnknown, "Unreachable", "AdmissionCheck dispatch cannot be read: no answer within 10s"}
	leaseTimedOut = Finding{metav1.ConditionUnknown, "Unreachable", "Lease dispatch-system/dispatch-admission cannot be read: no answer within 10s"}
	notHeld       = Finding{metav1.ConditionFalse, "LeaseNotHeld", "the admission controller's Lease has no holder"}
	neverRenewed  = Finding{metav1.ConditionFalse, "LeaseNeverRenewed", "the admission controller's Lease has never been renewed"}
	notListed     = Finding{metav1.ConditionFalse, "AdmissionCheckNotListed", "ClusterQueue gpu does not list AdmissionCheck dispatch"}
	silent        = Finding{metav1.ConditionFalse, "Unreachable", "no answer came before the admission controller's Lease expired"}
	leaseSilent   = Finding{metav1.ConditionUnknown, "Unreachable", "Lease dispatch-system/dispatch-admission cannot be read: " + silent.Message}
)

func stale(age, limit string) Finding {
	return Finding{metav1.ConditionFalse, "LeaseStale", "the admission controller's Lease was last renewed " + age + " ago, beyond " + limit}
}

func skewed(amount, duration string) Finding {
	return Finding{metav1.ConditionFalse, "ClockSkew", "the admission controller's Lease was renewed " + amount +
		" in our future, beyond its duration of " + duration + ": the clock there or here is wrong"}
}

func partial(left string) Finding {
	return Finding{metav1.ConditionFalse, "AdmissionCheckPartial",
		"ClusterQueue gpu lists AdmissionCheck dispatch, but not for all its flavors: " + left + " left out"}
}

type verdictRow struct {
	name     string
	plain    bool
	evidence Evidence
	// after start is when it is judged.
	after time.Duration
	// What differs from the verdict on a proved gate.
	reachable, queueActive, gate Finding
}

// want is the expected finding of each condition.
func (r verdictRow) want() map[string]Finding {
	return map[string]Finding{
		"Reachable":       orDefault(r.reachable, reachable),
		"QueueActive":     orDefault(r.queueActive, queueActive),
		"ReadmissionGate": orDefault(r.gate, proved),
	}
}

func orDefault(f, def Finding) Finding {
	if f == (Finding{}) {
		return def
	}
	return f
}

func verdictRows() []verdictRow {
	const window = 30 * time.Second
	leaseGone := Finding{metav1.ConditionFalse, "LeaseNotFound", "Lease dispatch-system/dispatch-admission does not exist"}
	checkGone := Finding{metav1.ConditionFalse, "AdmissionCheckNotFound", "AdmissionCheck dispatch does not exist"}
	notAccepted := Finding{metav1.ConditionUnknown, "Unreachable", notAuthorized.Message}
	noUsableAnswer := "the target gave no usable answer"

	queue := func(w *queueWrapper) Evidence { return makeEvidence().queue(w.obj(), nil).obj() }
	check := func(w *checkWrapper) Evidence { return makeEvidence().check(w.obj(), nil).obj() }
	lease := func(w *leaseWrapper) Evidence { return makeEvidence().lease(w.obj(), nil).obj() }
	changed := func(change func(*Evidence)) Evidence { return makeEvidence().with(change).obj() }
	unheld, unrenewed, undated := goodLease(), goodLease(), goodLease()
	unheld.Spec.HolderIdentity = nil
	unrenewed.Spec.RenewTime = nil
	undated.Spec.LeaseDurationSeconds = nil

	return []verdictRow{
		{name: "all is well", evidence: makeEvidence().obj()},

		// Not read yet.
		{name: "nothing read yet", evidence: Evidence{}, reachable: noAnswerYet, queueActive: noAnswerYet, gate: noAnswerYet},
		{name: "the ClusterQueue not read yet", evidence: changed(func(e *Evidence) { e.ClusterQueue = Read[kueue.ClusterQueue]{} }),
			queueActive: noAnswerYet, gate: noAnswerYet},
		{name: "the AdmissionCheck not read yet", evidence: changed(func(e *Evidence) { e.AdmissionCheck = Read[kueue.AdmissionCheck]{} }), gate: noAnswerYet},
		{name: "the Lease not read yet", evidence: changed(func(e *Evidence) { e.Lease = Read[coordinationv1.Lease]{} }),
			reachable: noAnswerYet, gate: noAnswerYet},

		// The read of the ClusterQueue.
		{name: "ClusterQueue 403", evidence: makeEvidence().queue(nil, err403(queues, "gpu")).obj(), queueActive: queueRefused, gate: queueRefused},
		{name: "ClusterQueue 401", evidence: makeEvidence().queue(nil, err401).obj(),
			reachable: notAuthorized, queueActive: notAccepted, gate: notAccepted},
		{name: "ClusterQueue 404", evidence: makeEvidence().queue(nil, err404(queues, "gpu")).obj(), queueActive: noQueue, gate: noQueue},
		{name: "ClusterQueue 404, wrapped", evidence: makeEvidence().queue(nil, fmt.Errorf("get: %w", err404(queues, "gpu"))).obj(),
			queueActive: noQueue, gate: noQueue},
		{name: "ClusterQueue's API not served", evidence: makeEvidence().queue(nil, errNotServed).obj(), queueActive: noKueue, gate: noKueue},
		{name: "ClusterQueue's API not served, wrapped", evidence: makeEvidence().queue(nil, fmt.Errorf("get: %w", errNotServed)).obj(),
			queueActive: noKueue, gate: noKueue},
		{name: "ClusterQueue's kind unknown", evidence: makeEvidence().queue(nil, errNoKind).obj(), queueActive: noKueue, gate: noKueue},
		{name: "ClusterQueue never read", evidence: changed(func(e *Evidence) {
			e.ClusterQueue = Read[kueue.ClusterQueue]{}
			e.ClusterQueue.Fail(errTimeout, start.Mono)
		}), queueActive: queueTimedOut, gate: queueTimedOut},
		{name: "ClusterQueue not read, within the window", evidence: changed(func(e *Evidence) { e.ClusterQueue.Fail(errTimeout, start.Mono) }), after: window},
		{name: "ClusterQueue not read, beyond the window", evidence: changed(func(e *Evidence) {
			e.ClusterQueue.Fail(errTimeout, start.Mono)
			e.ClusterQueue.Fail(errTimeout, start.Mono+window) // a later failure does not begin it anew
			e.SawLease(goodLease().renewed(start.Wall.Add(window)).obj(), nil, start.Mono+window)
		}), after: window + 1, queueActive: queueTimedOut, gate: queueTimedOut},
		{name: "ClusterQueue not read, but again", evidence: changed(func(e *Evidence) {
			e.ClusterQueue.Fail(errTimeout, start.Mono-time.Minute)
			e.ClusterQueue.Answer(goodQueue().obj(), nil, start.Mono)
		})},
		{name: "ClusterQueue 500 taken for an answer", evidence: changed(func(e *Evidence) {
			e.ClusterQueue = Read[kueue.ClusterQueue]{}
			e.ClusterQueue.Answer(&kueue.ClusterQueue{}, err500, start.Mono)
		}), queueActive: Finding{metav1.ConditionUnknown, "Unreachable", "ClusterQueue gpu cannot be read: " + noUsableAnswer},
			gate: Finding{metav1.ConditionUnknown, "Unreachable", "ClusterQueue gpu cannot be read: " + noUsableAnswer}},

		// QueueActive.
		{name: "ClusterQueue without conditions", evidence: queue(makeQueue("gpu").lists("dispatch")),
			queueActive: Finding{metav1.ConditionFalse, "ClusterQueueInactive", "ClusterQueue gpu has no condition Active: is Kueue's controller running?"}},
		{name: "ClusterQueue held", evidence: queue(goodQueue().active(metav1.ConditionFalse, "Stopped", "is stopped")),
			queueActive: Finding{metav1.ConditionFalse, "ClusterQueueInactive", "ClusterQueue gpu is not active: Stopped: is stopped"}},
		{name: "ClusterQueue perhaps active", evidence: queue(goodQueue().active(metav1.ConditionUnknown, "Wait", "soon")),
			queueActive: Finding{metav1.ConditionFalse, "ClusterQueueInactive", "ClusterQueue gpu is not active: Wait: soon"}},

		// Rule 1: the ClusterQueue lists the AdmissionCheck for all its flavors.
		{name: "no strategy", evidence: queue(makeQueue("gpu").group("spot").active(metav1.ConditionTrue, "", "")), gate: notListed},
		{name: "another check listed", evidence: queue(makeQueue("gpu").group("spot").lists("other").active(metav1.ConditionTrue, "", "")), gate: notListed},
		{name: "listed beside another check", evidence: queue(makeQueue("gpu").group("spot").lists("other", "spot").lists("dispatch").active(metav1.ConditionTrue, "", ""))},
		{name: "another check for the other flavor", evidence: queue(makeQueue("gpu").group("spot", "reserved").lists("dispatch", "spot").lists("other").
			active(metav1.ConditionTrue, "", "")), gate: partial("reserved")},
		{name: "some flavors in onFlavors", evidence: queue(makeQueue("gpu").group("spot", "reserved", "old").lists("dispatch", "reserved").
			active(metav1.ConditionTrue, "", "")), gate: partial("spot, old")},
		{name: "a flavor in the second group not in onFlavors", evidence: queue(makeQueue("gpu").group("spot", "reserved").group("x", "spot", "x").
			lists("dispatch", "spot", "reserved").active(metav1.ConditionTrue, "", "")), gate: partial("x")},
		{name: "only flavors of others in onFlavors", evidence: queue(makeQueue("gpu").group("spot").lists("dispatch", "gone").
			active(metav1.ConditionTrue, "", "")), gate: partial("spot")},
		{name: "all flavors in onFlavors", evidence: queue(makeQueue("gpu").group("spot", "reserved").lists("dispatch", "reserved", "spot").
			active(metav1.ConditionTrue, "", ""))},
		{name: "all flavors of two groups in onFlavors", evidence: queue(makeQueue("gpu").group("spot", "reserved").group("x").
			lists("dispatch", "spot", "reserved", "x").active(metav1.ConditionTrue, "", ""))},
		{name: "listed twice, together for all flavors", evidence: queue(makeQueue("gpu").group("spot", "reserved").
			lists("dispatch", "spot").lists("dispatch", "reserved").active(metav1.ConditionTrue, "", ""))},
		{name: "a ClusterQueue without flavors", evidence: queue(makeQueue("gpu").lists("dispatch").active(metav1.ConditionTrue, "", ""))},
		{name: "a ClusterQueue without flavors and some in onFlavors", evidence: queue(makeQueue("gpu").lists("dispatch", "spot").active(metav1.ConditionTrue, "", ""))},

		// Rule 2: the AdmissionCheck is dispatch's.
		{name: "AdmissionCheck 403", evidence: makeEvidence().check(nil, err403(checks, "dispatch")).obj(),
			gate: Finding{metav1.ConditionUnknown, "Forbidden", "AdmissionCheck dispatch may not be read (403): grant get on admissionchecks.kueue.x-k8s.io to the credentials in use on the target"}},
		{name: "AdmissionCheck 401", evidence: makeEvidence().check(nil, err401).obj(), reachable: notAuthorized, gate: notAccepted},
		{name: "AdmissionCheck 404", evidence: makeEvidence().check(nil, err404(checks, "dispatch")).obj(), gate: checkGone},
		{name: "AdmissionCheck's API not served", evidence: makeEvidence().check(nil, errNotServed).obj(), gate: noKueue},
		{name: "AdmissionCheck's kind unknown", evidence: makeEvidence().check(nil, errNoKind).obj(), gate: noKueue},
		{name: "AdmissionCheck never read", evidence: changed(func(e *Evidence) {
			e.AdmissionCheck = Read[kueue.AdmissionCheck]{}
			e.AdmissionCheck.Fail(errTimeout, start.Mono)
		}), gate: checkTimedOut},
		{name: "AdmissionCheck not read, within the window", evidence: changed(func(e *Evidence) { e.AdmissionCheck.Fail(errTimeout, start.Mono) }), after: window},
		{name: "AdmissionCheck not read, beyond the window", evidence: changed(func(e *Evidence) {
			e.AdmissionCheck.Fail(errTimeout, start.Mono)
			e.SawLease(goodLease().renewed(start.Wall.Add(window)).obj(), nil, start.Mono+window)
		}), after: window + 1, gate: checkTimedOut},
		{name: "another controller's AdmissionCheck", evidence: check(goodCheck().controller("example.com/other")),
			gate: Finding{metav1.ConditionFalse, "ForeignController", `AdmissionCheck dispatch belongs to controller "example.com/other", not to "dispatch.dev/admission"`}},
		{name: "nobody's AdmissionCheck", evidence: check(goodCheck().controller("")),
			gate: Finding{metav1.ConditionFalse, "ForeignController", `AdmissionCheck dispatch belongs to controller "", not to "dispatch.dev/admission"`}},

		// Rule 3: the AdmissionCheck is active.
		{name: "AdmissionCheck without conditions", evidence: check(makeCheck().controller("dispatch.dev/admission")),
			gate: Finding{metav1.ConditionFalse, "AdmissionCheckInactive", "AdmissionCheck dispatch has no condition Active: dispatch-admission has not taken it up"}},
		{name: "AdmissionCheck inactive", evidence: check(goodCheck().active(metav1.ConditionFalse, "Broken", "no parameters")),
			gate: Finding{metav1.ConditionFalse, "AdmissionCheckInactive", "AdmissionCheck dispatch is not active: Broken: no parameters"}},
		{name: "AdmissionCheck perhaps active", evidence: check(goodCheck().active(metav1.ConditionUnknown, "Wait", "soon")),
			gate: Finding{metav1.ConditionFalse, "AdmissionCheckInactive", "AdmissionCheck dispatch is not active: Wait: soon"}},

		// Rule 4: the Lease. First the read.
		{name: "Lease 403", evidence: makeEvidence().lease(nil, err403(leases, "dispatch-admission")).obj(),
			gate: Finding{metav1.ConditionUnknown, "Forbidden", "Lease dispatch-system/dispatch-admission may not be read (403): grant get on leases.coordination.k8s.io to the credentials in use on the target"}},
		{name: "Lease 401", evidence: makeEvidence().lease(nil, err401).obj(), reachable: notAuthorized, gate: notAccepted},
		{name: "Lease 404", evidence: makeEvidence().lease(nil, err404(leases, "dispatch-admission")).obj(), gate: leaseGone},
		{name: "Lease 404 after it was seen", evidence: changed(func(e *Evidence) { e.SawLease(nil, err404(leases, "dispatch-admission"), start.Mono+1) }), after: 1, gate: leaseGone},
		{name: "Leases not served", evidence: makeEvidence().lease(nil, errNotServed).obj(),
			reachable: Finding{metav1.ConditionFalse, "Unreachable", "the target does not serve Leases: is it a Kubernetes API server?"},
			gate: Finding{metav1.ConditionUnknown, "Unreachable",
				"Lease dispatch-system/dispatch-admission cannot be read: the target does not serve Leases: is it a Kubernetes API server?"}},
		{name: "Lease's kind unknown", evidence: makeEvidence().lease(nil, errNoKind).obj(),
			reachable: Finding{metav1.ConditionFalse, "Unreachable", "the target does not serve Leases: is it a Kubernetes API server?"},
			gate: Finding{metav1.ConditionUnknown, "Unreachable",
				"Lease dispatch-system/dispatch-admission cannot be read: the target does not serve Leases: is it a Kubernetes API server?"}},
		{name: "Lease never read", evidence: changed(func(e *Evidence) {
			e.Lease = Read[coordinationv1.Lease]{}
			e.Lease.Fail(errTimeout, start.Mono)
		}), reachable: timedOut, gate: leaseTimedOut},
		{name: "Lease 500 taken for an answer", evidence: makeEvidence().lease(goodLease().obj(), err500).obj(),
			reachable: Finding{metav1.ConditionFalse, "Unreachable", noUsableAnswer},
			gate:      Finding{metav1.ConditionUnknown, "Unreachable", "Lease dispatch-system/dispatch-admission cannot be read: " + noUsableAnswer}},
		{name: "neither a Lease nor an error", evidence: makeEvidence().lease(nil, nil).obj(),
			reachable: Finding{metav1.ConditionFalse, "Unreachable", noUsableAnswer},
			gate:      Finding{metav1.ConditionUnknown, "Unreachable", "Lease dispatch-system/dispatch-admission cannot be read: " + noUsableAnswer}},

		// What the Lease says.
		{name: "holder absent", evidence: lease(unheld), gate: notHeld},
		{name: "holder empty", evidence: lease(goodLease().holder("")), gate: notHeld},
		{name: "released, as client-go does it", evidence: lease(goodLease().holder("").seconds(1).renewed(start.Wall)), gate: notHeld},
		{name: "released and stale", evidence: lease(goodLease().holder("").seconds(1)), after: time.Hour, gate: notHeld},
		{name: "renewTime absent", evidence: lease(unrenewed), gate: neverRenewed},
		{name: "duration absent", evidence: lease(undated), gate: neverRenewed},
		{name: "an empty Lease", evidence: lease(makeLease("dispatch-system", "dispatch-admission")), gate: notHeld},
		{name: "zero duration, renewed this very moment", evidence: lease(goodLease().seconds(0))},
		{name: "zero duration", evidence: makeEvidence().leaseAt(1, goodLease().seconds(0).obj(), nil).obj(), after: 1, gate: stale("1s", "0s")},
		{name: "zero duration, in our future", evidence: lease(goodLease().seconds(0).renewed(start.Wall.Add(1))), gate: skewed("1s", "0s")},
		{name: "negative duration", evidence: lease(goodLease().seconds(-5).renewed(start.Wall.Add(-5 * time.Second))), gate: stale("5s", "-10s")},
		{name: "negative duration, renewed this very moment", evidence: lease(goodLease().seconds(-5)), gate: skewed("0s", "-5s")},

		// A Lease seen for the first time is judged by the rule alone.
		{name: "first seen a nanosecond before the limit", evidence: makeEvidence().leaseAt(window-1, goodLease().obj(), nil).obj(), after: window - 1},
		{name: "first seen at the limit", evidence: makeEvidence().leaseAt(window, goodLease().obj(), nil).obj(), after: window},
		{name: "first seen a nanosecond after the limit", evidence: makeEvidence().leaseAt(window+1, goodLease().obj(), nil).obj(), after: window + 1, gate: stale("31s", "30s")},
		{name: "first seen a second after the limit", evidence: makeEvidence().leaseAt(window+time.Second, goodLease().obj(), nil).obj(), after: window + time.Second, gate: stale("31s", "30s")},
		{name: "first seen a second and a nanosecond after the limit", evidence: makeEvidence().leaseAt(window+time.Second+1, goodLease().obj(), nil).obj(),
			after: window + time.Second + 1, gate: stale("32s", "30s")},
		{name: "first seen with another duration", evidence: makeEvidence().leaseAt(4*time.Second+1, goodLease().seconds(2).obj(), nil).obj(),
			after: 4*time.Second + 1, gate: stale("5s", "4s")},
		{name: "renewed one duration in our future", evidence: lease(goodLease().renewed(start.Wall.Add(15 * time.Second)))},
		{name: "renewed one nanosecond further in our future", evidence: lease(goodLease().renewed(start.Wall.Add(15*time.Second + 1))), gate: skewed("16s", "15s")},
		{name: "renewed an hour in our future", evidence: lease(goodLease().renewed(start.Wall.Add(time.Hour))), gate: skewed("1h0m0s", "15s")},
		{name: "skewed and silent", evidence: lease(goodLease().renewed(start.Wall.Add(time.Hour))), after: 2 * time.Minute, gate: skewed("58m0s", "15s")},

		// A Lease that was seen before: an answer shortly before the expiry confirms it.
		{name: "a nanosecond before the limit", evidence: makeEvidence().obj(), after: window - 1},
		{name: "at the limit", evidence: makeEvidence().obj(), after: window},
		{name: "a nanosecond after the limit, confirmed just in time", evidence: makeEvidence().confirmed(window - 2*time.Second).obj(), after: window + 1, gate: stale("31s", "30s")},
		{name: "a nanosecond after the limit, confirmed after it", evidence: makeEvidence().confirmed(window + 1).obj(), after: window + 1, gate: stale("31s", "30s")},
		{name: "a nanosecond after the limit, not confirmed", evidence: makeEvidence().confirmed(window - 2*time.Second - 1).obj(), after: window + 1,
			reachable: silent, gate: leaseSilent},
		{name: "of a short window, a quarter is enough to confirm", evidence: makeEvidence().lease(goodLease().seconds(2).obj(), nil).confirmed(3 * time.Second).obj(),
			after: 4*time.Second + 1, gate: stale("5s", "4s")},
		{name: "of a short window, more than a quarter is not", evidence: makeEvidence().lease(goodLease().seconds(2).obj(), nil).confirmed(3*time.Second - 1).obj(),
			after: 4*time.Second + 1, reachable: silent, gate: leaseSilent},
		{name: "failing at the limit", evidence: changed(func(e *Evidence) { e.Lease.Fail(errTimeout, start.Mono+20*time.Second) }), after: window},
		{name: "failing after the limit", evidence: changed(func(e *Evidence) { e.Lease.Fail(errTimeout, start.Mono+20*time.Second) }), after: window + 1,
			reachable: timedOut, gate: leaseTimedOut},
		{name: "confirmed stale, then failing, within the window", evidence: makeEvidence().confirmed(window).with(func(e *Evidence) {
			e.Lease.Fail(errTimeout, start.Mono+window)
		}).obj(), after: 2 * window, gate: stale("1m0s", "30s")},
		{name: "confirmed stale, then failing, beyond the window", evidence: makeEvidence().confirmed(window).with(func(e *Evidence) {
			e.Lease.Fail(errTimeout, start.Mono+window)
		}).obj(), after: 2*window + 1, reachable: timedOut, gate: leaseTimedOut},
		{name: "gone, then failing, within the default window", evidence: makeEvidence().lease(nil, err404(leases, "x")).with(func(e *Evidence) {
			e.Lease.Fail(errTimeout, start.Mono)
		}).obj(), after: 30 * time.Second, gate: leaseGone},
		{name: "gone, then failing, beyond the default window", evidence: makeEvidence().lease(nil, err404(leases, "x")).with(func(e *Evidence) {
			e.Lease.Fail(errTimeout, start.Mono)
		}).obj(), after: 30*time.Second + 1, reachable: timedOut, gate: leaseTimedOut},

		// A target whose watches stand is reachable, whatever the Lease says, and however long ago.
		{name: "long unheld", evidence: lease(unheld), after: time.Hour, gate: notHeld},
		{name: "long dead, but the gate closed for another reason", evidence: makeEvidence().queue(nil, err404(queues, "gpu")).obj(), after: time.Hour,
			queueActive: noQueue, gate: noQueue},

		// Plain mode needs no gate and asks for the version only.
		{name: "plain, nothing read yet", plain: true, evidence: Evidence{}, reachable: noAnswerYet, queueActive: notRequired, gate: notRequired},
		{name: "plain", plain: true, evidence: makeEvidence().obj(), after: time.Hour, queueActive: notRequired, gate: notRequired},
		{name: "plain, never read", plain: true, evidence: changed(func(e *Evidence) {
			e.Server = Read[string]{}
			e.Server.Fail(errTimeout, start.Mono)
		}), reachable: timedOut, queueActive: notRequired, gate: notRequired},
		{name: "plain, failing within the default window", plain: true, evidence: changed(func(e *Evidence) { e.Server.Fail(errTimeout, start.Mono) }),
			after: 30 * time.Second, queueActive: notRequired, gate: notRequired},
		{name: "plain, failing beyond the default window", plain: true, evidence: changed(func(e *Evidence) { e.Server.Fail(errTimeout, start.Mono) }),
			after: 30*time.Second + 1, reachable: timedOut, queueActive: notRequired, gate: notRequired},
		{name: "plain, 401", plain: true, evidence: changed(func(e *Evidence) { e.Server.Answer(nil, err401, start.Mono) }),
			reachable: notAuthorized, queueActive: notRequired, gate: notRequired},
		{name: "plain, 403", plain: true, evidence: changed(func(e *Evidence) { e.Server.Answer(nil, err403(schema.GroupResource{}, ""), start.Mono) }),
			queueActive: notRequired, gate: notRequired},
		{name: "plain, 404", plain: true, evidence: changed(func(e *Evidence) { e.Server.Answer(nil, errNotServed, start.Mono) }),
			reachable: Finding{metav1.ConditionFalse, "Unreachable", "the target has no version: is it a Kubernetes API server?"}, queueActive: notRequired, gate: notRequired},
		{name: "plain, 500 taken for an answer", plain: true, evidence: changed(func(e *Evidence) {
			e.Server = Read[string]{}
			e.Server.Answer(nil, err500, start.Mono)
		}), reachable: Finding{metav1.ConditionFalse, "Unreachable", noUsableAnswer}, queueActive: notRequired, gate: notRequired},
	}
}

func TestJudge(t *testing.T) {
	for _, row := range verdictRows() {
		t.Run(row.name, func(t *testing.T) {
			spec := kueueSpec()
			if row.plain {
				spec = nil
			}
			v := Judge(spec, row.evidence, start.Add(row.after))
			got := map[string]Finding{"Reachable": v.Reachable, "QueueActive": v.QueueActive, "ReadmissionGate": v.ReadmissionGate}
			for condition, want := range row.want() {
				if got[condition] != want {
					t.Errorf("%s:\n got %q\nwant %q", condition, got[condition], want)
				}
			}
			if isProved := row.want()["ReadmissionGate"] == proved; isProved != (v.Expires != 0) {
				t.Errorf("proved: %t, but Expires: %s", isProved, v.Expires)
			}
		})
	}
}

// All is wrong at once, and then mended one by one from the first rule to the last.
func TestOrderOfRules(t *testing.T) {
	w := makeEvidence().
		queue(nil, err403(queues, "gpu")).
		check(nil, err403(checks, "dispatch")).
		lease(nil, err404(leases, "dispatch-admission"))
	for _, step := range []struct {
		mend   func()
		reason string
	}{
		{func() {}, "Forbidden"},
		{func() { w.queue(nil, errNotServed) }, "KueueNotInstalled"},
		{func() { w.queue(nil, err404(queues, "gpu")) }, "ClusterQueueNotFound"},
		{func() { w.queue(makeQueue("gpu").group("spot", "reserved").obj(), nil) }, "AdmissionCheckNotListed"},
		{func() { w.queue(makeQueue("gpu").group("spot", "reserved").lists("dispatch", "spot").obj(), nil) }, "AdmissionCheckPartial"},
		{func() { w.queue(makeQueue("gpu").group("spot", "reserved").lists("dispatch").obj(), nil) }, "Forbidden"},
		{func() { w.check(nil, err404(checks, "dispatch")) }, "AdmissionCheckNotFound"},
		{func() { w.check(makeCheck().controller("other").obj(), nil) }, "ForeignController"},
		{func() { w.check(makeCheck().controller("dispatch.dev/admission").obj(), nil) }, "AdmissionCheckInactive"},
		{func() { w.check(goodCheck().obj(), nil) }, "LeaseNotFound"},
		{func() { w.lease(makeLease("", "").obj(), nil) }, "LeaseNotHeld"},
		{func() { w.lease(makeLease("", "").holder("pod-a").obj(), nil) }, "LeaseNeverRenewed"},
		{func() { w.lease(goodLease().renewed(start.Wall.Add(time.Hour)).obj(), nil) }, "ClockSkew"},
		{func() { w.lease(goodLease().renewed(start.Wall.Add(-time.Hour)).obj(), nil) }, "LeaseStale"},
		{func() { w.lease(goodLease().obj(), nil) }, "Proved"},
	} {
		step.mend()
		if got := Judge(kueueSpec(), w.obj(), start).ReadmissionGate; got.Reason != step.reason {
			t.Errorf("got %q, want %s", got, step.reason)
		}
	}
}

// What the spec names counts, not the defaults.
func TestSpec(t *testing.T) {
	spec := &v1alpha1.KueueSpec{
		ClusterQueue: "batch.v2", AdmissionCheck: "held", ControllerName: "example.com/held",
		AdmissionLease: &v1alpha1.LeaseReference{Namespace: "ops", Name: "held.v1"},
	}
	w := makeEvidence().queue(makeQueue("batch.v2").lists("held").obj(), nil).check(goodCheck().controller("example.com/held").obj(), nil)
	if got := Judge(spec, w.obj(), start).ReadmissionGate; got != proved {
		t.Errorf("got %q, want %q", got, proved)
	}
	want := Finding{metav1.ConditionFalse, "LeaseNotFound", "Lease ops/held.v1 does not exist"}
	if got := Judge(spec, w.lease(nil, err404(leases, "held.v1")).obj(), start).ReadmissionGate; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	bare := &v1alpha1.KueueSpec{ClusterQueue: "gpu"}
	if got := Judge(bare, makeEvidence().obj(), start).ReadmissionGate; got != proved {
		t.Errorf("without defaults set: got %q, want %q", got, proved)
	}
	if bare.AdmissionLease != nil {
		t.Error("Judge changed the spec it was given")
	}
}

type readyRow struct {
	name        string
	verdict     Verdict
	observeOnly bool
	mode        v1alpha1.Mode
	want        Finding
}

func readyRows() []readyRow {
	held := Finding{metav1.ConditionFalse, "ClusterQueueInactive", "held"}
	readWrite := Finding{metav1.ConditionTrue, "ReadWrite", "the target may be written to"}
	requested := Finding{metav1.ConditionTrue, "ObserveOnlyRequested", "spec.observeOnly is set: nothing is written to the target"}
	observeOnly := func(message string) Finding {
		return Finding{metav1.ConditionFalse, "ObserveOnly", message}
	}
	refused := Refused(kueueSpec(), "KubeConfigInvalid", "it does not parse")
	return []readyRow{
		{"all is well", Verdict{Reachable: reachable, QueueActive: queueActive, ReadmissionGate: proved}, false, "ReadWrite", readWrite},
		{"plain mode", Verdict{Reachable: reachable, QueueActive: notRequired, ReadmissionGate: notRequired}, false, "ReadWrite", readWrite},
		{"a held queue forbids new submissions only", Verdict{Reachable: reachable, QueueActive: held, ReadmissionGate: proved}, false, "ReadWrite", readWrite},
		{"gate False", Verdict{Reachable: reachable, QueueActive: queueActive, ReadmissionGate: notHeld}, false, "ObserveOnly",
			observeOnly("ReadmissionGate is False: the admission controller's Lease has no holder")},
		{"gate Unknown", Verdict{Reachable: reachable, QueueActive: queueActive, ReadmissionGate: leaseTimedOut}, false, "ObserveOnly",
			observeOnly("ReadmissionGate is Unknown: Lease dispatch-system/dispatch-admission cannot be read: no answer within 10s")},
		{"unreachable comes first", Verdict{Reachable: timedOut, QueueActive: queueTimedOut, ReadmissionGate: queueTimedOut}, false, "ObserveOnly",
			observeOnly("Reachable is False: no answer within 10s")},
		{"unreachable in plain mode", Verdict{Reachable: timedOut, QueueActive: notRequired, ReadmissionGate: notRequired}, false, "ObserveOnly",
			observeOnly("Reachable is False: no answer within 10s")},
		{"not dialled", refused, false, "ObserveOnly", observeOnly("Reachable is False: it does not parse")},
		{"nothing read yet", Judge(kueueSpec(), Evidence{}, start), false, "ObserveOnly", noAnswerYet},
		{"gate not read yet", Verdict{Reachable: reachable, QueueActive: queueActive, ReadmissionGate: noAnswerYet}, false, "ObserveOnly", noAnswerYet},
		{"plain, not read yet", Judge(nil, Evidence{}, start), false, "ObserveOnly", noAnswerYet},
		{"no verdict at all", Verdict{}, false, "ObserveOnly", observeOnly("Reachable is : ")},

		{"asked for, all is well", Verdict{Reachable: reachable, QueueActive: queueActive, ReadmissionGate: proved}, true, "ObserveOnly", requested},
		{"asked for, gate False", Verdict{Reachable: reachable, QueueActive: queueActive, ReadmissionGate: notHeld}, true, "ObserveOnly", requested},
		{"asked for, unreachable", Verdict{Reachable: timedOut, QueueActive: queueTimedOut, ReadmissionGate: queueTimedOut}, true, "ObserveOnly", requested},
		{"asked for, plain mode", Verdict{Reachable: reachable, QueueActive: notRequired, ReadmissionGate: notRequired}, true, "ObserveOnly", requested},
		{"asked for, not read yet", Judge(kueueSpec(), Evidence{}, start), true, "ObserveOnly", noAnswerYet},
	}
}

func TestReady(t *testing.T) {
	for _, row := range readyRows() {
		t.Run(row.name, func(t *testing.T) {
			mode, got := row.verdict.Ready(row.observeOnly)
			if mode != row.mode || got != row.want {
				t.Errorf("\n got %s %q\nwant %s %q", mode, got, row.mode, row.want)
			}
		})
	}
}

type refusedRow struct {
	reason string
	plain  bool
	want   map[string]Finding
}

func refusedRows() []refusedRow {
	notRead := Finding{metav1.ConditionUnknown, "Unreachable", "the target is not connected: why"}
	var rows []refusedRow
	for _, reason := range []string{"KubeConfigNotFound", "KubeConfigInvalid", "KubeConfigInsecure"} {
		refused := Finding{metav1.ConditionFalse, reason, "why"}
		rows = append(rows,
			refusedRow{reason, false, map[string]Finding{"Reachable": refused, "QueueActive": notRead, "ReadmissionGate": notRead}},
			refusedRow{reason, true, map[string]Finding{"Reachable": refused, "QueueActive": notRequired, "ReadmissionGate": notRequired}})
	}
	return rows
}

func TestRefused(t *testing.T) {
	for _, row := range refusedRows() {
		spec := kueueSpec()
		if row.plain {
			spec = nil
		}
		v := Refused(spec, row.reason, "why")
		got := map[string]Finding{"Reachable": v.Reachable, "QueueActive": v.QueueActive, "ReadmissionGate": v.ReadmissionGate}
		for condition, want := range row.want {
			if got[condition] != want {
				t.Errorf("%s, plain %t: %s:\n got %q\nwant %q", row.reason, row.plain, condition, got[condition], want)
			}
		}
		if v.Expires != 0 || v.ConfirmAt != 0 || v.ReviewAt != 0 {
			t.Errorf("%s: times of a target that is not dialled: %+v", row.reason, v)
		}
	}
}

// finding is one line of the API's table of conditions.
type findingKind struct {
	condition string
	status    metav1.ConditionStatus
	reason    string
}

// allowed is the API's table of conditions and reasons.
var allowed = map[string]map[metav1.ConditionStatus]string{
	"Reachable": {
		metav1.ConditionTrue:    "Connected",
		metav1.ConditionFalse:   "KubeConfigNotFound KubeConfigInvalid KubeConfigInsecure Unauthorized Unreachable",
		metav1.ConditionUnknown: "Preflighting",
	},
	"QueueActive": {
		metav1.ConditionTrue:    "QueueActive NotRequired",
		metav1.ConditionFalse:   "KueueNotInstalled ClusterQueueNotFound ClusterQueueInactive",
		metav1.ConditionUnknown: "Forbidden Unreachable Preflighting",
	},
	"ReadmissionGate": {
		metav1.ConditionTrue: "Proved NotRequired",
		metav1.ConditionFalse: "KueueNotInstalled ClusterQueueNotFound AdmissionCheckNotListed AdmissionCheckPartial AdmissionCheckNotFound " +
			"ForeignController AdmissionCheckInactive LeaseNotFound LeaseNotHeld LeaseNeverRenewed LeaseStale ClockSkew",
		metav1.ConditionUnknown: "Forbidden Unreachable Preflighting",
	},
	"Ready": {
		metav1.ConditionTrue:    "ReadWrite ObserveOnlyRequested",
		metav1.ConditionFalse:   "ObserveOnly",
		metav1.ConditionUnknown: "Preflighting",
	},
}

// Every line of the API's table has a row above and no row is outside it; and every reason that the API
// package exports is in the table, so that a new one needs a row.
func TestEveryReasonHasARow(t *testing.T) {
	table, inTable := sets.New[findingKind](), sets.New[string]()
	for condition, byStatus := range allowed {
		for status, reasons := range byStatus {
			for reason := range strings.FieldsSeq(reasons) {
				table.Insert(findingKind{condition, status, reason})
				inTable.Insert(reason)
			}
		}
	}

	rows := sets.New[findingKind]()
	add := func(condition string, f Finding) { rows.Insert(findingKind{condition, f.Status, f.Reason}) }
	for _, row := range verdictRows() {
		for condition, f := range row.want() {
			add(condition, f)
		}
	}
	for _, row := range refusedRows() {
		for condition, f := range row.want {
			add(condition, f)
		}
	}
	for _, row := range readyRows() {
		add("Ready", row.want)
	}
	if missing := table.Difference(rows); missing.Len() > 0 {
		t.Errorf("no row expects %v", missing.UnsortedList())
	}
	if extra := rows.Difference(table); extra.Len() > 0 {
		t.Errorf("rows expect what the API does not have: %v", extra.UnsortedList())
	}

	exported := exportedReasons(t)
	if missing := exported.Difference(inTable); missing.Len() > 0 {
		t.Errorf("the API package exports reasons that this test does not know: %v", missing.UnsortedList())
	}
	if extra := inTable.Difference(exported); extra.Len() > 0 {
		t.Errorf("the API package does not export the reasons %v", extra.UnsortedList())
	}
}

// exportedReasons are the values of the constants whose name ends in Reason.
func exportedReasons(t *testing.T) sets.Set[string] {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../api/v1alpha1/dispatchtarget_conditions.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	reasons := sets.New[string]()
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			if !strings.HasSuffix(name.Name, "Reason") {
				continue
			}
			literal, ok := spec.Values[i].(*ast.BasicLit)
			if !ok {
				t.Fatalf("%s is not a literal", name.Name)
			}
			reason, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			reasons.Insert(reason)
		}
		return true
	})
	if reasons.Len() == 0 {
		t.Fatal("no reasons found in the API package")
	}
	return reasons
}

// A finding is not a new one because time goes on.
func TestSays(t *testing.T) {
	for _, row := range []struct {
		a, b Finding
		want bool
	}{
		{proved, proved, true},
		{stale("31s", "30s"), stale("45s", "30s"), true},
		{skewed("1m0s", "15s"), skewed("50s", "15s"), true},
		{stale("31s", "30s"), skewed("31s", "30s"), false},
		{stale("31s", "30s"), Finding{metav1.ConditionUnknown, "LeaseStale", ""}, false},
		{stale("31s", "30s"), Finding{}, false},
		{proved, Finding{metav1.ConditionTrue, "Proved", "the admission controller's Lease is held by pod-b and freshly renewed"}, false},
		{timedOut, silent, false},
	} {
		if got := row.a.Says(row.b); got != row.want {
			t.Errorf("%q says %q: %t", row.a, row.b, got)
		}
		if got := row.b.Says(row.a); got != row.want {
			t.Errorf("%q says %q: %t", row.b, row.a, got)
		}
	}
}

// A target writes what it likes; a status stays short and readable, and the gate closed.
func TestHostileTarget(t *testing.T) {
	const evil = "line\nline\x1b[31m\u202edesrever\x00\xff"
	long := strings.Repeat("é", 1<<20) + evil
	many := make([]kueue.ResourceFlavorReference, 1<<16)
	for i := range many {
		many[i] = kueue.ResourceFlavorReference(evil + strconv.Itoa(i))
	}
	for name, e := range map[string]Evidence{
		"holder":             makeEvidence().lease(goodLease().holder(long).obj(), nil).obj(),
		"a short holder":     makeEvidence().lease(goodLease().holder(evil).obj(), nil).obj(),
		"controller":         makeEvidence().check(goodCheck().controller(long).obj(), nil).obj(),
		"check's condition":  makeEvidence().check(goodCheck().active(metav1.ConditionFalse, long, long).obj(), nil).obj(),
		"queue's condition":  makeEvidence().queue(goodQueue().active(metav1.ConditionFalse, long, long).obj(), nil).obj(),
		"another name":       makeEvidence().queue(makeQueue(long).obj(), nil).obj(),
		"many flavors":       makeEvidence().queue(makeQueue("gpu").group(many...).lists("dispatch", "x").obj(), nil).obj(),
		"an error's message": makeEvidence().lease(nil, apierrors.NewForbidden(leases, long, errors.New(long))).obj(),
		"a failure": makeEvidence().with(func(e *Evidence) {
			e.Lease = Read[coordinationv1.Lease]{}
			e.Lease.Fail(errors.New(long), start.Mono)
		}).obj(),
		"the version": {Server: Read[string]{Failing: errors.New(long)}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, spec := range []*v1alpha1.KueueSpec{kueueSpec(), nil} {
				v := Judge(spec, e, start)
				_, ready := v.Ready(false)
				for _, f := range []Finding{v.Reachable, v.QueueActive, v.ReadmissionGate, ready} {
					if len(f.Message) > 1000 {
						t.Errorf("a message of %d bytes", len(f.Message))
					}
					if strings.ContainsFunc(f.Message, func(r rune) bool { return !unicode.IsPrint(r) }) || !utf8.ValidString(f.Message) {
						t.Errorf("unprintable: %q", f.Message)
					}
				}
			}
		})
	}

	// Times that overflow a duration.
	times := []time.Time{{}, time.Unix(-1<<62, 0), time.Unix(1<<62, 0), time.Unix(1<<40, 0), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), start.Wall.AddDate(-500, 0, 0)}
	durations := []int32{-1 << 31, -1, 0, 1, 15, 1<<31 - 1}
	for _, renewed := range times {
		for _, seconds := range durations {
			e := makeEvidence().lease(goodLease().renewed(renewed).seconds(seconds).obj(), nil).obj()
			for _, after := range []time.Duration{0, time.Minute, 100 * 365 * 24 * time.Hour} {
				v := Judge(kueueSpec(), e, start.Add(after))
				if !slices.Contains([]string{"LeaseStale", "ClockSkew"}, v.ReadmissionGate.Reason) {
					t.Errorf("renewed %s, duration %d s, after %s: %q", renewed, seconds, after, v.ReadmissionGate)
				}
				if v.Reachable != reachable || v.ReviewAt < 0 || v.ConfirmAt < 0 {
					t.Errorf("renewed %s, duration %d s, after %s: %+v", renewed, seconds, after, v)
				}
			}
		}
	}
}

func TestIsAnswer(t *testing.T) {
	for _, row := range []struct {
		err               error
		answer, notServed bool
	}{
		{nil, false, false},
		{errTimeout, false, false},
		{err500, false, false},
		{apierrors.NewTooManyRequests("slow down", 1), false, false},
		{apierrors.NewGenericServerResponse(http.StatusBadGateway, "GET", queues, "gpu", "<html>", 0, true), false, false},
		{err401, true, false},
		{err403(queues, "gpu"), true, false},
		{err404(queues, "gpu"), true, false},
		{fmt.Errorf("get: %w", err404(queues, "gpu")), true, false},
		{errNotServed, true, true},
		{fmt.Errorf("get: %w", errNotServed), true, true},
		{errNoKind, true, true},
		{fmt.Errorf("get: %w", errNoKind), true, true},
		{apierrors.NewGenericServerResponse(http.StatusForbidden, "GET", queues, "gpu", "no", 0, true), true, false},
	} {
		if got := IsAnswer(row.err); got != row.answer {
			t.Errorf("IsAnswer(%v) = %t", row.err, got)
		}
		if got := NotServed(row.err); got != row.notServed {
			t.Errorf("NotServed(%v) = %t", row.err, got)
		}
	}
}

func TestRoundUp(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{
		0: 0, 1: time.Second, time.Second - 1: time.Second, time.Second: time.Second, time.Second + 1: 2 * time.Second,
		1<<63 - 1: (1<<63 - 1) / time.Second * time.Second, // rounding up would overflow
	} {
		if got := roundUp(d); got != want {
			t.Errorf("roundUp(%d) = %s, want %s", d, got, want)
		}
	}
}

func TestClip(t *testing.T) {
	for in, want := range map[string]string{
		"":                             "",
		"gpu-a_1":                      "gpu-a_1",
		"a\nb\tc":                      "a b c",
		"a\xffb":                       "a\ufffdb",
		strings.Repeat("x", 256):       strings.Repeat("x", 256),
		strings.Repeat("x", 257):       strings.Repeat("x", 256) + "…",
		"x" + strings.Repeat("é", 128): "x" + strings.Repeat("é", 127) + "…", // never half a letter
	} {
		if got := Quote(in); got != want {
			t.Errorf("Quote(%q) = %q, want %q", in, got, want)
		}
	}
}
