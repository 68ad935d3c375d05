package v1alpha1_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What users of an earlier version have written, and its programs, stays valid and keeps every field. The files
// in testdata are frozen: a CRD that refuses one, or drops a field of one, breaks somebody's upgrade. A new
// version adds a folder of its own.
func TestObjectsOfEarlierVersionsStayValid(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files of earlier versions", err)
	}
	c := client.WithFieldValidation(newAPIServer(t), metav1.FieldValidationStrict)
	for _, file := range files {
		for _, object := range readObjects(t, file) {
			t.Run(filepath.Base(filepath.Dir(file))+"/"+object.GetKind()+"/"+object.GetName(), func(t *testing.T) {
				g := NewWithT(t)
				if object.GetNamespace() != "" {
					namespace := &unstructured.Unstructured{}
					namespace.SetAPIVersion("v1")
					namespace.SetKind("Namespace")
					namespace.SetName(object.GetNamespace())
					g.Expect(c.Create(t.Context(), namespace)).To(Or(Succeed(), Satisfy(apierrors.IsAlreadyExists)))
				}
				given := object.DeepCopy()
				g.Expect(c.Create(t.Context(), object)).To(Succeed())
				if status, ok := given.Object["status"]; ok {
					object.Object["status"] = status
					g.Expect(c.Status().Update(t.Context(), object)).To(Succeed())
				}
				g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
				for _, part := range []string{"spec", "status"} {
					if lost := missing(given.Object[part], object.Object[part], part); len(lost) > 0 {
						t.Errorf("lost: %v", lost)
					}
				}
			})
		}
	}
}

// readObjects reads the documents of a file.
func readObjects(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(file, err)
		}
		objects = append(objects, object)
	}
	if len(objects) == 0 {
		t.Fatal(file, "is empty")
	}
	return objects
}

// missing are the paths of what is in given and not, or otherwise, in got.
func missing(given, got any, path string) []string {
	switch given := given.(type) {
	case map[string]any:
		other, _ := got.(map[string]any)
		var lost []string
		for key, value := range given {
			lost = append(lost, missing(value, other[key], path+"."+key)...)
		}
		slices.Sort(lost)
		return lost
	case nil:
		return nil
	}
	if !reflect.DeepEqual(given, got) {
		return []string{path}
	}
	return nil
}
