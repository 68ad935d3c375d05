package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
)

// KubectlPath is the program itself. A test that runs it as somebody else than
// the administrator gives it --kubeconfig.
func (c *Cluster) KubectlPath() string { return c.files[binaries.Kubectl] }

// Kubectl runs kubectl as administrator and returns what it printed. Its error
// has what it complained about.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectl(ctx, nil, args...)
}

// Apply applies manifests from a file, or a folder, which is built with
// kustomize if it has a kustomization.yaml. It does so server-side and takes
// over fields that others own.
func (c *Cluster) Apply(ctx context.Context, path string) error {
	flag := "--filename"
	if _, err := os.Stat(filepath.Join(path, "kustomization.yaml")); err == nil {
		flag = "--kustomize"
	}
	_, err := c.kubectl(ctx, nil, applyArgs(flag, path)...)
	return err
}

// ApplyYAML is Apply for manifests in memory.
func (c *Cluster) ApplyYAML(ctx context.Context, manifests []byte) error {
	_, err := c.kubectl(ctx, bytes.NewReader(manifests), applyArgs("--filename", "-")...)
	return err
}

func applyArgs(args ...string) []string {
	return append([]string{"apply", "--server-side", "--force-conflicts"}, args...)
}

func (c *Cluster) kubectl(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.KubectlPath(), append([]string{
		"--kubeconfig=" + c.KubeconfigPath(),
		// The one in the home folder is kept by address, and a cluster before
		// this one may have had the same.
		"--cache-dir=" + filepath.Join(c.dir, "kubectl-cache"),
	}, args...)...)
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s",
			strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
