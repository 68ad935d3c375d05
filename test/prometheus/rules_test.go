package prometheus

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
)

func TestAlertsFireWhenTheyShould(t *testing.T) {
	for _, component := range components {
		t.Run(component, func(t *testing.T) {
			g := NewWithT(t)
			folder := t.TempDir()
			rule, err := rules(component)
			g.Expect(err).NotTo(HaveOccurred())
			// A PrometheusRule's spec is what Prometheus and promtool read from a file.
			spec, err := yaml.Marshal(rule.Spec)
			g.Expect(err).NotTo(HaveOccurred())
			path := filepath.Join(folder, component+".rules.yaml")
			g.Expect(os.WriteFile(path, spec, 0o600)).To(Succeed())
			out, err := exec.CommandContext(t.Context(), tools[binaries.Promtool], "check", "rules", "--lint=all", "--lint-fatal", path).CombinedOutput()
			g.Expect(err).NotTo(HaveOccurred(), string(out))

			tests, err := os.ReadFile(filepath.Join("testdata", component+".yaml"))
			g.Expect(err).NotTo(HaveOccurred())
			path = filepath.Join(folder, component+".yaml")
			g.Expect(os.WriteFile(path, tests, 0o600)).To(Succeed())
			out, err = exec.CommandContext(t.Context(), tools[binaries.Promtool], "test", "rules", path).CombinedOutput()
			g.Expect(err).NotTo(HaveOccurred(), string(out))

			for _, group := range rule.Spec.Groups {
				for _, alert := range group.Rules {
					g.Expect(string(tests)).To(ContainSubstring("alertname: "+alert.Alert+"\n    eval_time"), "a test in which %s fires", alert.Alert)
				}
			}
		})
	}
}

func TestEachAlertLinksToItsSectionInTheDocs(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile(filepath.Join(root, "docs", "alerts.md"))
	g.Expect(err).NotTo(HaveOccurred())
	alerts := 0
	for _, component := range components {
		rule, err := rules(component)
		g.Expect(err).NotTo(HaveOccurred())
		for _, group := range rule.Spec.Groups {
			for _, alert := range group.Rules {
				alerts++
				g.Expect(string(page)).To(ContainSubstring("\n### " + alert.Alert + "\n"))
				g.Expect(alert.Annotations).To(HaveKeyWithValue("runbook_url",
					"https://github.com/dispatch-dev/dispatch/blob/main/docs/alerts.md#"+strings.ToLower(alert.Alert)))
				g.Expect(alert.Labels).To(HaveKeyWithValue("severity", BeElementOf("critical", "warning")))
			}
		}
	}
	g.Expect(alerts).To(Equal(8))
}
