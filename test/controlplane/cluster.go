package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
	"github.com/dispatch-dev/dispatch/test/controlplane/ports"
)

const (
	// KeepLogsVariable names the environment variable that, set to anything,
	// keeps the logs of every cluster.
	KeepLogsVariable = "DISPATCH_CONTROLPLANE_KEEP_LOGS"

	// startAttempts is how often a start is tried if a port turns out to be
	// taken after all.
	startAttempts = 3
)

// Cluster is a running cluster.
type Cluster struct {
	// The parts. Those that were left out are nil.
	Etcd, APIServer, ControllerManager, Scheduler, Kueue, KWOK *Component

	options Options
	files   map[string]string // of package binaries, by name
	dir     string
	etcdURL string
	admin   *rest.Config
	client  kubernetes.Interface

	mu         sync.Mutex // parts start side by side
	components []*Component
	release    []func() // of the folder and the ports

	stop     sync.Once
	keepLogs bool
}

// Start starts a cluster and returns once every part of it works. Programs that
// are not in the cache are built first, which is reported on stderr. The context
// bounds the start only: the cluster runs until Stop, or until this process
// ends. A failed start leaves nothing running; its error names the folder with
// the logs.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	files, err := binaries.Ensure(ctx, log.New(os.Stderr, "controlplane: ", 0), options.files()...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, options.StartTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		c, err := start(ctx, options, files)
		if err == nil || attempt == startAttempts || !errors.Is(err, syscall.EADDRINUSE) {
			return c, err
		}
	}
}

func start(ctx context.Context, options Options, files map[string]string) (*Cluster, error) {
	dir, release, err := newFolder()
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		options:  options,
		files:    files,
		dir:      dir,
		release:  []func(){release},
		keepLogs: os.Getenv(KeepLogsVariable) != "",
	}
	if err := c.start(ctx); err != nil {
		c.KeepLogs()
		c.Stop()
		return nil, fmt.Errorf("%w\nlogs: %s", err, c.LogDir())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	rest, ctx := errgroup.WithContext(ctx)
	if c.options.ControllerManager {
		rest.Go(func() error { return c.startControllerManager(ctx) })
	}
	if c.options.Scheduler {
		rest.Go(func() error { return c.startScheduler(ctx) })
	}
	if c.options.Kueue {
		rest.Go(func() error { return c.startKueue(ctx) })
	}
	if c.options.KWOK {
		rest.Go(func() error { return c.startKWOK(ctx) })
	}
	return rest.Wait()
}

// Stop ends all processes and removes what they wrote, but for logs that are to
// be kept. A second Stop does nothing.
func (c *Cluster) Stop() {
	c.stop.Do(func() {
		var all sync.WaitGroup
		for _, component := range c.components {
			all.Go(component.Stop)
		}
		all.Wait()
		clearButLogs(c.dir)
		if !c.keepLogs {
			_ = os.RemoveAll(c.dir)
		}
		for _, release := range c.release {
			release()
		}
	})
}

// LogDir is the folder with a log file for each component, and the audit log.
func (c *Cluster) LogDir() string { return filepath.Join(c.dir, logFolder) }

// KeepLogs makes Stop leave LogDir.
func (c *Cluster) KeepLogs() { c.keepLogs = true }

// WriteLogs writes the end of each component's log.
func (c *Cluster) WriteLogs(w io.Writer) error {
	for _, component := range c.components {
		text := tail(component.logSince(0))
		if _, err := fmt.Fprintf(w, "--- the end of %s\n%s\n", component.LogPath(), text); err != nil {
			return err
		}
	}
	return nil
}

// component makes a part that can be started.
func (c *Cluster) component(name string, ready func(context.Context) error, args ...string) *Component {
	component := NewComponent(name, c.files[name], append(args, c.options.Args[name]...), c.LogDir(), ready)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.components = append(c.components, component)
	return component
}

// port reserves one until the cluster is stopped.
func (c *Cluster) port() (int, error) {
	port, release, err := ports.Reserve()
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release = append(c.release, release)
	return port, nil
}

// write writes a file into the cluster's folder and returns its path.
func (c *Cluster) write(name string, data []byte) (string, error) {
	path := filepath.Join(c.dir, name)
	return path, os.WriteFile(path, data, 0o600)
}
