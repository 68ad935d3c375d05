package election

import (
	"context"
	"errors"
	"net"
	"time"

	"k8s.io/client-go/rest"
)

// The Lease client's own rate limit. A renewal is one request every retry
// period, two when the first one failed, so that neither is ever reached by a
// healthy process; a fault that makes it retry in a loop is held back.
const (
	leaseQPS   = 5
	leaseBurst = 10
)

// LeaseConfig returns the configuration of a client that serves nothing but
// leader election, so that renewals wait for no other request of this process:
// neither in its rate limiter nor on its connection. base is left as it is.
// renewDeadline is the one that the election is run with.
//
// A base with a Transport is refused: such a client cannot be given a
// connection of its own.
func LeaseConfig(base *rest.Config, renewDeadline time.Duration) (*rest.Config, error) {
	if base.Transport != nil {
		return nil, errors.New("leader election needs a connection of its own, which a client config with a custom Transport rules out")
	}
	cfg := rest.CopyConfig(base)

	// A limiter in the config is shared by all clients made from it; without
	// one, each client makes its own from QPS and Burst.
	cfg.RateLimiter = nil
	cfg.QPS = leaseQPS
	cfg.Burst = leaseBurst

	// client-go shares one transport, and so one connection, between all
	// clients whose TLS settings are equal, unless a config has a dialer.
	cfg.Dial = dialWithin(dialTimeout(renewDeadline), base.Dial)

	// An HTTP/2 connection outlives a request that timed out on it, and one
	// whose peer is gone is found dead only after 45 s, longer than a Lease
	// lasts. HTTP/1.1 closes it with the request, and the retry dials anew.
	cfg.NextProtos = []string{"http/1.1"}
	return cfg, nil
}

// requestTimeout is what controller-runtime sets on the Lease client: a single
// request that hangs leaves time for another one before the renew deadline.
func requestTimeout(renewDeadline time.Duration) time.Duration {
	return max(renewDeadline/2, time.Second)
}

// dialTimeout leaves half of a request's time for the TLS handshake and the
// answer. A dial is not ended by the end of the request that asked for it.
func dialTimeout(renewDeadline time.Duration) time.Duration {
	return requestTimeout(renewDeadline) / 2
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// dialWithin bounds each dial. A dialer that the config already had stays in
// use: it may be the only way to the API server.
func dialWithin(timeout time.Duration, dial dialFunc) dialFunc {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return dial(ctx, network, address)
	}
}
