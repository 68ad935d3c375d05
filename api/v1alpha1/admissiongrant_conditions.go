package v1alpha1

// Conditions of an AdmissionGrant and their reasons. Beside the ones below it carries the Workload's
// own conditions QuotaReserved, Admitted, Evicted and Finished with Kueue's reasons and times, so that
// whoever follows a job from afar watches this one kind.

// WaitingCondition is True while Kueue has reserved quota for the job and dispatch-admission holds it
// back, and False otherwise.
const WaitingCondition = "Waiting"

const (
	// NotGrantedReason (True) is used when every granted admission is used up; the message says which
	// number to raise spec.admissions to.
	NotGrantedReason = "NotGranted"
	// JobUnreadableReason (True) is used when dispatch-admission may not read the job and so cannot
	// tell whether it is being deleted; the message names the permission.
	JobUnreadableReason = "JobUnreadable"
	// NotWaitingReason (False) is used when nothing is held back: no quota is reserved, or the admission
	// is opened, or the job runs or has finished.
	NotWaitingReason = "NotWaiting"
)

// UngrantedStartCondition is True, and otherwise absent, once the job has started without an opened
// admission. That is a fault: somebody else wrote the check's state, or the check was taken off the
// queue for a while. It stays, so that the fault is seen.
const UngrantedStartCondition = "UngrantedStart"

// StartedUngrantedReason (True) is the one reason of UngrantedStart; the message says when and which
// start it was.
const StartedUngrantedReason = "StartedUngranted"
