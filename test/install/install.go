// Package install puts dispatch onto the clusters of package controlplane, as a user would: the CRDs and
// roles from config/, and the two programs as processes that have nothing but the token of their own
// ServiceAccount, so that a permission that is missing there fails a test.
package install

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/dispatch-dev/dispatch/test/controlplane"
)

const (
	// Namespace is where dispatch is installed.
	Namespace = "dispatch-system"
	// ManagerAccount is the ServiceAccount of dispatch-manager on the hub.
	ManagerAccount = "dispatch-manager"
	// AdmissionAccount is the ServiceAccount of dispatch-admission on a target.
	AdmissionAccount = "dispatch-admission"
	// HubAccount is the ServiceAccount that the hub uses on a target.
	HubAccount = "dispatch-hub"
)

// Hub installs what the hub needs: CRDs and the manager's roles.
func Hub(ctx context.Context, cluster *controlplane.Cluster) error {
	return apply(ctx, cluster, "config/rbac/manager")
}

// TargetWrite lets the hub send jobs to a target, too.
func TargetWrite(ctx context.Context, cluster *controlplane.Cluster) error {
	return apply(ctx, cluster, "config/rbac/target-write")
}

// Target installs what a target needs: CRDs, the roles of dispatch-admission, and those of the hub.
func Target(ctx context.Context, cluster *controlplane.Cluster) error {
	return apply(ctx, cluster, "config/rbac/admission", "config/rbac/target")
}

func apply(ctx context.Context, cluster *controlplane.Cluster, folders ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	for _, folder := range append([]string{"config/namespace", "config/crd"}, folders...) {
		if err := cluster.Apply(ctx, filepath.Join(root, folder)); err != nil {
			return err
		}
	}
	_, err = cluster.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all")
	return err
}

// Root is the folder of the checkout.
var Root = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/dispatch-dev/dispatch").Output()
	if err != nil {
		return "", fmt.Errorf("finding the module's folder: %w", err)
	}
	return string(bytes.TrimSpace(out)), nil
})

// Programs builds cmd/... into folder. Arguments are for go build.
func Programs(ctx context.Context, folder string, args ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-o", folder + "/"}, args...), "./cmd/...")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building dispatch: %w\n%s", err, out)
	}
	return nil
}

// Process describes a program of dispatch that is to run with the config of its ServiceAccount.
type Process struct {
	// Program is dispatch-manager or dispatch-admission, in the folder that Programs was given.
	Program string
	// Name is that of the process's log. Default: Program.
	Name string
	// Folder holds the programs, and gets the kubeconfig and the log.
	Folder string
	// Config is the client config, as controlplane's ServiceAccountConfig gives it.
	Config *rest.Config
	// Args follow those for the kubeconfig and the addresses.
	Args []string
}

// New prepares the process. Start, Stop, Kill and Freeze are the Component's.
func (p Process) New() (*controlplane.Component, error) {
	if p.Name == "" {
		p.Name = p.Program
	}
	kubeConfig, err := controlplane.Kubeconfig(p.Config)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(p.Folder, p.Name+".kubeconfig")
	if err := os.WriteFile(path, kubeConfig, 0o600); err != nil {
		return nil, err
	}
	// Neither probes nor metrics unless the caller names ports for them: any fixed ones could be taken.
	args := append([]string{"-kubeconfig=" + path, "-health-probe-bind-address=0", "-metrics-bind-address=0"}, p.Args...)
	return controlplane.NewComponent(p.Name, filepath.Join(p.Folder, p.Program), args, p.Folder, nil), nil
}
