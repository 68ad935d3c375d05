package clusters

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

// Metrics of the targets. They are read off the connections when they are asked for, so that those of a
// target go with it. Documented in docs/targets.md.
var (
	conditionDesc = prometheus.NewDesc("dispatch_target_condition",
		"1 for the status that a condition of a target has at present, 0 for the others.",
		[]string{"target", "type", "status"}, nil)
	expiryDesc = prometheus.NewDesc("dispatch_target_proof_expiry_seconds",
		"Seconds until the proof of a target's readmission gate expires unless its Lease is renewed; absent while the gate is not proved.",
		[]string{"target"}, nil)
	readDesc = prometheus.NewDesc("dispatch_target_read_state",
		"1 for how an object on a target is followed at present: watched, polled because it may not be watched, or failing.",
		[]string{"target", "object", "state"}, nil)
	failuresDesc = prometheus.NewDesc("dispatch_target_read_failures_total",
		"Reads of a target that failed, by the reason that they give a condition: Unreachable, Unauthorized or Forbidden.",
		[]string{"target", "reason"}, nil)
	preflightDesc = prometheus.NewDesc("dispatch_target_preflight_seconds",
		"Seconds from the beginning of a target's present connection to its first verdict; absent before it.",
		[]string{"target"}, nil)
)

// failureReasons are all that a read can fail for.
var failureReasons = []string{v1alpha1.UnreachableReason, v1alpha1.UnauthorizedReason, v1alpha1.ForbiddenReason}

// failureReason is the reason that a failed read gives a condition; empty for an answer that is a fact
// about the target, such as that an object does not exist.
func failureReason(err error) string {
	switch {
	case apierrors.IsUnauthorized(err):
		return v1alpha1.UnauthorizedReason
	case apierrors.IsForbidden(err):
		return v1alpha1.ForbiddenReason
	case err == nil || gate.IsAnswer(err):
		return ""
	}
	return v1alpha1.UnreachableReason
}

var _ prometheus.Collector = &Set{}

// Describe implements prometheus.Collector.
func (s *Set) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{conditionDesc, expiryDesc, readDesc, failuresDesc, preflightDesc} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Set) Collect(metrics chan<- prometheus.Metric) {
	s.mu.Lock()
	members := make(map[string]*member, len(s.members))
	for name, m := range s.members {
		members[name] = m
	}
	s.mu.Unlock()
	for name, m := range members {
		gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
			metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, append([]string{name}, labels...)...)
		}
		verdict := m.refused
		if m.cluster != nil {
			verdict = m.cluster.Snapshot().Verdict
			m.cluster.collect(name, gauge, metrics)
		}
		for condition, finding := range map[string]gate.Finding{
			v1alpha1.ReachableCondition:       verdict.Reachable,
			v1alpha1.QueueActiveCondition:     verdict.QueueActive,
			v1alpha1.ReadmissionGateCondition: verdict.ReadmissionGate,
		} {
			for _, status := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown} {
				value := 0.0
				if finding.Status == status {
					value = 1
				}
				gauge(conditionDesc, value, condition, string(status))
			}
		}
		if verdict.Expires != 0 {
			gauge(expiryDesc, (verdict.Expires - Now().Mono).Seconds())
		}
	}
}

// collect gives the metrics that only a connected target has.
func (c *Cluster) collect(name string, gauge func(*prometheus.Desc, float64, ...string), metrics chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kueue != nil {
		for object, failing := range map[string]bool{
			"ClusterQueue":   c.evidence.ClusterQueue.Failing != nil,
			"AdmissionCheck": c.evidence.AdmissionCheck.Failing != nil,
			"Lease":          c.evidence.Lease.Failing != nil,
		} {
			state := "watched"
			if failing {
				state = "failing"
			} else if c.polled.Has(object) {
				state = "polled"
			}
			gauge(readDesc, 1, object, state)
		}
	}
	for _, reason := range failureReasons {
		metrics <- prometheus.MustNewConstMetric(failuresDesc, prometheus.CounterValue, float64(c.failures[reason]), name, reason)
	}
	if c.preflight != 0 {
		gauge(preflightDesc, c.preflight.Seconds())
	}
}

// count counts a failed read. c.mu is held.
func (c *Cluster) count(err error) {
	if reason := failureReason(err); reason != "" {
		c.failures[reason]++
	}
}

// settle notes how long the first verdict took. c.mu is held.
func (c *Cluster) settle(now time.Duration) {
	if c.preflight == 0 && !c.snapshot.Preflighting() {
		c.preflight = now - c.began
	}
}
