package v1alpha1

// Conditions of a DispatchTarget and their reasons. They are API: alerts and health checks match them.

// ReachableCondition is True while the target's API server can be reached with the credentials given,
// False when it cannot, and Unknown until that was tried. A lost connection turns it False only when
// the proof of the gate has run out.
const ReachableCondition = "Reachable"

const (
	// ConnectedReason (True) is used when the API server answers.
	ConnectedReason = "Connected"
	// KubeConfigNotFoundReason (False) is used when the Secret or the key in it does not exist.
	KubeConfigNotFoundReason = "KubeConfigNotFound"
	// KubeConfigInvalidReason (False) is used when the kubeconfig does not parse or has no usable
	// current context. Retrying cannot help: Stalled.
	KubeConfigInvalidReason = "KubeConfigInvalid"
	// KubeConfigInsecureReason (False) is used when the kubeconfig has something that dispatch refuses
	// to use, such as an exec plugin or a file path; the message names the field. Retrying cannot help:
	// Stalled.
	KubeConfigInsecureReason = "KubeConfigInsecure"
	// UnauthorizedReason (False) is used when the API server answers 401 to the credentials.
	UnauthorizedReason = "Unauthorized"
	// UnreachableReason is used for Reachable (False) when the API server gives no usable answer, and
	// for QueueActive and ReadmissionGate (Unknown) when what they rest on could not be read.
	UnreachableReason = "Unreachable"
	// PreflightingReason (Unknown) is used before the first verdict on a generation of the spec.
	PreflightingReason = "Preflighting"
)

// QueueActiveCondition is True while the ClusterQueue admits workloads. It forbids only new
// submissions: cancelling and granting must work while a queue is held.
const QueueActiveCondition = "QueueActive"

const (
	// QueueActiveReason (True) is used when the ClusterQueue's own condition Active is True.
	QueueActiveReason = "QueueActive"
	// NotRequiredReason (True) is used in plain mode, for QueueActive and ReadmissionGate.
	NotRequiredReason = "NotRequired"
	// KueueNotInstalledReason (False) is used when the target does not serve Kueue's API
	// kueue.x-k8s.io/v1beta2, for QueueActive and ReadmissionGate.
	KueueNotInstalledReason = "KueueNotInstalled"
	// ClusterQueueNotFoundReason (False) is used when the ClusterQueue does not exist, for QueueActive
	// and ReadmissionGate.
	ClusterQueueNotFoundReason = "ClusterQueueNotFound"
	// ClusterQueueInactiveReason (False) is used when the ClusterQueue's condition Active is not True;
	// the message repeats Kueue's.
	ClusterQueueInactiveReason = "ClusterQueueInactive"
	// ForbiddenReason (Unknown) is used when the target refuses a read (403), for QueueActive and
	// ReadmissionGate; the message names the object and the permission.
	ForbiddenReason = "Forbidden"
)

// ReadmissionGateCondition is True only while it is proved that dispatch-admission on the target holds
// back readmissions, False when it is proved that it does not, and Unknown when that could not be
// found out. False and Unknown both make the target observe-only.
const ReadmissionGateCondition = "ReadmissionGate"

const (
	// ProvedReason (True) is used when all four rules of the gate hold: the ClusterQueue lists the
	// AdmissionCheck for all its flavors, the AdmissionCheck is dispatch's, it is active, and the Lease
	// is held and was renewed within twice its duration.
	ProvedReason = "Proved"
	// AdmissionCheckNotListedReason (False) is used when the ClusterQueue does not list the
	// AdmissionCheck.
	AdmissionCheckNotListedReason = "AdmissionCheckNotListed"
	// AdmissionCheckPartialReason (False) is used when the ClusterQueue lists the AdmissionCheck for
	// some of its flavors only: a workload could be readmitted on another one, ungated.
	AdmissionCheckPartialReason = "AdmissionCheckPartial"
	// AdmissionCheckNotFoundReason (False) is used when the AdmissionCheck does not exist.
	AdmissionCheckNotFoundReason = "AdmissionCheckNotFound"
	// ForeignControllerReason (False) is used when the AdmissionCheck's controllerName is not the
	// DispatchTarget's.
	ForeignControllerReason = "ForeignController"
	// AdmissionCheckInactiveReason (False) is used when the AdmissionCheck's condition Active is not
	// True.
	AdmissionCheckInactiveReason = "AdmissionCheckInactive"
	// LeaseNotFoundReason (False) is used when the Lease does not exist.
	LeaseNotFoundReason = "LeaseNotFound"
	// LeaseNotHeldReason (False) is used when the Lease has no holder.
	LeaseNotHeldReason = "LeaseNotHeld"
	// LeaseNeverRenewedReason (False) is used when the Lease lacks renewTime or leaseDurationSeconds.
	LeaseNeverRenewedReason = "LeaseNeverRenewed"
	// LeaseStaleReason (False) is used when the Lease was last renewed, or last seen to change, more
	// than twice its leaseDurationSeconds ago.
	LeaseStaleReason = "LeaseStale"
	// ClockSkewReason (False) is used when the Lease's renewTime is more than one leaseDurationSeconds
	// in our future: one of the two clocks is wrong, and freshness cannot be judged.
	ClockSkewReason = "ClockSkew"
)

// ReadyCondition is the summary, in kstatus' sense: True when the target is as its spec wants it.
const ReadyCondition = "Ready"

const (
	// ReadWriteReason (True) is used when the mode is ReadWrite.
	ReadWriteReason = "ReadWrite"
	// ObserveOnlyRequestedReason (True) is used when an admin's spec.observeOnly makes the target
	// observe-only.
	ObserveOnlyRequestedReason = "ObserveOnlyRequested"
	// ObserveOnlyReason (False) is used when a condition forbids writing; the message names the
	// condition and repeats its message. PreflightingReason (Unknown) is the third reason.
	ObserveOnlyReason = "ObserveOnly"
)

// ReconcilingCondition is True, and otherwise absent, before the first verdict on a generation of the
// spec, with reason PreflightingReason.
const ReconcilingCondition = "Reconciling"

// StalledCondition is True, and otherwise absent, where retrying cannot help: a kubeconfig refused as
// invalid or insecure, with the reason of Reachable.
const StalledCondition = "Stalled"
