package faultproxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// moment is long enough for an answer on this machine, were there one.
const moment = 100 * time.Millisecond

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(30 * time.Second) // for a loaded machine
	os.Exit(m.Run())
}

// echo is a server that sends back each line, and a proxy in front of it.
func echo(t *testing.T) *TCP {
	t.Helper()
	g := NewWithT(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	proxy, err := NewTCP(listener.Addr().String())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(proxy.Close)
	return proxy
}

type client struct {
	net.Conn
	lines *bufio.Reader
}

func dial(t *testing.T, proxy *TCP) client {
	t.Helper()
	before := proxy.Accepted()
	conn, err := net.Dial("tcp", proxy.Address())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = conn.Close() })
	// The kernel accepts before the proxy does.
	NewWithT(t).Eventually(proxy.Accepted).Should(BeNumerically(">", before))
	return client{Conn: conn, lines: bufio.NewReader(conn)}
}

func (c client) send(line string) error {
	_, err := io.WriteString(c, line+"\n")
	return err
}

// receive waits for a line at most so long.
func (c client) receive(atMost time.Duration) (string, error) {
	if err := c.SetReadDeadline(time.Now().Add(atMost)); err != nil {
		return "", err
	}
	line, err := c.lines.ReadString('\n')
	return line, err
}

func (c client) ask(line string) (string, error) {
	if err := c.send(line); err != nil {
		return "", err
	}
	return c.receive(10 * time.Second)
}

// attempt says how a new connection fares.
func attempt(proxy *TCP) error {
	conn, err := net.Dial("tcp", proxy.Address())
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = client{Conn: conn, lines: bufio.NewReader(conn)}.ask("hello")
	if errors.Is(err, syscall.EPIPE) { // the reset came before the question
		return syscall.ECONNRESET
	}
	return err
}

func TestPass(t *testing.T) {
	g := NewWithT(t)
	proxy := echo(t)
	conn := dial(t, proxy)
	g.Expect(conn.ask("hello")).To(Equal("hello\n"))
	g.Expect(proxy.Accepted()).To(Equal(1))
	g.Expect(proxy.Open()).To(Equal(1))
	g.Expect(conn.Close()).To(Succeed())
	g.Eventually(proxy.Open).Should(BeZero())
}

func TestBlackHoleForExistingConnections(t *testing.T) {
	g := NewWithT(t)
	proxy := echo(t)
	conn := dial(t, proxy)
	g.Expect(conn.ask("before")).To(Equal("before\n"))

	proxy.Existing(All(BlackHole))
	g.Expect(conn.send("during")).To(Succeed())
	_, err := conn.receive(moment)
	g.Expect(err).To(MatchError(os.ErrDeadlineExceeded))
	g.Expect(dial(t, proxy).ask("new ones pass")).To(Equal("new ones pass\n"))

	proxy.Existing(All(Pass))
	g.Expect(conn.receive(10*time.Second)).To(Equal("during\n"), "what was held back arrives")
}

func TestBlackHoleForNewConnections(t *testing.T) {
	g := NewWithT(t)
	proxy := echo(t)
	old := dial(t, proxy)
	proxy.New(All(BlackHole))
	conn := dial(t, proxy)
	g.Expect(conn.send("anybody there?")).To(Succeed())
	_, err := conn.receive(moment)
	g.Expect(err).To(MatchError(os.ErrDeadlineExceeded))
	g.Expect(old.ask("old ones pass")).To(Equal("old ones pass\n"))
}

func TestBlackHoleKeepsTheEndBackToo(t *testing.T) {
	g := NewWithT(t)
	proxy := echo(t)
	conn := dial(t, proxy)
	g.Expect(conn.ask("hello")).To(Equal("hello\n"))
	proxy.Every(All(BlackHole))
	half, ok := conn.Conn.(*net.TCPConn)
	g.Expect(ok).To(BeTrue())
	g.Expect(half.CloseWrite()).To(Succeed()) // upon which the server closes
	_, err := conn.receive(moment)
	g.Expect(err).To(MatchError(os.ErrDeadlineExceeded))
	proxy.Every(All(Pass))
	_, err = conn.receive(10 * time.Second)
	g.Expect(err).To(MatchError(io.EOF))
}

func TestRefuse(t *testing.T) {
	g := NewWithT(t)
	proxy := echo(t)
	conn := dial(t, proxy)
	proxy.Refuse()
	g.Expect(attempt(proxy)).To(MatchError(syscall.ECONNREFUSED))
	g.Expect(conn.ask("still here")).To(Equal("still here\n"))
	g.Expect(proxy.Listen()).To(Succeed())
	g.Expect(dial(t, proxy).ask("back")).To(Equal("back\n"))
}

func TestCut(t *testing.T) {
	g := NewWithT(t)
	proxy := echo(t)
	first, second := dial(t, proxy), dial(t, proxy)
	g.Expect(first.ask("hello")).To(Equal("hello\n"))
	proxy.Existing(Nth(Cut, 1))
	_, err := first.receive(10 * time.Second)
	g.Expect(err).To(MatchError(syscall.ECONNRESET))
	g.Expect(second.ask("spared")).To(Equal("spared\n"))

	proxy.New(All(Cut))
	g.Expect(attempt(proxy)).To(MatchError(syscall.ECONNRESET))
}

func TestCutAndCloseEndABlackHole(t *testing.T) {
	g := NewWithT(t)
	proxy := echo(t)
	proxy.New(All(BlackHole))
	conn := dial(t, proxy)
	proxy.Existing(All(Cut))
	_, err := conn.receive(10 * time.Second)
	g.Expect(err).To(MatchError(syscall.ECONNRESET))

	conn = dial(t, proxy)
	proxy.Close()
	_, err = conn.receive(10 * time.Second)
	g.Expect(err).To(MatchError(syscall.ECONNRESET))
	g.Expect(proxy.Open()).To(BeZero())
}

func TestDelay(t *testing.T) {
	g := NewWithT(t)
	proxy := echo(t)
	conn := dial(t, proxy)
	g.Expect(conn.ask("fast")).To(Equal("fast\n"))
	proxy.Existing(All(Delay(moment)))
	start := time.Now()
	g.Expect(conn.ask("slow")).To(Equal("slow\n"))
	g.Expect(time.Since(start)).To(BeNumerically(">=", 2*moment), "there and back")

	proxy.Existing(All(Delay(time.Hour)))
	g.Expect(conn.send("stuck")).To(Succeed())
	proxy.Existing(All(Pass))
	g.Expect(conn.receive(10 * time.Second)).To(Equal("stuck\n"))
}

func TestRules(t *testing.T) {
	g := NewWithT(t)
	proxy := echo(t)
	proxy.New(Nth(Cut, 2, 3))
	g.Expect(attempt(proxy)).To(Succeed())
	g.Expect(attempt(proxy)).To(MatchError(syscall.ECONNRESET))
	g.Expect(attempt(proxy)).To(MatchError(syscall.ECONNRESET))
	g.Expect(attempt(proxy)).To(Succeed())

	chosen, other := dial(t, proxy), dial(t, proxy)
	proxy.Existing(func(c Conn) Fault {
		if c.Client.String() == chosen.LocalAddr().String() {
			return BlackHole
		}
		return Pass
	})
	g.Expect(other.ask("hello")).To(Equal("hello\n"))
	g.Expect(chosen.send("hello")).To(Succeed())
	_, err := chosen.receive(moment)
	g.Expect(err).To(MatchError(os.ErrDeadlineExceeded))
}

func TestTargetDown(t *testing.T) {
	g := NewWithT(t)
	down, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(down.Close()).To(Succeed())
	proxy, err := NewTCP(down.Addr().String())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(proxy.Close)
	g.Expect(attempt(proxy)).To(MatchError(syscall.ECONNRESET))
}
