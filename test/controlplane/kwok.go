package controlplane

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
)

// CompletionDelayAnnotation on a pod says how long it runs until it succeeds,
// such as "90s". It is KWOK's own.
const CompletionDelayAnnotation = "pod-complete.stage.kwok.x-k8s.io/delay"

func (c *Cluster) startKWOK(ctx context.Context) error {
	crds, err := os.ReadFile(c.files[binaries.KWOKCRDs])
	if err != nil {
		return err
	}
	if err := c.ApplyYAML(ctx, crds); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "crd/stages.kwok.x-k8s.io"); err != nil {
		return err
	}
	stages, err := readManifests(c.files[binaries.KWOKStages])
	if err != nil {
		return err
	}
	for _, stage := range stages {
		if stage.GetName() != "pod-complete" {
			continue
		}
		// The fast stage knows no delay.
		if err := unstructured.SetNestedMap(stage.Object, map[string]any{
			"durationMilliseconds": int64(0),
			"durationFrom": map[string]any{
				"expressionFrom": fmt.Sprintf(".metadata.annotations[%q]", CompletionDelayAnnotation),
			},
		}, "spec", "delay"); err != nil {
			return err
		}
	}
	if err := c.applyObjects(ctx, stages); err != nil {
		return err
	}
	if err := c.createNodes(ctx); err != nil {
		return err
	}
	c.KWOK = c.component(binaries.KWOK, c.nodesReady,
		"--kubeconfig="+c.KubeconfigPath(),
		"--manage-all-nodes=true",
		"--enable-crds=Stage",
	)
	return c.KWOK.Start(ctx)
}

func (c *Cluster) createNodes(ctx context.Context) error {
	for i := range c.options.Nodes {
		name := fmt.Sprintf("node-%d", i)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:   name,
				Labels: map[string]string{corev1.LabelHostname: name},
			},
			Status: corev1.NodeStatus{
				Capacity:    c.options.NodeCapacity,
				Allocatable: c.options.NodeCapacity,
			},
		}
		if _, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) nodesReady(ctx context.Context) error {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, node := range nodes.Items {
		if !isReady(node) {
			return fmt.Errorf("node %s is not ready", node.Name)
		}
	}
	return nil
}

func isReady(node corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
