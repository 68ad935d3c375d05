package prometheus

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestDocsExplainEveryReason(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile(filepath.Join(root, "docs", "alerts.md"))
	g.Expect(err).NotTo(HaveOccurred())
	api := filepath.Join(root, "api", "v1alpha1")
	files, err := fs.Glob(os.DirFS(api), "*_conditions.go")
	g.Expect(err).NotTo(HaveOccurred())
	reasons := 0
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(api, file), nil, 0)
		g.Expect(err).NotTo(HaveOccurred())
		ast.Inspect(parsed, func(node ast.Node) bool {
			spec, ok := node.(*ast.ValueSpec)
			if !ok || !strings.HasSuffix(spec.Names[0].Name, "Reason") {
				return true
			}
			literal, ok := spec.Values[0].(*ast.BasicLit)
			g.Expect(ok).To(BeTrue(), spec.Names[0].Name)
			reason, err := strconv.Unquote(literal.Value)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(strings.Contains(string(page), "`"+reason+"`")).To(BeTrue(), "docs/alerts.md lacks %s of %s", reason, file)
			reasons++
			return true
		})
	}
	g.Expect(reasons).To(BeNumerically(">", 40))
}
