package controllers

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// account brings the count up to the Workload as it is. It returns the status to go on from, how many
// starts are new in it, and how many of those no opened admission was for.
//
// What is counted are starts, by what they leave behind on the Workload and its job, not what was seen
// to happen: nobody may have looked while the job ran.
func account(s situation) (status *dispatchv1alpha1.AdmissionGrantStatus, starts, ungranted int32) {
	status = &dispatchv1alpha1.AdmissionGrantStatus{}
	if s.grant != nil {
		s.grant.Status.DeepCopyInto(status)
	}
	before := status.Accounted
	status.Accounted = accounted(s.workload)
	if status.Admissions == nil || before == nil {
		// The count is not known, and neither is what was opened.
		status.Admissions = ptr.To(max(ptr.Deref(status.Admissions, 0), usedByHistory(s)))
		status.Opened = nil
		return status, 0, 0
	}
	switch opened := status.Opened; {
	case opened != nil && opened.Number <= *status.Admissions:
		// It goes on with an admission that is used already: see continuesRunningJob.
		if admittedSince(before, status.Accounted) || (reserved(s.workload) && !letThrough(&s) && !continuesRunningJob(s)) {
			status.Opened = nil
		}
	case opened != nil && (admittedSince(before, status.Accounted) || hiddenStart(opened, s)):
		starts = 1
	case opened == nil && admittedSince(before, status.Accounted) && !resurrected(before, status.Accounted):
		starts, ungranted = 1, 1
	}
	if starts > 0 {
		*status.Admissions++
		status.Opened = nil
	}
	return status, starts, ungranted
}

// usedByHistory is the count of a job whose count is not known. It is never too low: where more than
// one start is possible, all that is granted is taken as used.
func usedByHistory(s situation) int32 {
	used := int32(0)
	if s.inherited != nil {
		used = s.inherited.used
	}
	if findCondition(s.workload, kueuev1beta2.WorkloadAdmitted) != nil {
		used = max(used, granted(s))
	}
	return used
}

func accounted(wl *kueuev1beta2.Workload) *dispatchv1alpha1.AccountedWorkload {
	state := &dispatchv1alpha1.AccountedWorkload{UID: wl.UID, ResourceVersion: wl.ResourceVersion}
	if admitted := findCondition(wl, kueuev1beta2.WorkloadAdmitted); admitted != nil {
		state.Admitted = admitted.Status
		state.AdmittedTime = &admitted.LastTransitionTime
	}
	return state
}

// admittedSince says whether the condition Admitted tells of a start between the two states. Kueue
// writes that condition only where admission really begins or ends.
func admittedSince(before, now *dispatchv1alpha1.AccountedWorkload) bool {
	if before.UID != now.UID {
		return now.Admitted != ""
	}
	if before.Admitted == now.Admitted && before.AdmittedTime.Equal(now.AdmittedTime) {
		return false
	}
	// From True to anything else a start that is counted already has ended.
	return before.Admitted != metav1.ConditionTrue || now.Admitted == metav1.ConditionTrue
}

// resurrected says whether the condition Admitted is older than what is accounted for: Kueue's scheduler
// has evicted the Workload from a copy of it that was old. With an admission open it is counted all the
// same, since two clocks may differ.
func resurrected(before, now *dispatchv1alpha1.AccountedWorkload) bool {
	return before.UID == now.UID && before.AdmittedTime != nil && now.AdmittedTime.Before(before.AdmittedTime)
}

// hiddenStart says whether the admission may have been used without a trace in the condition Admitted:
// the Workload was deleted, or Kueue's scheduler evicted it from a copy that was older than its
// admission, or it was admitted and evicted within one second, which is all that the times tell. It is
// asked once quota is reserved again, when the job of an earlier reservation has stopped.
func hiddenStart(opened *dispatchv1alpha1.OpenedAdmission, s situation) bool {
	wl := s.workload
	sameWorkload := opened.WorkloadUID == wl.UID
	if !reserved(wl) || isTrue(wl, kueuev1beta2.WorkloadAdmitted) || (sameWorkload && opened.Evictions == evictions(wl)) {
		return false
	}
	if opened.SuspendedGeneration != 0 && s.job.generation != 0 {
		return s.job.generation != opened.SuspendedGeneration
	}
	if !sameWorkload {
		return true
	}
	admitted := findCondition(wl, kueuev1beta2.WorkloadAdmitted)
	return admitted != nil && admitted.LastTransitionTime.Equal(&opened.ReservedTime)
}

// evictions is how many evictions Kueue has counted on the Workload.
func evictions(wl *kueuev1beta2.Workload) int32 {
	n := int32(0)
	if wl.Status.SchedulingStats != nil {
		for _, eviction := range wl.Status.SchedulingStats.Evictions {
			n += eviction.Count
		}
	}
	return n
}
