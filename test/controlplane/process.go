package controlplane

import "context"

// NewComponent describes a further process beside the cluster's own, such as the program under test, with
// its log in the folder logDir. Whoever starts it stops it.
func NewComponent(name, path string, args []string, logDir string, ready func(context.Context) error) *Component {
	return &Component{name: name, path: path, args: args, logs: logDir, ready: ready}
}
