package targets

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/faultproxy"
)

// One after the other, because each of them is about all that is on the victim.
func TestWhatIsTakenAwayAndBroughtBack(t *testing.T) {
	t.Parallel()
	w := newTest(t)
	ctx := w.ctx
	const name = "victim"
	const window = 8 * time.Second
	lease := w.heartbeat(victim, name, 4, 500*time.Millisecond)
	w.createTarget(name, victim.hub)
	w.eventuallyGate("created", name, v1alpha1.ProvedReason)
	gate := w.condition(name, v1alpha1.ReadmissionGateCondition)
	reachable := w.condition(name, v1alpha1.ReachableCondition)
	queueActive := w.condition(name, v1alpha1.QueueActiveCondition)

	t.Run("the ClusterQueue", func(t *testing.T) {
		w := newTest(t)
		w.Expect(victim.client.Delete(ctx, &kueue.ClusterQueue{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})).To(Succeed())
		w.Expect(w.eventuallyGate("deleted", name, v1alpha1.ClusterQueueNotFoundReason)).To(BeNumerically("<", soon))
		w.Expect(queueActive(w).Reason).To(Equal(v1alpha1.ClusterQueueNotFoundReason))
		w.Expect(victim.createQueue(ctx)).To(Succeed())
		w.Expect(w.eventuallyGate("created", name, v1alpha1.ProvedReason)).To(BeNumerically("<", soon))
	})

	t.Run("the AdmissionCheck", func(t *testing.T) {
		w := newTest(t)
		w.Expect(victim.client.Delete(ctx, &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultAdmissionCheck}})).To(Succeed())
		w.Expect(w.eventuallyGate("deleted", name, v1alpha1.AdmissionCheckNotFoundReason)).To(BeNumerically("<", soon))
		w.Expect(victim.createCheck(ctx)).To(Succeed())
		w.Expect(w.eventuallyGate("created", name, v1alpha1.ProvedReason)).To(BeNumerically("<", soon))
	})

	t.Run("the Lease", func(t *testing.T) {
		w := newTest(t)
		lease.pause(true)
		w.Expect(lease.remove(ctx)).To(Succeed())
		w.Expect(w.eventuallyGate("deleted", name, v1alpha1.LeaseNotFoundReason)).To(BeNumerically("<", soon))
		lease.pause(false)
		w.Expect(lease.beat(ctx)).To(Succeed())
		w.Expect(w.eventuallyGate("created", name, v1alpha1.ProvedReason)).To(BeNumerically("<", soon))
	})

	t.Run("the leader", func(t *testing.T) {
		w := newTest(t)
		lease.pause(true)
		expiry := lease.lastRenewal().Add(window)
		w.Eventually(gate).Should(HaveField("Reason", v1alpha1.LeaseStaleReason))
		t.Logf("dead: in the status %s after the expiry", time.Since(expiry).Round(time.Millisecond))
		w.Expect(time.Now()).To(And(BeTemporally(">", expiry), BeTemporally("<", expiry.Add(soon))))
		w.Expect(reachable(w).Reason).To(Equal(v1alpha1.ConnectedReason))
		lease.pause(false)
		w.Expect(lease.beat(ctx)).To(Succeed())
		w.Expect(w.eventuallyGate("back", name, v1alpha1.ProvedReason)).To(BeNumerically("<", soon))
	})

	t.Run("the Secret", func(t *testing.T) {
		w := newTest(t)
		secret, err := kubeConfigSecret(name, victim.hub)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(hub.client.Delete(ctx, secret)).To(Succeed())
		w.Eventually(reachable).Should(HaveField("Reason", v1alpha1.KubeConfigNotFoundReason))
		w.Expect(gate(w)).To(And(HaveField("Status", metav1.ConditionUnknown), HaveField("Reason", v1alpha1.UnreachableReason)))
		w.Expect(hub.client.Create(ctx, secret)).To(Succeed())
		w.eventuallyGate("created", name, v1alpha1.ProvedReason)
		w.Expect(reachable(w).Reason).To(Equal(v1alpha1.ConnectedReason))
	})

	t.Run("the token", func(t *testing.T) {
		w := newTest(t)
		secret, err := kubeConfigSecret(name, victim.hub)
		w.Expect(err).NotTo(HaveOccurred())
		good := secret.Data["kubeconfig"]
		wrong := rest.CopyConfig(victim.hub)
		wrong.BearerToken = "wrong"
		secret.Data["kubeconfig"], err = controlplane.Kubeconfig(wrong)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(hub.client.Update(ctx, secret)).To(Succeed())
		w.Eventually(reachable).Should(HaveField("Reason", v1alpha1.UnauthorizedReason))
		secret.Data["kubeconfig"] = good
		w.Expect(hub.client.Update(ctx, secret)).To(Succeed())
		w.Expect(w.eventuallyGate("rotated", name, v1alpha1.ProvedReason)).To(BeNumerically("<", soon))
	})

	t.Run("Kueue's API", func(t *testing.T) {
		w := newTest(t)
		_, err := victim.Kubectl(ctx, "delete", "crd", "clusterqueues.kueue.x-k8s.io", "admissionchecks.kueue.x-k8s.io")
		w.Expect(err).NotTo(HaveOccurred())
		w.eventuallyGate("deleted", name, v1alpha1.KueueNotInstalledReason)
		w.Eventually(queueActive).Should(HaveField("Reason", v1alpha1.KueueNotInstalledReason))
		w.Expect(reachable(w).Reason).To(Equal(v1alpha1.ConnectedReason))
		w.Expect(victim.installKueue(ctx)).To(Succeed())
		w.eventuallyGate("installed", name, v1alpha1.ProvedReason)
	})

	t.Run("the API server", func(t *testing.T) {
		w := newTest(t)
		victim.APIServer.Kill()
		// Nothing is written while the proof stands.
		expiry := lease.lastRenewal().Add(window)
		w.Eventually(func(g Gomega) {
			is, now := gate(g), time.Now()
			if now.Before(expiry) {
				w.Expect(is.Reason).To(Equal(v1alpha1.ProvedReason))
				w.Expect(reachable(w).Status).To(Equal(metav1.ConditionTrue))
			}
			g.Expect(is).To(And(HaveField("Status", metav1.ConditionUnknown), HaveField("Reason", v1alpha1.UnreachableReason)))
		}).Should(Succeed())
		t.Logf("killed: Unreachable %s after the expiry", time.Since(expiry).Round(time.Millisecond))
		w.Expect(time.Now()).To(BeTemporally("<", expiry.Add(soon)))
		w.Expect(reachable(w)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.UnreachableReason)))
		w.Expect(victim.APIServer.Start(ctx)).To(Succeed())
		w.eventuallyGate("started", name, v1alpha1.ProvedReason)
		w.Expect(reachable(w).Status).To(Equal(metav1.ConditionTrue))
	})
}

// behindTCP is a target whose connections lead through a proxy.
func (t *test) behindTCP(name string) (*faultproxy.TCP, *heartbeat) {
	t.t.Helper()
	tcp, err := faultproxy.NewTCP(strings.TrimPrefix(hub.hub.Host, "https://"))
	t.Expect(err).NotTo(HaveOccurred())
	t.t.Cleanup(tcp.Close)
	lease := t.heartbeat(hub, name, 4, 500*time.Millisecond)
	cfg := rest.CopyConfig(hub.hub)
	cfg.Host = "https://" + tcp.Address()
	t.createTarget(name, cfg)
	t.eventuallyGate("created", name, v1alpha1.ProvedReason)
	t.Eventually(t.condition(name, v1alpha1.QueueActiveCondition)).Should(HaveField("Status", metav1.ConditionTrue))
	return tcp, lease
}

func TestADeadConnectionClosesNoGateWhereAFreshOneWorks(t *testing.T) {
	t.Parallel()
	w := newTest(t)
	tcp, _ := w.behindTCP("dead-connection")
	before := w.get("dead-connection")
	begin := time.Now()
	tcp.Existing(faultproxy.All(faultproxy.BlackHole))
	w.Eventually(func(g Gomega) {
		w.Expect(w.get("dead-connection").ResourceVersion).To(Equal(before.ResourceVersion), "nothing is written")
		g.Expect(time.Since(begin)).To(BeNumerically(">", 20*time.Second), "two windows and more")
	}).Should(Succeed())
	w.Expect(w.condition("dead-connection", v1alpha1.ReadmissionGateCondition)(w).Reason).To(Equal(v1alpha1.ProvedReason))
}

func TestATargetOutOfReachIsUnreachableAtTheExpiry(t *testing.T) {
	t.Parallel()
	w := newTest(t)
	const name = "out-of-reach"
	tcp, lease := w.behindTCP(name)
	tcp.Every(faultproxy.All(faultproxy.BlackHole))
	lease.pause(true) // so that it is known what the hub has seen last
	earliest, latest := lease.lastRenewal().Add(7*time.Second), lease.lastRenewal().Add(8*time.Second)
	gate, reachable := w.condition(name, v1alpha1.ReadmissionGateCondition), w.condition(name, v1alpha1.ReachableCondition)
	w.Eventually(func(g Gomega) {
		is, now := gate(g), time.Now()
		if now.Before(earliest) {
			w.Expect(is.Reason).To(Equal(v1alpha1.ProvedReason))
			w.Expect(reachable(w).Status).To(Equal(metav1.ConditionTrue))
		}
		g.Expect(is).To(And(HaveField("Status", metav1.ConditionUnknown), HaveField("Reason", v1alpha1.UnreachableReason)))
	}).Should(Succeed())
	t.Logf("Unreachable %s after the expiry", time.Since(latest).Round(time.Millisecond))
	w.Expect(time.Now()).To(BeTemporally("<", latest.Add(soon)))
	w.Expect(reachable(w)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.UnreachableReason)))

	writes := w.eventuallyQuiet(20*time.Second, name)
	t.Logf("it costs %d status writes after the first, and then none for 20 s", writes)
	// Each of the three objects is found out of reach in its own time.
	w.Expect(writes).To(BeNumerically("<=", 4))

	tcp.Every(faultproxy.All(faultproxy.Pass))
	lease.pause(false)
	w.eventuallyGate("back", name, v1alpha1.ProvedReason)
}
