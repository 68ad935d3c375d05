package controllers

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dispatch-dev/dispatch/adapter"
	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

func TestAllows(t *testing.T) {
	team := map[string]string{"team": "a"}
	for _, tc := range []struct {
		name  string
		rule  *v1alpha1.AllowedNamespaces
		allow bool
	}{
		{"nothing said", nil, false},
		{"empty", &v1alpha1.AllowedNamespaces{}, false},
		{"None", &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromNone}, false},
		{"All", &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromAll}, true},
		{"a word that is not known", &v1alpha1.AllowedNamespaces{From: "Some"}, false},
		{"Selector without one", &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromSelector}, false},
		{"a selector that matches", &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromSelector, Selector: &metav1.LabelSelector{MatchLabels: team}}, true},
		{"a selector that does not", &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}}}, false},
		{"a selector that is malformed", &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromSelector, Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Operator: "?"}}}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			NewWithT(t).Expect(allows(tc.rule, team)).To(Equal(tc.allow))
		})
	}
}

func TestHold(t *testing.T) {
	sent := &v1alpha1.SubmissionRecord{Job: &v1alpha1.JobReference{UID: "1"}}
	submittedTrue := metav1.Condition{Type: v1alpha1.SubmittedCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.SubmittedReason}
	for _, tc := range []struct {
		name             string
		deleted          bool
		status           v1alpha1.DispatchJobStatus
		reason           string
		ready, submitted string
		submittedStatus  metav1.ConditionStatus
	}{
		{"a job that was never sent", false, v1alpha1.DispatchJobStatus{}, v1alpha1.TargetObserveOnlyReason, v1alpha1.TargetObserveOnlyReason, v1alpha1.TargetObserveOnlyReason, metav1.ConditionFalse},
		{"a job whose answer was lost", false, v1alpha1.DispatchJobStatus{Submission: &v1alpha1.SubmissionRecord{}}, v1alpha1.TargetUnreachableReason, v1alpha1.TargetUnreachableReason, v1alpha1.TargetUnreachableReason, metav1.ConditionUnknown},
		{"a job that is there", false, v1alpha1.DispatchJobStatus{Submission: sent, Conditions: []metav1.Condition{submittedTrue}}, v1alpha1.ClusterChangedReason, v1alpha1.ClusterChangedReason, v1alpha1.SubmittedReason, metav1.ConditionTrue},
		{"a job that is being cancelled", true, v1alpha1.DispatchJobStatus{Submission: sent, Conditions: []metav1.Condition{submittedTrue}}, v1alpha1.TargetObserveOnlyReason, v1alpha1.CancelHeldReason, v1alpha1.SubmittedReason, metav1.ConditionTrue},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			job := &v1alpha1.DispatchJob{}
			if tc.deleted {
				now := metav1.Now()
				job.DeletionTimestamp = &now
			}
			hold(job, &tc.status, tc.reason, "why")
			ready := meta.FindStatusCondition(tc.status.Conditions, v1alpha1.ReadyCondition)
			g.Expect(ready).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", tc.ready), HaveField("Message", ContainSubstring("why"))))
			g.Expect(meta.FindStatusCondition(tc.status.Conditions, v1alpha1.SubmittedCondition)).To(And(HaveField("Status", tc.submittedStatus), HaveField("Reason", tc.submitted)))
		})
	}

	t.Run("says no more of a job whose end is recorded", func(t *testing.T) {
		status := v1alpha1.DispatchJobStatus{Submission: sent}
		lost(&status, "gone")
		before := status.DeepCopy()
		hold(&v1alpha1.DispatchJob{}, &status, v1alpha1.TargetObserveOnlyReason, "why")
		NewWithT(t).Expect(&status).To(Equal(before))
	})
}

func TestIntend(t *testing.T) {
	g := NewWithT(t)
	status := &v1alpha1.DispatchJobStatus{}
	intend(status, "cluster", metav1.Now())
	intend(status, "cluster", metav1.Now())
	g.Expect(status.Submission).To(And(HaveField("Attempts", BeEquivalentTo(2)), HaveField("ClusterUID", BeEquivalentTo("cluster")), HaveField("Job", BeNil())))
	g.Expect(meta.FindStatusCondition(status.Conditions, v1alpha1.SubmittedCondition).Status).To(Equal(metav1.ConditionUnknown))
}

func TestReasonOf(t *testing.T) {
	g := NewWithT(t)
	g.Expect(reasonOf(adapter.ErrQueueMismatch)).To(Equal(v1alpha1.QueueMismatchReason))
	g.Expect(reasonOf(adapter.ErrRequest)).To(Equal(v1alpha1.TargetUnreachableReason))
	g.Expect(reasonOf(errors.New("the hub's"))).To(BeEmpty())
}

func TestSlots(t *testing.T) {
	g := NewWithT(t)
	var s slots
	first, ok := s.take("west", 1)
	g.Expect(ok).To(BeTrue())
	_, ok = s.take("west", 1)
	g.Expect(ok).To(BeFalse())
	_, ok = s.take("east", 1)
	g.Expect(ok).To(BeTrue())
	first()
	_, ok = s.take("west", 1)
	g.Expect(ok).To(BeTrue())
}
