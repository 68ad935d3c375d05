package election

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

func read(t *testing.T, path string, object any) {
	t.Helper()
	data, err := os.ReadFile("../../config/" + path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, object); err != nil {
		t.Fatal(err)
	}
}

// The manifests are the other half of what a rollout depends on.
func TestManifestsFitTheElection(t *testing.T) {
	for folder, define := range map[string]func(*flag.FlagSet) *Flags{
		"manager": ManagerFlags, "admission": AdmissionFlags,
	} {
		t.Run(folder, func(t *testing.T) {
			g := NewWithT(t)
			var deployment appsv1.Deployment
			read(t, folder+"/deployment.yaml", &deployment)
			pod := deployment.Spec.Template.Spec
			f := parse(t, define, pod.Containers[0].Args...)
			g.Expect(f.Validate()).To(Succeed())
			g.Expect(f.LeaderElect).To(BeTrue())
			g.Expect(f.ReleaseOnCancel).To(Equal(folder == "manager"))
			g.Expect(deployment.Namespace).To(Equal(f.LeaseNamespace))
			// The probes and the metrics are at the ports that the flags' defaults open.
			for _, port := range pod.Containers[0].Ports {
				address := map[string]string{"probes": f.HealthProbeBindAddress, "metrics": f.MetricsBindAddress}[port.Name]
				g.Expect(address).To(Equal(fmt.Sprintf(":%d", port.ContainerPort)), port.Name)
			}
			for _, probe := range []*corev1.Probe{pod.Containers[0].LivenessProbe, pod.Containers[0].ReadinessProbe} {
				g.Expect(probe.HTTPGet.Port.StrVal).To(Equal("probes"))
			}
			g.Expect(pod.ServiceAccountName).To(Equal(f.LeaseName))

			stop := gracePeriod
			if f.ReleaseOnCancel {
				stop += f.RenewDeadline
			}
			g.Expect(pod.TerminationGracePeriodSeconds).NotTo(BeNil())
			g.Expect(time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second).To(BeNumerically(">", stop))

			g.Expect(deployment.Spec.Replicas).To(HaveValue(BeEquivalentTo(2)))
			g.Expect(deployment.Spec.Strategy.RollingUpdate.MaxUnavailable).To(HaveValue(Equal(intstr.FromInt32(0))))
			g.Expect(pod.TopologySpreadConstraints).NotTo(BeEmpty())

			var budget policyv1.PodDisruptionBudget
			read(t, folder+"/pod_disruption_budget.yaml", &budget)
			g.Expect(budget.Spec.MinAvailable).To(HaveValue(Equal(intstr.FromInt32(1))))
			g.Expect(budget.Spec.Selector.MatchLabels).To(Equal(deployment.Spec.Template.Labels))
			g.Expect(deployment.Spec.Selector).To(Equal(budget.Spec.Selector))
		})
	}
}
