package adapter

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/jobkind"
)

// queueLabel names a job's LocalQueue.
const queueLabel = "kueue.x-k8s.io/queue-name"

// JobKind is a kind of job that can be sent.
type JobKind struct {
	schema.GroupVersionKind
	// Suspend is the path of the field that keeps the job from running while it is true.
	Suspend string
}

// Kinds are those that can be sent. Every other kind is refused: a job that cannot be suspended runs before
// anybody has admitted it.
func Kinds() []JobKind {
	kinds := make([]JobKind, 0, len(jobkind.Table))
	for _, k := range jobkind.Table {
		kinds = append(kinds, JobKind{k.GroupVersionKind, strings.Join(k.Suspend, ".")})
	}
	return kinds
}

// newJob vets a template and makes the job of it. plain is plain mode, in which a job runs at once and
// belongs to no queue.
func newJob(s *Submission, target string, plain bool) (*unstructured.Unstructured, *jobkind.Kind, error) {
	kind, err := vet(s, plain)
	if err != nil {
		return nil, nil, err
	}
	job := &unstructured.Unstructured{Object: map[string]any{}}
	template := s.Template.DeepCopy()
	job.SetGroupVersionKind(kind.GroupVersionKind)
	job.SetNamespace(s.Namespace)
	job.SetName(s.Name)
	job.Object["spec"] = template.Object["spec"]
	labels, annotations := template.GetLabels(), template.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	labels[v1alpha1.SubmissionLabel] = s.ID
	if !plain {
		labels[queueLabel] = s.LocalQueue
	}
	if target != "" {
		annotations[v1alpha1.TargetAnnotation] = target
	}
	job.SetLabels(labels)
	job.SetAnnotations(annotations)
	job.SetFinalizers([]string{v1alpha1.SubmissionFinalizer})
	if err := kind.SetSuspend(job, !plain); err != nil {
		return nil, nil, refuse(ErrTemplateRefused, "template.%s: its parent is not an object", strings.Join(kind.Suspend, "."))
	}
	return job, kind, nil
}

// vet refuses every template that could make something else of the job than one that Kueue and dispatch
// hold: what is not known to be harmless is refused.
func vet(s *Submission, plain bool) (*jobkind.Kind, error) {
	template := s.Template
	if template == nil || template.GetKind() == "" || template.GetAPIVersion() == "" {
		return nil, refuse(ErrTemplateRefused, "template: apiVersion and kind are required")
	}
	kind := jobkind.Find(template.GroupVersionKind())
	if kind == nil {
		return nil, refuse(ErrKindNotSupported, "template: %q of %q is not one of the kinds that can be sent: see docs/dispatchjobs.md", template.GetKind(), template.GetAPIVersion())
	}
	if plain && kind.Kind != "Job" {
		return nil, refuse(ErrKindNotSupported, "template: in plain mode only a batch/v1 Job can be sent, not a %s", kind.Kind)
	}
	for _, field := range slices.Sorted(maps.Keys(template.Object)) {
		switch field {
		case "apiVersion", "kind", "metadata", "spec":
		default:
			return nil, refuse(ErrTemplateRefused, "template.%s: is not sent: leave it out", field)
		}
	}
	if err := vetMetadata(template.Object["metadata"], s); err != nil {
		return nil, err
	}
	if _, ok := template.Object["spec"].(map[string]any); !ok {
		return nil, refuse(ErrTemplateRefused, "template.spec: an object is required")
	}
	for _, path := range [][]string{{"spec", "managedBy"}, {"spec", "runPolicy", "managedBy"}} {
		if _, found, _ := unstructured.NestedFieldNoCopy(template.Object, path...); found {
			return nil, refuse(ErrTemplateRefused, "template.%s: would hand the job to another controller: leave it out", strings.Join(path, "."))
		}
	}
	if path := reservedKey("template", template.Object); path != "" {
		return nil, refuse(ErrTemplateRefused, "%s: keys of kueue.x-k8s.io and dispatch.dev are set by dispatch: leave it out", path)
	}
	return kind, nil
}

func vetMetadata(value any, s *Submission) error {
	if value == nil {
		return nil
	}
	metadata, ok := value.(map[string]any)
	if !ok {
		return refuse(ErrTemplateRefused, "template.metadata: is not an object")
	}
	for _, field := range slices.Sorted(maps.Keys(metadata)) {
		switch field {
		case "labels", "annotations":
			values, ok := metadata[field].(map[string]any)
			for _, v := range values {
				_, isString := v.(string)
				ok = ok && isString
			}
			if !ok {
				return refuse(ErrTemplateRefused, "template.metadata.%s: is not a map of strings", field)
			}
		case "name":
			if metadata[field] != s.Name {
				return refuse(ErrTemplateRefused, "template.metadata.name: the job gets the name %s: leave it out", s.Name)
			}
		case "namespace":
			if metadata[field] != s.Namespace {
				return refuse(ErrTemplateRefused, "template.metadata.namespace: the job goes to namespace %s: leave it out", s.Namespace)
			}
		case "creationTimestamp":
			// What Go writes of an empty ObjectMeta.
			if metadata[field] != nil {
				return refuse(ErrTemplateRefused, "template.metadata.creationTimestamp: leave it out")
			}
		default:
			return refuse(ErrTemplateRefused, "template.metadata.%s: only labels and annotations are sent: leave it out", field)
		}
	}
	return nil
}

// reservedKey is the path of the first key, at any depth, that Kueue or dispatch would act on; empty if there
// is none. At any depth, because Kueue also reads the labels and annotations of pod templates.
func reservedKey(path string, value any) string {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			domain, _, found := strings.Cut(key, "/")
			if found && (isDomain(domain, "kueue.x-k8s.io") || isDomain(domain, "dispatch.dev")) {
				return fmt.Sprintf("%s[%q]", path, key)
			}
			if p := reservedKey(path+"."+key, value[key]); p != "" {
				return p
			}
		}
	case []any:
		for i := range value {
			if p := reservedKey(fmt.Sprintf("%s[%d]", path, i), value[i]); p != "" {
				return p
			}
		}
	}
	return ""
}

func isDomain(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}
