package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/clusters"
)

func TestATargetOfWhichNothingIsKnownYet(t *testing.T) {
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	target := &v1alpha1.DispatchTarget{ObjectMeta: metav1.ObjectMeta{Name: "west"}}
	r := &DispatchJobReconciler{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(target).Build(), Targets: &clusters.Set{}}
	job := &v1alpha1.DispatchJob{Spec: v1alpha1.DispatchJobSpec{TargetRef: v1alpha1.TargetReference{Name: "west"}}}

	t.Run("leaves a status alone, so that a manager that starts does not write all of them twice", func(t *testing.T) {
		g := NewWithT(t)
		status := &v1alpha1.DispatchJobStatus{
			Phase: v1alpha1.JobRunning, Submission: &v1alpha1.SubmissionRecord{Job: &v1alpha1.JobReference{UID: "1"}},
			Conditions: []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.RunningReason}},
		}
		before := status.DeepCopy()
		_, gone, err := r.reconcile(t.Context(), job, status)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(gone).To(BeFalse())
		g.Expect(status).To(Equal(before))
	})
	t.Run("is what a new job is told to wait for", func(t *testing.T) {
		g := NewWithT(t)
		status := &v1alpha1.DispatchJobStatus{}
		_, _, err := r.reconcile(t.Context(), job, status)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(meta.FindStatusCondition(status.Conditions, v1alpha1.ReadyCondition)).To(And(
			HaveField("Reason", v1alpha1.TargetObserveOnlyReason), HaveField("Message", ContainSubstring("Preflighting"))))
	})
}
