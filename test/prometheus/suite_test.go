// Package prometheus tests what config/prometheus has for Prometheus: promtool runs the alerts against series that
// each test makes up, and the metrics that they name must be served by the two real programs.
package prometheus

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
	"github.com/dispatch-dev/dispatch/test/install"
)

var (
	// components have a folder each in config/prometheus, and in config.
	components = []string{"manager", "admission"}
	// root is the folder of the checkout.
	root string
	// tools are promtool and kubectl.
	tools map[string]string
)

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	var err error
	if root, err = install.Root(); err == nil {
		tools, err = binaries.Ensure(context.Background(), log.New(os.Stderr, "prometheus: ", 0), binaries.Promtool, binaries.Kubectl)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// render is what kustomize makes of a folder below config.
func render(ctx context.Context, folder string) ([]byte, error) {
	return exec.CommandContext(ctx, tools[binaries.Kubectl], "kustomize", filepath.Join(root, "config", folder)).Output()
}

// rules are those of a component, from the one file that has them.
func rules(component string) (*monitoringv1.PrometheusRule, error) {
	data, err := os.ReadFile(filepath.Join(root, "config", "prometheus", component, "prometheus_rule.yaml"))
	if err != nil {
		return nil, err
	}
	rule := &monitoringv1.PrometheusRule{}
	return rule, yaml.UnmarshalStrict(data, rule)
}
