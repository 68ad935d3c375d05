package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
)

// KueueCRDs installs Kueue's API without Kueue, for tests that write themselves what Kueue would. It leaves
// the conversion out, which would need Kueue's webhook.
func KueueCRDs(ctx context.Context, cluster *controlplane.Cluster) error {
	files, err := binaries.Ensure(ctx, log.New(os.Stderr, "install: ", 0), binaries.KueueManifests)
	if err != nil {
		return err
	}
	manifests, err := os.ReadFile(files[binaries.KueueManifests])
	if err != nil {
		return err
	}
	var crds bytes.Buffer
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		var object unstructured.Unstructured
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("reading Kueue's manifests: %w", err)
		}
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		unstructured.RemoveNestedField(object.Object, "spec", "conversion")
		data, err := object.MarshalJSON()
		if err != nil {
			return err
		}
		crds.WriteString("---\n")
		crds.Write(data)
	}
	if err := cluster.ApplyYAML(ctx, crds.Bytes()); err != nil {
		return err
	}
	_, err = cluster.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all")
	return err
}
