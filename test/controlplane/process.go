package controlplane

import "context"

// NewComponent describes a further process beside the cluster's own, such as the program under test, with
// its log in the folder logDir. Whoever starts it stops it.
func NewComponent(name, path string, args []string, logDir string, ready func(context.Context) error) *Component {
	return &Component{name: name, path: path, args: args, logs: logDir, ready: ready}
}

// ExitCode is that of the last process: -1 if a signal ended it, or if it has not ended.
func (c *Component) ExitCode() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil || c.running() {
		return -1
	}
	return c.cmd.ProcessState.ExitCode()
}
