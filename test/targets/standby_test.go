package targets

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/install"
)

// reads are the requests of the hub for the three objects on the victim.
func (t *test) reads() int {
	t.t.Helper()
	events, err := victim.AuditEvents()
	t.Expect(err).NotTo(HaveOccurred())
	count := 0
	for _, e := range events {
		if e.ObjectRef == nil || e.Verb != "get" || !strings.HasSuffix(e.User.Username, ":"+install.HubAccount) {
			continue
		}
		switch e.ObjectRef.Resource {
		case "leases", "clusterqueues", "admissionchecks":
			count++
		}
	}
	return count
}

// It is not parallel, so that it comes before those that are: it needs a hub with nothing else to do, and
// leaves another leader.
func TestAWarmStandbyTakesOver(t *testing.T) {
	w := newTest(t)
	w.heartbeat(victim, "standby", 15, time.Second)
	w.createTarget("standby", victim.hub)
	w.eventuallyGate("the first manager leads", "standby", v1alpha1.ProvedReason)

	before := w.reads()
	second, err := startManager(w.ctx, "second")
	w.Expect(err).NotTo(HaveOccurred())
	w.Eventually(func(g Gomega) {
		metrics := scrape(g, second)
		g.Expect(metrics).To(ContainSubstring(`dispatch_target_condition{status="True",target="standby",type="ReadmissionGate"} 1`))
	}).Should(Succeed())
	w.Expect(w.reads()-before).To(Equal(3), "the standby reads the three objects once")

	leader := func(g Gomega) string {
		var lease coordinationv1.Lease
		g.Expect(hub.client.Get(w.ctx, client.ObjectKey{Namespace: install.Namespace, Name: "dispatch-manager"}, &lease)).To(Succeed())
		return ptr.Deref(lease.Spec.HolderIdentity, "")
	}
	first := leader(w)
	killed := time.Now()
	manager.Kill()
	manager = second
	before = w.reads()
	w.Eventually(leader).Should(And(Not(Equal(first)), Not(BeEmpty())))
	t.Logf("the second leads %s after the first was killed", time.Since(killed).Round(time.Millisecond))
	// It acts, and has not acted before.
	w.Expect(w.statusWrites(killed, "standby")).To(BeEmpty())
	target := w.get("standby")
	target.Spec.ObserveOnly = true
	w.Expect(hub.client.Update(w.ctx, target)).To(Succeed())
	w.Eventually(w.condition("standby", v1alpha1.ReadyCondition)).Should(HaveField("Reason", v1alpha1.ObserveOnlyRequestedReason))
	w.Expect(w.statusWrites(killed, "standby")).To(HaveLen(1), "one for observeOnly, none for the takeover")
	w.Expect(w.reads()).To(Equal(before), "the takeover reads nothing")
}
