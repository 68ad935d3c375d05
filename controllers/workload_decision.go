package controllers

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// situation is everything that a decision about one Workload rests on.
type situation struct {
	workload *kueuev1beta2.Workload
	// own are the names of the AdmissionChecks that we answer for.
	own checkNames
	// listed are the names of the AdmissionChecks that the ClusterQueue of the reservation lists.
	listed checkNames
	// grant is the job's, or nil if it has none yet.
	grant *dispatchv1alpha1.AdmissionGrant
	// blocked says why the job can have no grant; empty if it can.
	blocked string
	// job is the job's state, read after the Workload.
	job jobState
	// inherited is the count of the job's earlier slices, where the Workload is a slice of an elastic
	// job; nil otherwise.
	inherited *inheritedCount
	now       time.Time
}

type checkNames map[kueuev1beta2.AdmissionCheckReference]bool

// jobState is what a decision needs to know about the job.
type jobState struct {
	// gone or being deleted: it must not start again.
	ending bool
	// unreadable says why the job could not be read; empty if it was, or if there is no single job.
	unreadable string
	// generation is the job's metadata.generation; 0 if it is not known.
	generation int64
	// suspended by a field of its own spec.
	suspended bool
}

// inheritedCount is what a new slice of an elastic job begins with.
type inheritedCount struct {
	granted, used int32
	// fromRunning: the slice that it replaces had not stopped when it was replaced.
	fromRunning bool
}

// action is what is done about a Workload's checks.
type action string

const (
	// actionNone: nothing is to be decided now.
	actionNone action = "none"
	// actionOpen: record the admission as opened, then set the checks to Ready.
	actionOpen action = "open"
	// actionRenew: the checks are Ready by an admission that was opened and not used, on an earlier
	// reservation; record that it now belongs to this one.
	actionRenew action = "renew"
	// actionWait: hold the Workload at Pending and say so.
	actionWait action = "wait"
	// actionSetBack: set a Ready that nothing backs to Pending.
	actionSetBack action = "set_back"
)

// decision is what to write. The order matters: the grant, its status, then the Workload.
type decision struct {
	action action
	// needsGrant: make a grant first, with newGranted admissions.
	needsGrant bool
	newGranted int32
	// status is the whole status that the grant should have; nil if it has it.
	status *dispatchv1alpha1.AdmissionGrantStatus
	// entries are our entries as the Workload should have them, all of them (one that an apply leaves
	// out is given up); nil if it has them.
	entries []kueuev1beta2.AdmissionCheckState
	// starts are the starts that status newly counts, and ungranted those of them that no opened
	// admission was for.
	starts, ungranted int32
}

// decide is the whole policy of readmission.
func decide(s situation) decision {
	own := ownEntries(s.workload, s.own)
	status, starts, ungranted := account(s)
	d := decision{action: actionNone, starts: starts, ungranted: ungranted}
	waiting := metav1.Condition{
		Type: dispatchv1alpha1.WaitingCondition, Status: metav1.ConditionFalse, Reason: dispatchv1alpha1.NotWaitingReason,
		Message: "nothing is held back",
	}

	switch {
	case len(own) == 0 || isTrue(s.workload, kueuev1beta2.WorkloadFinished) || !s.workload.DeletionTimestamp.IsZero():
	case !reserved(s.workload):
		// Kueue admits at once where it finds every check Ready, so a Ready may not outlive the
		// reservation that it was meant for.
		if anyInState(own, kueuev1beta2.CheckStateReady) {
			d.action = actionSetBack
			d.entries = pending(own, "set back to Pending: the quota it was let through for is no longer reserved", s.now)
		}
	case isTrue(s.workload, kueuev1beta2.WorkloadAdmitted) || !allListed(own, s.listed) ||
		anyInState(own, kueuev1beta2.CheckStateRetry) || anyInState(own, kueuev1beta2.CheckStateRejected):
		// It runs; or the queue is about to drop our check; or Kueue is about to evict.
	case !anyInState(own, kueuev1beta2.CheckStatePending):
		switch {
		case status.Opened == nil:
			d.action = actionSetBack
			d.entries = pending(own, "set back to Pending: no admission is opened", s.now)
		case !openedFor(status.Opened, s.workload):
			d.action = actionRenew
			open(status, s)
		}
	case !ptr.Deref(s.workload.Spec.Active, true) || s.job.ending:
	case s.blocked != "":
		d.action = actionWait
		d.entries = pending(own, s.blocked, s.now)
	case s.job.unreadable != "":
		d.action = actionWait
		waiting.Status, waiting.Reason, waiting.Message = metav1.ConditionTrue, dispatchv1alpha1.JobUnreadableReason, s.job.unreadable
		d.entries = pending(own, waiting.Message, s.now)
	case *status.Admissions < granted(s) || continuesRunningJob(s):
		d.action = actionOpen
		open(status, s)
		d.entries = ready(own, fmt.Sprintf("admission %d of %d granted", status.Opened.Number, granted(s)), s.now)
	default:
		d.action = actionWait
		waiting.Status, waiting.Reason = metav1.ConditionTrue, dispatchv1alpha1.NotGrantedReason
		waiting.Message = heldMessage(s.workload, *status.Admissions, granted(s))
		d.entries = pending(own, waiting.Message, s.now)
	}
	if equality.Semantic.DeepEqual(d.entries, own) {
		d.entries = nil
	}
	if s.blocked != "" {
		return d
	}
	d.needsGrant = s.grant == nil && len(own) > 0 && (d.action == actionOpen || d.action == actionWait ||
		d.action == actionRenew || findCondition(s.workload, kueuev1beta2.WorkloadAdmitted) != nil) &&
		!isTrue(s.workload, kueuev1beta2.WorkloadFinished) && !s.job.ending && s.workload.DeletionTimestamp.IsZero()
	d.newGranted = granted(s)
	if s.grant == nil && !d.needsGrant {
		return d
	}
	setCondition(status, waiting, s.now)
	if ungranted > 0 {
		setCondition(status, metav1.Condition{
			Type: dispatchv1alpha1.UngrantedStartCondition, Status: metav1.ConditionTrue,
			Reason:  dispatchv1alpha1.StartedUngrantedReason,
			Message: fmt.Sprintf("start %d, seen at %s, was not granted", *status.Admissions, s.now.UTC().Format(time.RFC3339)),
		}, s.now)
	}
	mirrorConditions(status, s.workload)
	// Every Ready follows a write of the grant, which fails if the grant is not what was decided on.
	if d.needsGrant || d.action == actionOpen || !sameStatus(&s.grant.Status, status) {
		d.status = status
	}
	return d
}

// granted is how many admissions the job has in total.
func granted(s situation) int32 {
	switch {
	case s.grant != nil:
		return s.grant.Spec.Admissions
	case s.inherited != nil:
		return s.inherited.granted
	default:
		return 1
	}
}

// open records the next admission as opened for the Workload as it is.
func open(status *dispatchv1alpha1.AdmissionGrantStatus, s situation) {
	opened := &dispatchv1alpha1.OpenedAdmission{
		Number:       *status.Admissions + 1,
		Time:         stamp(s.now),
		WorkloadUID:  s.workload.UID,
		ReservedTime: findCondition(s.workload, kueuev1beta2.WorkloadQuotaReserved).LastTransitionTime,
		Evictions:    evictions(s.workload),
	}
	switch {
	case status.Opened != nil && openedFor(status.Opened, s.workload):
		return // a crash came between the two writes, or the Workload in the cache is old
	case continuesRunningJob(s):
		opened.Number = max(*status.Admissions, 1) // that of the slice before it
	case status.Opened != nil && status.Opened.SuspendedGeneration != 0:
		// The job has not run since. Its generation now would be that of a later moment than the
		// Workload is from, and could hide a start.
		opened.SuspendedGeneration = status.Opened.SuspendedGeneration
	case s.job.suspended:
		opened.SuspendedGeneration = s.job.generation
	}
	status.Opened = opened
}

// openedFor says whether the admission was opened for this very reservation.
func openedFor(opened *dispatchv1alpha1.OpenedAdmission, wl *kueuev1beta2.Workload) bool {
	return opened.WorkloadUID == wl.UID && opened.Evictions == evictions(wl) &&
		opened.ReservedTime.Equal(&findCondition(wl, kueuev1beta2.WorkloadQuotaReserved).LastTransitionTime)
}

// letThrough says whether the admission that is open for this very reservation has reached the Workload. Only
// Kueue has something to do then, and how the job is does not matter.
func letThrough(s *situation) bool {
	opened := s.grant.Status.Opened
	return opened != nil && openedFor(opened, s.workload) && !anyInState(ownEntries(s.workload, s.own), kueuev1beta2.CheckStatePending)
}

// heldMessage tells a person what waits, since when and why, and what to do.
func heldMessage(wl *kueuev1beta2.Workload, used, granted int32) string {
	var b strings.Builder
	fmt.Fprintf(&b, "admission %d waits since %s: ", used+1,
		findCondition(wl, kueuev1beta2.WorkloadQuotaReserved).LastTransitionTime.UTC().Format(time.RFC3339))
	if evicted := findCondition(wl, kueuev1beta2.WorkloadEvicted); evicted != nil {
		fmt.Fprintf(&b, "evicted (%s), ", strings.TrimPrefix(evicted.Message, "Previously: "))
	}
	fmt.Fprintf(&b, "%d of %d granted used; to let it start again, raise spec.admissions of AdmissionGrant %s/%s to %d",
		used, granted, wl.Namespace, wl.Name, used+1)
	return b.String()
}

// mirrorConditions copies the Workload's state into the grant.
func mirrorConditions(status *dispatchv1alpha1.AdmissionGrantStatus, wl *kueuev1beta2.Workload) {
	for _, kind := range []string{
		kueuev1beta2.WorkloadQuotaReserved, kueuev1beta2.WorkloadAdmitted, kueuev1beta2.WorkloadEvicted, kueuev1beta2.WorkloadFinished,
	} {
		meta.RemoveStatusCondition(&status.Conditions, kind)
		if condition := findCondition(wl, kind); condition != nil {
			status.Conditions = append(status.Conditions, *condition)
		}
	}
}

// sameStatus compares what matters: that the Workload has a newer resourceVersion alone is no reason
// for a write.
func sameStatus(a, b *dispatchv1alpha1.AdmissionGrantStatus) bool {
	if a.Accounted == nil || b.Accounted == nil {
		return false
	}
	a, b = a.DeepCopy(), b.DeepCopy()
	a.Accounted.ResourceVersion = b.Accounted.ResourceVersion
	byType := func(conditions []metav1.Condition) map[string]metav1.Condition {
		m := map[string]metav1.Condition{}
		for _, condition := range conditions {
			m[condition.Type] = condition
		}
		return m
	}
	if !equality.Semantic.DeepEqual(byType(a.Conditions), byType(b.Conditions)) {
		return false
	}
	a.Conditions, b.Conditions = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

func setCondition(status *dispatchv1alpha1.AdmissionGrantStatus, condition metav1.Condition, now time.Time) {
	condition.LastTransitionTime = stamp(now)
	meta.SetStatusCondition(&status.Conditions, condition)
}

// stamp is a time as the API keeps it, in whole seconds.
func stamp(t time.Time) metav1.Time {
	return metav1.NewTime(t.Truncate(time.Second))
}

// ownEntries are the Workload's entries that we answer for.
func ownEntries(wl *kueuev1beta2.Workload, own checkNames) []kueuev1beta2.AdmissionCheckState {
	var entries []kueuev1beta2.AdmissionCheckState
	for _, entry := range wl.Status.AdmissionChecks {
		if own[entry.Name] {
			entries = append(entries, entry)
		}
	}
	return entries
}

func ready(entries []kueuev1beta2.AdmissionCheckState, message string, now time.Time) []kueuev1beta2.AdmissionCheckState {
	return inState(entries, kueuev1beta2.CheckStateReady, message, now)
}

func pending(entries []kueuev1beta2.AdmissionCheckState, message string, now time.Time) []kueuev1beta2.AdmissionCheckState {
	return inState(entries, kueuev1beta2.CheckStatePending, message, now)
}

// inState leaves what others keep in an entry (retry counts) as it is.
func inState(entries []kueuev1beta2.AdmissionCheckState, state kueuev1beta2.CheckState, message string, now time.Time) []kueuev1beta2.AdmissionCheckState {
	changed := make([]kueuev1beta2.AdmissionCheckState, 0, len(entries))
	for _, entry := range entries {
		if entry.State != state {
			entry.State = state
			entry.LastTransitionTime = stamp(now)
		}
		entry.Message = message
		changed = append(changed, entry)
	}
	return changed
}

func anyInState(entries []kueuev1beta2.AdmissionCheckState, state kueuev1beta2.CheckState) bool {
	for _, entry := range entries {
		if entry.State == state {
			return true
		}
	}
	return false
}

func allListed(entries []kueuev1beta2.AdmissionCheckState, listed checkNames) bool {
	for _, entry := range entries {
		if !listed[entry.Name] {
			return false
		}
	}
	return true
}

// reserved says whether the Workload holds quota and may keep it. Between an eviction and the release,
// QuotaReserved and Evicted stand together.
func reserved(wl *kueuev1beta2.Workload) bool {
	return isTrue(wl, kueuev1beta2.WorkloadQuotaReserved) && !isTrue(wl, kueuev1beta2.WorkloadEvicted)
}

func findCondition(wl *kueuev1beta2.Workload, kind string) *metav1.Condition {
	return meta.FindStatusCondition(wl.Status.Conditions, kind)
}

func isTrue(wl *kueuev1beta2.Workload, kind string) bool {
	return meta.IsStatusConditionTrue(wl.Status.Conditions, kind)
}
