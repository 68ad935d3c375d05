// Package gate holds the rules by which a target's readmission gate is proved: objects and a clock in, a
// verdict out. It does no I/O.
//
// The gate is an AdmissionCheck on the target whose controller, dispatch-admission, holds back
// readmissions. A gate whose controller is dead is no gate, and the AdmissionCheck's condition Active
// cannot tell: it is set once and never cleared. The controller's leader-election Lease can: held, and
// freshly renewed, is a signal that only a live leader gives.
package gate

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

const (
	// windowFactor times leaseDurationSeconds is how long after its last renewal a Lease still proves
	// that its holder lives.
	windowFactor = 2
	// defaultGrace is how long an answer stands that cannot be confirmed, where there is no Lease to take
	// the window from: the window of the default lease duration, 15 s.
	defaultGrace = 30 * time.Second
	// maxConfirmLead is how long before a proof's expiry the Lease is read live, at most.
	maxConfirmLead = 2 * time.Second
	// maxQuote bounds what is repeated in a message of text that the target wrote.
	maxQuote = 256
)

// Finding is the status, reason and message of one condition.
type Finding struct {
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

// Says tells whether two findings say the same. The age or amount in the message of a stale Lease or a
// skewed clock is that of the transition: a finding is not a new one because time goes on.
func (f Finding) Says(other Finding) bool {
	if f.Reason == v1alpha1.LeaseStaleReason || f.Reason == v1alpha1.ClockSkewReason {
		f.Message = other.Message
	}
	return f == other
}

// Verdict is what the evidence says at one moment.
type Verdict struct {
	Reachable       Finding
	QueueActive     Finding
	ReadmissionGate Finding

	// Expires is when the proof ends: the last moment at which the gate is proved by this evidence. Zero
	// where the gate is not proved, and in plain mode, where there is none.
	Expires time.Duration
	// ConfirmAt is when the Lease should be read live, so that at the end of what it proves it is known
	// whether the controller is dead or just the watch. It does not depend on the other rules, because
	// they may come to hold later. Zero where the Lease proves nothing or is confirmed already.
	ConfirmAt time.Duration
	// ConfirmBy is when that read must have ended: the end of what the Lease proves, or of what is seen of
	// a skewed clock. Zero where ConfirmAt is.
	ConfirmBy time.Duration
	// ReviewAt is when the verdict may change without new evidence. Zero: not by itself.
	ReviewAt time.Duration
}

// Preflighting tells whether some of the evidence is still to come.
func (v Verdict) Preflighting() bool {
	for _, f := range []Finding{v.Reachable, v.QueueActive, v.ReadmissionGate} {
		if f.Reason == v1alpha1.PreflightingReason {
			return true
		}
	}
	return false
}

// Judge applies the rules. A nil kueueSpec is plain mode, which needs no gate.
func Judge(kueueSpec *v1alpha1.KueueSpec, e Evidence, now Instant) Verdict {
	if kueueSpec == nil {
		return judgePlain(e, now)
	}
	spec := *kueueSpec
	spec.SetDefaults() // of a spec that Go code built, a field may be nil
	grace := defaultGrace
	if lease := e.Lease.Object; lease != nil && lease.Spec.LeaseDurationSeconds != nil {
		grace = max(0, window(lease))
	}
	j := judge{spec: &spec, evidence: e, now: now, grace: grace, lead: min(maxConfirmLead, grace/4)}
	v := Verdict{QueueActive: j.queueActive(), ReadmissionGate: j.readmissionGate()}
	v.Reachable = j.reachable()
	j.setTimes(&v)
	return v
}

func judgePlain(e Evidence, now Instant) Verdict {
	notRequired := Finding{metav1.ConditionTrue, v1alpha1.NotRequiredReason, "plain mode: no queue and no readmission gate"}
	v := Verdict{QueueActive: notRequired, ReadmissionGate: notRequired}
	switch {
	case e.Server.pending():
		v.Reachable = preflighting()
	case e.Server.lost(defaultGrace, now.Mono):
		v.Reachable = unreachable(e.Server.Failing)
	case e.Server.Err == nil || apierrors.IsForbidden(e.Server.Err):
		v.Reachable = connected()
	case apierrors.IsUnauthorized(e.Server.Err):
		v.Reachable = unauthorized()
	default: // not found
		v.Reachable = unreachable(errNoVersion)
	}
	if e.Server.Failing != nil && !e.Server.lost(defaultGrace, now.Mono) {
		v.ReviewAt = e.Server.FailingSince + defaultGrace + 1
	}
	return v
}

func preflighting() Finding {
	return Finding{metav1.ConditionUnknown, v1alpha1.PreflightingReason, "the target has not answered yet"}
}

func connected() Finding {
	return Finding{metav1.ConditionTrue, v1alpha1.ConnectedReason, "the API server answers"}
}

func unreachable(why error) Finding {
	return Finding{metav1.ConditionFalse, v1alpha1.UnreachableReason, Quote(why.Error())}
}

func unauthorized() Finding {
	return Finding{metav1.ConditionFalse, v1alpha1.UnauthorizedReason,
		"the API server does not accept the credentials (401): renew the token or certificate in the kubeconfig"}
}

// judge is one judgement under way.
type judge struct {
	spec     *v1alpha1.KueueSpec
	evidence Evidence
	now      Instant
	// grace is how long an answer stands that cannot be confirmed.
	grace time.Duration
	// lead is how long before its expiry a Lease is read live.
	lead time.Duration
	// silent: the gate is closed because the target gave no answer that confirms the Lease's expiry.
	silent bool
}

// reachable is judged by the Lease's read: it is served by the API server itself, without a CRD's
// conversion webhook that could fail on its own. It comes after readmissionGate.
func (j *judge) reachable() Finding {
	e := &j.evidence
	for _, err := range []error{e.ClusterQueue.Err, e.AdmissionCheck.Err, e.Lease.Err} {
		if apierrors.IsUnauthorized(err) {
			return unauthorized()
		}
	}
	if e.Lease.pending() {
		return preflighting()
	}
	if e.Lease.lost(j.grace, j.now.Mono) {
		return unreachable(e.Lease.Failing)
	}
	if j.silent {
		return unreachable(j.silence())
	}
	return connected()
}

func (j *judge) queueActive() Finding {
	read := j.evidence.ClusterQueue
	if f := unusable(j, &read, clusterQueueKind, j.spec.ClusterQueue, v1alpha1.ClusterQueueNotFoundReason); f != nil {
		return *f
	}
	cond := meta.FindStatusCondition(read.Object.Status.Conditions, kueue.ClusterQueueActive)
	if cond == nil {
		return Finding{metav1.ConditionFalse, v1alpha1.ClusterQueueInactiveReason,
			fmt.Sprintf("ClusterQueue %s has no condition Active: is Kueue's controller running?", j.spec.ClusterQueue)}
	}
	if cond.Status != metav1.ConditionTrue {
		return Finding{metav1.ConditionFalse, v1alpha1.ClusterQueueInactiveReason,
			fmt.Sprintf("ClusterQueue %s is not active: %s: %s", j.spec.ClusterQueue, Quote(cond.Reason), Quote(cond.Message))}
	}
	return Finding{metav1.ConditionTrue, v1alpha1.QueueActiveReason, fmt.Sprintf("ClusterQueue %s admits workloads", j.spec.ClusterQueue)}
}

// readmissionGate applies the four rules in order; the first that fails gives the reason.
func (j *judge) readmissionGate() Finding {
	check := j.spec.AdmissionCheck

	// 1. The ClusterQueue lists the AdmissionCheck for all its flavors.
	queueRead := j.evidence.ClusterQueue
	if f := unusable(j, &queueRead, clusterQueueKind, j.spec.ClusterQueue, v1alpha1.ClusterQueueNotFoundReason); f != nil {
		return *f
	}
	if f := j.listed(queueRead.Object); f != nil {
		return *f
	}

	// 2. The AdmissionCheck is dispatch's.
	checkRead := j.evidence.AdmissionCheck
	if f := unusable(j, &checkRead, admissionCheckKind, check, v1alpha1.AdmissionCheckNotFoundReason); f != nil {
		return *f
	}
	if got := checkRead.Object.Spec.ControllerName; got != j.spec.ControllerName {
		return closed(v1alpha1.ForeignControllerReason, "AdmissionCheck %s belongs to controller %q, not to %q", check, Quote(got), j.spec.ControllerName)
	}

	// 3. The AdmissionCheck is active.
	cond := meta.FindStatusCondition(checkRead.Object.Status.Conditions, kueue.AdmissionCheckActive)
	if cond == nil {
		return closed(v1alpha1.AdmissionCheckInactiveReason, "AdmissionCheck %s has no condition Active: dispatch-admission has not taken it up", check)
	}
	if cond.Status != metav1.ConditionTrue {
		return closed(v1alpha1.AdmissionCheckInactiveReason, "AdmissionCheck %s is not active: %s: %s", check, Quote(cond.Reason), Quote(cond.Message))
	}

	// 4. The Lease is held and freshly renewed.
	leaseRead := j.evidence.Lease
	if f := unusable(j, &leaseRead, leaseKind, j.spec.AdmissionLease.String(), v1alpha1.LeaseNotFoundReason); f != nil {
		return *f
	}
	return j.lease(leaseRead.Object)
}

func (j *judge) listed(queue *kueue.ClusterQueue) *Finding {
	check := j.spec.AdmissionCheck
	found := false
	covered := sets.New[kueue.ResourceFlavorReference]()
	if strategy := queue.Spec.AdmissionChecksStrategy; strategy != nil {
		for _, rule := range strategy.AdmissionChecks {
			if string(rule.Name) != check {
				continue
			}
			if len(rule.OnFlavors) == 0 {
				return nil
			}
			found = true
			covered.Insert(rule.OnFlavors...)
		}
	}
	if !found {
		f := closed(v1alpha1.AdmissionCheckNotListedReason, "ClusterQueue %s does not list AdmissionCheck %s", j.spec.ClusterQueue, check)
		return &f
	}
	var missing []string
	for _, group := range queue.Spec.ResourceGroups {
		for _, flavor := range group.Flavors {
			if !covered.Has(flavor.Name) {
				covered.Insert(flavor.Name) // named once, if in two groups
				missing = append(missing, string(flavor.Name))
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	f := closed(v1alpha1.AdmissionCheckPartialReason, "ClusterQueue %s lists AdmissionCheck %s, but not for all its flavors: %s left out",
		j.spec.ClusterQueue, check, Quote(strings.Join(missing, ", ")))
	return &f
}

// lease applies the fourth rule. The messages are a contract, to the letter.
func (j *judge) lease(lease *coordinationv1.Lease) Finding {
	spec := lease.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity == "" {
		return closed(v1alpha1.LeaseNotHeldReason, "the admission controller's Lease has no holder")
	}
	if spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return closed(v1alpha1.LeaseNeverRenewedReason, "the admission controller's Lease has never been renewed")
	}
	if ahead := spec.RenewTime.Sub(j.now.Wall); ahead > duration(lease) {
		return closed(v1alpha1.ClockSkewReason,
			"the admission controller's Lease was renewed %s in our future, beyond its duration of %s: the clock there or here is wrong",
			roundUp(ahead), duration(lease))
	}
	expires := j.expires(lease)
	if j.now.Mono <= expires {
		return Finding{metav1.ConditionTrue, v1alpha1.ProvedReason,
			fmt.Sprintf("the admission controller's Lease is held by %s and freshly renewed", Quote(*spec.HolderIdentity))}
	}
	if !j.confirmed(expires) {
		j.silent = true
		return cannotBeRead(leaseKind, j.spec.AdmissionLease.String(), j.silence())
	}
	// Whichever clock says more: one may have been stepped.
	age := max(j.now.Wall.Sub(spec.RenewTime.Time), j.now.Mono-j.evidence.Renewal.at)
	return closed(v1alpha1.LeaseStaleReason, "the admission controller's Lease was last renewed %s ago, beyond %s", roundUp(age), window(lease))
}

// expires is when a Lease that is not skewed ceases to prove that its holder lives: a window after
// renewTime by the wall clocks, or a window after it was last seen to change by our own monotonic clock,
// whichever is earlier.
func (j *judge) expires(lease *coordinationv1.Lease) time.Duration {
	byRule := j.now.Mono + lease.Spec.RenewTime.Add(window(lease)).Sub(j.now.Wall)
	byRenewal := j.evidence.Renewal.at + window(lease)
	return min(byRule, byRenewal)
}

// confirmed: an answer came so shortly before the Lease's expiry, or after it, that it tells whether the
// controller is dead or the target is just out of reach.
func (j *judge) confirmed(expires time.Duration) bool {
	return j.evidence.Lease.At >= expires-j.lead
}

// silence is why the Lease's expiry is not confirmed.
func (j *judge) silence() error {
	if failing := j.evidence.Lease.Failing; failing != nil {
		return failing
	}
	return errSilent
}

// setTimes says when the verdict ends by itself.
func (j *judge) setTimes(v *Verdict) {
	e := &j.evidence
	// Until when the answers stand that cannot be confirmed.
	var stands []time.Duration
	stands = standsUntil(stands, &e.ClusterQueue, j)
	stands = standsUntil(stands, &e.AdmissionCheck, j)
	stands = standsUntil(stands, &e.Lease, j)

	if until, ok := j.leaseSaysUntil(); ok {
		if j.now.Mono <= until && !j.confirmed(until) {
			v.ConfirmAt, v.ConfirmBy = until-j.lead, until
		}
		switch v.ReadmissionGate.Reason {
		case v1alpha1.ProvedReason:
			stands = append(stands, until)
			v.Expires = slices.Min(stands)
		case v1alpha1.ClockSkewReason:
			stands = append(stands, until)
		}
	}
	if len(stands) > 0 {
		// At the limit itself the verdict still stands.
		v.ReviewAt = slices.Min(stands) + 1
	}
}

func standsUntil[T any](stands []time.Duration, r *Read[T], j *judge) []time.Duration {
	if r.Failing != nil && !r.lost(j.grace, j.now.Mono) {
		return append(stands, r.FailingSince+j.grace)
	}
	return stands
}

// leaseSaysUntil is the last moment at which the Lease says the same as now: fresh, or skewed.
func (j *judge) leaseSaysUntil() (time.Duration, bool) {
	lease := j.evidence.Lease.Object
	if lease == nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" ||
		lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil {
		return 0, false
	}
	if skewed := lease.Spec.RenewTime.Add(-duration(lease)).Sub(j.now.Wall); skewed > 0 {
		// What the target wrote may be so far off that the sum would overflow.
		return j.now.Mono + min(skewed-1, math.MaxInt64-1-j.now.Mono), true
	}
	return j.expires(lease), true
}

// kind is how messages speak of one of the three objects.
type kind struct{ name, resource string }

var (
	clusterQueueKind   = kind{"ClusterQueue", "clusterqueues.kueue.x-k8s.io"}
	admissionCheckKind = kind{"AdmissionCheck", "admissionchecks.kueue.x-k8s.io"}
	leaseKind          = kind{"Lease", "leases.coordination.k8s.io"}
)

// unusable is the finding where an object was not read; nil where it was.
func unusable[T any](j *judge, r *Read[T], k kind, name, notFoundReason string) *Finding {
	var f Finding
	switch {
	case r.pending():
		f = preflighting()
	case r.lost(j.grace, j.now.Mono):
		f = cannotBeRead(k, name, r.Failing)
	case r.Err == nil:
		return nil
	case apierrors.IsForbidden(r.Err):
		f = Finding{metav1.ConditionUnknown, v1alpha1.ForbiddenReason,
			fmt.Sprintf("%s %s may not be read (403): grant get on %s to the credentials in use on the target", k.name, name, k.resource)}
	case apierrors.IsUnauthorized(r.Err):
		f = Finding{metav1.ConditionUnknown, v1alpha1.UnreachableReason, unauthorized().Message}
	case NotServed(r.Err):
		f = closed(v1alpha1.KueueNotInstalledReason, "the target does not serve Kueue's API %s", kueue.SchemeGroupVersion)
	default: // not found: the only other answer
		f = closed(notFoundReason, "%s %s does not exist", k.name, name)
	}
	return &f
}

// IsAnswer tells an API error that is an answer, and so evidence, from a failure to get one.
func IsAnswer(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || meta.IsNoMatchError(err)
}

// NotServed tells a 404 for a kind that the server does not serve from one for an object that does not
// exist: only the latter is about a named object of the API.
func NotServed(err error) bool {
	return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

func cannotBeRead(k kind, name string, why error) Finding {
	return Finding{metav1.ConditionUnknown, v1alpha1.UnreachableReason, fmt.Sprintf("%s %s cannot be read: %s", k.name, name, Quote(why.Error()))}
}

func closed(reason, format string, args ...any) Finding {
	return Finding{metav1.ConditionFalse, reason, fmt.Sprintf(format, args...)}
}

func duration(lease *coordinationv1.Lease) time.Duration {
	return time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
}

func window(lease *coordinationv1.Lease) time.Duration {
	return windowFactor * duration(lease)
}

// roundUp rounds up to the second, so that an age beyond a limit never reads as the limit itself.
func roundUp(d time.Duration) time.Duration {
	if rounded := d.Truncate(time.Second); rounded == d || rounded > math.MaxInt64-time.Second {
		return rounded
	} else {
		return rounded + time.Second
	}
}

// Quote makes text that the target wrote fit for a status: it cannot swamp it, break the line or turn the
// writing direction.
func Quote(s string) string {
	if len(s) > maxQuote {
		s = strings.ToValidUTF8(s[:maxQuote], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}
