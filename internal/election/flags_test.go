package election

import (
	"flag"
	"io"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func parse(t *testing.T, define func(*flag.FlagSet) *Flags, args ...string) *Flags {
	t.Helper()
	fs := flag.NewFlagSet(t.Name(), flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	f := define(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestDefaults(t *testing.T) {
	common := Flags{
		LeaderElect:            true,
		LeaseNamespace:         "dispatch-system",
		LeaseDuration:          15 * time.Second,
		RenewDeadline:          10 * time.Second,
		RetryPeriod:            2 * time.Second,
		HealthProbeBindAddress: ":8081",
		MetricsBindAddress:     ":8080",
	}
	t.Run("dispatch-manager", func(t *testing.T) {
		want := common
		want.LeaseName = "dispatch-manager"
		want.ReleaseOnCancel = true
		NewWithT(t).Expect(*parse(t, ManagerFlags)).To(Equal(want))
	})
	t.Run("dispatch-admission", func(t *testing.T) {
		want := common
		want.LeaseName = "dispatch-admission"
		NewWithT(t).Expect(*parse(t, AdmissionFlags)).To(Equal(want))
	})
}

// The Lease of dispatch-admission is a heartbeat: nobody may turn its election
// off, or its release on, by mistake.
func TestAdmissionCannotBeReleasedNorLeftUnelected(t *testing.T) {
	g := NewWithT(t)
	fs := flag.NewFlagSet("dispatch-admission", flag.ContinueOnError)
	AdmissionFlags(fs)
	g.Expect(fs.Lookup("leader-elect")).To(BeNil())
	g.Expect(fs.Lookup("leader-elect-release-on-cancel")).To(BeNil())
}

func TestManagerElectionFlags(t *testing.T) {
	g := NewWithT(t)
	f := parse(t, ManagerFlags, "-leader-elect=false", "-leader-elect-release-on-cancel=false")
	g.Expect(f.LeaderElect).To(BeFalse())
	g.Expect(f.ReleaseOnCancel).To(BeFalse())
}

func TestValidate(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want string // empty: accepted
	}{
		{"the defaults", nil, ""},
		{"the shortest lease", []string{"-lease-duration=1s", "-renew-deadline=900ms", "-retry-period=300ms"}, ""},
		{"a lease below a second", []string{"-lease-duration=999ms", "-renew-deadline=500ms", "-retry-period=100ms"},
			"-lease-duration 999ms must be whole seconds, and at least 1s"},
		{"a negative lease", []string{"-lease-duration=-15s"},
			"-lease-duration -15s must be whole seconds, and at least 1s"},
		{"a lease of part of a second", []string{"-lease-duration=15500ms"},
			"-lease-duration 15.5s must be whole seconds, and at least 1s"},
		{"a deadline as long as the lease", []string{"-renew-deadline=15s"},
			"-renew-deadline 15s must be less than -lease-duration 15s"},
		{"a deadline just below the lease", []string{"-renew-deadline=14999ms"}, ""},
		{"retries too rare", []string{"-retry-period=10s"},
			"-renew-deadline 10s must be more than 1.2 times -retry-period 10s"},
		{"a deadline of exactly 1.2 retries", []string{"-renew-deadline=12s", "-retry-period=10s"},
			"-renew-deadline 12s must be more than 1.2 times -retry-period 10s"},
		{"a deadline just above 1.2 retries", []string{"-renew-deadline=12001ms", "-retry-period=10s"}, ""},
		{"no time between retries", []string{"-retry-period=0s"}, "-retry-period 0s must be more than 0"},
		{"no namespace", []string{"-lease-namespace="}, "-lease-namespace and -lease-name must not be empty"},
		{"no name", []string{"-lease-name="}, "-lease-namespace and -lease-name must not be empty"},
		{"a rate and a burst", []string{"-kube-api-qps=0.5", "-kube-api-burst=1"}, ""},
		{"a rate without a burst", []string{"-kube-api-qps=20"},
			"-kube-api-qps 20 and -kube-api-burst 0 must both be more than 0, or both be left out"},
		{"a burst without a rate", []string{"-kube-api-burst=30"},
			"-kube-api-qps 0 and -kube-api-burst 30 must both be more than 0, or both be left out"},
		{"a negative rate", []string{"-kube-api-qps=-1", "-kube-api-burst=30"},
			"-kube-api-qps -1 and -kube-api-burst 30 must both be more than 0, or both be left out"},
	} {
		for process, define := range map[string]func(*flag.FlagSet) *Flags{
			"dispatch-manager": ManagerFlags, "dispatch-admission": AdmissionFlags,
		} {
			t.Run(process+"/"+test.name, func(t *testing.T) {
				err := parse(t, define, test.args...).Validate()
				if test.want == "" {
					NewWithT(t).Expect(err).NotTo(HaveOccurred())
				} else {
					NewWithT(t).Expect(err).To(MatchError(test.want))
				}
			})
		}
	}
}
