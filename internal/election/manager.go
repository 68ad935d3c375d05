package election

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// gracePeriod is how long reconcilers may take to return when the process
// stops. The Lease is released after it, which takes up to the renew deadline;
// both together, 15 s by default, stay below the manifests'
// terminationGracePeriodSeconds of 20.
const gracePeriod = 5 * time.Second

// Manager is a manager that acts only while its Lease is valid.
type Manager struct {
	ctrl.Manager
	term *term
}

// Fence wraps the transport of a client that writes elsewhere than to the manager's own cluster, as the
// manager's own client is: once the Lease has not been renewed for as long as it lasts, nothing is sent any
// more that would change an object. Reads pass.
func (m *Manager) Fence(next http.RoundTripper) http.RoundTripper { return m.term.fence(next) }

// NewManager makes the manager that the process runs, from its flags and from
// opts, which say the rest: scheme, cache, logger. The command must return as
// soon as the manager's Start does, and fail if it failed: what still ran then
// could act beside the next leader.
func NewManager(base *rest.Config, f *Flags, opts ctrl.Options) (*Manager, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	t := &term{
		clock:    clock.RealClock{},
		duration: f.LeaseDuration,
		leases:   "/apis/coordination.k8s.io/v1/namespaces/" + f.LeaseNamespace + "/leases",
		name:     f.LeaseName,
	}
	cfg, opts, err := f.managerOptions(base, opts, t)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(cfg, opts)
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	if f.LeaderElect {
		if err := mgr.Add(t); err != nil {
			return nil, fmt.Errorf("adding the watch over the lease: %w", err)
		}
	}
	if err := mgr.AddHealthzCheck("lease", t.live); err != nil {
		return nil, fmt.Errorf("adding the liveness check: %w", err)
	}
	if err := mgr.AddReadyzCheck("standing", ready(mgr, t)); err != nil {
		return nil, fmt.Errorf("adding the readiness check: %w", err)
	}
	return &Manager{Manager: mgr, term: t}, nil
}

// managerOptions returns the config and the options that say what the flags say,
// both tied to the term.
func (f *Flags) managerOptions(base *rest.Config, opts ctrl.Options, t *term) (*rest.Config, ctrl.Options, error) {
	cfg := f.mainConfig(base)
	leaseConfig, err := LeaseConfig(cfg, f.RenewDeadline)
	if err != nil {
		return nil, opts, err
	}
	cfg.Wrap(t.fence)
	leaseConfig.Wrap(t.observe)
	leaseConfig.Wrap(t.fence)

	opts.LeaderElection = f.LeaderElect
	opts.LeaderElectionConfig = leaseConfig
	opts.LeaderElectionReleaseOnCancel = f.ReleaseOnCancel
	opts.LeaderElectionNamespace = f.LeaseNamespace
	opts.LeaderElectionID = f.LeaseName
	opts.LeaseDuration = &f.LeaseDuration
	opts.RenewDeadline = &f.RenewDeadline
	opts.RetryPeriod = &f.RetryPeriod
	opts.GracefulShutdownTimeout = ptr.To(gracePeriod)
	opts.HealthProbeBindAddress = f.HealthProbeBindAddress
	opts.Metrics = metricsserver.Options{BindAddress: f.MetricsBindAddress}
	// A standby has its caches synced before it stands for election, so that
	// once it leads it decides at once.
	opts.Controller.EnableWarmup = ptr.To(true)
	return cfg, opts, nil
}

// ready holds for the leader and for a warm standby alike: a rollout waits for
// a new replica to be either.
func ready(mgr ctrl.Manager, t *term) healthz.Checker {
	return func(*http.Request) error {
		select {
		case <-mgr.Elected():
			return nil
		default:
		}
		if t.standing() {
			return nil
		}
		return errors.New("caches are not synced yet")
	}
}
