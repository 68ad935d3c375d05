package targets

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/faultproxy"
)

// fault is a way for a target to be broken or hostile.
type fault struct {
	name    string
	handler faultproxy.Handler
	matches []faultproxy.Match
	// message is that of Reachable; empty: the target is proved all the same.
	message string
}

func TestABrokenTargetHarmsNobodyElse(t *testing.T) {
	t.Parallel()
	w := newTest(t)
	var turned atomic.Int64
	elsewhere := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { turned.Add(1) }))
	t.Cleanup(elsewhere.Close)

	healthy := make([]*heartbeat, 20)
	for i := range healthy {
		name := fmt.Sprintf("healthy-%d", i)
		healthy[i] = w.heartbeat(hub, name, 15, time.Second)
		w.createTarget(name, hub.hub)
	}
	for _, h := range healthy {
		w.Eventually(w.condition(h.name, v1alpha1.ReadmissionGateCondition)).Should(HaveField("Reason", v1alpha1.ProvedReason))
	}
	alone := w.flip(healthy)

	faults := []fault{
		{"never-answers", faultproxy.Hang, nil, "the API server does not answer in time"},
		{"answers-429", faultproxy.TooManyRequests(3600), nil, "the API server answers 429 Too Many Requests"},
		{"answers-500", faultproxy.Status(http.StatusInternalServerError), nil, "the API server answers 500 Internal Server Error"},
		{"endless-body", faultproxy.EndlessBody, nil, "the answer of the API server is too large"},
		{"corrupt-body", faultproxy.CorruptBody, nil, "the answer of the API server does not decode"},
		{"redirects", faultproxy.Redirect(elsewhere.URL), nil, "the API server answers with a redirect, which is not followed"},
		{"breaks-off", faultproxy.Abort, nil, "the connection to the API server breaks"},
		{"watches-break-off", faultproxy.Abort, []faultproxy.Match{faultproxy.Watch}, ""},
		{"watches-hang", faultproxy.Hang, []faultproxy.Match{faultproxy.Watch}, ""},
		{"watches-endless", faultproxy.EndlessBody, []faultproxy.Match{faultproxy.Watch}, ""},
	}
	var names []string
	var rules []*faultproxy.APIRule
	for _, f := range faults {
		api, err := faultproxy.NewAPI(hub.Config())
		w.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(api.Close)
		rules = append(rules, api.Handle(f.handler, f.matches...))
		w.heartbeat(hub, f.name, 15, time.Second)
		w.createTarget(f.name, api.Config(hub.hub))
		names = append(names, f.name)
	}

	// Two of another kind, below HTTP.
	untrusted := rest.CopyConfig(hub.hub)
	untrusted.CAData = victim.hub.CAData
	w.createTarget("other-certificate", untrusted)
	tcp, err := faultproxy.NewTCP(strings.TrimPrefix(hub.hub.Host, "https://"))
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(tcp.Close)
	tcp.New(faultproxy.All(faultproxy.BlackHole))
	accepts := rest.CopyConfig(hub.hub)
	accepts.Host = "https://" + tcp.Address()
	w.createTarget("no-handshake", accepts)
	faults = append(faults,
		fault{name: "other-certificate", message: "the certificate of the API server is signed by an unknown authority"},
		fault{name: "no-handshake", message: "the API server does not answer in time"})
	names = append(names, "other-certificate", "no-handshake")

	for _, f := range faults {
		if f.message == "" {
			w.Eventually(w.condition(f.name, v1alpha1.ReadmissionGateCondition)).Should(HaveField("Reason", v1alpha1.ProvedReason), f.name)
			continue
		}
		w.Eventually(w.condition(f.name, v1alpha1.ReachableCondition)).Should(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.UnreachableReason), HaveField("Message", f.message)), f.name)
		w.Expect(w.condition(f.name, v1alpha1.ReadmissionGateCondition)(w)).To(And(
			HaveField("Status", metav1.ConditionUnknown), HaveField("Reason", v1alpha1.UnreachableReason), HaveField("Message", HaveSuffix(f.message))), f.name)
		w.Expect(w.get(f.name).Status.Mode).To(Equal(v1alpha1.ModeObserveOnly))
	}
	beside := w.flip(healthy)
	t.Logf("20 healthy targets, from a write to their Lease to their status: alone p50 %s, max %s; beside %d broken ones p50 %s, max %s",
		alone[len(alone)/2], alone[len(alone)-1], len(faults), beside[len(beside)/2], beside[len(beside)-1])
	w.Expect(beside[len(beside)-1]).To(BeNumerically("<", soon))

	writes := w.eventuallyQuiet(25*time.Second, names...)
	t.Logf("the broken targets cost %d status writes after their verdicts, and then none for 25 s", writes)
	w.Expect(turned.Load()).To(BeZero(), "a redirect was followed")
	log, err := os.ReadFile(manager.LogPath())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(string(log)).NotTo(Or(ContainSubstring(hub.hub.BearerToken), ContainSubstring(`"level":"ERROR"`)))

	for _, rule := range rules {
		rule.Remove()
	}
	begin := time.Now()
	for _, f := range faults[:len(rules)] {
		w.Eventually(w.condition(f.name, v1alpha1.ReadmissionGateCondition)).Should(HaveField("Reason", v1alpha1.ProvedReason), f.name)
	}
	t.Logf("mended: all proved after %s", time.Since(begin).Round(time.Millisecond))
}

// flip takes the holder from each Lease and gives it back, and measures how long each of the two takes to
// get into the status.
func (t *test) flip(healthy []*heartbeat) []time.Duration {
	t.t.Helper()
	var list v1alpha1.DispatchTargetList
	stream, err := hub.client.Watch(t.ctx, &list)
	t.Expect(err).NotTo(HaveOccurred())
	defer stream.Stop()
	type flipped struct{ name, reason string }
	var mu sync.Mutex
	seen := map[flipped]time.Time{}
	go func() {
		for event := range stream.ResultChan() {
			target, ok := event.Object.(*v1alpha1.DispatchTarget)
			if !ok {
				continue
			}
			if gate := meta.FindStatusCondition(target.Status.Conditions, v1alpha1.ReadmissionGateCondition); gate != nil {
				mu.Lock()
				seen[flipped{target.Name, gate.Reason}] = time.Now()
				mu.Unlock()
			}
		}
	}()
	var took []time.Duration
	for _, h := range healthy {
		h.pause(true)
		for _, step := range []struct{ holder, reason string }{{"", v1alpha1.LeaseNotHeldReason}, {"leader", v1alpha1.ProvedReason}} {
			begin := time.Now()
			t.Expect(h.write(t.ctx, step.holder)).To(Succeed())
			t.Eventually(func(g Gomega) {
				mu.Lock()
				defer mu.Unlock()
				at := seen[flipped{h.name, step.reason}]
				g.Expect(at).To(BeTemporally(">", begin))
				took = append(took, at.Sub(begin).Round(time.Millisecond))
			}).WithPolling(2 * time.Millisecond).Should(Succeed())
		}
		h.pause(false)
	}
	slices.Sort(took)
	return took
}
