package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/dispatch-dev/dispatch/adapter"
)

// targetConfig is what clientcmd makes of the target's kubeconfig; here, that of a cluster without Kueue.
func targetConfig() *rest.Config {
	cluster, err := realCluster()
	if err != nil {
		panic(err)
	}
	return cluster.Config()
}

// A job is sent, looked at and cancelled. This target has no Kueue; with Kueue, Options name the
// ClusterQueue, the Submission a LocalQueue that leads to it, and Grant lets the job start again after an
// eviction.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	target, err := adapter.Open(ctx, targetConfig(), adapter.Options{Name: "west"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer target.Close()
	fmt.Println("mode:", target.Preflight().Mode)

	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&batchv1.Job{
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "main", Image: "registry.example/train"}},
		}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	delete(template, "status")
	template["apiVersion"], template["kind"] = "batch/v1", "Job"
	job, err := target.Submit(ctx, adapter.Submission{
		ID: "train-2026-11-29", Namespace: "default", Name: "train", Template: &unstructured.Unstructured{Object: template},
	})
	var observeOnly *adapter.ObserveOnlyError
	switch {
	case errors.As(err, &observeOnly):
		fmt.Println("held until this changes:", observeOnly.Condition)
		return
	case errors.Is(err, adapter.ErrRequest):
		fmt.Println("nobody knows whether the job is there: submit it once more, with the same ID")
		return
	case err != nil:
		fmt.Println(err)
		return
	}

	inspection, err := target.Inspect(ctx, job)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s: %s\n", inspection.Phase, inspection.Message)

	for gone := false; !gone; time.Sleep(100 * time.Millisecond) {
		if gone, err = target.Cancel(ctx, job); err != nil {
			fmt.Println(err)
			return
		}
	}
	_, err = target.Inspect(ctx, job)
	fmt.Println("gone:", errors.Is(err, adapter.ErrJobNotFound))
	// Output:
	// mode: ReadWrite
	// Running: the job was created to run at once: plain mode
	// gone: true
}
