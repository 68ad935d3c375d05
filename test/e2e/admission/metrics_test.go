package admission

import (
	"fmt"
	"net"
	"net/http"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

var _ = Describe("The metrics", func() {
	// Documented in docs/readmission.md.
	const (
		waiting   = "dispatch_admission_waiting_workloads"
		oldest    = "dispatch_admission_oldest_waiting_seconds"
		decisions = "dispatch_admission_decisions_total"
		readyIn   = "dispatch_admission_ready_seconds"
		started   = "dispatch_admission_starts_total"
		ungranted = "dispatch_admission_ungranted_starts_total"
	)

	It("tell what waits, for how long, what was decided and how long that took", func(ctx SpecContext) {
		s := newSite(ctx, kueuejobs.Check)
		Eventually(func() error { // dispatch-admission may have just been started
			connection, err := net.Dial("tcp", metricsAddress)
			if err != nil {
				return err
			}
			return connection.Close()
		}).Should(Succeed())
		before := scrape()
		Expect(before.find(waiting, "cluster_queue", s.name)).To(BeNil())
		// The other specs' jobs come and go, but none while this one runs: a difference is this one's.
		since := func(name string, label ...string) float64 {
			GinkgoHelper()
			return value(scrape().find(name, label...)) - value(before.find(name, label...))
		}

		job := s.submit(ctx, "train", kueuejobs.UntilEvicted, priority("low"))
		eventuallyRuns(ctx, job, 1)
		Expect(since(decisions, "decision", "open")).To(Equal(1.))
		Expect(since(started)).To(Equal(1.))
		Expect(since(readyIn, "held", "false")).To(Equal(1.))
		Expect(scrape().find(waiting, "cluster_queue", s.name)).To(BeNil(), "nothing waits")

		urgent := s.submit(ctx, "urgent", time.Second, priority("high"))
		Eventually(succeeded).WithArguments(ctx, urgent).Should(BeTrue())
		eventuallyHeld(ctx, job, 2)
		Expect(since(decisions, "decision", "open")).To(Equal(2.))
		Expect(since(decisions, "decision", "wait")).To(Equal(1.))
		Expect(since(readyIn, "held", "true")).To(Equal(0.))
		Expect(value(scrape().find(waiting, "cluster_queue", s.name))).To(Equal(1.))
		// It is looked at for so long, and Kueue keeps the time of the reservation in whole seconds.
		age := value(scrape().find(oldest, "cluster_queue", s.name))
		Expect(age).To(And(BeNumerically(">=", heldFor.Seconds()), BeNumerically("<", 60)))
		Eventually(func() float64 { return value(scrape().find(oldest, "cluster_queue", s.name)) }).Should(BeNumerically(">=", age+1))

		raise(ctx, job, 2)
		eventuallyRuns(ctx, job, 2)
		Expect(since(decisions, "decision", "open")).To(Equal(3.))
		Expect(since(decisions, "decision", "wait")).To(Equal(1.))
		Expect(since(started)).To(Equal(3.))
		Expect(since(ungranted)).To(Equal(0.))
		Expect(since(readyIn, "held", "false")).To(Equal(2.))
		Expect(since(readyIn, "held", "true")).To(Equal(1.))
		took := scrape().find(readyIn, "held", "true").GetHistogram().GetSampleSum()
		Expect(took).To(BeNumerically(">=", heldFor.Seconds()))
		Expect(scrape().find(waiting, "cluster_queue", s.name)).To(BeNil(), "nothing waits any more")
		Expect(scrape().find(oldest, "cluster_queue", s.name)).To(BeNil())

		By("taking the check off the queue for a while, in which the job is readmitted")
		s.setChecks(ctx)
		again := s.submit(ctx, "again", time.Second, priority("high"))
		Eventually(succeeded).WithArguments(ctx, again).Should(BeTrue())
		Eventually(starts.Of).WithArguments(job.UID).Should(Equal(3))
		s.setChecks(ctx, kueuejobs.Check)
		eventuallyRuns(ctx, job, 3)
		Expect(since(ungranted)).To(Equal(1.))
	})
})

// families are metrics as Prometheus reads them.
type families map[string]*dto.MetricFamily

func scrape() families {
	GinkgoHelper()
	response, err := http.Get("http://" + metricsAddress + "/metrics")
	Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close()
	Expect(response.StatusCode).To(Equal(http.StatusOK))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	metrics, err := parser.TextToMetricFamilies(response.Body)
	Expect(err).NotTo(HaveOccurred())
	Expect(metrics).NotTo(BeEmpty())
	return metrics
}

// find is the metric with the label of that name and value, if one is given, or nil.
func (f families) find(name string, label ...string) *dto.Metric {
	for _, metric := range f[name].GetMetric() {
		if len(label) == 0 {
			return metric
		}
		for _, pair := range metric.GetLabel() {
			if pair.GetName() == label[0] && pair.GetValue() == label[1] {
				return metric
			}
		}
	}
	return nil
}

// value is that of a counter or gauge, or the count of a histogram; 0 for a metric that is not there yet.
func value(metric *dto.Metric) float64 {
	switch {
	case metric.GetCounter() != nil:
		return metric.GetCounter().GetValue()
	case metric.GetGauge() != nil:
		return metric.GetGauge().GetValue()
	case metric.GetHistogram() != nil:
		return float64(metric.GetHistogram().GetSampleCount())
	case metric == nil:
		return 0
	}
	panic(fmt.Sprintf("a metric of another kind: %v", metric))
}
