package election

import (
	"bufio"
	"context"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// seen is what a server saw of one request.
type seen struct{ proto, from string }

// recorder is an HTTPS server that speaks HTTP/2, as an API server does, and
// notes how each path was asked for.
type recorder struct {
	*httptest.Server
	mu       sync.Mutex
	requests map[string]seen
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{requests: map[string]seen{}}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.requests[req.URL.Path] = seen{req.Proto, req.RemoteAddr}
	}))
	r.EnableHTTP2 = true
	r.StartTLS()
	t.Cleanup(r.Close)
	return r
}

func (r *recorder) config() *rest.Config {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})
	return &rest.Config{Host: r.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
}

func (r *recorder) saw(path string) seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests[path]
}

func leaseConfig(t *testing.T, base *rest.Config, renewDeadline time.Duration) *rest.Config {
	t.Helper()
	cfg, err := LeaseConfig(base, renewDeadline)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func get(t *testing.T, cfg *rest.Config, path string) {
	t.Helper()
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(cfg.Host + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
}

func TestLeaseConfigSharesNoLimiter(t *testing.T) {
	g := NewWithT(t)
	base := &rest.Config{Host: "https://example", QPS: -1, RateLimiter: flowcontrol.NewTokenBucketRateLimiter(0.001, 1)}
	cfg := leaseConfig(t, base, 10*time.Second)
	g.Expect(cfg.RateLimiter).To(BeNil())
	g.Expect(cfg.QPS).To(BeEquivalentTo(5))
	g.Expect(cfg.Burst).To(Equal(10))
}

func TestLeaseConfigLeavesTheBaseAsItIs(t *testing.T) {
	g := NewWithT(t)
	limiter := flowcontrol.NewFakeAlwaysRateLimiter()
	base := &rest.Config{
		Host: "https://example", QPS: 20, Burst: 30, RateLimiter: limiter,
		TLSClientConfig: rest.TLSClientConfig{NextProtos: []string{"h2"}},
	}
	leaseConfig(t, base, 10*time.Second)
	g.Expect(base).To(Equal(&rest.Config{
		Host: "https://example", QPS: 20, Burst: 30, RateLimiter: limiter,
		TLSClientConfig: rest.TLSClientConfig{NextProtos: []string{"h2"}},
	}))
}

func TestLeaseConfigHasAConnectionOfItsOwnThatSpeaksHTTP1(t *testing.T) {
	g := NewWithT(t)
	server := newRecorder(t)
	base := server.config()
	get(t, base, "/main")
	get(t, rest.CopyConfig(base), "/copy")
	get(t, leaseConfig(t, base, 10*time.Second), "/lease")

	// What the Lease client must not do: share the one connection.
	g.Expect(server.saw("/main").proto).To(Equal("HTTP/2.0"))
	g.Expect(server.saw("/copy").from).To(Equal(server.saw("/main").from))

	g.Expect(server.saw("/lease").proto).To(Equal("HTTP/1.1"))
	g.Expect(server.saw("/lease").from).NotTo(Equal(server.saw("/main").from))
}

func TestLeaseConfigKeepsTheDialerOfTheBase(t *testing.T) {
	g := NewWithT(t)
	server := newRecorder(t)
	base := server.config()
	dialed := make(chan string, 1)
	base.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed <- address
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	get(t, leaseConfig(t, base, 10*time.Second), "/lease")
	g.Expect(dialed).To(Receive(Equal(server.Listener.Addr().String())))
}

func TestLeaseConfigDialsInLessThanARequestMayTake(t *testing.T) {
	g := NewWithT(t)
	for _, renewDeadline := range []time.Duration{900 * time.Millisecond, 2 * time.Second, 10 * time.Second, time.Minute} {
		var left time.Duration
		base := &rest.Config{Host: "https://example", Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			end, ok := ctx.Deadline()
			g.Expect(ok).To(BeTrue())
			left = time.Until(end)
			return nil, context.DeadlineExceeded
		}}
		_, err := leaseConfig(t, base, renewDeadline).Dial(t.Context(), "tcp", "example:443")
		g.Expect(err).To(HaveOccurred())
		g.Expect(left).To(And(BeNumerically(">", 0), BeNumerically("<", max(renewDeadline/2, time.Second))))
	}
}

func TestLeaseConfigWorksThroughAProxy(t *testing.T) {
	g := NewWithT(t)
	server := newRecorder(t)
	tunnelled := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		tunnelled <- req.Host
		tunnel(w, req.Host)
	}))
	t.Cleanup(proxy.Close)
	base := server.config()
	proxyURL, err := url.Parse(proxy.URL)
	g.Expect(err).NotTo(HaveOccurred())
	base.Proxy = http.ProxyURL(proxyURL)

	get(t, leaseConfig(t, base, 10*time.Second), "/lease")
	g.Expect(tunnelled).To(Receive(Equal(server.Listener.Addr().String())))
	g.Expect(server.saw("/lease").proto).To(Equal("HTTP/1.1"))
}

// tunnel answers a CONNECT: from then on it passes on bytes, until either side
// closes.
func tunnel(w http.ResponseWriter, address string) {
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	if _, err := io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	go pass(server, buffered.Reader)
	pass(client, bufio.NewReader(server))
}

func pass(to io.Writer, from io.Reader) {
	_, _ = io.Copy(to, from) // ends when a side closes, which is no fault here
}

func TestLeaseConfigRefusesACustomTransport(t *testing.T) {
	_, err := LeaseConfig(&rest.Config{Transport: http.DefaultTransport}, 10*time.Second)
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("custom Transport")))
}
