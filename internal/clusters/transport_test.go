package clusters

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
)

const lease = `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a","namespace":"b"}}`

func leaseEvent(padding int) string {
	padded := strings.Replace(lease, `"name"`, `"annotations":{"a":"\"}`+strings.Repeat("x", padding)+`"},"finalizers":["a"],"name"`, 1)
	return `{"type":"MODIFIED","object":` + padded + "}\n"
}

// target is a server with what is needed to reach it.
type target struct {
	*httptest.Server
	cfg      *rest.Config
	requests atomic.Int32
}

// newTarget starts an API server. configure may change its certificate and its listener.
func newTarget(t *testing.T, handler http.HandlerFunc, configure func(*httptest.Server)) *target {
	t.Helper()
	target := &target{}
	target.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target.requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		handler(w, r)
	}))
	target.EnableHTTP2 = true
	target.Config.ErrorLog = log.New(io.Discard, "", 0)
	target.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	setCertificate(target.Server, issue(kubeConfigCA, nil))
	if configure != nil {
		configure(target.Server)
	}
	target.StartTLS()
	t.Cleanup(target.Close)
	target.cfg = &rest.Config{Host: target.URL, BearerToken: "hush"}
	target.cfg.CAData = kubeConfigCA.certPEM
	return target
}

func setCertificate(server *httptest.Server, cert *certificate) {
	pair, err := tls.X509KeyPair(cert.certPEM, cert.keyPEM)
	if err != nil {
		panic(err)
	}
	server.TLS.Certificates = []tls.Certificate{pair}
}

func newClient(t *testing.T, cfg *rest.Config, limits limits) (leases coordinationv1client.LeaseInterface, closeAll func()) {
	t.Helper()
	httpClient, closeAll, err := newLimitedHTTPClient(cfg, limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeAll)
	client, err := coordinationv1client.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		t.Fatal(err)
	}
	return client.Leases("b"), closeAll
}

// getLease and watchLease use client-go as the rest of dispatch does, with all that it adds to an error.
func getLease(ctx context.Context, leases coordinationv1client.LeaseInterface) error {
	_, err := leases.Get(ctx, "a", metav1.GetOptions{})
	return err
}

// watchLease returns why the watch ended: io.EOF is the server's own end.
func watchLease(ctx context.Context, leases coordinationv1client.LeaseInterface) error {
	watcher, err := leases.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		if event.Type == watch.Error {
			return apierrors.FromObject(event.Object)
		}
		if got, ok := event.Object.(*coordinationv1.Lease); !ok || got.Name != "a" {
			return fmt.Errorf("unexpected %v", event.Object)
		}
	}
	return io.EOF
}

func write(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

func writeForEver(begin, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, begin)
		for {
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
		}
	}
}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

func fail(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

func hang(_ http.ResponseWriter, r *http.Request) {
	<-r.Context().Done()
	// Returning would end the answer, which may reach the client while it hangs up.
	panic(http.ErrAbortHandler)
}

func withCertificate(ca *certificate, change func(*x509.Certificate)) func(*httptest.Server) {
	return func(server *httptest.Server) { setCertificate(server, issue(ca, change)) }
}

func TestFailuresOfATarget(t *testing.T) {
	var elsewhere atomic.Int32
	other := newTarget(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }, nil)
	var bomb bytes.Buffer
	compressor := gzip.NewWriter(&bomb)
	_, _ = compressor.Write([]byte(lease + strings.Repeat(" ", 1<<20)))
	_ = compressor.Close()
	status := func(code int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Status","status":"Failure","message":"hush","reason":"hush","code":%d}`, code)
	}

	const get, watch, both = 1, 2, 3
	for _, test := range []struct {
		name      string
		verbs     int
		handler   http.HandlerFunc
		configure func(*httptest.Server)
		change    func(*rest.Config, *limits)
		want      string
	}{
		{name: "never answers", verbs: both, handler: hang,
			change: func(_ *rest.Config, l *limits) { l.answer = 50 * time.Millisecond }, want: timedOut},
		{name: "never ends its answer", verbs: get,
			handler: func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "{")
				flush(w)
				hang(w, r)
			},
			change: func(_ *rest.Config, l *limits) { l.answer = 200 * time.Millisecond }, want: timedOut},
		{name: "never ends an error", verbs: both,
			handler: func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusInternalServerError)
				flush(w)
				hang(w, r)
			},
			change: func(_ *rest.Config, l *limits) { l.answer = 200 * time.Millisecond }, want: timedOut},
		{name: "429", verbs: both, handler: fail(429, "hush"), want: "the API server answers 429 Too Many Requests"},
		{name: "429 by status", verbs: both, handler: fail(429, status(429)), want: "the API server answers 429 Too Many Requests"},
		{name: "500", verbs: both, handler: fail(500, "hush"), want: "the API server answers 500 Internal Server Error"},
		{name: "503 by status", verbs: both, handler: fail(503, status(503)), want: "the API server answers 503 Service Unavailable"},
		{name: "401", verbs: both, handler: fail(401, status(401)), want: "the API server answers 401 Unauthorized"},
		{name: "a code that is none", verbs: both, handler: fail(500, status(123456)), want: undecodable},
		{name: "success that is a failure", verbs: get, handler: write(status(404)), want: "the API server answers 404 Not Found"},
		{name: "endless body", verbs: both, handler: writeForEver(`{"type":"`, strings.Repeat("hush", 1000)), want: tooLarge},
		{name: "endless blanks", verbs: both, handler: writeForEver("", strings.Repeat(" ", 4000)), want: tooLarge},
		{name: "endless body of an unreadable type", verbs: watch,
			handler: func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf/hush")
				writeForEver(`{"type":"`, strings.Repeat("hush", 1000))(w, r)
			}, want: tooLarge},
		{name: "endless error", verbs: both,
			handler: func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusForbidden)
				writeForEver("", strings.Repeat("{}", 2000))(w, r)
			}, want: tooLarge},
		{name: "corrupt body", verbs: both, handler: write(`{"kind":"hush",,`), want: undecodable},
		{name: "another type", verbs: both,
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/hush")
				_, _ = io.WriteString(w, "hush")
			}, want: undecodable},
		{name: "an event of no known type", verbs: watch, handler: write(`{"type":"hush","object":{}}`), want: undecodable},
		{name: "an event that is an error", verbs: watch, handler: write(`{"type":"ERROR","object":` + status(410) + `}`),
			want: "the API server answers 410 Gone"},
		{name: "broken body", verbs: both,
			handler: func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, `{"type":"MODIFIED",`)
				flush(w)
				panic(http.ErrAbortHandler)
			}, want: connectionBroken},
		{name: "too large headers", verbs: both,
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Hush", strings.Repeat("hush", int(defaultLimits.headerBytes)/2))
			}, want: connectionBroken},
		{name: "gzip bomb", verbs: both,
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", "gzip")
				_, _ = w.Write(bomb.Bytes())
			},
			change: func(_ *rest.Config, l *limits) { l.objectBytes = 64 << 10 }, want: undecodable},
		{name: "redirect", verbs: both,
			handler: func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, other.URL+"/hush", http.StatusTemporaryRedirect)
			}, want: redirected},
		{name: "redirect to nowhere", verbs: both,
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "://hush")
				w.WriteHeader(http.StatusFound)
			}, want: redirected},
		{name: "expired certificate", verbs: both, want: certExpired,
			configure: withCertificate(kubeConfigCA, func(c *x509.Certificate) { c.NotAfter = time.Unix(1, 0) })},
		{name: "unknown CA", verbs: both, want: certUnknownCA,
			configure: withCertificate(issue(nil, nil), nil)},
		{name: "certificate for another name", verbs: both, want: certOtherName,
			configure: withCertificate(kubeConfigCA, func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{marker} })},
		{name: "certificate of a client", verbs: both, want: certInvalid,
			configure: withCertificate(kubeConfigCA, func(c *x509.Certificate) {
				c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
			})},
		{name: "wants a client certificate", verbs: both, want: handshakeRefused,
			configure: func(server *httptest.Server) {
				// With TLS 1.3 the refusal comes later, and may be overtaken by the end of the connection.
				server.TLS.ClientAuth, server.TLS.MaxVersion = tls.RequireAnyClientCert, tls.VersionTLS12
			}},
		{name: "no TLS", verbs: both, want: noTLS,
			change: func(cfg *rest.Config, _ *limits) {
				plain := httptest.NewServer(http.NotFoundHandler())
				t.Cleanup(plain.Close)
				cfg.Host = strings.Replace(plain.URL, "http:", "https:", 1)
			}},
		{name: "connection refused", verbs: both, want: connectionRefused,
			change: func(cfg *rest.Config, _ *limits) {
				closed := httptest.NewServer(http.NotFoundHandler())
				closed.Close()
				cfg.Host = strings.Replace(closed.URL, "http:", "https:", 1)
			}},
		{name: "unknown name", verbs: both, want: unresolved, change: dialError(&net.DNSError{Name: marker, IsNotFound: true})},
		{name: "no name server", verbs: both, want: lookupFailed, change: dialError(&net.DNSError{Name: marker, IsTimeout: true})},
		{name: "no route", verbs: both, want: noRoute, change: dialError(&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH})},
		{name: "no network", verbs: both, want: noRoute, change: dialError(&net.OpError{Op: "dial", Err: syscall.ENETUNREACH})},
	} {
		for _, http2 := range []bool{false, true} {
			run := func(verb string, do func(context.Context, coordinationv1client.LeaseInterface) error) {
				t.Run(fmt.Sprintf("%s/%s/http2=%t", test.name, verb, http2), func(t *testing.T) {
					target := newTarget(t, test.handler, func(server *httptest.Server) {
						server.EnableHTTP2 = http2
						if test.configure != nil {
							test.configure(server)
						}
					})
					limits := defaultLimits
					if test.change != nil {
						test.change(target.cfg, &limits)
					}
					leases, closeAll := newClient(t, target.cfg, limits)
					defer closeAll()
					err := do(t.Context(), leases)
					if err == nil {
						t.Fatal("no error")
					}
					if got := describe(err); got != test.want {
						t.Errorf("got %q, want %q of: %v", got, test.want, err)
					}
					if n := target.requests.Load(); n > 1 {
						t.Errorf("%d requests were sent, want at most one", n)
					}
				})
			}
			if test.verbs&get != 0 {
				run("get", getLease)
			}
			if test.verbs&watch != 0 {
				run("watch", watchLease)
			}
		}
	}
	if n := elsewhere.Load(); n > 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

func dialError(err error) func(*rest.Config, *limits) {
	return func(cfg *rest.Config, _ *limits) {
		cfg.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, err }
	}
}

func TestDescribeTheCallersOwnEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	target := newTarget(t, func(w http.ResponseWriter, r *http.Request) {
		cancel()
		hang(w, r)
	}, nil)
	leases, _ := newClient(t, target.cfg, defaultLimits)
	for _, when := range []string{"in a request", "before a request"} {
		if got := describe(getLease(ctx, leases)); got != canceled {
			t.Errorf("cancelled %s: got %q, want %q", when, got, canceled)
		}
	}
	lateCtx, cancelLate := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancelLate()
	if got := describe(getLease(lateCtx, leases)); got != timedOut {
		t.Errorf("got %q, want %q", got, timedOut)
	}
}

func TestAnswersWithinTheLimits(t *testing.T) {
	limits := defaultLimits
	limits.objectBytes = len(leaseEvent(100))
	events := strings.Repeat(leaseEvent(100)+leaseEvent(0), 100)
	for _, http2 := range []bool{false, true} {
		target := newTarget(t, func(w http.ResponseWriter, r *http.Request) {
			if wantProto := map[bool]int{false: 1, true: 2}[http2]; r.ProtoMajor != wantProto {
				t.Errorf("HTTP/%d, want HTTP/%d", r.ProtoMajor, wantProto)
			}
			if got := r.Header.Get("Authorization"); got != "Bearer hush" {
				t.Errorf("Authorization %q", got)
			}
			w.Header().Set("Warning", `299 - "hush"`)
			if r.URL.Query().Get("watch") == "true" {
				_, _ = io.WriteString(w, events)
			} else {
				_, _ = io.WriteString(w, lease)
			}
		}, func(server *httptest.Server) { server.EnableHTTP2 = http2 })
		target.cfg.WarningHandler = noWarnings{t}
		leases, _ := newClient(t, target.cfg, limits)
		if err := getLease(t.Context(), leases); err != nil {
			t.Errorf("get: %v", err)
		}
		if err := watchLease(t.Context(), leases); !errors.Is(err, io.EOF) {
			t.Errorf("watch: %v", err)
		}
		limits := limits
		limits.objectBytes--
		leases, _ = newClient(t, target.cfg, limits)
		if err := watchLease(t.Context(), leases); describe(err) != tooLarge {
			t.Errorf("watch with an event that is a byte too large: %v", err)
		}
	}
}

// noWarnings fails where a warning, which client-go would log, gets through to it.
type noWarnings struct{ t *testing.T }

func (n noWarnings) HandleWarningHeader(_ int, _, text string) {
	n.t.Errorf("the target's warning is passed on: %s", text)
}

// TestAProtobufWatch is apart because no typed client asks for it without more.
func TestAProtobufWatch(t *testing.T) {
	limits := defaultLimits
	limits.objectBytes = 10
	sent := strings.Repeat("{", 100)
	target := newTarget(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
		_, _ = io.WriteString(w, sent)
	}, nil)
	client, closeAll, err := newLimitedHTTPClient(target.cfg, limits)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	resp, err := client.Get(target.URL + "?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || string(got) != sent {
		t.Errorf("got %q and error %v", got, err)
	}
	if body, ok := resp.Body.(*boundedBody); !ok || body.ctx.Err() == nil {
		t.Error("closing the body does not give its context back")
	}
}

// FuzzSize finds streams of which client-go's JSON decoder would keep more in memory than the limit.
func FuzzSize(f *testing.F) {
	for _, seed := range []string{leaseEvent(0) + leaseEvent(9), `[{"a":"\\"}]{"\"}":"\u0022{"}`, "{}}{", "[{},{},{},{},{},{},{}", `"{}"{`, "{]{]"} {
		f.Add([]byte(seed))
	}
	const limit = 16
	f.Fuzz(func(t *testing.T, data []byte) {
		size := size{limit: limit, perEvent: true}
		read := 0
		for read < len(data) && !size.exceededBy(data[read:read+1]) {
			read++
		}
		decoder := json.NewDecoder(bytes.NewReader(data[:read]))
		begin := int64(0)
		for {
			var event json.RawMessage
			err := decoder.Decode(&event)
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return // client-go ends the watch
			}
			end := decoder.InputOffset()
			if err != nil {
				end = int64(read)
			}
			if end-begin > limit {
				t.Errorf("%d bytes were let through for one event: %q", end-begin, data[:read])
			}
			if err != nil {
				return
			}
			begin = end
		}
	})
}

func TestNewHTTPClientRefusesATransport(t *testing.T) {
	if _, _, err := newHTTPClient(&rest.Config{Host: "https://a", Transport: http.DefaultTransport}); err == nil {
		t.Error("no error")
	}
}

func TestNewHTTPClientUsesNoProxy(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	client, _, err := newHTTPClient(&rest.Config{Host: "https://a"})
	if err != nil {
		t.Fatal(err)
	}
	// The environment is read once in a process, so that only the setting can be looked at.
	guard, ok := client.Transport.(*guard)
	if !ok {
		t.Fatalf("the client's transport is a %T", client.Transport)
	}
	if transport, ok := guard.next.(*http.Transport); !ok || transport.Proxy != nil {
		t.Error("a proxy may be used")
	}
}

// The tests below run in virtual time, on connections in memory.

// memoryListener hands the other end of each dialled connection to a server.
type memoryListener struct {
	accepted chan net.Conn
	closed   chan struct{}
	close    sync.Once
	open     atomic.Int32 // connections that the client has not closed
	lost     atomic.Bool  // nothing gets through any more, either way
}

func newMemoryTarget(t *testing.T, handler http.HandlerFunc) (*target, *memoryListener) {
	listener := &memoryListener{accepted: make(chan net.Conn), closed: make(chan struct{})}
	target := newTarget(t, handler, func(server *httptest.Server) {
		_ = server.Listener.Close()
		server.Listener = listener
	})
	target.cfg.Dial = listener.dial
	return target, listener
}

func (l *memoryListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.accepted <- server:
		l.open.Add(1)
		return &memoryConn{Conn: client, listener: l, closed: make(chan struct{})}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

func (l *memoryListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443} }

type memoryConn struct {
	net.Conn
	listener *memoryListener
	closed   chan struct{}
	close    sync.Once
}

func (c *memoryConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.listener.lost.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *memoryConn) Write(p []byte) (int, error) {
	if c.listener.lost.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *memoryConn) Close() error {
	c.close.Do(func() {
		c.listener.open.Add(-1)
		close(c.closed)
	})
	return c.Conn.Close()
}

func TestAWatchOutlivesTheLimitOfAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target, _ := newMemoryTarget(t, func(w http.ResponseWriter, r *http.Request) {
			for range 10 {
				_, _ = io.WriteString(w, leaseEvent(0))
				flush(w)
				time.Sleep(time.Minute)
			}
		})
		leases, _ := newClient(t, target.cfg, defaultLimits)
		if err := watchLease(t.Context(), leases); !errors.Is(err, io.EOF) {
			t.Errorf("the watch ended with: %v", err)
		}
	})
}

func TestASilentTargetFailsInTime(t *testing.T) {
	neverAccepts := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	neverShakesHands := func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, server) }()
		return client, nil
	}
	for _, test := range []struct {
		name string
		dial func(context.Context, string, string) (net.Conn, error)
		want time.Duration
	}{
		{"never accepts", neverAccepts, 5 * time.Second},
		{"never shakes hands", neverShakesHands, 5 * time.Second},
		{"never answers", nil, 10 * time.Second},
	} {
		for _, do := range []func(context.Context, coordinationv1client.LeaseInterface) error{getLease, watchLease} {
			t.Run(test.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					target, _ := newMemoryTarget(t, hang)
					if test.dial != nil {
						target.cfg.Dial = test.dial
					}
					leases, _ := newClient(t, target.cfg, defaultLimits)
					begin := time.Now()
					err := do(t.Context(), leases)
					if after := time.Since(begin); describe(err) != timedOut || after != test.want {
						t.Errorf("after %s: %v", after, err)
					}
				})
			})
		}
	}
}

func TestALostConnectionIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target, listener := newMemoryTarget(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, leaseEvent(0))
			flush(w)
			hang(w, r)
		})
		leases, _ := newClient(t, target.cfg, defaultLimits)
		watcher, err := leases.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer watcher.Stop()
		<-watcher.ResultChan()
		listener.lost.Store(true)
		begin := time.Now()
		event := <-watcher.ResultChan()
		if event.Type != watch.Error || describe(apierrors.FromObject(event.Object)) != connectionBroken {
			t.Errorf("got %v", event)
		}
		if after := time.Since(begin); after > 15*time.Second {
			t.Errorf("noticed after %s", after)
		}
	})
}

func TestATokenFileIsReadAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var token string
		target, _ := newMemoryTarget(t, func(w http.ResponseWriter, r *http.Request) {
			token = r.Header.Get("Authorization")
			_, _ = io.WriteString(w, lease)
		})
		file := filepath.Join(t.TempDir(), "token")
		target.cfg.BearerToken, target.cfg.BearerTokenFile = "", file
		writeToken := func(token string) {
			if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		writeToken("one")
		leases, _ := newClient(t, target.cfg, defaultLimits)
		for _, want := range []string{"one", "two"} {
			writeToken(want)
			if err := getLease(t.Context(), leases); err != nil {
				t.Fatal(err)
			}
			if token != "Bearer "+want {
				t.Errorf("Authorization %q, want the token %q", token, want)
			}
			time.Sleep(time.Minute)
		}
	})
}

func TestCloseAllGivesEverythingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target, listener := newMemoryTarget(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, lease)
			flush(w)
			if r.URL.Query().Get("watch") == "true" {
				hang(w, r)
			}
		})
		leases, closeAll := newClient(t, target.cfg, defaultLimits)
		if err := getLease(t.Context(), leases); err != nil {
			t.Fatal(err)
		}
		watcher, err := leases.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if listener.open.Load() == 0 {
			t.Error("no connection is open")
		}
		closeAll()
		// Ends because its connection has. A goroutine that is left when the test ends makes it fail.
		for range watcher.ResultChan() {
		}
		synctest.Wait()
		if n := listener.open.Load(); n != 0 {
			t.Errorf("%d connections are left open", n)
		}
	})
}
