// Package v1alpha1 is what users of dispatch write: the API group dispatch.dev, version v1alpha1.
//
// +kubebuilder:object:generate=true
// +groupName=dispatch.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of every type in this package.
	GroupVersion = schema.GroupVersion{Group: "dispatch.dev", Version: "v1alpha1"}

	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds the types of this package to a scheme.
	AddToScheme = schemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&AdmissionGrant{}, &AdmissionGrantList{},
		&DispatchJob{}, &DispatchJobList{},
		&DispatchTarget{}, &DispatchTargetList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
