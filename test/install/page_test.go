package install_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dispatch-dev/dispatch/test/install"
)

// page is a page of the documentation whose shell code is run, in the order of the page.
type page struct {
	t      *testing.T
	path   string
	blocks []codeBlock
	next   int
	// folder is where the code is run, and env what it sees.
	folder string
	env    []string
	// out is what the last block printed.
	out string
}

// codeBlock is one fenced block.
type codeBlock struct {
	section, language, text string
	line                    int
}

func openPage(t *testing.T, path, folder string, env []string) *page {
	t.Helper()
	root, err := install.Root()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	p := &page{t: t, path: path, folder: folder, env: env}
	section, block := "", (*codeBlock)(nil)
	for i, line := range strings.Split(string(data), "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && block == nil:
			block = &codeBlock{section: section, language: fence, line: i + 1}
		case isFence:
			p.blocks = append(p.blocks, *block)
			block = nil
		case block != nil:
			block.text += line + "\n"
		case strings.HasPrefix(line, "## "):
			section = strings.TrimPrefix(line, "## ")
		}
	}
	if len(p.blocks) == 0 {
		t.Fatalf("%s has no code", path)
	}
	return p
}

// take gives the next block, which has to be the one that the caller means: so none is left out unseen.
func (p *page) take(section, language, begin string) codeBlock {
	p.t.Helper()
	if p.next == len(p.blocks) {
		p.t.Fatalf("%s has no more code, but the test wants %q in section %q", p.path, begin, section)
	}
	block := p.blocks[p.next]
	p.next++
	if block.section != section || block.language != language || !strings.HasPrefix(block.text, begin) {
		p.t.Fatalf("%s:%d: the test does not know this %q code in section %q; it wants %q code in %q that begins with %q:\n%s",
			p.path, block.line, block.language, block.section, language, section, begin, block.text)
	}
	return block
}

// run runs the next block as it stands.
func (p *page) run(section, begin string) {
	p.t.Helper()
	p.execute(p.take(section, "sh", begin))
}

// again runs a block once more that was run before.
func (p *page) again(begin string) {
	p.t.Helper()
	i := slices.IndexFunc(p.blocks[:p.next], func(b codeBlock) bool { return strings.HasPrefix(b.text, begin) })
	if i < 0 {
		p.t.Fatalf("no code that begins with %q was run before", begin)
	}
	p.execute(p.blocks[i])
}

func (p *page) execute(block codeBlock) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), "bash", "-euo", "pipefail", "-c", block.text)
	cmd.Dir, cmd.Env = p.folder, p.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	p.out = stdout.String()
	if err != nil {
		p.t.Fatalf("%s:%d: %v\n%s%s%s", p.path, block.line, err, block.text, p.out, stderr.String())
	}
	if strings.Contains(stderr.String(), "Warning") {
		p.t.Errorf("%s:%d: %s", p.path, block.line, stderr.String())
	}
	p.t.Logf("%s:%d\n%s", p.path, block.line, p.out)
}

// shows compares the next block with what the last one printed, but for ages.
func (p *page) shows(section, begin string) {
	p.t.Helper()
	block := p.take(section, "text", begin)
	if want, got := withoutAges(block.text), withoutAges(p.out); !strings.HasSuffix(got, want) {
		p.t.Errorf("%s:%d shows\n%sbut it was\n%s", p.path, block.line, want, got)
	}
}

var (
	ages   = regexp.MustCompile(`\b(\d+[smh])+\b`)
	spaces = regexp.MustCompile(` +`)
)

func withoutAges(table string) string {
	return spaces.ReplaceAllString(ages.ReplaceAllString(table, "<age>"), " ")
}

// end is after the last block.
func (p *page) end() {
	p.t.Helper()
	if p.next < len(p.blocks) {
		p.t.Errorf("%s:%d: this code is in no test:\n%s", p.path, p.blocks[p.next].line, p.blocks[p.next].text)
	}
}
