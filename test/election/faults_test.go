package election

import (
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"

	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/faultproxy"
)

// faultLasts is how long each fault lasts: four times as long as a Lease.
const faultLasts = 60 * time.Second

// fault is one that a leader has to live with.
type fault struct {
	name string
	// args are the leader's.
	args []string
	// inject begins the fault, and returns how to tell that it was felt.
	inject func(e *election, p *proxy) (felt func() bool)
	// gap is the longest time that may pass between two renewals, once.
	gap time.Duration
	// alone is a fault that needs a cluster without other leaders.
	alone bool
}

const (
	usualGap = 4 * time.Second
	// A renewal that hangs takes 5 s, and the next one comes within 2 s of the
	// one before it.
	onceGap = 8 * time.Second
)

var faults = []fault{
	{
		name: "main client throttled with 429 and Retry-After",
		inject: func(e *election, p *proxy) func() bool {
			rule := p.api.Handle(faultproxy.TooManyRequests(1), faultproxy.Except(e.isLease))
			return func() bool { return rule.Hits() > 10 }
		},
		gap: usualGap,
	},
	{
		name: "every answer but the Lease's delayed by 20 s",
		inject: func(e *election, p *proxy) func() bool {
			rule := p.api.Handle(faultproxy.DelayResponse(20*time.Second), faultproxy.Except(e.isLease))
			return func() bool { return rule.Hits() > 0 }
		},
		gap: usualGap,
	},
	{
		name: "main connection black-holed",
		inject: func(e *election, p *proxy) func() bool {
			return p.blackHole(func(r *http.Request) bool { return !byElector(r) })
		},
		gap: usualGap,
	},
	{
		name: "Lease connection black-holed",
		inject: func(e *election, p *proxy) func() bool {
			return p.blackHole(e.isLease)
		},
		gap: onceGap,
	},
	{
		name: "limiter of the main client saturated by controllers",
		// Enough to start with, and then next to nothing.
		args: []string{"-kube-api-qps=0.1", "-kube-api-burst=40"},
		inject: func(e *election, _ *proxy) func() bool {
			var last func() (bool, error)
			for i := range 100 {
				last = e.work(fmt.Sprintf("flood-%d", i))
			}
			return func() bool {
				done, err := last()
				return err == nil && !done
			}
		},
		gap:   usualGap,
		alone: true,
	},
}

// TestFaults runs a leader of each program behind a proxy, and sees that it keeps
// the Lease and renews it in time, whatever happens to its other requests.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, program := range []string{manager, admission} {
		for _, fault := range faults {
			t.Run(program+"/"+fault.name, func(t *testing.T) {
				t.Parallel()
				cluster := shared(t)
				if fault.alone && program == manager {
					// Any other manager would do the work.
					cluster = controlplane.StartForTest(t, controlplane.Options{})
					if err := installAll(t.Context(), cluster); err != nil {
						t.Fatal(err)
					}
				}
				fault.run(t, newElection(t, cluster, program))
			})
		}
	}
}

func (f fault) run(t *testing.T, e *election) {
	g := NewWithT(t)
	p := newProxy(t, e.cluster)
	lease := e.watchLease()
	leader := e.startLeader(p.config, f.args...)
	g.Eventually(e.work("before")).WithTimeout(5*time.Second).Should(BeTrue(), "the leader decides")
	before := lease.last()

	stalled := e.measureStalls()
	felt := f.inject(e, p)
	since := time.Now()
	tick := 0
	g.Consistently(func() bool {
		tick++
		e.work(fmt.Sprint(tick)) // so that there is always something to ask
		return leader.Running()
	}).WithTimeout(faultLasts).WithPolling(time.Second).Should(BeTrue(), "the leader runs on")

	gaps, stall := lease.gaps(since, time.Now()), stalled()
	t.Logf("%d renewals, at most %s apart; without any fault a write took up to %s",
		len(gaps), gaps[0].Round(time.Millisecond), stall.Round(time.Millisecond))
	g.Expect(felt()).To(BeTrue(), "the fault was felt")
	g.Expect(lease.last().holder).To(Equal(before.holder))
	g.Expect(lease.last().transitions).To(Equal(before.transitions))
	g.Expect(gaps[0]).To(BeNumerically("<=", f.gap+stall), "the longest time between two renewals")
	g.Expect(gaps[1]).To(BeNumerically("<=", usualGap+stall), "and all other times")
}

// isLease is a request for the election's Lease.
func (e *election) isLease(r *http.Request) bool {
	return faultproxy.Path("/apis/coordination.k8s.io/v1/namespaces/" + e.namespace + "/leases")(r)
}

// byElector is a request of leader election, be it about a Lease or an event.
func byElector(r *http.Request) bool { return faultproxy.UserAgent("leader-election")(r) }

// proxy breaks both connections and answers: tcp leads to api, which leads to the
// API server.
type proxy struct {
	api *faultproxy.API
	tcp *faultproxy.TCP

	mu sync.Mutex
	// carried is what requests each connection has carried, by its address at
	// the API proxy.
	carried map[string][]*http.Request
}

func newProxy(t *testing.T, cluster *controlplane.Cluster) *proxy {
	t.Helper()
	api, err := faultproxy.NewAPI(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	address, err := url.Parse(api.Config(&rest.Config{}).Host)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := faultproxy.NewTCP(address.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tcp.Close)
	p := &proxy{api: api, tcp: tcp, carried: map[string][]*http.Request{}}
	api.Handle(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		p.mu.Lock()
		p.carried[r.RemoteAddr] = append(p.carried[r.RemoteAddr], r)
		p.mu.Unlock()
		next.ServeHTTP(w, r)
	})
	return p
}

// config leads a client through both.
func (p *proxy) config(config *rest.Config) {
	*config = *p.api.Config(config)
	config.Host = "https://" + p.tcp.Address()
}

// blackHole hands nothing on any more on the connections, open now, that have
// carried a request that matches. It was felt if such requests stopped on them
// while there were others.
func (p *proxy) blackHole(match faultproxy.Match) (felt func() bool) {
	holes := map[string]bool{}
	p.mu.Lock()
	for address, requests := range p.carried {
		for _, r := range requests {
			if match(r) {
				holes[address] = true
			}
		}
	}
	p.mu.Unlock()
	broken := 0
	p.tcp.Existing(func(c faultproxy.Conn) faultproxy.Fault {
		if c.Upstream != nil && holes[c.Upstream.String()] {
			broken++
			return faultproxy.BlackHole
		}
		return faultproxy.Pass
	})
	return func() bool { return broken > 0 }
}
