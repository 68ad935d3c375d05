package controllers

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// preconditioned begins an apply that the API server refuses as a conflict unless the object is still
// the one that was read: the same object, and not changed by anybody since. It is the resourceVersion
// that does it; on a status the API server ignores a uid, which here says the same to a reader.
func preconditioned(kind schema.GroupVersionKind, read client.Object) *unstructured.Unstructured {
	apply := &unstructured.Unstructured{}
	apply.SetGroupVersionKind(kind)
	apply.SetNamespace(read.GetNamespace())
	apply.SetName(read.GetName())
	apply.SetUID(read.GetUID())
	apply.SetResourceVersion(read.GetResourceVersion())
	return apply
}

// writeStatus makes status, a pointer, the whole status of an object of ours, if the object is still as it
// was read. The object gets the resourceVersion of the result.
func writeStatus(ctx context.Context, c client.Client, kind string, object client.Object, status any, owner client.FieldOwner) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return fmt.Errorf("converting the status of %s %s: %w", kind, client.ObjectKeyFromObject(object), err)
	}
	apply := preconditioned(v1alpha1.GroupVersion.WithKind(kind), object)
	apply.Object["status"] = content
	if err := c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(apply), owner, client.ForceOwnership); err != nil {
		return fmt.Errorf("writing the status of %s %s: %w", kind, client.ObjectKeyFromObject(object), err)
	}
	object.SetResourceVersion(apply.GetResourceVersion())
	return nil
}
