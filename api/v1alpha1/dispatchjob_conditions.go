package v1alpha1

// Conditions of a DispatchJob and their reasons. Beside the ones below it carries QuotaReserved, Admitted
// and Evicted as Kueue has them on the target, with Kueue's reasons and times.

// SubmittedCondition is True once the job is on the target and its uid is recorded, False while it is not
// sent, and Unknown while it is not known whether a request to create it has arrived.
const SubmittedCondition = "Submitted"

const (
	// SubmittedReason (True) is the one reason for which the job counts as submitted.
	SubmittedReason = "Submitted"
	// SubmittingReason (Unknown) is used from before the request to create the job until its answer, and
	// while that answer is lost.
	SubmittingReason = "Submitting"
	// TargetNotFoundReason (False) is used when the DispatchTarget does not exist.
	TargetNotFoundReason = "TargetNotFound"
	// TargetObserveOnlyReason (False) is used when the target may not be written to; the message names the
	// condition of the DispatchTarget that forbids it. The job is sent as soon as the condition changes.
	TargetObserveOnlyReason = "TargetObserveOnly"
	// QueueInactiveReason (False) is used when the target's condition QueueActive is not True.
	QueueInactiveReason = "QueueInactive"
	// NamespaceNotAllowedReason (False) is used when the DispatchTarget's spec.allowedNamespaces does not
	// include the DispatchJob's namespace.
	NamespaceNotAllowedReason = "NamespaceNotAllowed"
	// NamespaceNotFoundReason (False) is used when the target has no namespace of that name.
	NamespaceNotFoundReason = "NamespaceNotFound"
	// TemplateRefusedReason (False) is used when the template has something that dispatch refuses to send, or
	// when the target's API server refuses the job as invalid; the message names the field.
	TemplateRefusedReason = "TemplateRefused"
	// KindNotSupportedReason (False) is used when the template's kind is not in the table of kinds whose
	// suspend field is known.
	KindNotSupportedReason = "KindNotSupported"
	// KindNotServedReason (False) is used when the target does not serve the template's kind.
	KindNotServedReason = "KindNotServed"
	// QueueMismatchReason (False) is used when the LocalQueue does not exist on the target or does not lead to
	// the ClusterQueue whose gate is proved.
	QueueMismatchReason = "QueueMismatch"
	// NameTakenReason (False) is used when another object of the job's kind and name is on the target. It is
	// left alone.
	NameTakenReason = "NameTaken"
	// ClusterUnidentifiedReason (False) is used when the target's cluster uid cannot be read: without it,
	// another cluster behind the same address would not be noticed.
	ClusterUnidentifiedReason = "ClusterUnidentified"
	// TargetUnreachableReason is used when a request to the target got no usable answer.
	TargetUnreachableReason = "TargetUnreachable"
)

// FinishedCondition is True once the job has ended and that is recorded, and otherwise absent.
const FinishedCondition = "Finished"

const (
	// JobSucceededReason (True) is used when the job has succeeded.
	JobSucceededReason = "Succeeded"
	// JobFailedReason (True) is used when the job has failed.
	JobFailedReason = "Failed"
	// JobDeletedReason (True) is used when somebody else deleted the job on the target before it finished.
	JobDeletedReason = "Deleted"
	// LostReason (True) is used when the job, whose uid was recorded, is not on the target any more, and how it
	// ended is not known. It is never created anew.
	LostReason = "Lost"
)

// TargetForbiddenCondition is True, and otherwise absent, while the target refuses the hub's credentials
// something that the job needs (403); the message names the permission.
const TargetForbiddenCondition = "TargetForbidden"

// TargetForbiddenReason (True) is the one reason of TargetForbidden, and also a reason of Ready.
const TargetForbiddenReason = "TargetForbidden"

// ClusterChangedCondition is True, and otherwise absent, while another cluster answers than the one that the
// job was sent to. Nothing is written there, and nothing is believed gone.
const ClusterChangedCondition = "ClusterChanged"

// ClusterChangedReason (True) is the one reason of ClusterChanged, and also a reason of Ready.
const ClusterChangedReason = "ClusterChanged"

// Reasons of a DispatchJob's Ready, beside those above. Ready is True while the job runs and once it has
// succeeded, and otherwise says why the job does not run.
const (
	// RunningReason (True) is used while the job is admitted.
	RunningReason = "Running"
	// RunningUncheckedReason (True) is used while the job is admitted and dispatch's own admission check is not
	// Ready: the check was listed after the job was admitted, or it was taken off the ClusterQueue.
	RunningUncheckedReason = "RunningUnchecked"
	// WaitingForQuotaReason (False) is used while Kueue has reserved no quota for the job.
	WaitingForQuotaReason = "WaitingForQuota"
	// WaitingForGrantReason (False) is used while quota is reserved and every granted admission is used; raise
	// spec.admissions to let the job start again.
	WaitingForGrantReason = "WaitingForGrant"
	// WaitingForAdmissionReason (False) is used while quota is reserved and an admission check is not Ready,
	// for another reason than a missing grant.
	WaitingForAdmissionReason = "WaitingForAdmission"
	// AdmissionControllerDownReason (False) is used while quota is reserved and the job cannot be let through
	// because the target's admission controller is not proved alive.
	AdmissionControllerDownReason = "AdmissionControllerDown"
	// EvictionStuckReason (False) is used when the job is evicted but still holds its quota after a minute.
	EvictionStuckReason = "EvictionStuck"
	// MovedQueueReason (False) is used when the job is not in the LocalQueue of its DispatchJob any more, or that
	// one leads to another ClusterQueue than the target's. Nothing holds it back there, and it may run: see the
	// phase.
	MovedQueueReason = "MovedQueue"
	// CancellingReason (False) is used while the DispatchJob is being deleted and its job is not yet gone.
	CancellingReason = "Cancelling"
	// CancelHeldReason (False) is used when the DispatchJob is being deleted and the job cannot be cancelled;
	// the message says why. It is kept until it can, or until it is given up by AbandonAnnotation.
	CancelHeldReason = "CancelHeld"
)
