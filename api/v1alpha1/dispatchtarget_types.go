package v1alpha1

import (
	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defaults of DispatchTarget. The CRD applies them to objects; KueueSpec.SetDefaults applies them to
// values that Go code builds.
const (
	// DefaultKubeConfigKey is the key of a kubeconfig Secret that is read where none is named.
	DefaultKubeConfigKey = "kubeconfig"
	// DefaultAdmissionCheck is the name of the AdmissionCheck that dispatch looks for on a target.
	DefaultAdmissionCheck = "dispatch"
	// DefaultControllerName is the spec.controllerName by which dispatch-admission knows its AdmissionChecks.
	DefaultControllerName = "dispatch.dev/admission"
	// DefaultAdmissionLeaseNamespace is the namespace of dispatch-admission's Lease on a target.
	DefaultAdmissionLeaseNamespace = "dispatch-system"
	// DefaultAdmissionLeaseName is the name of dispatch-admission's Lease on a target.
	DefaultAdmissionLeaseName = "dispatch-admission"
)

// Mode says what dispatch does with a target cluster.
//
// +kubebuilder:validation:Enum=ReadWrite;ObserveOnly
type Mode string

const (
	// ModeReadWrite is used when the target is reachable, its readmission gate is proved (or not required) and no
	// admin has asked for observe-only.
	ModeReadWrite Mode = "ReadWrite"
	// ModeObserveOnly is used otherwise: dispatch reads the target and writes nothing to it.
	ModeObserveOnly Mode = "ObserveOnly"
)

// DispatchTargetSpec describes one target cluster.
//
// +kubebuilder:validation:XValidation:rule="has(self.kueue) == has(oldSelf.kueue)",message="kueue can be changed but neither added nor removed: a target without it has no readmission gate. Delete this DispatchTarget and create one with another name",fieldPath=".kueue"
type DispatchTargetSpec struct {
	// kubeConfig says how to reach the cluster. Left out: the cluster that the manager itself runs in.
	//
	// +optional
	KubeConfig *KubeConfigSource `json:"kubeConfig,omitempty"`

	// kueue selects Kueue mode and describes what dispatch relies on there. Left out: plain mode,
	// without queue and readmission gate.
	//
	// +optional
	Kueue *KueueSpec `json:"kueue,omitempty"`

	// observeOnly is an admin's own switch: while it is true nothing is written to the target,
	// whatever the gate says. Default: false.
	//
	// +optional
	ObserveOnly bool `json:"observeOnly,omitempty"`

	// allowedNamespaces says which namespaces on the hub may send jobs to this target: a DispatchJob there
	// amounts to creating that job in the namespace of the same name on the target. Default: None.
	//
	// +optional
	// +kubebuilder:default={from: None}
	AllowedNamespaces *AllowedNamespaces `json:"allowedNamespaces,omitempty"`
}

// NamespacesFrom says how namespaces are chosen.
//
// +kubebuilder:validation:Enum=None;All;Selector
type NamespacesFrom string

const (
	// NamespacesFromNone means: no namespace may.
	NamespacesFromNone NamespacesFrom = "None"
	// NamespacesFromAll means: every namespace may.
	NamespacesFromAll NamespacesFrom = "All"
	// NamespacesFromSelector means: those may whose labels match the selector.
	NamespacesFromSelector NamespacesFrom = "Selector"
)

// AllowedNamespaces chooses namespaces on the hub.
//
// +kubebuilder:validation:XValidation:rule="has(self.selector) == (has(self.from) && self.from == 'Selector')",message="selector goes with from: Selector, and with nothing else",fieldPath=".selector"
type AllowedNamespaces struct {
	// from is None, All or Selector. Default: None.
	//
	// +optional
	// +kubebuilder:default=None
	From NamespacesFrom `json:"from,omitempty"`

	// selector matches the labels of namespaces, with from: Selector.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// KubeConfigSource names where the kubeconfig of a target cluster is kept.
//
// +kubebuilder:validation:XValidation:rule="has(self.secretRef)",message="secretRef is required: name the Secret that holds the kubeconfig, or leave kubeConfig out for the manager's own cluster",fieldPath=".secretRef",reason=FieldValueRequired
type KubeConfigSource struct {
	// secretRef names a Secret in the manager's own namespace. A Secret elsewhere is never read.
	//
	// +optional
	SecretRef *KubeConfigSecretReference `json:"secretRef,omitempty"`
}

// KubeConfigSecretReference names a Secret in the manager's own namespace and a key of it.
//
// +kubebuilder:validation:XValidation:rule="has(self.name)",message="name is required: the Secret, in the manager's own namespace, that holds the kubeconfig",fieldPath=".name",reason=FieldValueRequired
type KubeConfigSecretReference struct {
	// name of the Secret.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="must be the name of a Secret: lower case letters, digits, '-' and '.', beginning and ending with a letter or digit"
	Name string `json:"name,omitempty"`

	// key in the Secret's data under which the kubeconfig is. Default: kubeconfig.
	//
	// +optional
	// +kubebuilder:default=kubeconfig
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-._a-zA-Z0-9]+$')",message="must be a key of a Secret: letters, digits, '-', '_' and '.'"
	Key string `json:"key,omitempty"`
}

// KueueSpec describes the objects on the target that make up the readmission gate.
//
// +kubebuilder:validation:XValidation:rule="has(self.clusterQueue)",message="clusterQueue is required: the ClusterQueue on the target that jobs are sent to",fieldPath=".clusterQueue",reason=FieldValueRequired
type KueueSpec struct {
	// clusterQueue is the ClusterQueue on the target that jobs are sent to. It must list the
	// AdmissionCheck for all its flavors.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="must be the name of a ClusterQueue: lower case letters, digits, '-' and '.', beginning and ending with a letter or digit"
	ClusterQueue string `json:"clusterQueue,omitempty"`

	// admissionCheck is the AdmissionCheck on the target that dispatch-admission answers for.
	// Default: dispatch.
	//
	// +optional
	// +kubebuilder:default=dispatch
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="must be the name of an AdmissionCheck: lower case letters, digits, '-' and '.', beginning and ending with a letter or digit"
	AdmissionCheck string `json:"admissionCheck,omitempty"`

	// controllerName that the AdmissionCheck must carry, 1 to 253 characters: the -controller-name of
	// dispatch-admission on the target. Default: dispatch.dev/admission.
	//
	// +optional
	// +kubebuilder:default=dispatch.dev/admission
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ControllerName string `json:"controllerName,omitempty"`

	// admissionLease is the leader-election Lease of dispatch-admission on the target, its heartbeat:
	// the -lease-namespace and -lease-name it runs with. It is defaulted as a whole, to
	// dispatch-system/dispatch-admission; a half-given one is refused.
	//
	// +optional
	// +kubebuilder:default={namespace: dispatch-system, name: dispatch-admission}
	AdmissionLease *LeaseReference `json:"admissionLease,omitempty"`
}

// LeaseReference names a Lease on the target.
//
// +kubebuilder:validation:XValidation:rule="has(self.__namespace__)",message="namespace is required beside name: give both, or leave admissionLease out for dispatch-system/dispatch-admission",fieldPath=".namespace",reason=FieldValueRequired
// +kubebuilder:validation:XValidation:rule="has(self.name)",message="name is required beside namespace: give both, or leave admissionLease out for dispatch-system/dispatch-admission",fieldPath=".name",reason=FieldValueRequired
type LeaseReference struct {
	// namespace of the Lease.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",message="must be a namespace: lower case letters, digits and '-', beginning and ending with a letter or digit"
	Namespace string `json:"namespace,omitempty"`

	// name of the Lease.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="must be the name of a Lease: lower case letters, digits, '-' and '.', beginning and ending with a letter or digit"
	Name string `json:"name,omitempty"`
}

// String is namespace/name.
func (l LeaseReference) String() string {
	return l.Namespace + "/" + l.Name
}

// SetDefaults fills the fields that are left out, as the CRD does for objects.
func (k *KueueSpec) SetDefaults() {
	if k.AdmissionCheck == "" {
		k.AdmissionCheck = DefaultAdmissionCheck
	}
	if k.ControllerName == "" {
		k.ControllerName = DefaultControllerName
	}
	if k.AdmissionLease == nil {
		k.AdmissionLease = &LeaseReference{Namespace: DefaultAdmissionLeaseNamespace, Name: DefaultAdmissionLeaseName}
	}
}

// DispatchTargetStatus is what dispatch found out about the target.
type DispatchTargetStatus struct {
	// observedGeneration is the generation of the spec that this status was made for; -1 before the
	// first time.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// mode is ReadWrite when Reachable and ReadmissionGate are True and spec.observeOnly is off, and
	// ObserveOnly otherwise.
	//
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// conditions: Reachable, QueueActive, ReadmissionGate, Ready and, while they are true, Reconciling
	// and Stalled.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// cluster identifies the cluster behind the kubeconfig.
	//
	// +optional
	Cluster *ClusterIdentity `json:"cluster,omitempty"`
}

// ClusterIdentity identifies a target cluster.
type ClusterIdentity struct {
	// uid of the target's namespace kube-system. Empty if it may not be read.
	//
	// +optional
	UID types.UID `json:"uid,omitempty"`

	// kubernetesVersion of the target's API server, as v1.37.2.
	//
	// +optional
	KubernetesVersion string `json:"kubernetesVersion,omitempty"`
}

// DispatchTarget is one target cluster, as dispatch sees it: how it is reached, what its readmission
// gate consists of, and whether that gate is proved.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=dt,categories=dispatch
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.status.mode`
// +kubebuilder:printcolumn:name="Gate",type=string,JSONPath=`.status.conditions[?(@.type=="ReadmissionGate")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="ReadmissionGate")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="ReadmissionGate")].message`
// +kubebuilder:printcolumn:name="Version",type=string,priority=1,JSONPath=`.status.cluster.kubernetesVersion`
// +kubebuilder:printcolumn:name="Lease-Namespace",type=string,priority=1,JSONPath=`.spec.kueue.admissionLease.namespace`
// +kubebuilder:printcolumn:name="Lease",type=string,priority=1,JSONPath=`.spec.kueue.admissionLease.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DispatchTarget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the target cluster.
	//
	// +required
	Spec DispatchTargetSpec `json:"spec"`

	// status is what dispatch found out. Its default keeps a fresh object from ever being taken for
	// current.
	//
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status DispatchTargetStatus `json:"status,omitempty"`
}

// DispatchTargetList is a list of DispatchTargets.
//
// +kubebuilder:object:root=true
type DispatchTargetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DispatchTarget `json:"items"`
}
