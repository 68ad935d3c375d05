package clusters

import (
	"context"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/jobkind"
)

const (
	// jobConnections is how many idle connections for jobs are kept to a target.
	jobConnections = 16
	// jobFieldOwner is the field owner of what the hub writes on a target.
	jobFieldOwner = "dispatch-hub"
)

var (
	jobScheme = newJobScheme()
	jobMapper = newJobMapper()
)

func newJobScheme() *runtime.Scheme {
	scheme := newTargetScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}

func newJobMapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{kueue.SchemeGroupVersion, v1alpha1.GroupVersion, corev1.SchemeGroupVersion})
	mapper.Add(kueue.SchemeGroupVersion.WithKind("LocalQueue"), meta.RESTScopeNamespace)
	mapper.Add(kueue.SchemeGroupVersion.WithKind("Workload"), meta.RESTScopeNamespace)
	mapper.Add(v1alpha1.GroupVersion.WithKind("AdmissionGrant"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	jobkind.AddTo(mapper)
	return mapper
}

// jobConnection is an isolated client for all that concerns jobs on one target. It is apart from the one
// that proves the gate, so that many jobs never delay a proof.
type jobConnection struct {
	client.WithWatch
	closeAll func()
}

// connectJobs makes a client whose requests each have a connection of their own for as long as they last,
// and whose connections are reset, not closed, when the request's context ends: what the kernel has not
// sent yet is then dropped. Otherwise a network that comes back would deliver a write long after the proof
// that it rested on.
func connectJobs(cfg *rest.Config) (*jobConnection, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.RateLimiter = -1, nil
	cfg.NextProtos = nil
	dial := cfg.Dial
	if dial == nil {
		dial = defaultLimits.dialer().DialContext
	}
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if conn, ok := conn.(interface{ SetLinger(sec int) error }); ok && err == nil {
			_ = conn.SetLinger(0) // then it is closed as any other
		}
		return conn, err
	}
	httpClient, closeAll, err := newLimitedHTTPClient(cfg, defaultLimits, func(transport *http.Transport) {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetHTTP1(true)
		transport.ForceAttemptHTTP2 = false
		transport.HTTP2 = nil
		transport.MaxIdleConnsPerHost = jobConnections
	})
	if err != nil {
		return nil, err
	}
	withWatch, err := client.NewWithWatch(cfg, client.Options{
		HTTPClient: httpClient, Scheme: jobScheme, Mapper: jobMapper, FieldOwner: jobFieldOwner,
	})
	if err != nil {
		return nil, err
	}
	return &jobConnection{WithWatch: withWatch, closeAll: closeAll}, nil
}

// Jobs is the client for jobs on the target. What it is used for ends with the context of JobContext.
func (c *Cluster) Jobs() client.Client { return c.jobs }

// JobContext is a context for one request about jobs: it ends after d, or after the time that any request
// gets, and with the connection.
func (c *Cluster) JobContext(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, min(d, requestTimeout))
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// RequestTimeout is the most that JobContext gives.
const RequestTimeout = requestTimeout

// KueueSpec describes the readmission gate; nil in plain mode.
func (c *Cluster) KueueSpec() *v1alpha1.KueueSpec { return c.kueue }

// Describe says in one line why a request to a target failed, in words that are fit for a status.
func Describe(err error) string { return describe(err) }
