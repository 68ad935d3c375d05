package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// WorkloadReconciler answers for the AdmissionChecks of one controller name on every Workload: a job's
// first admission passes, each later one waits until it is granted. A Workload and the AdmissionGrant
// of its job have the same name, so one key stands for both.
//
// It decides from its cache. What makes that safe is that every write names the version it was decided
// on: the API server refuses one that is based on anything old, and the newer version is on its way as
// an event. So no conflict is retried.
type WorkloadReconciler struct {
	// Client of the cluster that Kueue runs on. Required.
	Client client.Client
	// ControllerName is the spec.controllerName of the AdmissionChecks to answer for. Required.
	ControllerName string
	// Concurrency is how many Workloads are decided about at a time. Default: 8.
	Concurrency int
	// Clock stamps what is written. Default: the real clock.
	Clock clock.PassiveClock

	// reader is not cached: jobs are of many kinds.
	reader   client.Reader
	recorder events.EventRecorder
	written  *writtenVersions
	waiting  *waitingWorkloads
}

// +kubebuilder:rbac:groups=kueue.x-k8s.io,resources=workloads;admissionchecks;clusterqueues,verbs=list;watch
// +kubebuilder:rbac:groups=kueue.x-k8s.io,resources=workloads,verbs=get
// +kubebuilder:rbac:groups=kueue.x-k8s.io,resources=workloads/status,verbs=patch
// +kubebuilder:rbac:groups=dispatch.dev,resources=admissiongrants,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=dispatch.dev,resources=admissiongrants/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create

// SetupWithManager registers the reconciler.
func (r *WorkloadReconciler) SetupWithManager(mgr ctrl.Manager) error {
	if r.Concurrency == 0 {
		r.Concurrency = 8
	}
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	r.reader = mgr.GetAPIReader()
	r.recorder = mgr.GetEventRecorder("dispatch-admission")
	r.written = &writtenVersions{versions: map[types.NamespacedName]objectVersions{}}
	r.waiting = waitingNow
	return ctrl.NewControllerManagedBy(mgr).
		For(&kueuev1beta2.Workload{}).
		Watches(&dispatchv1alpha1.AdmissionGrant{}, &handler.EnqueueRequestForObject{}).
		// An entry on a Workload may be seen before the AdmissionCheck or the ClusterQueue that
		// explains it.
		Watches(&kueuev1beta2.AdmissionCheck{}, handler.EnqueueRequestsFromMapFunc(r.workloadsWithCheck),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&kueuev1beta2.ClusterQueue{}, handler.EnqueueRequestsFromMapFunc(r.workloadsInClusterQueue),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Concurrency}).
		Complete(r)
}

// Reconcile looks at one Workload and the grant of its name.
func (r *WorkloadReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	wl := &kueuev1beta2.Workload{}
	if err := r.Client.Get(ctx, req.NamespacedName, wl); apierrors.IsNotFound(err) {
		wl = nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	grant := &dispatchv1alpha1.AdmissionGrant{}
	if err := r.Client.Get(ctx, req.NamespacedName, grant); apierrors.IsNotFound(err) {
		grant = nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	if r.written.aheadOf(req.NamespacedName, wl, grant) {
		return ctrl.Result{}, nil // the cache lacks our own last write, which comes as an event
	}
	result, err := r.reconcile(ctx, req.NamespacedName, wl, grant)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		// It was based on something old, and what is newer comes as an event.
		ctrl.LoggerFrom(ctx).V(1).Info("Decided on an old version", "error", err.Error())
		return ctrl.Result{}, nil
	}
	return result, err
}

func (r *WorkloadReconciler) reconcile(ctx context.Context, key types.NamespacedName, wl *kueuev1beta2.Workload, grant *dispatchv1alpha1.AdmissionGrant) (ctrl.Result, error) {
	result := ctrl.Result{}
	if grant != nil && (wl == nil || !grantIsFor(grant, wl) || !grant.DeletionTimestamp.IsZero()) {
		settled, retry, err := r.settleGrant(ctx, grant, wl != nil)
		if settled || err != nil {
			return ctrl.Result{}, err
		}
		result.RequeueAfter = retry
	}
	if wl == nil {
		r.waiting.clear(key)
		if grant == nil {
			r.written.forget(key)
		}
		return result, nil
	}
	s, err := r.observe(ctx, wl, grant)
	if err != nil {
		return ctrl.Result{}, err
	}
	if s == nil {
		return result, nil
	}
	d := decide(*s)
	if d.action == actionWait {
		r.waiting.set(key, string(wl.Status.Admission.ClusterQueue), findCondition(wl, kueuev1beta2.WorkloadQuotaReserved).LastTransitionTime.Time)
	} else {
		r.waiting.clear(key)
	}
	return result, r.execute(ctx, s, d)
}

// observe gathers what a decision rests on. It returns nil if the Workload in the cache is older than
// what is counted already.
func (r *WorkloadReconciler) observe(ctx context.Context, wl *kueuev1beta2.Workload, grant *dispatchv1alpha1.AdmissionGrant) (*situation, error) {
	s := &situation{workload: wl, grant: grant, own: checkNames{}, listed: checkNames{}, now: r.Clock.Now()}
	if grant != nil && !grantIsFor(grant, wl) {
		s.grant = nil
		s.blocked = fmt.Sprintf("AdmissionGrant %s/%s is another job's (%s %s, uid %s): delete it, then this job gets its own",
			grant.Namespace, grant.Name, grant.Spec.JobRef.Kind, grant.Spec.JobRef.Name, grant.Spec.JobRef.UID)
	}
	if s.grant != nil && s.grant.Status.Accounted != nil {
		age, err := resourceversion.CompareResourceVersion(wl.ResourceVersion, s.grant.Status.Accounted.ResourceVersion)
		if err != nil {
			return nil, fmt.Errorf("compare versions of Workload: %w", err)
		}
		if age < 0 {
			return nil, nil
		}
	}
	checks := &kueuev1beta2.AdmissionCheckList{}
	if err := r.Client.List(ctx, checks, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list AdmissionChecks: %w", err)
	}
	for i := range checks.Items {
		if checks.Items[i].Spec.ControllerName == r.ControllerName {
			s.own[kueuev1beta2.AdmissionCheckReference(checks.Items[i].Name)] = true
		}
	}
	if wl.Status.Admission != nil {
		queue := &kueuev1beta2.ClusterQueue{}
		err := r.Client.Get(ctx, client.ObjectKey{Name: string(wl.Status.Admission.ClusterQueue)}, queue)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read ClusterQueue: %w", err)
		}
		if strategy := queue.Spec.AdmissionChecksStrategy; strategy != nil {
			for _, rule := range strategy.AdmissionChecks {
				s.listed[rule.Name] = true
			}
		}
	}
	hasAdmitted := findCondition(wl, kueuev1beta2.WorkloadAdmitted) != nil
	if len(ownEntries(wl, s.own)) == 0 || isTrue(wl, kueuev1beta2.WorkloadFinished) ||
		(!reserved(wl) && (s.grant != nil || !hasAdmitted)) {
		return s, nil // neither the job nor its slices matter
	}
	var err error
	if s.grant == nil || !isTrue(wl, kueuev1beta2.WorkloadAdmitted) && !letThrough(s) {
		if s.job, err = r.jobState(ctx, wl); err != nil {
			return nil, err
		}
	}
	s.inherited, err = r.inheritedFrom(ctx, wl, s.grant != nil && s.grant.Status.Admissions != nil)
	return s, err
}

// execute writes what was decided: the grant, its status, then the Workload, so that whatever was
// written when the process dies, a start is never both uncounted and possible.
func (r *WorkloadReconciler) execute(ctx context.Context, s *situation, d decision) error {
	wl, grant := s.workload, s.grant
	key := client.ObjectKeyFromObject(wl)
	if d.needsGrant {
		grant = newGrant(wl, d.newGranted)
		if err := r.Client.Create(ctx, grant, admissionFieldOwner); err != nil {
			return fmt.Errorf("create AdmissionGrant %s: %w", key, err)
		}
		r.written.grant(key, grant.ResourceVersion)
	} else if grant != nil {
		grant = grant.DeepCopy()
		if apply := adoption(grant, wl); apply != nil {
			if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(apply), admissionFieldOwner); err != nil {
				return fmt.Errorf("adopt AdmissionGrant %s: %w", key, err)
			}
			grant.ResourceVersion = apply.GetResourceVersion()
			r.written.grant(key, grant.ResourceVersion)
		}
	}
	if d.status != nil {
		before := grant.Status
		if err := r.writeGrantStatus(ctx, grant, d.status); err != nil {
			return err
		}
		r.written.grant(key, grant.ResourceVersion)
		r.reportStatus(ctx, grant, &before, d)
	}
	if d.entries == nil {
		return nil
	}
	if d.action == actionSetBack && d.status == nil && s.blocked == "" {
		// No write of this pass would have failed on an old grant, and by a newer one the Ready may be right.
		if current, err := r.isCurrent(ctx, key, grant); err != nil || !current {
			return err
		}
	}
	if err := r.writeEntries(ctx, wl, d.entries); err != nil {
		return err
	}
	r.written.workload(key, wl.ResourceVersion)
	r.reportEntries(ctx, s, d)
	return nil
}

// isCurrent asks the API server whether the grant is as it was read from the cache.
func (r *WorkloadReconciler) isCurrent(ctx context.Context, key types.NamespacedName, grant *dispatchv1alpha1.AdmissionGrant) (bool, error) {
	current := &dispatchv1alpha1.AdmissionGrant{}
	if err := r.reader.Get(ctx, key, current); apierrors.IsNotFound(err) {
		return grant == nil, nil
	} else if err != nil {
		return false, fmt.Errorf("read AdmissionGrant %s: %w", key, err)
	}
	return grant != nil && grant.ResourceVersion == current.ResourceVersion, nil
}

// workloadsWithCheck are the Workloads that have an entry for the AdmissionCheck.
func (r *WorkloadReconciler) workloadsWithCheck(ctx context.Context, check client.Object) []reconcile.Request {
	return r.workloads(ctx, func(wl *kueuev1beta2.Workload) bool {
		return len(ownEntries(wl, checkNames{kueuev1beta2.AdmissionCheckReference(check.GetName()): true})) > 0
	})
}

// workloadsInClusterQueue are the Workloads that hold quota of the ClusterQueue.
func (r *WorkloadReconciler) workloadsInClusterQueue(ctx context.Context, queue client.Object) []reconcile.Request {
	return r.workloads(ctx, func(wl *kueuev1beta2.Workload) bool {
		return wl.Status.Admission != nil && string(wl.Status.Admission.ClusterQueue) == queue.GetName()
	})
}

func (r *WorkloadReconciler) workloads(ctx context.Context, wanted func(*kueuev1beta2.Workload) bool) []reconcile.Request {
	list := &kueuev1beta2.WorkloadList{}
	if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Workloads not looked at again") // the cache answers; it fails only while stopping
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if wanted(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}
