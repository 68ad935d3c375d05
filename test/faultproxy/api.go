package faultproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"

	"k8s.io/client-go/rest"
)

// API stands in front of a kube-apiserver and speaks HTTP/1.1 and HTTP/2 with
// its clients. It ends TLS, so that a client must trust its certificate (see
// Config) and authenticate with a token, which is handed on: a client
// certificate cannot be.
type API struct {
	server    *httptest.Server
	next      http.Handler
	transport *http.Transport

	mu       sync.Mutex
	rules    []*APIRule
	requests []*http.Request
}

// Handler answers a request in the place of next, which is the real server, or
// with its help.
type Handler func(w http.ResponseWriter, r *http.Request, next http.Handler)

// NewAPI starts a proxy in front of the server that upstream names. It takes the
// address and the CA from it, and no credentials.
func NewAPI(upstream *rest.Config) (*API, error) {
	target, err := url.Parse(upstream.Host)
	if err != nil {
		return nil, fmt.Errorf("parsing the server's address: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(upstream.CAData) {
		return nil, errors.New("there is no CA certificate for the server")
	}
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
	}
	a := &API{
		transport: transport,
		next: &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
			Transport:     transport,
			FlushInterval: -1, // events of a watch are handed on at once
			// Clients that go away and servers that are down are what tests are
			// about; who asked sees a 502.
			ErrorLog: log.New(io.Discard, "", 0),
		},
	}
	a.server = httptest.NewUnstartedServer(a)
	a.server.EnableHTTP2 = true
	a.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	a.server.StartTLS()
	return a, nil
}

// Close ends all requests, the hanging ones too, and stops the proxy.
func (a *API) Close() {
	a.server.CloseClientConnections()
	a.server.Close()
	a.transport.CloseIdleConnections()
}

// Config is a copy of config that leads to the proxy and keeps the credentials.
func (a *API) Config(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = a.server.URL
	config.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.server.Certificate().Raw})
	return config
}

// APIRule is a handler that was installed.
type APIRule struct {
	api     *API
	handler Handler
	matches []Match
	hits    int // under the API's lock
}

// Handle lets handler answer the requests that match all of matches, or every
// request if there are none. Of several rules that match, the newest counts.
func (a *API) Handle(handler Handler, matches ...Match) *APIRule {
	a.mu.Lock()
	defer a.mu.Unlock()
	rule := &APIRule{api: a, handler: handler, matches: matches}
	a.rules = append(a.rules, rule)
	return rule
}

// Hits is how many requests the rule's handler got.
func (r *APIRule) Hits() int {
	r.api.mu.Lock()
	defer r.api.mu.Unlock()
	return r.hits
}

// Remove takes the rule away. Requests that its handler holds stay with it.
func (r *APIRule) Remove() {
	r.api.mu.Lock()
	defer r.api.mu.Unlock()
	r.api.rules = slices.DeleteFunc(r.api.rules, func(other *APIRule) bool { return other == r })
}

// Count is how many requests there have been that match all of matches.
func (a *API) Count(matches ...Match) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	count := 0
	for _, request := range a.requests {
		if matchesAll(request, matches) {
			count++
		}
	}
	return count
}

// ServeHTTP answers a client.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Only once the body has been read does net/http notice that an HTTP/1.1
	// client has gone, which is how requests that hang end.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	a.handlerFor(r)(w, r, a.next)
}

func (a *API) handlerFor(r *http.Request) Handler {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, r.Clone(context.Background()))
	for _, rule := range slices.Backward(a.rules) {
		if matchesAll(r, rule.matches) {
			rule.hits++
			return rule.handler
		}
	}
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(w, r) }
}
