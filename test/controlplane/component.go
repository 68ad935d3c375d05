package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// stopGrace is how long a process may take to end after SIGTERM. What it
	// would tidy up lies in a folder that is about to be removed.
	stopGrace = 5 * time.Second
	// pollInterval is between two looks at whether a component is ready.
	pollInterval = 50 * time.Millisecond
	// tailLines is how much of a log an error or a failed test shows.
	tailLines = 30
)

// Component is one process of a cluster. A test can stop, kill or freeze it and
// bring it back: it keeps its port, its data and its log.
type Component struct {
	name string
	path string
	args []string
	logs string // the folder
	// ready is asked until it returns nil. Nil: ready once it runs.
	ready func(context.Context) error

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{} // closed once cmd has ended
}

// NewComponent describes a further process beside the cluster's own, such as the
// program under test, with its log in the folder logDir. Whoever starts it stops
// it.
func NewComponent(name, path string, args []string, logDir string, ready func(context.Context) error) *Component {
	return &Component{name: name, path: path, args: args, logs: logDir, ready: ready}
}

// Name is that of the program.
func (c *Component) Name() string { return c.name }

// LogPath is the file with all that the component printed, over all its starts.
func (c *Component) LogPath() string { return filepath.Join(c.logs, c.name+".log") }

// Running says whether the process is there, frozen or not.
func (c *Component) Running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running()
}

func (c *Component) running() bool {
	if c.cmd == nil {
		return false
	}
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// PID is the process's, or 0 if it does not run.
func (c *Component) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running() {
		return 0
	}
	return c.cmd.Process.Pid
}

// ExitCode is that of the last process: -1 if a signal ended it, or if it has
// not ended.
func (c *Component) ExitCode() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil || c.running() {
		return -1
	}
	return c.cmd.ProcessState.ExitCode()
}

// Start starts the component and waits until it is ready. It does nothing if
// the component runs. A component that does not get ready is killed; the error
// then ends with the tail of its log, and is syscall.EADDRINUSE if another
// process had taken its port.
func (c *Component) Start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running() {
		return nil
	}
	output, err := os.OpenFile(c.LogPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer output.Close()
	begin, err := output.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}

	cmd := exec.Command(c.path, c.args...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = processAttributes()
	if err := onSpawner(cmd.Start); err != nil {
		return fmt.Errorf("starting %s: %w", c.name, err)
	}
	ended := make(chan struct{})
	c.cmd, c.ended = cmd, ended
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its log says why it ended
	}()

	if err := c.waitReady(ctx); err != nil {
		c.end(syscall.SIGKILL)
		text := c.logSince(begin)
		if bytes.Contains(text, []byte(syscall.EADDRINUSE.Error())) {
			err = fmt.Errorf("%w: %w", syscall.EADDRINUSE, err)
		}
		return fmt.Errorf("starting %s: %w\n%s", c.name, err, tail(text))
	}
	return nil
}

func (c *Component) waitReady(ctx context.Context) error {
	if c.ready == nil {
		return nil
	}
	for {
		err := c.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.ended:
			return errors.New("the process ended")
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w (last seen: %w)", context.Cause(ctx), err)
		case <-time.After(pollInterval):
		}
	}
}

// Stop ends the process as an orderly shutdown does, and kills it if it does
// not end soon. It returns once the process is gone.
func (c *Component) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(syscall.SIGTERM)
}

// Kill ends the process at once, as a crash does.
func (c *Component) Kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(syscall.SIGKILL)
}

func (c *Component) end(signal syscall.Signal) {
	if !c.running() {
		return
	}
	c.signal(signal)
	c.signal(syscall.SIGCONT) // a frozen process does not see SIGTERM
	select {
	case <-c.ended:
	case <-time.After(stopGrace):
		c.signal(syscall.SIGKILL)
		<-c.ended
	}
}

// Freeze stops the process in place: it keeps its connections and answers
// nothing, as on a machine that hangs. Thaw lets it go on.
func (c *Component) Freeze() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signal(syscall.SIGSTOP)
}

// Thaw lets a frozen process go on.
func (c *Component) Thaw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signal(syscall.SIGCONT)
}

// signal reaches the whole process group. That the process may just have ended
// is no error.
func (c *Component) signal(s syscall.Signal) {
	if c.running() {
		_ = syscall.Kill(-c.cmd.Process.Pid, s)
	}
}

func (c *Component) logSince(offset int64) []byte {
	file, err := os.Open(c.LogPath())
	if err != nil {
		return nil
	}
	defer file.Close()
	text, _ := io.ReadAll(io.NewSectionReader(file, offset, 1<<62)) // what could be read is enough
	return text
}

func tail(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// onSpawner runs f on a thread that lives as long as this process. The kernel
// ties a child's parent-death signal to the thread that started the child, and
// Go ends the threads of other goroutines when it likes.
func onSpawner(f func() error) error {
	result := make(chan error)
	spawner() <- func() { result <- f() }
	return <-result
}

var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})
