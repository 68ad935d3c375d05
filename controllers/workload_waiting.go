package controllers

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// waitingWorkloads are the Workloads that are held back, as metrics by ClusterQueue. The age of the
// oldest is worked out when it is asked for.
type waitingWorkloads struct {
	count, oldest *prometheus.Desc

	mu    sync.Mutex
	since map[types.NamespacedName]waitingWorkload
}

type waitingWorkload struct {
	clusterQueue string
	since        time.Time
}

func newWaitingWorkloads() *waitingWorkloads {
	labels := []string{"cluster_queue"}
	return &waitingWorkloads{
		count: prometheus.NewDesc("dispatch_admission_waiting_workloads",
			"Workloads that hold quota and are held back until they are granted another admission.", labels, nil),
		oldest: prometheus.NewDesc("dispatch_admission_oldest_waiting_seconds",
			"How long the Workload that has waited the longest holds quota.", labels, nil),
		since: map[types.NamespacedName]waitingWorkload{},
	}
}

func (w *waitingWorkloads) set(key types.NamespacedName, clusterQueue string, since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since[key] = waitingWorkload{clusterQueue: clusterQueue, since: since}
}

func (w *waitingWorkloads) clear(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, key)
}

// Describe implements prometheus.Collector.
func (w *waitingWorkloads) Describe(descs chan<- *prometheus.Desc) {
	descs <- w.count
	descs <- w.oldest
}

// Collect implements prometheus.Collector.
func (w *waitingWorkloads) Collect(collected chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	count, oldest := map[string]int{}, map[string]time.Time{}
	for _, workload := range w.since {
		count[workload.clusterQueue]++
		if first, found := oldest[workload.clusterQueue]; !found || workload.since.Before(first) {
			oldest[workload.clusterQueue] = workload.since
		}
	}
	for queue, n := range count {
		collected <- prometheus.MustNewConstMetric(w.count, prometheus.GaugeValue, float64(n), queue)
		collected <- prometheus.MustNewConstMetric(w.oldest, prometheus.GaugeValue, time.Since(oldest[queue]).Seconds(), queue)
	}
}
