package adapter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/gate"
	"github.com/dispatch-dev/dispatch/internal/jobkind"
)

// stuckAfter is how long a job may be evicted and still hold its quota: its pods end in the meantime.
const stuckAfter = time.Minute

// Inspection is one picture of a job.
type Inspection struct {
	// Phase is one word for where the job is.
	Phase v1alpha1.JobPhase
	// Reason is one of the reasons of a DispatchJob's condition Ready, and Message says more: why the job does
	// not run, or that it does.
	Reason, Message string
	// Check is the state of dispatch's admission check; nil while the job has none.
	Check *v1alpha1.CheckStatus
	// Admissions granted and used; nil while the job has no AdmissionGrant.
	Admissions *v1alpha1.JobAdmissions
	// Eviction is what is known of evictions; nil if there were none.
	Eviction *v1alpha1.EvictionStatus
	// Conditions are QuotaReserved, Admitted and Evicted of the Workload, and Finished if the job has ended.
	Conditions []metav1.Condition
	// Finished is in Conditions, too; nil while the job has not ended.
	Finished *metav1.Condition
	// AdmissionController is the target's condition ReadmissionGate at this moment: whether the admission
	// controller lives.
	AdmissionController metav1.Condition
}

// observed is what an Inspection is made of. Nil is what is not there.
type observed struct {
	job      *unstructured.Unstructured
	kind     *jobkind.Kind
	workload *kueue.Workload
	grant    *v1alpha1.AdmissionGrant
	gate     gate.Finding
	// check and clusterQueue are those of the gate, and queue is the LocalQueue that the job was sent to.
	check, clusterQueue, queue string
	plain                      bool
	now                        time.Time
}

// Inspect reads the job, its Workload and its AdmissionGrant live. It works in every mode. A job that is not
// there is ErrJobNotFound.
func (t *Target) Inspect(ctx context.Context, job Job) (Inspection, error) {
	o := observed{
		kind: jobkind.Find(job.GroupVersionKind), queue: job.LocalQueue, plain: t.cluster.KueueSpec() == nil,
		gate: t.cluster.Snapshot().ReadmissionGate, now: time.Now(),
	}
	if o.kind == nil {
		return Inspection{}, refuse(ErrKindNotSupported, "%s is not one of the kinds that can be sent", job.Kind)
	}
	if _, err := t.identify(ctx, job.ClusterUID); err != nil {
		return Inspection{}, err
	}
	if !o.plain {
		o.check, o.clusterQueue = t.cluster.KueueSpec().AdmissionCheck, t.cluster.KueueSpec().ClusterQueue
		var err error
		// Before the job: a Workload that is gone then is no sign of anything, while one read after its job
		// would be another's.
		if o.workload, o.grant, err = t.workloadAndGrant(ctx, &job); err != nil {
			return Inspection{}, err
		}
	}
	object, err := t.readJob(ctx, &job)
	if err != nil {
		return Inspection{}, err
	}
	if object != nil && object.GetUID() == job.UID {
		o.job = object
	}
	if o.job == nil && o.workload == nil && !o.plain {
		if o.grant, err = t.orphanedGrant(ctx, &job); err != nil {
			return Inspection{}, err
		}
	}
	inspection := assess(o)
	if o.job == nil && inspection.Finished == nil {
		return Inspection{}, refuse(ErrJobNotFound, "%s with uid %s is not on the target any more", job.String(), job.UID)
	}
	return inspection, nil
}

// assess makes the picture.
func assess(o observed) Inspection {
	i := Inspection{AdmissionController: metav1.Condition{
		Type: v1alpha1.ReadmissionGateCondition, Status: o.gate.Status, Reason: o.gate.Reason, Message: o.gate.Message,
	}}
	conditions := workloadConditions(o)
	for _, name := range []string{kueue.WorkloadQuotaReserved, kueue.WorkloadAdmitted, kueue.WorkloadEvicted} {
		if c := meta.FindStatusCondition(conditions, name); c != nil {
			c.Message = gate.Quote(c.Message)
			i.Conditions = append(i.Conditions, *c)
		}
	}
	if o.grant != nil {
		used := ptr.Deref(o.grant.Status.Admissions, 0)
		i.Admissions = &v1alpha1.JobAdmissions{Granted: o.grant.Spec.Admissions, Used: used, Summary: fmt.Sprintf("%d/%d", used, o.grant.Spec.Admissions)}
	}
	i.Check = ownCheck(o)
	i.Eviction = eviction(o.workload, conditions)
	if i.Finished = finished(o, conditions); i.Finished != nil {
		i.Conditions = append(i.Conditions, *i.Finished)
	}
	i.Phase, i.Reason, i.Message = where(o, &i)
	return i
}

// workloadConditions are the Workload's own or, where it is gone, as the grant mirrored them.
func workloadConditions(o observed) []metav1.Condition {
	switch {
	case o.workload != nil:
		return o.workload.DeepCopy().Status.Conditions
	case o.grant != nil:
		return o.grant.DeepCopy().Status.Conditions
	}
	return nil
}

func ownCheck(o observed) *v1alpha1.CheckStatus {
	if o.workload == nil {
		return nil
	}
	for _, entry := range o.workload.Status.AdmissionChecks {
		if string(entry.Name) == o.check {
			return &v1alpha1.CheckStatus{State: string(entry.State), Message: gate.Quote(entry.Message)}
		}
	}
	return nil
}

func eviction(workload *kueue.Workload, conditions []metav1.Condition) *v1alpha1.EvictionStatus {
	e := v1alpha1.EvictionStatus{}
	if workload != nil && workload.Status.SchedulingStats != nil {
		// Kueue counts by reason, and does not say which came last.
		var reasons []string
		for _, s := range workload.Status.SchedulingStats.Evictions {
			e.Count += s.Count
			if !slices.Contains(reasons, s.Reason) {
				reasons = append(reasons, s.Reason)
			}
		}
		e.Reason = strings.Join(reasons, ", ")
	}
	if c := meta.FindStatusCondition(conditions, kueue.WorkloadEvicted); c != nil && c.Status == metav1.ConditionTrue {
		e.Reason = c.Reason
	}
	if e == (v1alpha1.EvictionStatus{}) {
		return nil
	}
	return &e
}

// finished is the condition Finished; nil while the job has not ended. The job's own word comes first: it
// stands there before Kueue has seen it.
func finished(o observed, conditions []metav1.Condition) *metav1.Condition {
	ended := func(reason, message string) *metav1.Condition {
		return &metav1.Condition{Type: v1alpha1.FinishedCondition, Status: metav1.ConditionTrue, Reason: reason, Message: message}
	}
	if o.job != nil {
		switch over, succeeded := o.kind.Ended(o.job); {
		case over && succeeded:
			return ended(v1alpha1.JobSucceededReason, "the job has succeeded")
		case over:
			return ended(v1alpha1.JobFailedReason, "the job has failed")
		}
	}
	if c := meta.FindStatusCondition(conditions, kueue.WorkloadFinished); c != nil && c.Status == metav1.ConditionTrue {
		if c.Reason == kueue.WorkloadFinishedReasonSucceeded {
			return ended(v1alpha1.JobSucceededReason, gate.Quote(c.Message))
		}
		return ended(v1alpha1.JobFailedReason, gate.Quote(c.Message))
	}
	if o.job != nil && !o.job.GetDeletionTimestamp().IsZero() {
		return ended(v1alpha1.JobDeletedReason, "the job was deleted on the target before it finished")
	}
	return nil
}

// where says in which phase the job is and why.
func where(o observed, i *Inspection) (phase v1alpha1.JobPhase, reason, message string) {
	if i.Finished != nil {
		if i.Finished.Reason == v1alpha1.JobSucceededReason {
			return v1alpha1.JobSucceeded, i.Finished.Reason, i.Finished.Message
		}
		return v1alpha1.JobFailed, i.Finished.Reason, i.Finished.Message
	}
	if o.plain {
		return v1alpha1.JobRunning, v1alpha1.RunningReason, "the job was created to run at once: plain mode"
	}
	phase, reason, message = progress(o, i)
	if moved := movedTo(o); moved != "" {
		return phase, v1alpha1.MovedQueueReason, fmt.Sprintf("the job was moved to %s on the target: %s", moved, message)
	}
	return phase, reason, message
}

// movedTo names the queue that the job is in, if it is not the one that it was sent to.
func movedTo(o observed) string {
	if o.job != nil && o.job.GetLabels()[queueLabel] != o.queue {
		return fmt.Sprintf("LocalQueue %q, from %q", gate.Quote(o.job.GetLabels()[queueLabel]), o.queue)
	}
	// The LocalQueue itself can be made anew and lead elsewhere.
	if o.workload != nil && o.workload.Status.Admission != nil && string(o.workload.Status.Admission.ClusterQueue) != o.clusterQueue {
		return fmt.Sprintf("ClusterQueue %q, from %q", gate.Quote(string(o.workload.Status.Admission.ClusterQueue)), o.clusterQueue)
	}
	return ""
}

// progress says how far Kueue has come with the job.
func progress(o observed, i *Inspection) (phase v1alpha1.JobPhase, reason, message string) {
	if o.workload == nil {
		return v1alpha1.JobQueued, v1alpha1.WaitingForQuotaReason, "Kueue has no Workload for the job: if that lasts, its integration for this kind is off"
	}
	reserved := meta.FindStatusCondition(i.Conditions, kueue.WorkloadQuotaReserved)
	admitted := meta.IsStatusConditionTrue(i.Conditions, kueue.WorkloadAdmitted)
	evicted := meta.FindStatusCondition(i.Conditions, kueue.WorkloadEvicted)
	isReserved := reserved != nil && reserved.Status == metav1.ConditionTrue
	isEvicted := evicted != nil && evicted.Status == metav1.ConditionTrue
	switch {
	case isEvicted && isReserved && o.now.Sub(evicted.LastTransitionTime.Time) > stuckAfter:
		return v1alpha1.JobEvicted, v1alpha1.EvictionStuckReason,
			fmt.Sprintf("evicted (%s) since %s, and its quota is not given back: %s", evicted.Reason, evicted.LastTransitionTime.UTC().Format(time.RFC3339), evicted.Message)
	case isEvicted:
		return v1alpha1.JobEvicted, v1alpha1.WaitingForQuotaReason, fmt.Sprintf("evicted (%s): %s", evicted.Reason, evicted.Message)
	case admitted && i.Check == nil:
		return v1alpha1.JobRunning, v1alpha1.RunningUncheckedReason,
			fmt.Sprintf("admitted without the check %s: the ClusterQueue did not list it then", o.check)
	case admitted && i.Check.State != string(kueue.CheckStateReady):
		return v1alpha1.JobRunning, v1alpha1.RunningUncheckedReason,
			fmt.Sprintf("admitted although the check %s is %s: it was listed after the job was admitted, or somebody changed it", o.check, i.Check.State)
	case admitted:
		return v1alpha1.JobRunning, v1alpha1.RunningReason, "admitted"
	case isReserved:
		return v1alpha1.JobWaiting, reasonToWait(o), waitMessage(o, i)
	case !ptr.Deref(o.workload.Spec.Active, true):
		return v1alpha1.JobQueued, v1alpha1.WaitingForQuotaReason, "the Workload is deactivated: set its spec.active to true on the target"
	case i.Eviction != nil:
		return v1alpha1.JobEvicted, v1alpha1.WaitingForQuotaReason, fmt.Sprintf("evicted (%s), waits for quota", i.Eviction.Reason)
	case reserved != nil:
		return v1alpha1.JobQueued, v1alpha1.WaitingForQuotaReason, reserved.Message
	}
	return v1alpha1.JobQueued, v1alpha1.WaitingForQuotaReason, "Kueue has not looked at the job yet"
}

func notGranted(o observed) bool {
	if o.grant == nil {
		return false
	}
	c := meta.FindStatusCondition(o.grant.Status.Conditions, v1alpha1.WaitingCondition)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == v1alpha1.NotGrantedReason &&
		ptr.Deref(o.grant.Status.Admissions, 0) >= o.grant.Spec.Admissions
}

func isPending(o observed) bool {
	check := ownCheck(o)
	return check == nil || check.State == string(kueue.CheckStatePending)
}

// reasonToWait says why a job with quota is not admitted. A dead controller comes first: no grant would help.
func reasonToWait(o observed) string {
	switch {
	case isPending(o) && o.gate.Status != metav1.ConditionTrue:
		return v1alpha1.AdmissionControllerDownReason
	case isPending(o) && notGranted(o):
		return v1alpha1.WaitingForGrantReason
	}
	return v1alpha1.WaitingForAdmissionReason
}

func waitMessage(o observed, i *Inspection) string {
	switch reasonToWait(o) {
	case v1alpha1.AdmissionControllerDownReason:
		return fmt.Sprintf("quota is reserved, but %s is %s: %s", v1alpha1.ReadmissionGateCondition, o.gate.Status, o.gate.Message)
	case v1alpha1.WaitingForGrantReason:
		why := "quota is reserved"
		if i.Eviction != nil {
			why = fmt.Sprintf("evicted (%s), and quota is reserved again", i.Eviction.Reason)
		}
		return fmt.Sprintf("%s; %d of %d admissions used: raise spec.admissions to %d to let it start again", why, i.Admissions.Used, i.Admissions.Granted, i.Admissions.Used+1)
	}
	for _, entry := range o.workload.Status.AdmissionChecks {
		if entry.State != kueue.CheckStateReady {
			return fmt.Sprintf("quota is reserved; the check %s is %s: %s", entry.Name, entry.State, gate.Quote(entry.Message))
		}
	}
	return "quota is reserved, and every check is Ready"
}
