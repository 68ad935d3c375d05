package election

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Metrics of this process's own Lease. controller-runtime has leader_election_master_status beside them.
// Documented in docs/leases.md.
var (
	renewalSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "dispatch_lease_renewal_seconds",
		Help:    "Time that requests to write this process's Lease took, those that failed included.",
		Buckets: []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5},
	}, []string{"name"})
	lastRenewal = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "dispatch_lease_last_renewal_timestamp_seconds",
		Help: "Unix time at which the last successful write of this process's Lease was sent; absent on a replica that has not led.",
	}, []string{"name"})
)

func init() { metrics.Registry.MustRegister(renewalSeconds, lastRenewal) }
