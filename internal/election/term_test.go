package election

import (
	"context"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	testingclock "k8s.io/utils/clock/testing"
)

const (
	leases    = "/apis/coordination.k8s.io/v1/namespaces/dispatch-system/leases"
	leasePath = leases + "/dispatch-admission"
)

// fixture is a term and a server behind its two round trippers.
type fixture struct {
	*term
	clock  *testingclock.FakeClock
	status int
	took   time.Duration
	sent   int
}

func newFixture() *fixture {
	clock := testingclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	return &fixture{
		term:   &term{clock: clock, duration: 15 * time.Second, leases: leases},
		clock:  clock,
		status: http.StatusOK,
	}
}

func (f *fixture) server() http.RoundTripper {
	return roundTripper(func(*http.Request) (*http.Response, error) {
		f.sent++
		f.clock.Step(f.took)
		return &http.Response{StatusCode: f.status, Body: http.NoBody}, nil
	})
}

func (f *fixture) request(via http.RoundTripper, method, path string) error {
	req, err := http.NewRequest(method, "https://example"+path, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := via.RoundTrip(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// renew sends what the elector sends.
func (f *fixture) renew() error {
	return f.request(f.fence(f.observe(f.server())), http.MethodPut, leasePath)
}

func TestTermLastsAsLongAsTheLease(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	f.clock.Step(time.Hour)
	g.Expect(f.over()).To(Succeed(), "never the leader")

	g.Expect(f.renew()).To(Succeed())
	f.clock.Step(15*time.Second - 1)
	g.Expect(f.over()).To(Succeed())
	g.Expect(f.renew()).To(Succeed())
	f.clock.Step(15*time.Second - 1)
	g.Expect(f.over()).To(Succeed())
	f.clock.Step(1)
	g.Expect(f.over()).To(MatchError(ErrLeaseLost))
	g.Expect(f.over()).To(MatchError("lease lost: last renewed 15s ago, and valid for 15s"))
}

// The Lease's renewTime is taken before the request is sent; an answer that
// comes late does not make it younger.
func TestTermCountsFromWhenTheRenewalWasSent(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	f.took = 4 * time.Second
	g.Expect(f.renew()).To(Succeed())
	f.clock.Step(11*time.Second - 1)
	g.Expect(f.over()).To(Succeed())
	f.clock.Step(1)
	g.Expect(f.over()).To(MatchError(ErrLeaseLost))
}

func TestTermIsRenewedByASuccessfulWriteOfTheLeaseAlone(t *testing.T) {
	for _, test := range []struct {
		name, method, path string
		status             int
		renews             bool
	}{
		{"a renewal", http.MethodPut, leasePath, http.StatusOK, true},
		{"the Lease's creation", http.MethodPost, leases, http.StatusCreated, true},
		{"a server below a path", http.MethodPut, "/clusters/a" + leasePath, http.StatusOK, true},
		{"a lost race", http.MethodPut, leasePath, http.StatusConflict, false},
		{"throttling", http.MethodPut, leasePath, http.StatusTooManyRequests, false},
		{"a read", http.MethodGet, leasePath, http.StatusOK, false},
		{"an event about the Lease", http.MethodPost, "/api/v1/namespaces/dispatch-system/events", http.StatusCreated, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture()
			f.status = test.status
			g.Expect(f.request(f.observe(f.server()), test.method, test.path)).To(Succeed())
			_, led := f.expiry()
			g.Expect(led).To(Equal(test.renews))
		})
	}
}

func TestFenceSendsNoWriteOnceTheTermIsOver(t *testing.T) {
	for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete} {
		t.Run(method, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture()
			main := f.fence(f.server())
			g.Expect(f.request(main, method, "/api/v1/nodes")).To(Succeed(), "never the leader")
			g.Expect(f.renew()).To(Succeed())
			g.Expect(f.request(main, method, "/api/v1/nodes")).To(Succeed(), "the leader")

			f.clock.Step(15 * time.Second)
			f.sent = 0
			g.Expect(f.request(main, method, "/api/v1/nodes")).To(MatchError(ErrLeaseLost))
			g.Expect(f.renew()).To(MatchError(ErrLeaseLost), "the Lease is another's by now")
			g.Expect(f.sent).To(BeZero())
			g.Expect(f.request(main, http.MethodGet, "/api/v1/nodes")).To(Succeed(), "a read")
		})
	}
}

func TestStartReturnsWhenTheTermIsOver(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	g.Expect(f.renew()).To(Succeed())
	ended := make(chan error, 1)
	go func() { ended <- f.Start(t.Context()) }()

	g.Eventually(f.clock.HasWaiters).Should(BeTrue())
	f.clock.Step(10 * time.Second)
	g.Expect(f.renew()).To(Succeed())
	f.clock.Step(5 * time.Second) // the first renewal's expiry
	g.Eventually(f.clock.HasWaiters).Should(BeTrue())
	g.Expect(ended).NotTo(Receive())

	f.clock.Step(10 * time.Second)
	g.Eventually(ended).Should(Receive(MatchError(ErrLeaseLost)))
}

func TestStartReturnsWhenTheProcessStops(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	g.Expect(f.renew()).To(Succeed())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g.Expect(f.Start(ctx)).To(Succeed())
}

func TestLivenessFailsOnALeaderThatDoesNotStop(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	g.Expect(f.live(nil)).To(Succeed())
	g.Expect(f.renew()).To(Succeed())
	g.Expect(f.live(nil)).To(Succeed())
	f.clock.Step(15 * time.Second)
	g.Expect(f.live(nil)).To(MatchError(ErrLeaseLost))
}

func TestStandingOnceTheLeaseClientWasAnswered(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		want   bool
	}{
		{"there is a Lease", http.StatusOK, true},
		{"there is no Lease yet", http.StatusNotFound, true},
		{"it may not be read", http.StatusForbidden, false},
		{"the server is busy", http.StatusTooManyRequests, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture()
			f.status = test.status
			g.Expect(f.standing()).To(BeFalse())
			g.Expect(f.request(f.observe(f.server()), http.MethodGet, leasePath)).To(Succeed())
			g.Expect(f.standing()).To(Equal(test.want))
		})
	}
}
