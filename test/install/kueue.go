package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
)

// preflightCRDs are the kinds of Kueue's that preflight reads. The others cost an API server seconds.
var preflightCRDs = []string{"clusterqueues.kueue.x-k8s.io", "admissionchecks.kueue.x-k8s.io"}

// KueueCRDs installs what preflight reads of Kueue's API, without Kueue, for tests that write themselves what
// Kueue would. It leaves the conversion out, which would need Kueue's webhook.
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
		if object.GetKind() != "CustomResourceDefinition" || !slices.Contains(preflightCRDs, object.GetName()) {
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
	_, err = cluster.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=2m", "crd", "--all")
	return err
}
