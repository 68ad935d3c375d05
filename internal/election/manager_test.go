package election

import (
	"flag"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
)

func TestManagerOptionsSayWhatTheFlagsSay(t *testing.T) {
	for process, define := range map[string]func(*flag.FlagSet) *Flags{
		"dispatch-manager": ManagerFlags, "dispatch-admission": AdmissionFlags,
	} {
		t.Run(process, func(t *testing.T) {
			g := NewWithT(t)
			f := parse(t, define,
				"-lease-namespace=elsewhere", "-lease-name=other",
				"-lease-duration=30s", "-renew-deadline=20s", "-retry-period=4s",
				"-health-probe-bind-address=127.0.0.1:1", "-metrics-bind-address=127.0.0.1:2")
			_, opts, err := f.managerOptions(&rest.Config{Host: "https://example"}, ctrl.Options{}, &term{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(opts.LeaderElection).To(BeTrue())
			g.Expect(opts.LeaderElectionReleaseOnCancel).To(Equal(process == "dispatch-manager"))
			g.Expect(opts.LeaderElectionNamespace).To(Equal("elsewhere"))
			g.Expect(opts.LeaderElectionID).To(Equal("other"))
			g.Expect(opts.LeaseDuration).To(HaveValue(Equal(30 * time.Second)))
			g.Expect(opts.RenewDeadline).To(HaveValue(Equal(20 * time.Second)))
			g.Expect(opts.RetryPeriod).To(HaveValue(Equal(4 * time.Second)))
			g.Expect(opts.HealthProbeBindAddress).To(Equal("127.0.0.1:1"))
			g.Expect(opts.Metrics.BindAddress).To(Equal("127.0.0.1:2"))
			g.Expect(opts.Controller.EnableWarmup).To(HaveValue(BeTrue()))
		})
	}
}

func TestManagerOptionsFollowTheManagersFlags(t *testing.T) {
	g := NewWithT(t)
	f := parse(t, ManagerFlags, "-leader-elect=false", "-leader-elect-release-on-cancel=false")
	_, opts, err := f.managerOptions(&rest.Config{Host: "https://example"}, ctrl.Options{}, &term{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(opts.LeaderElection).To(BeFalse())
	g.Expect(opts.LeaderElectionReleaseOnCancel).To(BeFalse())
}

// The options have the config that LeaseConfig's own tests are about, also
// where the flags give all the other clients one limiter.
func TestManagerOptionsGiveTheLeaseItsOwnClient(t *testing.T) {
	g := NewWithT(t)
	server := newRecorder(t)
	f := parse(t, AdmissionFlags, "-kube-api-qps=0.001", "-kube-api-burst=1")
	cfg, opts, err := f.managerOptions(server.config(), ctrl.Options{}, &term{clock: clock.RealClock{}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(opts.LeaderElectionConfig).NotTo(BeNil())
	g.Expect(cfg.RateLimiter).NotTo(BeNil())
	g.Expect(opts.LeaderElectionConfig.RateLimiter).To(BeNil())

	get(t, cfg, "/main")
	get(t, opts.LeaderElectionConfig, "/lease")
	g.Expect(server.saw("/lease").proto).To(Equal("HTTP/1.1"))
	g.Expect(server.saw("/lease").from).NotTo(Equal(server.saw("/main").from))
}

func TestManagerOptionsKeepWhatTheyWereGiven(t *testing.T) {
	g := NewWithT(t)
	given := ctrl.Options{}
	given.Controller.SkipNameValidation = ptr.To(true)
	_, opts, err := parse(t, AdmissionFlags).managerOptions(&rest.Config{Host: "https://example"}, given, &term{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(opts.Controller.SkipNameValidation).To(HaveValue(BeTrue()))
	g.Expect(given.Controller.EnableWarmup).To(BeNil(), "the caller's options are left as they are")
}

// Both clients are tied to the one term: the Lease's begins it, and its end stops
// the writes of both.
func TestManagerOptionsTieBothClientsToTheTerm(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	server := newRecorder(t)
	cfg, opts, err := parse(t, AdmissionFlags).managerOptions(server.config(), ctrl.Options{}, f.term)
	g.Expect(err).NotTo(HaveOccurred())
	put := func(cfg *rest.Config, path string) error {
		via, err := rest.TransportFor(cfg)
		g.Expect(err).NotTo(HaveOccurred())
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, cfg.Host+path, http.NoBody)
		g.Expect(err).NotTo(HaveOccurred())
		resp, err := via.RoundTrip(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	g.Expect(put(opts.LeaderElectionConfig, leasePath)).To(Succeed())
	g.Expect(f.standing()).To(BeTrue())
	g.Expect(put(cfg, "/work")).To(Succeed())

	f.clock.Step(15 * time.Second)
	g.Expect(put(cfg, "/work")).To(MatchError(ErrLeaseLost))
	g.Expect(put(opts.LeaderElectionConfig, leasePath)).To(MatchError(ErrLeaseLost))
}

// What a manager writes elsewhere ends with its term, too.
func TestManagerFencesOtherClustersClients(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	target := (&Manager{term: f.term}).Fence(f.server())
	g.Expect(f.renew()).To(Succeed())
	g.Expect(f.request(target, http.MethodPost, "/apis/batch/v1/namespaces/team/jobs")).To(Succeed())
	f.clock.Step(15 * time.Second)
	for _, method := range []string{http.MethodPost, http.MethodPatch, http.MethodDelete} {
		g.Expect(f.request(target, method, "/apis/batch/v1/namespaces/team/jobs")).To(MatchError(ErrLeaseLost))
	}
	g.Expect(f.request(target, http.MethodGet, "/apis/batch/v1/namespaces/team/jobs")).To(Succeed())
}

func TestMainClientHasOneSharedLimiterOnlyWhenAsked(t *testing.T) {
	g := NewWithT(t)
	base := &rest.Config{Host: "https://example", QPS: -1}
	g.Expect(parse(t, ManagerFlags).mainConfig(base).RateLimiter).To(BeNil())

	limited := parse(t, ManagerFlags, "-kube-api-qps=7.5", "-kube-api-burst=3").mainConfig(base)
	g.Expect(limited.RateLimiter.QPS()).To(BeEquivalentTo(7.5))
	for range 3 {
		g.Expect(limited.RateLimiter.TryAccept()).To(BeTrue())
	}
	g.Expect(rest.CopyConfig(limited).RateLimiter.TryAccept()).To(BeFalse(), "copies share what is left of the burst")
	g.Expect(base.RateLimiter).To(BeNil())
}

func TestNewManagerRefusesBadFlags(t *testing.T) {
	_, err := NewManager(&rest.Config{Host: "https://example"}, parse(t, ManagerFlags, "-renew-deadline=15s"), ctrl.Options{})
	NewWithT(t).Expect(err).To(MatchError("-renew-deadline 15s must be less than -lease-duration 15s"))
}
