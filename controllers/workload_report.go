package controllers

import (
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// Reasons of the events that are recorded on a job. They are API: alerts match them.
const (
	// heldEvent is recorded when a job begins to wait for a grant.
	heldEvent = "AdmissionHeld"
	// ungrantedStartEvent is recorded when a job has started without an opened admission.
	ungrantedStartEvent = "UngrantedStart"
)

var (
	decisionsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dispatch_admission_decisions_total",
		Help: "Decisions that were written: open, renew, wait, set_back.",
	}, []string{"decision"})
	startsTotal = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "dispatch_admission_starts_total",
		Help: "Starts of jobs that were counted as used admissions.",
	})
	ungrantedStartsTotal = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "dispatch_admission_ungranted_starts_total",
		Help: "Starts of jobs without an opened admission. Anything but 0 is a fault.",
	})
	readySeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "dispatch_admission_ready_seconds",
		Help:    "Time from QuotaReserved, which Kueue keeps in whole seconds, to Ready. Held are those that waited for a grant.",
		Buckets: []float64{1, 2, 5, 10, 30, 60, 300, 1800, 7200, 43200, 172800},
	}, []string{"held"})
	waitingNow = newWaitingWorkloads()
)

func init() {
	metrics.Registry.MustRegister(decisionsTotal, startsTotal, ungrantedStartsTotal, readySeconds, waitingNow)
	for _, a := range []action{actionOpen, actionRenew, actionWait, actionSetBack} {
		decisionsTotal.WithLabelValues(string(a))
	}
}

// reportStatus tells what has just been written to the grant's status.
func (r *WorkloadReconciler) reportStatus(ctx context.Context, grant *dispatchv1alpha1.AdmissionGrant, before *dispatchv1alpha1.AdmissionGrantStatus, d decision) {
	log := ctrl.LoggerFrom(ctx).WithValues("grant", client.ObjectKeyFromObject(grant), "granted", grant.Spec.Admissions, "used", *d.status.Admissions)
	if d.starts > 0 {
		startsTotal.Add(float64(d.starts))
		log.Info("Job started")
	}
	if d.ungranted > 0 {
		ungrantedStartsTotal.Add(float64(d.ungranted))
		condition := meta.FindStatusCondition(d.status.Conditions, dispatchv1alpha1.UngrantedStartCondition)
		r.recorder.Eventf(jobObject(grant), grant, corev1.EventTypeWarning, ungrantedStartEvent, "Count", "%s", note(condition.Message))
		log.Info("Job started without an opened admission")
	}
	if d.action == actionRenew {
		decisionsTotal.WithLabelValues(string(actionRenew)).Inc()
	}
	waits := meta.FindStatusCondition(d.status.Conditions, dispatchv1alpha1.WaitingCondition)
	if d.action == actionWait && !meta.IsStatusConditionTrue(before.Conditions, dispatchv1alpha1.WaitingCondition) {
		r.recorder.Eventf(jobObject(grant), grant, corev1.EventTypeNormal, heldEvent, "Hold", "%s", note(waits.Message))
		log.Info("Job held back", "message", waits.Message)
	}
}

// reportEntries tells what has just been written to the Workload.
func (r *WorkloadReconciler) reportEntries(ctx context.Context, s *situation, d decision) {
	decisionsTotal.WithLabelValues(string(d.action)).Inc()
	log := ctrl.LoggerFrom(ctx)
	switch d.action {
	case actionOpen:
		reserved := findCondition(s.workload, kueuev1beta2.WorkloadQuotaReserved)
		held := "false"
		if s.grant != nil && meta.IsStatusConditionTrue(s.grant.Status.Conditions, dispatchv1alpha1.WaitingCondition) {
			held = "true"
		}
		readySeconds.WithLabelValues(held).Observe(s.now.Sub(reserved.LastTransitionTime.Time).Seconds())
		log.Info("Workload let through", "admission", d.status.Opened.Number)
	case actionSetBack:
		log.Info("Ready set back to Pending", "message", d.entries[0].Message)
	}
}

// note is a message as an event may have it, at most 1 KiB. Kueue's own part of it can be longer.
func note(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), 1024)], "")
}

// jobObject refers to the grant's job in an event.
func jobObject(grant *dispatchv1alpha1.AdmissionGrant) *corev1.ObjectReference {
	job := grant.Spec.JobRef
	return &corev1.ObjectReference{
		APIVersion: job.APIVersion, Kind: job.Kind, Namespace: grant.Namespace, Name: job.Name, UID: job.UID,
	}
}
