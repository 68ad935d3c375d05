package clusters

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

var (
	targetScheme = newTargetScheme()
	targetMapper = newTargetMapper()
)

func newTargetScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(coordinationv1.AddToScheme(scheme))
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(kueue.AddToScheme(scheme))
	return scheme
}

// newTargetMapper maps the few kinds that are read on a target. A mapper by discovery would need more
// requests, and would answer from its memory after Kueue's CRDs are gone.
func newTargetMapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{kueue.SchemeGroupVersion, coordinationv1.SchemeGroupVersion, corev1.SchemeGroupVersion})
	mapper.Add(kueue.SchemeGroupVersion.WithKind("ClusterQueue"), meta.RESTScopeRoot)
	mapper.Add(kueue.SchemeGroupVersion.WithKind("AdmissionCheck"), meta.RESTScopeRoot)
	mapper.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	return mapper
}

// connection is an isolated client of one target.
type connection struct {
	client.WithWatch
	discovery *discovery.DiscoveryClient
	// closeAll ends the connections, also those in use.
	closeAll func()
}

func connect(cfg *rest.Config) (*connection, error) {
	cfg = rest.CopyConfig(cfg)
	// A target gets a handful of requests a minute; a limiter could only delay the one that proves the gate.
	cfg.QPS, cfg.RateLimiter = -1, nil
	httpClient, closeAll, err := newHTTPClient(cfg)
	if err != nil {
		return nil, err
	}
	withWatch, err := client.NewWithWatch(cfg, client.Options{HTTPClient: httpClient, Scheme: targetScheme, Mapper: targetMapper})
	if err != nil {
		return nil, err
	}
	discoveryClient, err := discovery.NewDiscoveryClientForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, err
	}
	return &connection{WithWatch: withWatch, discovery: discoveryClient, closeAll: closeAll}, nil
}

// identify reads the server's version, which any credentials may, and the cluster's uid, which is left
// empty where it may not be read.
func (c *connection) identify(ctx context.Context) (v1alpha1.ClusterIdentity, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	version, err := c.discovery.ServerVersionWithContext(ctx)
	if err != nil {
		return v1alpha1.ClusterIdentity{}, err
	}
	identity := v1alpha1.ClusterIdentity{KubernetesVersion: gate.Quote(version.GitVersion)}
	var kubeSystem corev1.Namespace
	if err := c.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, &kubeSystem); err == nil {
		identity.UID = kubeSystem.UID
	} else if !apierrors.IsForbidden(err) {
		return v1alpha1.ClusterIdentity{}, err
	}
	return identity, nil
}
