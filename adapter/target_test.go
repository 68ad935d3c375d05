package adapter_test

import (
	"context"
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/dispatch-dev/dispatch/adapter"
	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

func TestOpen(t *testing.T) {
	cluster := clusterFor(t)

	t.Run("without Kueue is a target that may be written to as soon as it is reached", func(t *testing.T) {
		g := NewWithT(t)
		target, err := adapter.Open(t.Context(), cluster.Config(), adapter.Options{})
		g.Expect(err).NotTo(HaveOccurred())
		defer target.Close()
		result := target.Preflight()
		g.Expect(result.Mode).To(Equal(v1alpha1.ModeReadWrite))
		g.Expect(meta.FindStatusCondition(result.Conditions, v1alpha1.ReadmissionGateCondition).Reason).To(Equal(v1alpha1.NotRequiredReason))
		g.Expect(result.Cluster.UID).NotTo(BeEmpty())
		g.Expect(result.Cluster.KubernetesVersion).To(Equal("v1.37.2"))
	})

	t.Run("is observe-only when asked", func(t *testing.T) {
		g := NewWithT(t)
		target, err := adapter.Open(t.Context(), cluster.Config(), adapter.Options{ObserveOnly: true})
		g.Expect(err).NotTo(HaveOccurred())
		defer target.Close()
		g.Expect(target.Preflight().Mode).To(Equal(v1alpha1.ModeObserveOnly))
	})

	t.Run("makes a gate that is not proved a state, not an error", func(t *testing.T) {
		g := NewWithT(t)
		target, err := adapter.Open(t.Context(), cluster.Config(), adapter.Options{Kueue: &v1alpha1.KueueSpec{ClusterQueue: "gpu"}})
		g.Expect(err).NotTo(HaveOccurred())
		defer target.Close()
		g.Expect(target.Preflight().Mode).To(Equal(v1alpha1.ModeObserveOnly))
		gate := func() metav1.Condition {
			return *meta.FindStatusCondition(target.Preflight().Conditions, v1alpha1.ReadmissionGateCondition)
		}
		g.Expect(gate()).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.KueueNotInstalledReason)))
	})

	t.Run("makes a cluster that cannot be reached a state, not an error", func(t *testing.T) {
		g := NewWithT(t)
		nobody := &rest.Config{Host: "https://127.0.0.1:1"}
		target, err := adapter.Open(t.Context(), nobody, adapter.Options{})
		g.Expect(err).NotTo(HaveOccurred())
		defer target.Close()
		g.Expect(meta.FindStatusCondition(target.Preflight().Conditions, v1alpha1.ReachableCondition).Reason).To(Equal(v1alpha1.UnreachableReason))
		g.Expect(target.Preflight().Mode).To(Equal(v1alpha1.ModeObserveOnly))
	})

	t.Run("refuses a KueueSpec without queue, naming the field", func(t *testing.T) {
		_, err := adapter.Open(t.Context(), cluster.Config(), adapter.Options{Kueue: &v1alpha1.KueueSpec{}})
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("Options.Kueue.ClusterQueue is required")))
	})

	t.Run("gives up when its context ends", func(t *testing.T) {
		g := NewWithT(t)
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		g.Expect(err).NotTo(HaveOccurred())
		defer func() { g.Expect(silent.Close()).To(Succeed()) }()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err = adapter.Open(ctx, &rest.Config{Host: "https://" + silent.Addr().String()}, adapter.Options{})
		g.Expect(err).To(MatchError(context.DeadlineExceeded))
	})
}
