package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/clusters"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

func finding(status metav1.ConditionStatus, reason, message string) gate.Finding {
	return gate.Finding{Status: status, Reason: reason, Message: message}
}

var (
	provedSnapshot = clusters.Snapshot{
		Verdict: gate.Verdict{
			Reachable:       finding(metav1.ConditionTrue, v1alpha1.ConnectedReason, "answers"),
			QueueActive:     finding(metav1.ConditionTrue, v1alpha1.QueueActiveReason, "admits"),
			ReadmissionGate: finding(metav1.ConditionTrue, v1alpha1.ProvedReason, "held"),
		},
		Identity: v1alpha1.ClusterIdentity{UID: "u", KubernetesVersion: "v1.37.2"},
	}
	preflightingSnapshot = clusters.Snapshot{Verdict: gate.Judge(&v1alpha1.KueueSpec{}, gate.Evidence{}, gate.Instant{})}
)

func staleSnapshot(message string) clusters.Snapshot {
	s := provedSnapshot
	s.ReadmissionGate = finding(metav1.ConditionFalse, v1alpha1.LeaseStaleReason, message)
	return s
}

func targetWith(generation int64, status *v1alpha1.DispatchTargetStatus) *v1alpha1.DispatchTarget {
	t := &v1alpha1.DispatchTarget{ObjectMeta: metav1.ObjectMeta{Generation: generation}}
	t.Spec.Kueue = &v1alpha1.KueueSpec{ClusterQueue: "gpu"}
	if status == nil {
		status = &v1alpha1.DispatchTargetStatus{ObservedGeneration: -1}
	}
	t.Status = *status
	return t
}

func TestTargetStatusIsOfTheGenerationThatItWasMadeFor(t *testing.T) {
	g := NewWithT(t)
	status := targetStatus(targetWith(3, nil), provedSnapshot)
	g.Expect(status.ObservedGeneration).To(Equal(int64(3)))
	g.Expect(status.Mode).To(Equal(v1alpha1.ModeReadWrite))
	g.Expect(status.Cluster).To(Equal(&provedSnapshot.Identity))
	g.Expect(status.Conditions).To(HaveLen(4))
	for _, c := range status.Conditions {
		g.Expect(c.ObservedGeneration).To(Equal(int64(3)), c.Type)
		g.Expect(c.LastTransitionTime.IsZero()).To(BeFalse(), c.Type)
	}
	next := targetStatus(targetWith(4, status), provedSnapshot)
	for _, c := range next.Conditions {
		g.Expect(c.ObservedGeneration).To(Equal(int64(4)), c.Type)
	}
}

func TestTargetStatusIsUnchangedWhereTheVerdictSaysTheSame(t *testing.T) {
	g := NewWithT(t)
	refused := clusters.Snapshot{Verdict: gate.Refused(&v1alpha1.KueueSpec{}, v1alpha1.KubeConfigInvalidReason, "does not parse")}
	for name, snapshot := range map[string]clusters.Snapshot{"proved": provedSnapshot, "preflighting": preflightingSnapshot, "refused": refused} {
		status := targetStatus(targetWith(1, nil), snapshot)
		for i := range status.Conditions {
			status.Conditions[i].LastTransitionTime = metav1.NewTime(time.Unix(1, 0))
		}
		g.Expect(targetStatus(targetWith(1, status), snapshot)).To(Equal(status), name)
	}
}

func TestTargetStatusKeepsTheAgeThatAStaleLeaseHadWhenTheGateClosed(t *testing.T) {
	g := NewWithT(t)
	first := targetStatus(targetWith(1, nil), staleSnapshot("31s ago"))
	later := targetStatus(targetWith(1, first), staleSnapshot("3h0m0s ago"))
	g.Expect(later).To(Equal(first), "an age that goes on is no reason for a write")
	g.Expect(meta.FindStatusCondition(later.Conditions, v1alpha1.ReadyCondition).Message).To(ContainSubstring("31s ago"))

	anotherLease := targetStatus(targetWith(2, first), staleSnapshot("3h0m0s ago"))
	g.Expect(meta.FindStatusCondition(anotherLease.Conditions, v1alpha1.ReadmissionGateCondition).Message).To(Equal("3h0m0s ago"),
		"the Lease may be another one by a changed spec")
}

func TestTargetStatusKeepsTheClusterOfATargetThatCannotBeReached(t *testing.T) {
	g := NewWithT(t)
	before := targetStatus(targetWith(1, nil), provedSnapshot)
	refused := clusters.Snapshot{Verdict: gate.Refused(&v1alpha1.KueueSpec{}, v1alpha1.KubeConfigInvalidReason, "does not parse")}
	after := targetStatus(targetWith(1, before), refused)
	g.Expect(after.Cluster).To(Equal(&provedSnapshot.Identity))
	g.Expect(after.Mode).To(Equal(v1alpha1.ModeObserveOnly))
}

func TestTargetStatusHasReconcilingAndStalledOnlyWhileTheyAreTrue(t *testing.T) {
	g := NewWithT(t)
	status := targetStatus(targetWith(1, nil), preflightingSnapshot)
	g.Expect(meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ReconcilingCondition)).To(BeTrue())

	refused := clusters.Snapshot{Verdict: gate.Refused(&v1alpha1.KueueSpec{}, v1alpha1.KubeConfigInsecureReason, "exec")}
	status = targetStatus(targetWith(1, status), refused)
	g.Expect(meta.FindStatusCondition(status.Conditions, v1alpha1.ReconcilingCondition)).To(BeNil())
	g.Expect(meta.IsStatusConditionTrue(status.Conditions, v1alpha1.StalledCondition)).To(BeTrue())

	status = targetStatus(targetWith(1, status), provedSnapshot)
	g.Expect(meta.FindStatusCondition(status.Conditions, v1alpha1.StalledCondition)).To(BeNil())
}

func TestTargetStatusLeavesConditionsOfOthersAlone(t *testing.T) {
	g := NewWithT(t)
	foreign := metav1.Condition{Type: "example.com/Checked", Status: metav1.ConditionTrue, Reason: "Yes"}
	status := targetStatus(targetWith(1, &v1alpha1.DispatchTargetStatus{Conditions: []metav1.Condition{foreign}}), provedSnapshot)
	g.Expect(meta.FindStatusCondition(status.Conditions, foreign.Type)).To(Equal(&foreign))
}
