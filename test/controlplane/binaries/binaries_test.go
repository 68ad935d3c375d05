package binaries

import (
	"bytes"
	"context"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/dispatch-dev/dispatch/test/controlplane/internal/filelock"
)

// toolBuilder builds a program of a few lines, whose module stands for the large
// ones. It has no requirements, so that nothing is downloaded.
func toolBuilder(t *testing.T) (*builder, *bytes.Buffer) {
	t.Helper()
	g := NewWithT(t)
	sources := t.TempDir()
	for name, text := range map[string]string{
		"tool/go.mod":          "module example.com/pinned\n\ngo 1.26\n\nrequire example.com/tool v1.2.3\n\nreplace example.com/tool => ./source\n",
		"tool/go.sum":          "",
		"tool/source/go.mod":   "module example.com/tool\n\ngo 1.26\n",
		"tool/source/main.go":  "package main\n\nvar version string\n\nfunc main() { println(version) }\n",
		"tool/source/other.go": "package main\n",
	} {
		path := filepath.Join(sources, name)
		g.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
	}
	output := &bytes.Buffer{}
	return &builder{
		sources: sources,
		cache:   filepath.Join(t.TempDir(), "cache"),
		modules: []module{{
			folder:   "tool",
			path:     "example.com/tool",
			ldflags:  func(version string) string { return "-X main.version=" + version },
			programs: map[string]string{"tool": "example.com/tool"},
		}},
		log:  log.New(output, "", 0),
		tick: time.Minute,
	}, output
}

func TestBuildsWhatIsMissingOnce(t *testing.T) {
	g := NewWithT(t)
	b, output := toolBuilder(t)
	paths, err := b.ensure(t.Context(), []string{"tool"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(output.String()).To(MatchRegexp(`(?s)^building tool v1\.2\.3 \(1 of 1\)\nbuilt tool v1\.2\.3 \(1 of 1\) in [\d.]+m?s\n$`))
	g.Expect(filepath.Base(filepath.Dir(paths["tool"]))).To(HavePrefix("tool-v1.2.3-"))
	content, err := os.ReadFile(paths["tool"])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content)).To(ContainSubstring("v1.2.3"), "the version is linked in")

	output.Reset()
	g.Expect(b.ensure(t.Context(), []string{"tool"})).To(Equal(paths))
	g.Expect(output.String()).To(BeEmpty())

	dir, err := b.link(paths)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(b.link(paths)).To(Equal(dir))
	g.Expect(filepath.EvalSymlinks(filepath.Join(dir, "tool"))).To(Equal(paths["tool"]))

	// Whatever changes the module graph changes the place.
	g.Expect(os.WriteFile(filepath.Join(b.sources, "tool/go.sum"), []byte("\n"), 0o600)).To(Succeed())
	g.Expect(b.path("tool")).NotTo(Equal(paths["tool"]))
}

func TestBuildersAtTheSameTimeBuildOnce(t *testing.T) {
	g := NewWithT(t)
	b, output := toolBuilder(t)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			_, err := b.ensure(t.Context(), []string{"tool"})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	g.Expect(strings.Count(output.String(), "built tool")).To(Equal(1))
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	g := NewWithT(t)
	b, _ := toolBuilder(t)
	g.Expect(os.WriteFile(filepath.Join(b.sources, "tool/source/other.go"), []byte("package main\n\nvar _ = missing\n"), 0o600)).To(Succeed())
	_, err := b.ensure(t.Context(), []string{"tool"})
	g.Expect(err).To(MatchError(And(ContainSubstring("building tool"), ContainSubstring("undefined: missing"))))
	path, err := b.path("tool")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(path).NotTo(BeAnExistingFile())
	g.Expect(filepath.Glob(filepath.Join(b.cache, ".build-*"))).To(BeEmpty())
}

func TestWaitForTheLockEndsWithTheContext(t *testing.T) {
	g := NewWithT(t)
	b, output := toolBuilder(t)
	g.Expect(os.MkdirAll(b.cache, 0o755)).To(Succeed())
	unlock, err := filelock.TryLock(filepath.Join(b.cache, "lock"))
	g.Expect(err).NotTo(HaveOccurred())
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = b.ensure(ctx, []string{"tool"})
	g.Expect(err).To(MatchError(context.DeadlineExceeded))
	g.Expect(output.String()).To(HavePrefix("waiting for another process"))
}

func TestAssetsOfTheUserComeFirst(t *testing.T) {
	g := NewWithT(t)
	b, output := toolBuilder(t)
	b.assets = t.TempDir()
	own := filepath.Join(b.assets, "tool")
	g.Expect(os.WriteFile(own, nil, 0o600)).To(Succeed())
	g.Expect(b.ensure(t.Context(), []string{"tool"})).To(Equal(map[string]string{"tool": own}))
	g.Expect(output.String()).To(BeEmpty())

	_, err := b.ensure(t.Context(), []string{"saw"})
	g.Expect(err).To(MatchError(`no module provides "saw"`))
}
