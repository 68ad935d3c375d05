// Package jobkind is the table of the kinds of jobs that dispatch sends: where each has its suspend field,
// and how it says that it has ended. A kind that is not in it is refused, because a job that cannot be
// suspended runs before anybody has admitted it.
package jobkind

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is one row of the table.
type Kind struct {
	schema.GroupVersionKind
	// Resource is the kind's plural name in URLs and roles.
	Resource string
	// Suspend is the path of the field that keeps a job from running while it is true.
	Suspend []string
	// end says how a job has ended.
	end end
}

// end is where a kind says that a job has ended: in conditions of these types, or, with a path, in a field
// with these values. The zero value: a job of this kind does not end by itself.
type end struct {
	path      []string
	succeeded string
	failed    []string
}

var (
	specSuspend      = []string{"spec", "suspend"}
	runPolicySuspend = []string{"spec", "runPolicy", "suspend"}
	completeOrFailed = end{succeeded: "Complete", failed: []string{"Failed"}}
	trainingOperator = end{succeeded: "Succeeded", failed: []string{"Failed"}}
)

// Table has the kinds of Kueue's own integrations that are jobs, at the versions that those use, taken from
// their SetupWithManager and Suspend in Kueue v0.17. Pods, Deployments, StatefulSets, LeaderWorkerSets and
// RayServices are left out: they have no suspend field, or never end.
var Table = []Kind{
	{batchv1.SchemeGroupVersion.WithKind("Job"), "jobs", specSuspend, completeOrFailed},
	{kind("jobset.x-k8s.io", "v1alpha2", "JobSet"), "jobsets", specSuspend, end{succeeded: "Completed", failed: []string{"Failed"}}},
	{kind("kubeflow.org", "v1", "JAXJob"), "jaxjobs", runPolicySuspend, trainingOperator},
	{kind("kubeflow.org", "v1", "PaddleJob"), "paddlejobs", runPolicySuspend, trainingOperator},
	{kind("kubeflow.org", "v1", "PyTorchJob"), "pytorchjobs", runPolicySuspend, trainingOperator},
	{kind("kubeflow.org", "v1", "TFJob"), "tfjobs", runPolicySuspend, trainingOperator},
	{kind("kubeflow.org", "v1", "XGBoostJob"), "xgboostjobs", runPolicySuspend, trainingOperator},
	{kind("kubeflow.org", "v2beta1", "MPIJob"), "mpijobs", runPolicySuspend, trainingOperator},
	{kind("ray.io", "v1", "RayCluster"), "rayclusters", specSuspend, end{}},
	{kind("ray.io", "v1", "RayJob"), "rayjobs", specSuspend, end{
		path: []string{"status", "jobStatus"}, succeeded: "SUCCEEDED", failed: []string{"FAILED", "STOPPED"},
	}},
	{kind("sparkoperator.k8s.io", "v1beta2", "SparkApplication"), "sparkapplications", specSuspend, end{
		path: []string{"status", "applicationState", "state"}, succeeded: "COMPLETED", failed: []string{"FAILED"},
	}},
	{kind("trainer.kubeflow.org", "v1alpha1", "TrainJob"), "trainjobs", specSuspend, completeOrFailed},
	{kind("workload.codeflare.dev", "v1beta2", "AppWrapper"), "appwrappers", specSuspend, end{
		path: []string{"status", "phase"}, succeeded: "Succeeded", failed: []string{"Failed"},
	}},
}

func kind(group, version, name string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: group, Version: version, Kind: name}
}

// Find returns the row of a kind, or nil if the table has none.
func Find(gvk schema.GroupVersionKind) *Kind {
	for i := range Table {
		if Table[i].GroupVersionKind == gvk {
			return &Table[i]
		}
	}
	return nil
}

// AddTo adds all kinds of the table to a mapper, so that none needs discovery.
func AddTo(mapper *meta.DefaultRESTMapper) {
	for i := range Table {
		k := &Table[i]
		mapper.AddSpecific(k.GroupVersionKind, k.GroupVersion().WithResource(k.Resource), k.GroupVersion().WithResource(k.Resource), meta.RESTScopeNamespace)
	}
}

// SetSuspend writes the suspend field.
func (k *Kind) SetSuspend(job *unstructured.Unstructured, suspend bool) error {
	return unstructured.SetNestedField(job.Object, suspend, k.Suspend...)
}

// Ended says whether the job says that it has ended, and whether it has then succeeded.
func (k *Kind) Ended(job *unstructured.Unstructured) (ended, succeeded bool) {
	if k.end.succeeded == "" {
		return false, false
	}
	if k.end.path != nil {
		value, _, _ := unstructured.NestedString(job.Object, k.end.path...)
		succeeded = value == k.end.succeeded
		return succeeded || slices.Contains(k.end.failed, value), succeeded
	}
	conditions, _, _ := unstructured.NestedSlice(job.Object, "status", "conditions")
	for _, c := range conditions {
		condition, ok := c.(map[string]any)
		if !ok || condition["status"] != "True" {
			continue
		}
		conditionType, _ := condition["type"].(string)
		if conditionType == k.end.succeeded {
			return true, true
		}
		if slices.Contains(k.end.failed, conditionType) {
			ended = true
		}
	}
	return ended, false
}
