package dispatchjob

import (
	"errors"
	"io"
	"net"
	"sync"

	. "github.com/onsi/gomega"
)

// proxy stands between a client and an API server as a network does that can stop delivering. What it holds
// back it delivers later, unless the connection was reset by its sender in the meantime: then there is nobody
// left to send it again.
type proxy struct {
	listener net.Listener
	backend  string
	mu       sync.Mutex
	change   *sync.Cond
	held     bool
}

func newProxy(backend string) *proxy {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	p := &proxy{listener: listener, backend: backend}
	p.change = sync.NewCond(&p.mu)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(conn)
		}
	}()
	return p
}

// hold stops, or resumes, what goes from clients to the server.
func (p *proxy) hold(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = on
	p.change.Broadcast()
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.backend)
	if err != nil {
		return
	}
	defer server.Close()
	go func() { _, _ = io.Copy(client, server); _ = client.Close() }()

	var queue [][]byte
	var ended error
	go func() { // the client's end is noticed also while its bytes are held
		for {
			chunk := make([]byte, 32<<10)
			n, err := client.Read(chunk)
			p.mu.Lock()
			queue = append(queue, chunk[:n])
			ended = err
			p.change.Broadcast()
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	for {
		p.mu.Lock()
		for ended == nil && (p.held || len(queue) == 0) || p.held && errors.Is(ended, io.EOF) {
			p.change.Wait()
		}
		chunks, err := queue, ended
		queue = nil
		p.mu.Unlock()
		if err != nil && !errors.Is(err, io.EOF) {
			return // reset: what was held is dropped
		}
		for _, chunk := range chunks {
			if _, err := server.Write(chunk); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
