package targets

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

func scrape(g Gomega, p *process) string {
	response, err := http.Get(p.metrics)
	g.Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	g.Expect(err).NotTo(HaveOccurred())
	return string(body)
}

func TestMetricsComeAndGoWithTheTarget(t *testing.T) {
	t.Parallel()
	w := newTest(t)
	w.heartbeat(hub, "measured", 15, time.Second)
	target := w.createTarget("measured", hub.hub)
	w.eventuallyGate("created", "measured", v1alpha1.ProvedReason)
	metrics := scrape(w, manager)
	// Documented in docs/targets.md.
	for _, line := range []string{
		`dispatch_target_condition{status="True",target="measured",type="Reachable"} 1`,
		`dispatch_target_condition{status="True",target="measured",type="QueueActive"} 1`,
		`dispatch_target_condition{status="True",target="measured",type="ReadmissionGate"} 1`,
		`dispatch_target_condition{status="False",target="measured",type="ReadmissionGate"} 0`,
		`dispatch_target_condition{status="Unknown",target="measured",type="ReadmissionGate"} 0`,
		`dispatch_target_read_state{object="Lease",state="watched",target="measured"} 1`,
		`dispatch_target_read_state{object="AdmissionCheck",state="watched",target="measured"} 1`,
		`dispatch_target_read_state{object="ClusterQueue",state="watched",target="measured"} 1`,
		`dispatch_target_read_failures_total{reason="Unreachable",target="measured"} 0`,
		`dispatch_target_read_failures_total{reason="Unauthorized",target="measured"} 0`,
		`dispatch_target_read_failures_total{reason="Forbidden",target="measured"} 0`,
	} {
		w.Expect(metrics).To(ContainSubstring(line))
	}
	w.Expect(metrics).To(MatchRegexp(`dispatch_target_proof_expiry_seconds{target="measured"} 2[0-9]\.|dispatch_target_proof_expiry_seconds{target="measured"} 30`))
	w.Expect(metrics).To(MatchRegexp(`dispatch_target_preflight_seconds{target="measured"} [0-9]`))

	w.Expect(hub.client.Delete(w.ctx, target)).To(Succeed())
	w.Eventually(func(g Gomega) {
		for line := range strings.Lines(scrape(g, manager)) {
			if strings.HasPrefix(line, "dispatch_") {
				g.Expect(line).NotTo(ContainSubstring("measured"))
			}
		}
	}).Should(Succeed())
}
