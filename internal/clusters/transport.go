package clusters

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"
)

// limits bound what a target can cost the others in time and memory.
type limits struct {
	// dial bounds the TCP handshake, and tls the one after it. A dial goes on when its request is given
	// up, so the request's own limit is not enough.
	dial, tls time.Duration
	// answer bounds a request up to its headers, and up to the end of its body unless that is a watch.
	answer time.Duration
	// A connection on which nothing was heard for ping is asked, and is closed after pong without an
	// answer. Together they are well below the 30 s that a Lease of 15 s proves the gate for: a dead
	// connection is noticed, and made anew, while the proof still stands.
	ping, pong time.Duration
	// headerBytes bounds the headers of an answer.
	headerBytes int64
	// objectBytes bounds an answer that is not a watch, and each event of one that is. An API server
	// stores objects of up to 1.5 MiB by etcd's default.
	objectBytes int
}

var defaultLimits = limits{
	dial: 5 * time.Second, tls: 5 * time.Second, answer: 10 * time.Second,
	ping: 10 * time.Second, pong: 5 * time.Second,
	headerBytes: 64 << 10, objectBytes: 4 << 20,
}

// dialer has keep-alives, which are to a connection without HTTP/2 what pings are to one with it.
func (l limits) dialer() *net.Dialer {
	return &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: l.ping, Interval: l.pong, Count: 2}}
}

// newHTTPClient makes a client for one target that shares nothing with any other: client-go's transports
// are shared by all configs that look alike, and those it caches outlive the target. What it gets from
// the target is bounded in time and size, and what it says of a failure is safe to log. closeAll ends
// its connections, also those in use.
func newHTTPClient(cfg *rest.Config) (client *http.Client, closeAll func(), err error) {
	return newLimitedHTTPClient(cfg, defaultLimits)
}

// change, if given, is the last to have a say in the transport.
func newLimitedHTTPClient(cfg *rest.Config, limits limits, change ...func(*http.Transport)) (*http.Client, func(), error) {
	if cfg.Transport != nil {
		return nil, nil, errors.New("a client config with a transport of its own cannot be isolated: use WrapTransport or Dial")
	}
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the TLS settings of the client config: %w", err)
	}
	if tlsConfig == nil { // the system's roots, and no client certificate
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	dial := cfg.Dial
	if dial == nil {
		dial = limits.dialer().DialContext
	}
	dialer := connrotation.NewDialer(func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limits.dial)
		defer cancel()
		return dial(ctx, network, address)
	})
	transport := &http.Transport{
		DialContext:         dialer.DialContext,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: limits.tls,
		// Left out: a proxy from the environment. A kubeconfig that names a proxy is refused, and the
		// local API server is on the manager's own network; a proxy in the environment is for the way
		// out. It could also answer for a target that is gone.
		Proxy:             cfg.Proxy,
		ForceAttemptHTTP2: true,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: limits.ping,
			PingTimeout:     limits.pong,
			// A target that sends faster than it is read is held back.
			MaxReceiveBufferPerStream: 256 << 10,
		},
		MaxResponseHeaderBytes: limits.headerBytes,
		// A connection that was being dialled while closeAll ran is given back after this.
		IdleConnTimeout: 30 * time.Second,
		// Never asked for, and so never undone: a small answer cannot become a large one. API servers
		// compress only what is larger than 128 KiB.
		DisableCompression: true,
	}
	for _, f := range change {
		f(transport)
	}
	// Adds the bearer token, read anew from its file every minute if it has one, and the user agent.
	roundTripper, err := rest.HTTPWrappersForConfig(cfg, &guard{next: transport, limits: limits})
	if err != nil {
		return nil, nil, fmt.Errorf("reading the credentials of the client config: %w", err)
	}
	return &http.Client{Transport: roundTripper}, dialer.CloseAll, nil
}

var (
	errTimeout  = errors.New("no answer in time")
	errRedirect = errors.New("redirect")
	errTooLarge = errors.New("answer too large")
)

// guard bounds the answers of a target.
type guard struct {
	next   http.RoundTripper
	limits limits
}

func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(g.limits.answer, func() { cancel(errTimeout) })
	end := func() {
		timer.Stop()
		cancel(nil)
	}
	resp, err := g.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		err = newRequestError(ctx, err)
		end()
		return nil, err
	}
	// Refused here and not by the client's CheckRedirect, whose error quotes the target's Location. A
	// redirect that is followed would turn the hub against an address of the target's choice, and with
	// the token: client-go adds that below the client, to requests for any host.
	if resp.StatusCode/100 == 3 {
		_ = resp.Body.Close()
		end()
		return nil, newRequestError(ctx, errRedirect)
	}
	// client-go would sleep for as long as the target says, ten times over, and log its warnings.
	resp.Header.Del("Retry-After")
	resp.Header.Del("Warning")

	body := &boundedBody{ReadCloser: resp.Body, ctx: ctx, end: end}
	body.size.limit = g.limits.objectBytes
	if req.URL.Query().Get("watch") == "true" && resp.StatusCode == http.StatusOK {
		timer.Stop()
		// client-go bounds an event in protobuf, to 16 MiB, because its length comes first. It reads one
		// in JSON to its end, however far away that is. An answer whose type does not parse it takes for
		// JSON, so that the type must be parsed as it does.
		mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
		if mediaType == runtime.ContentTypeProtobuf {
			body.size.limit = math.MaxInt
		}
		body.size.perEvent = true
	}
	resp.Body = body
	return resp, nil
}

// boundedBody is a body that ends with an error where it is too long.
type boundedBody struct {
	io.ReadCloser
	ctx  context.Context
	end  func()
	size size
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.size.exceededBy(p[:n]) {
		return 0, newRequestError(b.ctx, errTooLarge)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = newRequestError(b.ctx, err)
	}
	return n, err
}

func (b *boundedBody) Close() error {
	b.end()
	return b.ReadCloser.Close()
}

// size counts the bytes of a body: all of them, or with perEvent those since the last event ended. The
// next byte after a whole JSON object begins the next event; the count goes by brackets alone, because
// client-go's decoder ends the watch at the first byte that is no JSON.
type size struct {
	limit    int
	perEvent bool

	count            int
	depth            int
	inString, escape bool
}

func (s *size) exceededBy(p []byte) bool {
	if !s.perEvent {
		s.count += len(p)
		return s.count > s.limit
	}
	for _, c := range p {
		s.count++
		if s.count > s.limit {
			return true
		}
		switch {
		case s.escape:
			s.escape = false
		case s.inString:
			s.escape = c == '\\'
			s.inString = c != '"'
		case c == '"':
			s.inString = true
		case c == '{' || c == '[':
			s.depth++
		case c == '}' || c == ']':
			if s.depth--; s.depth == 0 {
				s.count = 0
			}
		}
	}
	return false
}

// What can be said of a failed request. The texts are fixed: they go to status, where a port, a duration
// or a text that the target chose would differ from one failure to the next, and each difference is a
// write to the hub.
const (
	timedOut          = "the API server does not answer in time"
	canceled          = "the request to the API server was cancelled"
	connectionRefused = "the API server refuses the connection"
	unresolved        = "the name of the API server does not resolve"
	lookupFailed      = "the name of the API server cannot be looked up"
	noRoute           = "there is no route to the API server"
	connectionBroken  = "the connection to the API server breaks"
	noTLS             = "the API server does not speak TLS"
	handshakeRefused  = "the API server refuses the TLS handshake"
	certExpired       = "the certificate of the API server has expired or is not yet valid"
	certUnknownCA     = "the certificate of the API server is signed by an unknown authority"
	certOtherName     = "the certificate of the API server is for another name"
	certInvalid       = "the certificate of the API server does not verify"
	redirected        = "the API server answers with a redirect, which is not followed"
	tooLarge          = "the answer of the API server is too large"
	undecodable       = "the answer of the API server does not decode"
)

// requestError is a request that failed before its answer was complete. It says so in one of the texts
// above. It is no net.Error: client-go takes a watch that times out for one that has ended.
type requestError struct {
	text string
	err  error
}

func (e *requestError) Error() string { return e.text }
func (e *requestError) Unwrap() error { return e.err }

func newRequestError(ctx context.Context, err error) *requestError {
	if errors.Is(context.Cause(ctx), errTimeout) {
		err = errTimeout
	}
	return &requestError{text: describeFailure(err), err: err}
}

func describeFailure(err error) string {
	var (
		netError      net.Error
		dnsError      *net.DNSError
		certError     x509.CertificateInvalidError
		verifyError   *tls.CertificateVerificationError
		notTLSError   tls.RecordHeaderError
		opError       *net.OpError
		unknownCA     x509.UnknownAuthorityError
		hostnameError x509.HostnameError
	)
	switch {
	case errors.Is(err, errRedirect):
		return redirected
	case errors.Is(err, errTooLarge):
		return tooLarge
	case errors.As(err, &certError) && certError.Reason == x509.Expired:
		return certExpired
	case errors.As(err, &unknownCA):
		return certUnknownCA
	case errors.As(err, &hostnameError):
		return certOtherName
	case errors.As(err, &verifyError):
		return certInvalid
	case errors.As(err, &notTLSError):
		return noTLS
	case errors.As(err, &opError) && opError.Op == "remote error": // how crypto/tls marks a received alert
		return handshakeRefused
	case errors.As(err, &dnsError) && dnsError.IsNotFound:
		return unresolved
	case errors.As(err, &dnsError):
		return lookupFailed
	case errors.Is(err, errTimeout), errors.As(err, &netError) && netError.Timeout():
		return timedOut
	case errors.Is(err, context.Canceled):
		return canceled
	case errors.Is(err, syscall.ECONNREFUSED):
		return connectionRefused
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return noRoute
	}
	return connectionBroken
}

// describe says in one line why a request to a target failed. Of what the target sent, only its status
// code is told.
func describe(err error) string {
	var (
		failed *requestError
		status apierrors.APIStatus
	)
	switch {
	case errors.As(err, &failed):
		return failed.text
	case errors.As(err, &status):
		return describeStatus(status.Status())
	case errors.Is(err, context.DeadlineExceeded):
		return timedOut
	case errors.Is(err, context.Canceled):
		return canceled
	}
	// The answer is complete, so that client-go could not read it.
	return undecodable
}

func describeStatus(status metav1.Status) string {
	if status.Details != nil {
		for _, cause := range status.Details.Causes {
			if cause.Type != "ClientWatchDecoding" {
				continue
			}
			// client-go made this status of the error that a watch ended with, and kept only its text. The
			// target can send the same, and so choose among these texts, but write none of its own.
			for _, text := range []string{timedOut, connectionBroken, tooLarge} {
				if strings.HasSuffix(cause.Message, text) {
					return text
				}
			}
			return undecodable
		}
	}
	// The code may come from the body, where it can be any number.
	if text := http.StatusText(int(status.Code)); text != "" {
		return fmt.Sprintf("the API server answers %d %s", status.Code, text)
	}
	return undecodable
}
