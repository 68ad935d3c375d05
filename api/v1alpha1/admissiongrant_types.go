package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AdmissionCountFinalizer keeps an AdmissionGrant for as long as its job exists: a grant that could be
// deleted would reset the count.
const AdmissionCountFinalizer = "dispatch.dev/admission-count"

// AdmissionGrantSpec says whose admissions are granted, and how many.
//
// +kubebuilder:validation:XValidation:rule="self.jobRef == oldSelf.jobRef",message="jobRef cannot be changed: a grant belongs to one job",fieldPath=".jobRef"
// +kubebuilder:validation:XValidation:rule="self.admissions >= oldSelf.admissions",message="admissions can only be raised: it is the number granted in total",fieldPath=".admissions"
type AdmissionGrantSpec struct {
	// jobRef is the object that the Workload was made for: its owner or, for a Workload without an
	// owner, the Workload itself.
	//
	// +required
	JobRef JobReference `json:"jobRef"`

	// admissions is how often the job may be admitted, in total: 1 for a job that may start once. Raise
	// it by one to let an evicted job start again. It can never be lowered.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	Admissions int32 `json:"admissions"`
}

// JobReference names one object in the grant's own namespace.
type JobReference struct {
	// apiVersion of the job, such as batch/v1.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	APIVersion string `json:"apiVersion"`

	// kind of the job, such as Job.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`

	// name of the job.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// uid of the job. A job of the same name with another uid is another job.
	//
	// +required
	UID types.UID `json:"uid"`
}

// AdmissionGrantStatus is dispatch-admission's own record. Nothing else writes it.
type AdmissionGrantStatus struct {
	// admissions is how many of the granted admissions are used: starts of the job, not decisions to let
	// it start. Absent: not yet known.
	//
	// +optional
	Admissions *int32 `json:"admissions,omitempty"`

	// opened is the admission that is being let through. It is written before the check is set to Ready
	// and goes when the job has started, so it is never both used and open.
	//
	// +optional
	Opened *OpenedAdmission `json:"opened,omitempty"`

	// accounted is the state of the Workload up to which starts are in admissions.
	//
	// +optional
	Accounted *AccountedWorkload `json:"accounted,omitempty"`

	// conditions: Waiting, UngrantedStart, and the Workload's own QuotaReserved, Admitted, Evicted and
	// Finished.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// OpenedAdmission is one admission that is being let through, and how the Workload and its job were
// when it was opened: a start shows in the difference.
type OpenedAdmission struct {
	// number of the admission, counted from 1.
	//
	// +required
	Number int32 `json:"number"`

	// time at which it was opened.
	//
	// +required
	Time metav1.Time `json:"time"`

	// workloadUID is the uid of the Workload that it was opened for.
	//
	// +required
	WorkloadUID types.UID `json:"workloadUID"`

	// reservedTime is since when the Workload had its quota reserved.
	//
	// +required
	ReservedTime metav1.Time `json:"reservedTime"`

	// evictions that Kueue had counted on the Workload.
	//
	// +required
	Evictions int32 `json:"evictions"`

	// suspendedGeneration is the job's metadata.generation if the job was suspended, and 0 if that was
	// not known. A suspended job cannot run without a new generation.
	//
	// +required
	SuspendedGeneration int64 `json:"suspendedGeneration"`
}

// AccountedWorkload is the state of a Workload up to which starts are counted.
type AccountedWorkload struct {
	// uid of the Workload.
	//
	// +required
	UID types.UID `json:"uid"`

	// resourceVersion of the Workload. An older one is never counted from again.
	//
	// +required
	ResourceVersion string `json:"resourceVersion"`

	// admitted is the status of the Workload's condition Admitted. Absent if it had none.
	//
	// +optional
	Admitted metav1.ConditionStatus `json:"admitted,omitempty"`

	// admittedTime is that condition's lastTransitionTime.
	//
	// +optional
	AdmittedTime *metav1.Time `json:"admittedTime,omitempty"`
}

// AdmissionGrant says how often a job may be admitted. It lives on the target, beside the Workload and
// under its name. dispatch-admission makes it; a hub or a person only raises spec.admissions.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.admissions) || (has(self.status) && has(self.status.admissions) && self.status.admissions >= oldSelf.status.admissions)",message="status.admissions can only grow: it counts the job's starts",fieldPath=".status"
// +kubebuilder:resource:shortName=ag,categories=dispatch
// +kubebuilder:printcolumn:name="Job",type=string,JSONPath=`.spec.jobRef.name`
// +kubebuilder:printcolumn:name="Granted",type=integer,JSONPath=`.spec.admissions`
// +kubebuilder:printcolumn:name="Used",type=integer,JSONPath=`.status.admissions`
// +kubebuilder:printcolumn:name="Waiting",type=string,JSONPath=`.status.conditions[?(@.type=="Waiting")].status`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Waiting")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AdmissionGrant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says whose admissions are granted, and how many.
	//
	// +required
	Spec AdmissionGrantSpec `json:"spec"`

	// status is dispatch-admission's own record.
	//
	// +optional
	Status AdmissionGrantStatus `json:"status,omitempty"`
}

// AdmissionGrantList is a list of AdmissionGrants.
//
// +kubebuilder:object:root=true
type AdmissionGrantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AdmissionGrant `json:"items"`
}
