// Package binaries provides the programs that a test cluster is made of. Each
// is built from its Go module, with nothing but the Go toolchain, and kept in
// the user's cache folder, so that only the first run on a machine pays for it:
// about 15 minutes on two cores, nearly all of it kube-apiserver.
//
// Each folder beside this file is a Go module of its own that pins one of those
// programs. They cannot share one: Kueue needs older Kubernetes libraries than
// kube-apiserver does.
package binaries

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"

	"github.com/dispatch-dev/dispatch/test/controlplane/internal/filelock"
)

// What can be asked for: programs, and manifests rendered from the source of
// the program that they belong to, in the same version.
const (
	Etcd                  = "etcd"
	KubeAPIServer         = "kube-apiserver"
	KubeControllerManager = "kube-controller-manager"
	KubeScheduler         = "kube-scheduler"
	Kubectl               = "kubectl"
	Kueue                 = "kueue"
	KueueManifests        = "kueue.yaml"
	KWOK                  = "kwok"
	KWOKCRDs              = "kwok-crds.yaml"
	KWOKStages            = "kwok-stages.yaml"

	// Not part of a cluster: EnsureAll leaves them out.
	ArgoCD       = "argocd"
	ArgoCDCRDs   = "argocd-crds.yaml"
	ArgoCDConfig = "argocd-config.yaml"
	Promtool     = "promtool"
)

// AssetsVariable names the environment variable that envtest uses too: a folder
// with etcd, kube-apiserver and kubectl, to be used instead of building them.
const AssetsVariable = "KUBEBUILDER_ASSETS"

// module is one of the Go modules beside this file.
type module struct {
	folder   string // beside this file, and the name in the cache
	path     string // the module that is required there, and whose version is built
	ldflags  func(version string) string
	tags     string
	programs map[string]string // by name: the main package
	rendered map[string]string // by name: a kustomization inside the module
	separate bool              // not part of a cluster, and built only when asked for by name
}

var modules = []module{
	{
		folder:   "etcd",
		path:     "go.etcd.io/etcd/server/v3",
		programs: map[string]string{Etcd: "go.etcd.io/etcd/server/v3"},
	},
	{
		folder: "kubernetes",
		path:   "k8s.io/kubernetes",
		// Without it the server calls itself v0.0.0-master, which clients that
		// compare versions refuse.
		ldflags: func(version string) string {
			parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
			const variable = "-X k8s.io/component-base/version."
			return fmt.Sprintf("%[1]sgitVersion=%[2]s %[1]sgitMajor=%[3]s %[1]sgitMinor=%[4]s",
				variable, version, parts[0], parts[1])
		},
		programs: map[string]string{
			KubeAPIServer:         "k8s.io/kubernetes/cmd/kube-apiserver",
			KubeControllerManager: "k8s.io/kubernetes/cmd/kube-controller-manager",
			KubeScheduler:         "k8s.io/kubernetes/cmd/kube-scheduler",
			Kubectl:               "k8s.io/kubernetes/cmd/kubectl",
		},
	},
	{
		folder: "kueue",
		path:   "sigs.k8s.io/kueue",
		ldflags: func(version string) string {
			return "-X sigs.k8s.io/kueue/pkg/version.GitVersion=" + version
		},
		programs: map[string]string{Kueue: "sigs.k8s.io/kueue/cmd/kueue"},
		rendered: map[string]string{KueueManifests: "config/default"},
	},
	{
		folder:   "kwok",
		path:     "sigs.k8s.io/kwok",
		programs: map[string]string{KWOK: "sigs.k8s.io/kwok/cmd/kwok"},
		rendered: map[string]string{KWOKCRDs: "kustomize/crd", KWOKStages: "kustomize/stage/fast"},
	},
	{
		folder:   "argocd",
		path:     "github.com/argoproj/argo-cd/v3",
		programs: map[string]string{ArgoCD: "github.com/dispatch-dev/dispatch/test/controlplane/binaries/argocd"},
		rendered: map[string]string{ArgoCDCRDs: "manifests/crds", ArgoCDConfig: "manifests/base/config"},
		separate: true,
	},
	{
		folder: "promtool",
		path:   "github.com/prometheus/prometheus",
		// Half of the build otherwise, and no use for testing rules: the service discovery of two dozen clouds.
		tags:     "remove_all_sd",
		programs: map[string]string{Promtool: "github.com/prometheus/prometheus/cmd/promtool"},
		separate: true,
	},
}

// Ensure returns the path of each file asked for, by name, and builds what is
// missing. It logs what it builds, and a line now and then while that lasts. Processes that ask for the same at
// the same time build it once.
func Ensure(ctx context.Context, logger *log.Logger, names ...string) (map[string]string, error) {
	b, err := newBuilder(ctx, logger)
	if err != nil {
		return nil, err
	}
	return b.ensure(ctx, names)
}

// EnsureAll builds everything that clusters are made of, where it is missing, and
// returns a folder that has all of it. The folder can serve as KUBEBUILDER_ASSETS.
func EnsureAll(ctx context.Context, logger *log.Logger) (string, error) {
	b, err := newBuilder(ctx, logger)
	if err != nil {
		return "", err
	}
	var names []string
	for _, m := range b.modules {
		if !m.separate {
			names = append(names, m.names()...)
		}
	}
	paths, err := b.ensure(ctx, names)
	if err != nil {
		return "", err
	}
	return b.link(paths)
}

// builder has what a test replaces.
type builder struct {
	sources string // the folder that holds one folder per module
	cache   string
	assets  string // may be empty
	modules []module
	log     *log.Logger
	tick    time.Duration // between two lines about a build that goes on
}

func newBuilder(ctx context.Context, logger *log.Logger) (*builder, error) {
	// Asked of Go and not compiled in, so that a moved checkout and a binary
	// built with -trimpath find it too.
	const self = "github.com/dispatch-dev/dispatch"
	root, err := goCommand(ctx, ".", "list", "-m", "-f", "{{.Dir}}", self)
	if err != nil {
		return nil, fmt.Errorf("finding the module %s: %w", self, err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("finding the user's cache folder: %w", err)
	}
	return &builder{
		sources: filepath.Join(root, "test", "controlplane", "binaries"),
		cache:   filepath.Join(cache, "dispatch", "controlplane"),
		assets:  os.Getenv(AssetsVariable),
		modules: modules,
		log:     logger,
		tick:    15 * time.Second,
	}, nil
}

func (b *builder) ensure(ctx context.Context, names []string) (map[string]string, error) {
	paths := map[string]string{}
	for _, name := range names {
		path, err := b.path(name)
		if err != nil {
			return nil, err
		}
		paths[name] = path
	}
	if len(missing(paths)) == 0 {
		return paths, nil
	}

	if err := os.MkdirAll(b.cache, 0o755); err != nil {
		return nil, err
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	// Looked at again: whoever held the lock may have built them.
	todo := missing(paths)
	for i, name := range todo {
		if err := b.make(ctx, name, paths[name], fmt.Sprintf("%d of %d", i+1, len(todo))); err != nil {
			return nil, fmt.Errorf("building %s: %w", name, err)
		}
	}
	return paths, nil
}

func missing(paths map[string]string) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		if _, err := os.Stat(paths[name]); err != nil {
			names = append(names, name)
		}
	}
	return names
}

// path is where a file is, or will be once it is built.
func (b *builder) path(name string) (string, error) {
	if b.assets != "" {
		path := filepath.Join(b.assets, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	m, err := b.moduleOf(name)
	if err != nil {
		return "", err
	}
	version, err := b.version(m)
	if err != nil {
		return "", err
	}
	key, err := b.key(m, version)
	if err != nil {
		return "", err
	}
	return filepath.Join(b.cache, fmt.Sprintf("%s-%s-%s", m.folder, version, key), name), nil
}

func (b *builder) moduleOf(name string) (module, error) {
	for _, m := range b.modules {
		if slices.Contains(m.names(), name) {
			return m, nil
		}
	}
	return module{}, fmt.Errorf("no module provides %q", name)
}

func (m module) names() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for _, names := range []map[string]string{m.programs, m.rendered} {
			for name := range names {
				if !yield(name) {
					return
				}
			}
		}
	})
}

// version is the one that the module's go.mod requires.
func (b *builder) version(m module) (string, error) {
	path := filepath.Join(b.sources, m.folder, "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	file, err := modfile.ParseLax(path, data, nil)
	if err != nil {
		return "", err
	}
	for _, r := range file.Require {
		if r.Mod.Path == m.path {
			return r.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", path, m.path)
}

// key changes with everything that the built files depend on.
func (b *builder) key(m module, version string) (string, error) {
	inputs := fmt.Appendln(nil, m.flags(version), m.programs, m.rendered,
		runtime.Version(), runtime.GOOS, runtime.GOARCH)
	folder := filepath.Join(b.sources, m.folder)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return "", err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return "", err
		}
		inputs = append(inputs, data...)
	}
	return hash(inputs), nil
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}

func (m module) flags(version string) []string {
	ldflags := "-s -w"
	if m.ldflags != nil {
		ldflags += " " + m.ldflags(version)
	}
	flags := []string{"-trimpath", "-ldflags", ldflags}
	if m.tags != "" {
		flags = append(flags, "-tags", m.tags)
	}
	return flags
}

// make builds or renders one file. It appears under its path only once it is
// complete.
func (b *builder) make(ctx context.Context, name, path, which string) error {
	m, err := b.moduleOf(name)
	if err != nil {
		return err
	}
	version, err := b.version(m)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(b.cache, ".build-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	out := filepath.Join(temp, name)

	done := b.report(fmt.Sprintf("%s %s (%s)", name, version, which))
	if pkg, ok := m.programs[name]; ok {
		args := append([]string{"build", "-o", out}, m.flags(version)...)
		_, err = goCommand(ctx, filepath.Join(b.sources, m.folder), append(args, pkg)...)
	} else {
		err = b.render(ctx, m, m.rendered[name], out)
	}
	done(err)
	if err != nil {
		return err
	}
	return os.Rename(out, path)
}

// render writes what `kubectl kustomize` makes of a folder of the module.
func (b *builder) render(ctx context.Context, m module, folder, out string) error {
	kubectl, err := b.path(Kubectl)
	if err != nil {
		return err
	}
	if _, err := os.Stat(kubectl); err != nil {
		if err := b.make(ctx, Kubectl, kubectl, "needed to render manifests"); err != nil {
			return err
		}
	}
	dir := filepath.Join(b.sources, m.folder)
	if _, err := goCommand(ctx, dir, "mod", "download", m.path); err != nil {
		return err
	}
	source, err := goCommand(ctx, dir, "list", "-m", "-f", "{{.Dir}}", m.path)
	if err != nil {
		return err
	}
	manifests, err := run(exec.CommandContext(ctx, kubectl, "kustomize", filepath.Join(source, folder)))
	if err != nil {
		return err
	}
	return os.WriteFile(out, []byte(manifests), 0o644)
}

// report says that a build has begun, goes on and has ended.
func (b *builder) report(what string) (done func(error)) {
	start := time.Now()
	elapsed := func() time.Duration { return time.Since(start).Round(100 * time.Millisecond) }
	b.log.Printf("building %s", what)
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(b.tick)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				b.log.Printf("still building %s, %s", what, elapsed().Round(time.Second))
			case <-stop:
				return
			}
		}
	}()
	return func(err error) {
		close(stop)
		<-stopped
		if err == nil {
			b.log.Printf("built %s in %s", what, elapsed())
		}
	}
}

// lock waits until no other process builds.
func (b *builder) lock(ctx context.Context) (unlock func(), err error) {
	path := filepath.Join(b.cache, "lock")
	for waited := false; ; waited = true {
		unlock, err := filelock.TryLock(path)
		if !errors.Is(err, filelock.ErrLocked) {
			return unlock, err
		}
		if !waited {
			b.log.Printf("waiting for another process that builds (%s)", path)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// link gathers files in one folder that is named after what is in it.
func (b *builder) link(paths map[string]string) (string, error) {
	targets := slices.Sorted(maps.Values(paths))
	dir := filepath.Join(b.cache, "all-"+hash(fmt.Appendln(nil, targets)))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for name, path := range paths {
		err := os.Symlink(path, filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
	}
	return dir, nil
}

// goCommand runs the go command in a folder and returns what it printed.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// A workspace would replace the versions that the module pins.
	cmd.Env = append(os.Environ(), "GOWORK=off")
	// Interrupted and not killed, go ends its compilers too.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return run(cmd)
}

func run(cmd *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}
