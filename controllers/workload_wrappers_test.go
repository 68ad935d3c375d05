package controllers

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
)

const (
	ourCheck   = "dispatch"
	otherCheck = "other"
	testQueue  = "gpu"
)

// workloadWrapper builds Workloads for tests: a Workload of Job train, uid job-1, with our check Pending.
type workloadWrapper struct{ kueuev1beta2.Workload }

func makeWorkload(uid string) *workloadWrapper {
	return &workloadWrapper{kueuev1beta2.Workload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team-a", Name: "job-train-3f2a1", UID: types.UID(uid), ResourceVersion: "10",
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "batch/v1", Kind: "Job", Name: "train", UID: "job-1", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Status: kueuev1beta2.WorkloadStatus{
			AdmissionChecks: []kueuev1beta2.AdmissionCheckState{{Name: ourCheck, State: kueuev1beta2.CheckStatePending}},
		},
	}}
}

func (w *workloadWrapper) version(v string) *workloadWrapper {
	w.ResourceVersion = v
	return w
}

func (w *workloadWrapper) active(active bool) *workloadWrapper {
	w.Spec.Active = ptr.To(active)
	return w
}

func (w *workloadWrapper) deleting(t time.Time) *workloadWrapper {
	w.DeletionTimestamp = ptr.To(metav1.NewTime(t))
	return w
}

func (w *workloadWrapper) check(name string, state kueuev1beta2.CheckState) *workloadWrapper {
	for i := range w.Status.AdmissionChecks {
		if string(w.Status.AdmissionChecks[i].Name) == name {
			w.Status.AdmissionChecks[i].State = state
			return w
		}
	}
	w.Status.AdmissionChecks = append(w.Status.AdmissionChecks, kueuev1beta2.AdmissionCheckState{
		Name: kueuev1beta2.AdmissionCheckReference(name), State: state,
	})
	return w
}

func (w *workloadWrapper) noChecks() *workloadWrapper {
	w.Status.AdmissionChecks = nil
	return w
}

func (w *workloadWrapper) condition(kind string, status bool, t time.Time, message string) *workloadWrapper {
	condition := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: kind, Message: message, LastTransitionTime: metav1.NewTime(t)}
	if status {
		condition.Status = metav1.ConditionTrue
	}
	meta.RemoveStatusCondition(&w.Status.Conditions, kind)
	w.Status.Conditions = append(w.Status.Conditions, condition)
	return w
}

func (w *workloadWrapper) reserved(t time.Time) *workloadWrapper {
	w.Status.Admission = &kueuev1beta2.Admission{ClusterQueue: testQueue}
	return w.condition(kueuev1beta2.WorkloadQuotaReserved, true, t, "")
}

func (w *workloadWrapper) admitted(status bool, t time.Time) *workloadWrapper {
	return w.condition(kueuev1beta2.WorkloadAdmitted, status, t, "")
}

func (w *workloadWrapper) evicted(status bool, t time.Time, message string) *workloadWrapper {
	return w.condition(kueuev1beta2.WorkloadEvicted, status, t, message)
}

func (w *workloadWrapper) finished(t time.Time) *workloadWrapper {
	return w.condition(kueuev1beta2.WorkloadFinished, true, t, "")
}

func (w *workloadWrapper) evictions(n int32) *workloadWrapper {
	w.Status.SchedulingStats = &kueuev1beta2.SchedulingStats{
		Evictions: []kueuev1beta2.WorkloadSchedulingStatsEviction{{Reason: "Preempted", Count: n}},
	}
	return w
}

func (w *workloadWrapper) obj() *kueuev1beta2.Workload { return w.DeepCopy() }

// grantWrapper builds AdmissionGrants for tests.
type grantWrapper struct {
	*dispatchv1alpha1.AdmissionGrant
}

// makeGrant is the grant of makeWorkload's job, all of whose history up to wl is counted.
func makeGrant(wl *kueuev1beta2.Workload, granted, used int32) *grantWrapper {
	grant := newGrant(wl, granted)
	grant.UID, grant.ResourceVersion = "grant-1", "11"
	grant.Status.Admissions = ptr.To(used)
	grant.Status.Accounted = accounted(wl)
	return &grantWrapper{grant}
}

func (g *grantWrapper) opened(wl *kueuev1beta2.Workload, suspendedGeneration int64) *grantWrapper {
	open(&g.Status, situation{workload: wl, now: time.Unix(1000, 0), job: jobState{
		generation: suspendedGeneration, suspended: suspendedGeneration != 0,
	}})
	return g
}

// openedAs is opened with a number of its own.
func (g *grantWrapper) openedAs(wl *kueuev1beta2.Workload, number int32) *grantWrapper {
	g.opened(wl, 0).Status.Opened.Number = number
	return g
}

func (g *grantWrapper) obj() *dispatchv1alpha1.AdmissionGrant { return g.DeepCopy() }
