package install_test

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// inventory is every object that a cluster has, but for events, and what it shows once more under an old name.
func inventory(ctx context.Context, config *rest.Config) ([]string, error) {
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	lists, err := discover.ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	var all []string
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, resource := range list.APIResources {
			if !slices.Contains(resource.Verbs, "list") || slices.Contains([]string{"events", "endpoints", "componentstatuses"}, resource.Name) {
				continue
			}
			found, err := objects.Resource(version.WithResource(resource.Name)).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("listing %s: %w", resource.Name, err)
			}
			for _, object := range found.Items {
				all = append(all, fmt.Sprintf("%s %s/%s", version.WithResource(resource.Name).GroupResource(), object.Namespace, object.Name))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
