package election

import (
	"flag"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/util/flowcontrol"
)

// Namespace is where both processes, and so their Leases, live by default.
const Namespace = "dispatch-system"

// Flags are the flags that decide how a process is elected and probed. The
// zero value is not usable; ManagerFlags and AdmissionFlags give the defaults.
type Flags struct {
	// LeaderElect is false only for a dispatch-manager of which the user knows
	// that no other one runs.
	LeaderElect bool
	// ReleaseOnCancel empties the Lease when the process stops, so that a
	// standby leads at once. It stays false for dispatch-admission, whose Lease
	// is a heartbeat: one without a holder says that the gate is dead.
	ReleaseOnCancel bool

	LeaseNamespace string
	LeaseName      string
	// LeaseDuration is how long the Lease is valid after a renewal. Default 15s.
	LeaseDuration time.Duration
	// RenewDeadline is how long a leader tries to renew before it gives up.
	// Default 10s.
	RenewDeadline time.Duration
	// RetryPeriod is the time between two tries. Default 2s.
	RetryPeriod time.Duration

	// KubeAPIQPS and KubeAPIBurst, given together, are the rate of requests and
	// the burst that all of the process's clients share, the Lease's excepted.
	// Default 0: no limit here, the API server's own fairness rules.
	KubeAPIQPS   float64
	KubeAPIBurst int

	// HealthProbeBindAddress serves /healthz and /readyz. Default :8081.
	HealthProbeBindAddress string
	// MetricsBindAddress serves /metrics; "0" serves none. Default :8080.
	MetricsBindAddress string
}

// ManagerFlags defines dispatch-manager's flags.
func ManagerFlags(fs *flag.FlagSet) *Flags {
	f := commonFlags(fs, "dispatch-manager")
	fs.BoolVar(&f.LeaderElect, "leader-elect", true,
		"Act only while this process holds the Lease. Turn it off only where no other dispatch-manager runs.")
	fs.BoolVar(&f.ReleaseOnCancel, "leader-elect-release-on-cancel", true,
		"Give the Lease up when the process stops, so that a standby leads at once.")
	return f
}

// AdmissionFlags defines dispatch-admission's flags. It is always elected, and
// no flag releases its Lease.
func AdmissionFlags(fs *flag.FlagSet) *Flags {
	f := commonFlags(fs, "dispatch-admission")
	f.LeaderElect = true
	return f
}

func commonFlags(fs *flag.FlagSet, process string) *Flags {
	f := &Flags{}
	fs.StringVar(&f.LeaseNamespace, "lease-namespace", Namespace, "Namespace of the Lease.")
	fs.StringVar(&f.LeaseName, "lease-name", process, "Name of the Lease.")
	fs.DurationVar(&f.LeaseDuration, "lease-duration", 15*time.Second,
		"How long the Lease is valid after a renewal; whole seconds.")
	fs.DurationVar(&f.RenewDeadline, "renew-deadline", 10*time.Second,
		"How long the leader tries to renew the Lease before it stops; less than -lease-duration.")
	fs.DurationVar(&f.RetryPeriod, "retry-period", 2*time.Second,
		"Time between two tries to renew or to acquire the Lease; 1.2 times this must be less than -renew-deadline.")
	fs.Float64Var(&f.KubeAPIQPS, "kube-api-qps", 0,
		"Requests a second to the API server, those for the Lease excepted; needs -kube-api-burst. 0 means no limit.")
	fs.IntVar(&f.KubeAPIBurst, "kube-api-burst", 0,
		"Requests that may exceed -kube-api-qps for a moment.")
	fs.StringVar(&f.HealthProbeBindAddress, "health-probe-bind-address", ":8081",
		"Address that serves /healthz and /readyz.")
	fs.StringVar(&f.MetricsBindAddress, "metrics-bind-address", ":8080",
		"Address that serves /metrics; 0 serves none.")
	return f
}

// Validate names the rule that the flags break. client-go would notice some of
// it only once the manager starts, and not the length of the Lease: it writes
// whole seconds and drops the rest.
func (f *Flags) Validate() error {
	switch {
	case f.LeaseNamespace == "" || f.LeaseName == "":
		return fmt.Errorf("-lease-namespace and -lease-name must not be empty")
	case f.LeaseDuration < time.Second || f.LeaseDuration%time.Second != 0:
		return fmt.Errorf("-lease-duration %s must be whole seconds, and at least 1s", f.LeaseDuration)
	case f.RenewDeadline >= f.LeaseDuration:
		return fmt.Errorf("-renew-deadline %s must be less than -lease-duration %s", f.RenewDeadline, f.LeaseDuration)
	case f.RetryPeriod <= 0:
		return fmt.Errorf("-retry-period %s must be more than 0", f.RetryPeriod)
	case f.RenewDeadline <= time.Duration(leaderelection.JitterFactor*float64(f.RetryPeriod)):
		return fmt.Errorf("-renew-deadline %s must be more than %v times -retry-period %s",
			f.RenewDeadline, leaderelection.JitterFactor, f.RetryPeriod)
	case f.KubeAPIQPS < 0 || f.KubeAPIBurst < 0 || (f.KubeAPIQPS > 0) != (f.KubeAPIBurst > 0):
		return fmt.Errorf("-kube-api-qps %v and -kube-api-burst %d must both be more than 0, or both be left out",
			f.KubeAPIQPS, f.KubeAPIBurst)
	}
	return nil
}

// mainConfig is the configuration of everything but the Lease. One limiter in
// the config makes all clients of the process share one rate; QPS and Burst
// would give each of them its own.
func (f *Flags) mainConfig(base *rest.Config) *rest.Config {
	cfg := rest.CopyConfig(base)
	if f.KubeAPIQPS > 0 {
		cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(float32(f.KubeAPIQPS), f.KubeAPIBurst)
	}
	return cfg
}
