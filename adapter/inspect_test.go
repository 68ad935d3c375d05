package adapter

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/gate"
	"github.com/dispatch-dev/dispatch/internal/jobkind"
)

func TestAssess(t *testing.T) {
	now := time.Unix(1000, 0)
	proved := gate.Finding{Status: metav1.ConditionTrue, Reason: v1alpha1.ProvedReason}
	stale := gate.Finding{Status: metav1.ConditionFalse, Reason: v1alpha1.LeaseStaleReason, Message: "stale"}
	is := func(conditionType string, status metav1.ConditionStatus, ago time.Duration) metav1.Condition {
		return metav1.Condition{Type: conditionType, Status: status, Reason: "R", Message: "M", LastTransitionTime: metav1.NewTime(now.Add(-ago))}
	}
	yes := func(conditionType string) metav1.Condition {
		return is(conditionType, metav1.ConditionTrue, time.Second)
	}
	workload := func(check kueue.CheckState, conditions ...metav1.Condition) *kueue.Workload {
		return &kueue.Workload{Status: kueue.WorkloadStatus{
			Conditions: conditions, AdmissionChecks: []kueue.AdmissionCheckState{{Name: "dispatch", State: check}},
		}}
	}
	grant := func(granted, used int32, conditions ...metav1.Condition) *v1alpha1.AdmissionGrant {
		return &v1alpha1.AdmissionGrant{Spec: v1alpha1.AdmissionGrantSpec{Admissions: granted}, Status: v1alpha1.AdmissionGrantStatus{Admissions: ptr.To(used), Conditions: conditions}}
	}
	waiting := metav1.Condition{Type: v1alpha1.WaitingCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.NotGrantedReason}
	job := func(change ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
		j := &unstructured.Unstructured{Object: map[string]any{}}
		j.SetLabels(map[string]string{queueLabel: "gpu"})
		for _, f := range change {
			f(j)
		}
		return j
	}
	deleted := func(j *unstructured.Unstructured) { j.SetDeletionTimestamp(ptr.To(metav1.NewTime(now))) }
	complete := func(j *unstructured.Unstructured) {
		j.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Complete", "status": "True"}}}
	}
	in := func(clusterQueue kueue.ClusterQueueReference, w *kueue.Workload) *kueue.Workload {
		w.Status.Admission = &kueue.Admission{ClusterQueue: clusterQueue}
		return w
	}
	moved := func(j *unstructured.Unstructured) { j.SetLabels(map[string]string{queueLabel: "open"}) }
	unlisted := workload(kueue.CheckStateReady, yes(kueue.WorkloadQuotaReserved), yes(kueue.WorkloadAdmitted))
	unlisted.Status.AdmissionChecks[0].Name = "another"
	unknown := gate.Finding{Status: metav1.ConditionUnknown, Reason: v1alpha1.UnreachableReason, Message: "away"}
	inactive := workload(kueue.CheckStatePending)
	inactive.Spec.Active = ptr.To(false)
	for _, tc := range []struct {
		name   string
		o      observed
		phase  v1alpha1.JobPhase
		reason string
	}{
		{"no Workload yet", observed{job: job()}, v1alpha1.JobQueued, v1alpha1.WaitingForQuotaReason},
		{"no quota", observed{job: job(), workload: workload(kueue.CheckStatePending, is(kueue.WorkloadQuotaReserved, metav1.ConditionFalse, 0))}, v1alpha1.JobQueued, v1alpha1.WaitingForQuotaReason},
		{"deactivated", observed{job: job(), workload: inactive}, v1alpha1.JobQueued, v1alpha1.WaitingForQuotaReason},
		{"running", observed{job: job(), workload: workload(kueue.CheckStateReady, yes(kueue.WorkloadQuotaReserved), yes(kueue.WorkloadAdmitted))}, v1alpha1.JobRunning, v1alpha1.RunningReason},
		{"running in its ClusterQueue", observed{job: job(), workload: in("gpu", workload(kueue.CheckStateReady, yes(kueue.WorkloadQuotaReserved), yes(kueue.WorkloadAdmitted)))}, v1alpha1.JobRunning, v1alpha1.RunningReason},
		{"running, and the check was listed too late", observed{job: job(), workload: workload(kueue.CheckStatePending, yes(kueue.WorkloadQuotaReserved), yes(kueue.WorkloadAdmitted))}, v1alpha1.JobRunning, v1alpha1.RunningUncheckedReason},
		{"running, and the check is not listed", observed{job: job(), workload: unlisted}, v1alpha1.JobRunning, v1alpha1.RunningUncheckedReason},
		{"admitted and evicted at once", observed{job: job(), workload: workload(kueue.CheckStatePending, yes(kueue.WorkloadQuotaReserved), yes(kueue.WorkloadAdmitted), yes(kueue.WorkloadEvicted))}, v1alpha1.JobEvicted, v1alpha1.WaitingForQuotaReason},
		{"held while nothing is known of the controller", observed{gate: unknown, job: job(), workload: workload(kueue.CheckStatePending, yes(kueue.WorkloadQuotaReserved))}, v1alpha1.JobWaiting, v1alpha1.AdmissionControllerDownReason},
		{"without quota while the controller is down", observed{gate: stale, job: job(), workload: workload(kueue.CheckStatePending, is(kueue.WorkloadQuotaReserved, metav1.ConditionFalse, 0))}, v1alpha1.JobQueued, v1alpha1.WaitingForQuotaReason},
		{"waiting for a grant", observed{job: job(), workload: workload(kueue.CheckStatePending, yes(kueue.WorkloadQuotaReserved)), grant: grant(1, 1, waiting)}, v1alpha1.JobWaiting, v1alpha1.WaitingForGrantReason},
		{"granted, and not let through yet", observed{job: job(), workload: workload(kueue.CheckStatePending, yes(kueue.WorkloadQuotaReserved)), grant: grant(2, 1, waiting)}, v1alpha1.JobWaiting, v1alpha1.WaitingForAdmissionReason},
		{"held because the controller is down", observed{gate: stale, job: job(), workload: workload(kueue.CheckStatePending, yes(kueue.WorkloadQuotaReserved)), grant: grant(1, 1, waiting)}, v1alpha1.JobWaiting, v1alpha1.AdmissionControllerDownReason},
		{"held by another check", observed{gate: stale, job: job(), workload: workload(kueue.CheckStateReady, yes(kueue.WorkloadQuotaReserved))}, v1alpha1.JobWaiting, v1alpha1.WaitingForAdmissionReason},
		{"evicted a moment ago", observed{job: job(), workload: workload(kueue.CheckStatePending, yes(kueue.WorkloadQuotaReserved), yes(kueue.WorkloadEvicted))}, v1alpha1.JobEvicted, v1alpha1.WaitingForQuotaReason},
		{"stuck in an eviction", observed{job: job(), workload: workload(kueue.CheckStatePending, yes(kueue.WorkloadQuotaReserved), is(kueue.WorkloadEvicted, metav1.ConditionTrue, 61*time.Second))}, v1alpha1.JobEvicted, v1alpha1.EvictionStuckReason},
		{"moved to another queue", observed{job: job(func(j *unstructured.Unstructured) { j.SetLabels(map[string]string{queueLabel: "open"}) })}, v1alpha1.JobQueued, v1alpha1.MovedQueueReason},
		{"running in another queue", observed{job: job(moved), workload: workload(kueue.CheckStateReady, yes(kueue.WorkloadQuotaReserved), yes(kueue.WorkloadAdmitted))}, v1alpha1.JobRunning, v1alpha1.MovedQueueReason},
		{"running in another ClusterQueue, by the same LocalQueue", observed{job: job(), workload: in("open", workload(kueue.CheckStateReady, yes(kueue.WorkloadQuotaReserved), yes(kueue.WorkloadAdmitted)))}, v1alpha1.JobRunning, v1alpha1.MovedQueueReason},
		{"finished in another queue", observed{job: job(moved, complete)}, v1alpha1.JobSucceeded, v1alpha1.JobSucceededReason},
		{"finished by its own word, before Kueue's", observed{job: job(complete, deleted), workload: workload(kueue.CheckStateReady, yes(kueue.WorkloadAdmitted))}, v1alpha1.JobSucceeded, v1alpha1.JobSucceededReason},
		{"gone, and finished by its grant's word", observed{grant: grant(1, 1, metav1.Condition{Type: kueue.WorkloadFinished, Status: metav1.ConditionTrue, Reason: kueue.WorkloadFinishedReasonFailed, Message: "M"})}, v1alpha1.JobFailed, v1alpha1.JobFailedReason},
		{"deleted by somebody else", observed{job: job(deleted), workload: workload(kueue.CheckStateReady, yes(kueue.WorkloadAdmitted))}, v1alpha1.JobFailed, v1alpha1.JobDeletedReason},
		{"plain mode", observed{plain: true, job: job()}, v1alpha1.JobRunning, v1alpha1.RunningReason},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			if tc.o.gate == (gate.Finding{}) {
				tc.o.gate = proved
			}
			tc.o.kind, tc.o.now = jobkind.Find(batchv1.SchemeGroupVersion.WithKind("Job")), now
			tc.o.check, tc.o.clusterQueue, tc.o.queue = "dispatch", "gpu", "gpu"
			i := assess(tc.o)
			g.Expect(i.Phase).To(Equal(tc.phase))
			g.Expect(i.Reason).To(Equal(tc.reason))
			g.Expect(i.Message).NotTo(BeEmpty())
			g.Expect(i.Finished != nil).To(Equal(tc.phase == v1alpha1.JobSucceeded || tc.phase == v1alpha1.JobFailed))
		})
	}

	t.Run("is one picture of the job, its evictions, its grant and the admission controller", func(t *testing.T) {
		g := NewWithT(t)
		w := workload(kueue.CheckStatePending, yes(kueue.WorkloadQuotaReserved), is(kueue.WorkloadEvicted, metav1.ConditionFalse, 0))
		w.Status.AdmissionChecks[0].Message = "Reset to Pending after eviction. Previously: Ready"
		w.Status.SchedulingStats = &kueue.SchedulingStats{Evictions: []kueue.WorkloadSchedulingStatsEviction{
			{Reason: kueue.WorkloadEvictedByPreemption, Count: 2}, {Reason: kueue.WorkloadEvictedByPodsReadyTimeout, Count: 1},
			{Reason: kueue.WorkloadEvictedByPreemption, UnderlyingCause: "another", Count: 1},
		}}
		i := assess(observed{
			kind: jobkind.Find(batchv1.SchemeGroupVersion.WithKind("Job")), job: job(), workload: w, grant: grant(3, 3, waiting),
			gate: proved, check: "dispatch", clusterQueue: "gpu", queue: "gpu", now: now,
		})
		g.Expect(i.Phase).To(Equal(v1alpha1.JobWaiting))
		g.Expect(i.Message).To(Equal("evicted (Preempted, PodsReadyTimeout), and quota is reserved again; 3 of 3 admissions used: raise spec.admissions to 4 to let it start again"))
		g.Expect(i.Check).To(HaveValue(Equal(v1alpha1.CheckStatus{State: "Pending", Message: "Reset to Pending after eviction. Previously: Ready"})))
		g.Expect(i.Admissions).To(HaveValue(Equal(v1alpha1.JobAdmissions{Granted: 3, Used: 3, Summary: "3/3"})))
		g.Expect(i.Eviction).To(HaveValue(Equal(v1alpha1.EvictionStatus{Reason: "Preempted, PodsReadyTimeout", Count: 4})))
		g.Expect(i.AdmissionController).To(And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.ProvedReason)))
		g.Expect(i.Conditions).To(HaveLen(2))
		g.Expect(i.Finished).To(BeNil())
	})
}
