// Package ports finds ports for servers that are told where to listen, and that
// may stop and listen there again.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/dispatch-dev/dispatch/test/controlplane/internal/filelock"
)

// Ports are taken from below the range from which kernels give ports to
// outgoing connections, so that none of those takes the port of an API server
// that is down for a while.
const (
	firstPort = 20000
	lastPort  = 31999
)

// Reserve finds a local port that nothing listens on. It does not find the same
// one again, in this process or another, until release is called.
func Reserve() (port int, release func(), err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return 0, nil, err
	}
	dir := filepath.Join(cache, "dispatch", "controlplane", "ports")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, nil, err
	}
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		path := filepath.Join(dir, strconv.Itoa(port))
		unlock, err := filelock.TryLock(path)
		if errors.Is(err, filelock.ErrLocked) {
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		release := func() {
			_ = os.Remove(path) // an empty file; what is left of it does no harm
			unlock()
		}
		if free(port) {
			return port, release, nil
		}
		release()
	}
	return 0, nil, fmt.Errorf("no free port found from %d to %d", firstPort, lastPort)
}

func free(port int) bool {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}
