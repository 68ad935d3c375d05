package adapter_test

import (
	"context"
	"fmt"
	"os"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/dispatch-dev/dispatch/adapter"
	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

func ExampleOpen() {
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("TARGET_KUBECONFIG"))
	if err != nil {
		fmt.Println("no target to open")
		return
	}
	target, err := adapter.Open(context.Background(), cfg, adapter.Options{
		Kueue: &v1alpha1.KueueSpec{ClusterQueue: "gpu"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer target.Close()

	result := target.Preflight()
	fmt.Println("mode:", result.Mode)
	for _, condition := range result.Conditions {
		fmt.Printf("%s is %s (%s): %s\n", condition.Type, condition.Status, condition.Reason, condition.Message)
	}
	// Output: no target to open
}
