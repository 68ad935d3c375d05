package election

import (
	"errors"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// measured is what the registry serves under the name for this Lease; nil if there is none.
func measured(g *WithT, name, lease string) *dto.Metric {
	families, err := metrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.Metric {
			if metric.Label[0].GetValue() == lease {
				return metric
			}
		}
	}
	return nil
}

func TestMetricsTellHowLongRenewalsTakeAndWhenTheLastOneWas(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	f.name = t.Name()
	f.took = 4 * time.Second
	g.Expect(f.request(f.observe(f.server()), http.MethodGet, leasePath)).To(Succeed(), "a standby")
	g.Expect(measured(g, "dispatch_lease_renewal_seconds", f.name)).To(BeNil())
	g.Expect(measured(g, "dispatch_lease_last_renewal_timestamp_seconds", f.name)).To(BeNil())

	sent := f.clock.Now()
	g.Expect(f.renew()).To(Succeed())
	failed := errors.New("failed")
	broken := roundTripper(func(*http.Request) (*http.Response, error) {
		f.clock.Step(5 * time.Second)
		return nil, failed
	})
	g.Expect(f.request(f.observe(broken), http.MethodPut, leasePath)).To(MatchError(failed))

	histogram := measured(g, "dispatch_lease_renewal_seconds", f.name).Histogram
	g.Expect(histogram.GetSampleCount()).To(BeEquivalentTo(2))
	g.Expect(histogram.GetSampleSum()).To(BeEquivalentTo(4 + 5))
	g.Expect(measured(g, "dispatch_lease_last_renewal_timestamp_seconds", f.name).Gauge.GetValue()).
		To(BeEquivalentTo(sent.Unix()), "when it was sent; a failed one is none")
}
