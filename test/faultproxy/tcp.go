package faultproxy

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/dispatch-dev/dispatch/test/controlplane/ports"
)

// Fault is what happens to a connection. The zero value is Pass.
type Fault struct {
	kind  kind
	delay time.Duration
}

type kind int

const (
	pass kind = iota
	blackHole
	cut
)

var (
	// Pass hands everything on.
	Pass = Fault{}
	// BlackHole keeps the connection open and hands nothing on, not even its
	// end. What was held back is handed on once the connection passes again.
	BlackHole = Fault{kind: blackHole}
	// Cut resets the connection. Nothing brings it back.
	Cut = Fault{kind: cut}
)

// Delay hands everything on, later by d in each direction.
func Delay(d time.Duration) Fault { return Fault{delay: d} }

// Conn is what a rule sees of a connection.
type Conn struct {
	// Number counts the connections that were accepted, from 1.
	Number int
	// Client is the address that the connection comes from.
	Client net.Addr
	// Upstream is the address that the target sees it come from. Nil until the
	// target has been dialled, and so in a rule for new connections.
	Upstream net.Addr
}

// Rule says what happens to each connection.
type Rule func(Conn) Fault

// All is a rule for every connection.
func All(fault Fault) Rule { return func(Conn) Fault { return fault } }

// Nth is a rule for the connections with these numbers. The others pass.
func Nth(fault Fault, numbers ...int) Rule {
	return func(c Conn) Fault {
		for _, number := range numbers {
			if c.Number == number {
				return fault
			}
		}
		return Pass
	}
}

// TCP passes connections on to a target. Its methods may be called at any time
// and from anywhere.
type TCP struct {
	target  string
	address string
	release func() // of the port

	mu       sync.Mutex
	listener net.Listener // nil while connections are refused
	rule     Rule         // for new connections
	accepted int
	open     map[*link]struct{}
	running  sync.WaitGroup
}

// NewTCP starts a proxy on a free local port. All connections pass.
func NewTCP(target string) (*TCP, error) {
	port, release, err := ports.Reserve()
	if err != nil {
		return nil, err
	}
	p := &TCP{
		target:  target,
		address: fmt.Sprintf("127.0.0.1:%d", port),
		release: release,
		rule:    All(Pass),
		open:    map[*link]struct{}{},
	}
	if err := p.Listen(); err != nil {
		release()
		return nil, err
	}
	return p, nil
}

// Address is where clients connect to, as host:port. It stays the same.
func (p *TCP) Address() string { return p.address }

// Close cuts all connections and stops the proxy.
func (p *TCP) Close() {
	p.Refuse()
	p.Existing(All(Cut))
	p.running.Wait()
	p.release()
}

// New says what happens to connections from now on. For a new connection,
// BlackHole is: accepted, and never answered.
func (p *TCP) New(rule Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = rule
}

// Existing says what happens to the connections that are open now.
func (p *TCP) Existing(rule Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.open {
		l.set(rule(l.seen()))
	}
}

// Every says what happens to the connections that are open now and to new ones.
func (p *TCP) Every(rule Rule) {
	p.New(rule)
	p.Existing(rule)
}

// Refuse makes new connections fail as they do where nothing listens. Existing
// ones are left alone.
func (p *TCP) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close() // it has nothing to lose
		p.listener = nil
	}
}

// Listen ends Refuse.
func (p *TCP) Listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		return err
	}
	p.listener = listener
	p.running.Go(func() { p.accept(listener) })
	return nil
}

// Accepted is how many connections there have been.
func (p *TCP) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Open is how many connections are open.
func (p *TCP) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}

func (p *TCP) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // closed
		}
		p.mu.Lock()
		if p.listener != listener {
			// Refused while it was being accepted.
			reset(client)
			p.mu.Unlock()
			return
		}
		p.accepted++
		l := &link{
			conn:    Conn{Number: p.accepted, Client: client.RemoteAddr()},
			client:  client,
			changed: make(chan struct{}),
			ended:   make(chan struct{}),
		}
		l.set(p.rule(l.conn))
		p.open[l] = struct{}{}
		p.mu.Unlock()
		p.running.Go(func() {
			l.serve(p.target)
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.open, l)
		})
	}
}

// link is a client's connection and the one to the target that belongs to it.
type link struct {
	client net.Conn

	mu      sync.Mutex
	conn    Conn
	server  net.Conn // nil until it is dialled
	fault   Fault
	changed chan struct{} // closed and replaced when fault changes
	ended   chan struct{} // closed when the link is cut
}

func (l *link) seen() Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

func (l *link) set(fault Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = fault
	close(l.changed)
	l.changed = make(chan struct{})
	if fault.kind == cut {
		l.cut()
	}
}

// cut is called with the lock held.
func (l *link) cut() {
	select {
	case <-l.ended:
		return
	default:
	}
	close(l.ended)
	reset(l.client)
	if l.server != nil {
		reset(l.server)
	}
}

func (l *link) serve(target string) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.cut()
	}()
	if !l.wait() {
		return
	}
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	l.mu.Lock()
	l.server = server
	l.conn.Upstream = server.LocalAddr()
	select {
	case <-l.ended: // while it was dialled
		reset(server)
	default:
	}
	l.mu.Unlock()

	var both sync.WaitGroup
	both.Go(func() { l.pump(server, l.client) })
	both.Go(func() { l.pump(l.client, server) })
	both.Wait()
}

// pump hands on what comes from one side, and at last its end.
func (l *link) pump(to, from net.Conn) {
	buffer := make([]byte, 32*1024)
	for {
		n, err := from.Read(buffer)
		if !l.wait() {
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	if half, ok := to.(*net.TCPConn); ok {
		_ = half.CloseWrite() // the other side may be gone already
	}
}

// wait returns when something may be handed on, or says that the link is cut.
func (l *link) wait() bool {
	var delayed <-chan time.Time
	for {
		l.mu.Lock()
		fault, changed := l.fault, l.changed
		l.mu.Unlock()
		if fault.kind == pass && fault.delay == 0 {
			return l.alive()
		}
		if fault.delay > 0 && delayed == nil {
			delayed = time.After(fault.delay)
		}
		due := delayed
		if fault.kind == blackHole {
			due = nil // never
		}
		select {
		case <-due:
			return l.alive()
		case <-changed:
		case <-l.ended:
			return false
		}
	}
}

func (l *link) alive() bool {
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

// reset closes a connection so that the other side sees that it is broken, not
// that it has ended in good order.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close() // it is gone all the same
}
