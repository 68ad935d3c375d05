package argocd

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
)

// customizations is in Argo CD's own layout, by kind, with objects as `kubectl get -o yaml` printed them.
const customizations = "config/argocd/resource_customizations/dispatch.dev"

// healthTests is a health_test.yaml.
type healthTests struct {
	Tests []struct {
		InputPath    string       `json:"inputPath"`
		HealthStatus healthStatus `json:"healthStatus"`
	} `json:"tests"`
}

type healthStatus struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func TestHealthChecks(t *testing.T) {
	w := newTest(t)
	folders, err := filepath.Glob(filepath.Join(w.root, customizations, "*"))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(folders).To(HaveLen(3))
	for _, folder := range folders {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			g := NewWithT(t)
			data, err := os.ReadFile(filepath.Join(folder, "health_test.yaml"))
			g.Expect(err).NotTo(HaveOccurred())
			var cases healthTests
			g.Expect(yaml.UnmarshalStrict(data, &cases)).To(Succeed())
			inputs, err := filepath.Glob(filepath.Join(folder, "testdata", "*.yaml"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(inputs).NotTo(BeEmpty())
			g.Expect(cases.Tests).To(HaveLen(len(inputs)))
			args := []string{"health", filepath.Join(folder, "health.lua")}
			for _, c := range cases.Tests {
				args = append(args, filepath.Join(folder, c.InputPath))
			}
			out, err := exec.CommandContext(t.Context(), w.files[binaries.ArgoCD], args...).Output()
			g.Expect(err).NotTo(HaveOccurred())
			found := json.NewDecoder(bytes.NewReader(out))
			for _, c := range cases.Tests {
				var health healthStatus
				g.Expect(found.Decode(&health)).To(Succeed())
				g.Expect(health).To(Equal(c.HealthStatus), c.InputPath)
			}
		})
	}
}
