package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// allowed says whether jobs in the namespace may be sent to the target.
func (r *DispatchJobReconciler) allowed(ctx context.Context, dt *v1alpha1.DispatchTarget, namespace string) (bool, error) {
	var ns corev1.Namespace
	if a := dt.Spec.AllowedNamespaces; a != nil && a.From == v1alpha1.NamespacesFromSelector {
		err := r.Client.Get(ctx, types.NamespacedName{Name: namespace}, &ns)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("reading the namespace: %w", err)
		}
		if err != nil {
			return false, nil
		}
	}
	return allows(dt.Spec.AllowedNamespaces, ns.Labels), nil
}

// allows refuses whatever it does not know.
func allows(a *v1alpha1.AllowedNamespaces, namespaceLabels map[string]string) bool {
	switch {
	case a == nil:
		return false
	case a.From == v1alpha1.NamespacesFromAll:
		return true
	case a.From == v1alpha1.NamespacesFromSelector && a.Selector != nil:
		selector, err := metav1.LabelSelectorAsSelector(a.Selector)
		return err == nil && selector.Matches(labels.Set(namespaceLabels))
	}
	return false
}
