package controllers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/clusters"
)

// secretNameIndex finds the DispatchTargets that use a Secret.
const secretNameIndex = ".spec.kubeConfig.secretRef.name"

// TargetConnectionReconciler keeps the connection of each DispatchTarget as its spec and its kubeconfig
// Secret say. It writes nothing, so it runs in every replica: a standby that takes over has its
// connections and verdicts ready.
type TargetConnectionReconciler struct {
	Client client.Client
	// Targets is the set of connections that is kept.
	Targets *clusters.Set
	// LocalConfig reaches the cluster that the manager itself runs in.
	LocalConfig *rest.Config
	// Namespace is the manager's own, the only one whose Secrets are read.
	Namespace string
}

// +kubebuilder:rbac:groups=dispatch.dev,resources=dispatchtargets,verbs=list;watch
// +kubebuilder:rbac:groups="",namespace=dispatch-system,resources=secrets,verbs=list;watch

// SetupWithManager registers the reconciler.
func (r *TargetConnectionReconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.DispatchTarget{}, secretNameIndex, func(o client.Object) []string {
		if target, ok := o.(*v1alpha1.DispatchTarget); ok && secretRef(target) != nil {
			return []string{secretRef(target).Name}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("indexing DispatchTargets by Secret: %w", err)
	}
	// Closing the connections is the last thing that the process does with them.
	if err := mgr.Add(everyReplica(func(ctx context.Context) error {
		<-ctx.Done()
		r.Targets.Close()
		return nil
	})); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("targetconnection").
		For(&v1alpha1.DispatchTarget{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.usersOf)).
		WithOptions(controller.Options{NeedLeaderElection: ptr.To(false)}).
		Complete(r)
}

// everyReplica is a runnable that does not wait for the election.
type everyReplica func(ctx context.Context) error

var _ manager.LeaderElectionRunnable = everyReplica(nil)

func (f everyReplica) Start(ctx context.Context) error { return f(ctx) }
func (everyReplica) NeedLeaderElection() bool          { return false }

func (r *TargetConnectionReconciler) usersOf(ctx context.Context, secret client.Object) []reconcile.Request {
	if secret.GetNamespace() != r.Namespace {
		return nil
	}
	var targets v1alpha1.DispatchTargetList
	if err := r.Client.List(ctx, &targets, client.MatchingFields{secretNameIndex: secret.GetName()}); err != nil {
		log.FromContext(ctx).Error(err, "listing the DispatchTargets that use a Secret", "secret", secret.GetName())
		return nil
	}
	requests := make([]reconcile.Request, len(targets.Items))
	for i := range targets.Items {
		requests[i].NamespacedName = types.NamespacedName{Name: targets.Items[i].Name}
	}
	return requests
}

// Reconcile makes the connection of one DispatchTarget what its spec and Secret say.
func (r *TargetConnectionReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var target v1alpha1.DispatchTarget
	if err := r.Client.Get(ctx, req.NamespacedName, &target); err != nil {
		if apierrors.IsNotFound(err) {
			r.Targets.Remove(req.Name)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	cfg, version, err := r.config(ctx, &target)
	if err == nil {
		err = r.Targets.Connect(target.Name, target.Spec, version, cfg)
	}
	if refused := (*clusters.KubeConfigError)(nil); errors.As(err, &refused) {
		r.Targets.Refuse(target.Name, target.Spec, refused.Reason, refused.Message)
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, err
}

// config gives the target's client config and a version that changes whenever it does.
func (r *TargetConnectionReconciler) config(ctx context.Context, target *v1alpha1.DispatchTarget) (*rest.Config, string, error) {
	ref := secretRef(target)
	if ref == nil {
		return r.LocalConfig, "", nil
	}
	notFound := func(message string, args ...any) error {
		return &clusters.KubeConfigError{Reason: v1alpha1.KubeConfigNotFoundReason, Message: fmt.Sprintf(message, args...)}
	}
	var secret corev1.Secret
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: ref.Name}, &secret)
	if apierrors.IsNotFound(err) {
		return nil, "", notFound("Secret %s/%s does not exist", r.Namespace, ref.Name)
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading the kubeconfig Secret: %w", err)
	}
	kubeConfig, ok := secret.Data[ref.Key]
	if !ok {
		return nil, "", notFound("Secret %s/%s has no key %s", r.Namespace, ref.Name, ref.Key)
	}
	cfg, err := clusters.ParseKubeConfig(kubeConfig)
	if err != nil {
		return nil, "", err
	}
	return cfg, fmt.Sprintf("%x", sha256.Sum256(kubeConfig)), nil
}

func secretRef(target *v1alpha1.DispatchTarget) *v1alpha1.KubeConfigSecretReference {
	if target.Spec.KubeConfig == nil {
		return nil
	}
	return target.Spec.KubeConfig.SecretRef
}
