package fleet

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// The objects of a target as they are while Kueue and dispatch-admission run there.

func clusterQueue(name, check string) *kueue.ClusterQueue {
	return &kueue.ClusterQueue{
		TypeMeta:   metav1.TypeMeta{APIVersion: kueue.SchemeGroupVersion.String(), Kind: "ClusterQueue"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kueue.ClusterQueueSpec{
			NamespaceSelector: &metav1.LabelSelector{},
			AdmissionChecksStrategy: &kueue.AdmissionChecksStrategy{
				AdmissionChecks: []kueue.AdmissionCheckStrategyRule{{Name: kueue.AdmissionCheckReference(check)}},
			},
		},
		Status: kueue.ClusterQueueStatus{Conditions: []metav1.Condition{{
			Type: kueue.ClusterQueueActive, Status: metav1.ConditionTrue, Reason: "Ready",
			Message: "Can admit new workloads", LastTransitionTime: metav1.Now(),
		}}},
	}
}

func admissionCheck(name string) *kueue.AdmissionCheck {
	return &kueue.AdmissionCheck{
		TypeMeta:   metav1.TypeMeta{APIVersion: kueue.SchemeGroupVersion.String(), Kind: "AdmissionCheck"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       kueue.AdmissionCheckSpec{ControllerName: v1alpha1.DefaultControllerName},
		Status: kueue.AdmissionCheckStatus{Conditions: []metav1.Condition{{
			Type: kueue.AdmissionCheckActive, Status: metav1.ConditionTrue, Reason: "Active",
			Message: "dispatch-admission has taken it up", LastTransitionTime: metav1.Now(),
		}}},
	}
}

func lease(namespace, name string, renewed time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       ptr.To("dispatch-admission-6d5f7b9c48-x2x7k_3f0e1c52-8c1d-4a63-9d3b-0a9a4f8f6f53"),
			LeaseDurationSeconds: ptr.To[int32](leaseSeconds),
			AcquireTime:          ptr.To(metav1.NewMicroTime(renewed)),
			RenewTime:            ptr.To(metav1.NewMicroTime(renewed)),
			LeaseTransitions:     ptr.To[int32](1),
		},
	}
}
