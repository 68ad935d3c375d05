package controlplane

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
)

func (c *Cluster) startControllerManager(ctx context.Context) error {
	var ready func(context.Context) error
	if slices.Contains(c.options.Controllers, "serviceaccount-controller") {
		// Pods cannot be made before.
		ready = func(ctx context.Context) error {
			_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).
				Get(ctx, "default", metav1.GetOptions{})
			return err
		}
	}
	c.ControllerManager = c.component(binaries.KubeControllerManager, ready,
		"--kubeconfig="+c.KubeconfigPath(),
		"--controllers="+strings.Join(c.options.Controllers, ","),
		"--leader-elect=false",
		"--secure-port=0",
	)
	return c.ControllerManager.Start(ctx)
}

func (c *Cluster) startScheduler(ctx context.Context) error {
	c.Scheduler = c.component(binaries.KubeScheduler, nil,
		"--kubeconfig="+c.KubeconfigPath(),
		"--leader-elect=false",
		"--secure-port=0",
	)
	return c.Scheduler.Start(ctx)
}
