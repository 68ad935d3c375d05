package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// CancelFinalizer keeps a deleted DispatchJob until its job is gone from the target.
	CancelFinalizer = "dispatch.dev/cancel"
	// AbandonAnnotation on a DispatchJob, set to "true", lets it be deleted without its job being cancelled. The
	// job then goes on by itself, on a target that nobody looks at any more.
	AbandonAnnotation = "dispatch.dev/abandon"

	// SubmissionFinalizer keeps a job on a target until its end is recorded on the hub.
	SubmissionFinalizer = "dispatch.dev/submission"
	// SubmissionLabel on a job on a target is the id of its submission: the DispatchJob's uid.
	SubmissionLabel = "dispatch.dev/submission"
	// TargetAnnotation on a job on a target is the name of the DispatchTarget that it was sent to.
	TargetAnnotation = "dispatch.dev/target"
)

// DispatchJobSpec says which job goes where. Only admissions can be changed: to move a job, delete its
// DispatchJob and create another.
//
// +kubebuilder:validation:XValidation:rule="self.targetRef == oldSelf.targetRef",message="targetRef cannot be changed: delete this DispatchJob and create another to move the job",fieldPath=".targetRef"
// +kubebuilder:validation:XValidation:rule="has(self.localQueue) == has(oldSelf.localQueue) && (!has(self.localQueue) || self.localQueue == oldSelf.localQueue)",message="localQueue cannot be changed: delete this DispatchJob and create another to move the job",fieldPath=".localQueue"
// +kubebuilder:validation:XValidation:rule="self.admissions >= oldSelf.admissions",message="admissions can only be raised: it is the number granted in total",fieldPath=".admissions"
type DispatchJobSpec struct {
	// targetRef names the DispatchTarget that the job is sent to.
	//
	// +required
	TargetRef TargetReference `json:"targetRef"`

	// localQueue is the LocalQueue on the target, in the namespace of the same name as the DispatchJob's. It
	// must lead to the ClusterQueue of the DispatchTarget. Required in Kueue mode, and left out in plain mode.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="must be the name of a LocalQueue: lower case letters, digits, '-' and '.', beginning and ending with a letter or digit"
	LocalQueue string `json:"localQueue,omitempty"`

	// admissions is how often the job may be admitted, in total: raise it by one to let an evicted job start
	// again. It can never be lowered. Default: 1.
	//
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	Admissions int32 `json:"admissions,omitempty"`

	// template is the job: apiVersion, kind and spec, and in metadata labels and annotations. It gets the
	// DispatchJob's own name and namespace. Its suspend field is set by dispatch.
	//
	// +required
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="template cannot be changed: delete this DispatchJob and create another"
	Template runtime.RawExtension `json:"template"`
}

// TargetReference names a DispatchTarget.
type TargetReference struct {
	// name of the DispatchTarget.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// JobPhase is one word for where a job is.
type JobPhase string

const (
	// JobPending means: not on the target yet.
	JobPending JobPhase = "Pending"
	// JobQueued means: on the target, without quota.
	JobQueued JobPhase = "Queued"
	// JobWaiting means: quota is reserved, and the job is held back.
	JobWaiting JobPhase = "Waiting"
	// JobRunning means: admitted.
	JobRunning JobPhase = "Running"
	// JobEvicted means: its admission was taken away; it has no quota now.
	JobEvicted JobPhase = "Evicted"
	// JobSucceeded means: ended well.
	JobSucceeded JobPhase = "Succeeded"
	// JobFailed means: ended otherwise, or was deleted on the target.
	JobFailed JobPhase = "Failed"
	// JobLost means: not on the target any more, and how it ended is not known.
	JobLost JobPhase = "Lost"
	// JobCancelling means: its DispatchJob is being deleted.
	JobCancelling JobPhase = "Cancelling"
)

// SubmissionRecord is the intent to create a job, written before each request to do so. A request is never
// sent on an old read of a DispatchJob, since this write would fail.
type SubmissionRecord struct {
	// clusterUID is the uid of the cluster that the job is sent to. No other is ever written to.
	//
	// +required
	ClusterUID types.UID `json:"clusterUID"`

	// attempts is how many times a request to create the job may have been sent.
	//
	// +required
	Attempts int32 `json:"attempts"`

	// lastAttempt is when the last of them was about to be sent.
	//
	// +required
	LastAttempt metav1.Time `json:"lastAttempt"`

	// job is the job on the target, once it is known to be there.
	//
	// +optional
	Job *JobReference `json:"job,omitempty"`

	// released is true once the end of the job is recorded and dispatch holds it on the target no longer.
	//
	// +optional
	Released bool `json:"released,omitempty"`
}

// JobAdmissions counts the admissions of a job.
type JobAdmissions struct {
	// granted in total, as the job's AdmissionGrant has it.
	//
	// +required
	Granted int32 `json:"granted"`

	// used so far: starts of the job.
	//
	// +required
	Used int32 `json:"used"`

	// summary is used/granted, for kubectl get.
	//
	// +optional
	Summary string `json:"summary,omitempty"`
}

// CheckStatus is dispatch's own admission check on a job's Workload.
type CheckStatus struct {
	// state is Pending, Ready, Retry or Rejected.
	//
	// +required
	State string `json:"state"`

	// message says what it waits for.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// EvictionStatus is what is known of a job's evictions.
type EvictionStatus struct {
	// reason of the one that goes on; once it is over, of all that there were.
	//
	// +optional
	Reason string `json:"reason,omitempty"`

	// count of all, by Kueue. A recreated Workload starts from 0.
	//
	// +required
	Count int32 `json:"count"`
}

// DispatchJobStatus is what dispatch did and what it sees on the target.
type DispatchJobStatus struct {
	// observedGeneration is the generation of the spec that this status was made for; -1 before the first time.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// phase is one word for where the job is. For people: programs go by conditions.
	//
	// +optional
	Phase JobPhase `json:"phase,omitempty"`

	// submission is the intent to create the job, and what came of it. Absent: nothing was ever sent.
	//
	// +optional
	Submission *SubmissionRecord `json:"submission,omitempty"`

	// admissions granted and used.
	//
	// +optional
	Admissions *JobAdmissions `json:"admissions,omitempty"`

	// check is the state of dispatch's admission check.
	//
	// +optional
	Check *CheckStatus `json:"check,omitempty"`

	// eviction is what is known of evictions. Absent: none.
	//
	// +optional
	Eviction *EvictionStatus `json:"eviction,omitempty"`

	// conditions: Submitted, QuotaReserved, Admitted, Evicted, Finished, Ready and, while they are true,
	// TargetForbidden and ClusterChanged.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DispatchJob is one job that is sent to one target. Creating one amounts to creating that job in the
// namespace of the same name on the target.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=dj,categories=dispatch
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.targetRef.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Admissions",type=string,JSONPath=`.status.admissions.summary`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DispatchJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says which job goes where.
	//
	// +required
	Spec DispatchJobSpec `json:"spec"`

	// status is what dispatch did and what it sees on the target. Its default keeps a fresh object from ever
	// being taken for current.
	//
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status DispatchJobStatus `json:"status,omitempty"`
}

// DispatchJobList is a list of DispatchJobs.
//
// +kubebuilder:object:root=true
type DispatchJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DispatchJob `json:"items"`
}
