package jobkind

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

func TestEnded(t *testing.T) {
	for _, tc := range []struct {
		name             string
		kind             schema.GroupVersionKind
		status           string
		ended, succeeded bool
	}{
		{"a Job without status", kind("batch", "v1", "Job"), `{}`, false, false},
		{"a Job that is suspended", kind("batch", "v1", "Job"), `{status: {conditions: [{type: Suspended, status: "True"}]}}`, false, false},
		{"a Job that is complete", kind("batch", "v1", "Job"), `{status: {conditions: [{type: Complete, status: "True"}]}}`, true, true},
		{"a Job that is not complete", kind("batch", "v1", "Job"), `{status: {conditions: [{type: Complete, status: "False"}]}}`, false, false},
		{"a Job that failed", kind("batch", "v1", "Job"), `{status: {conditions: [{type: FailureTarget, status: "True"}, {type: Failed, status: "True"}]}}`, true, false},
		{"a Job with nonsense", kind("batch", "v1", "Job"), `{status: {conditions: [1]}}`, false, false},
		{"a RayJob that runs", kind("ray.io", "v1", "RayJob"), `{status: {jobStatus: RUNNING}}`, false, false},
		{"a RayJob that succeeded", kind("ray.io", "v1", "RayJob"), `{status: {jobStatus: SUCCEEDED}}`, true, true},
		{"a RayJob that was stopped", kind("ray.io", "v1", "RayJob"), `{status: {jobStatus: STOPPED}}`, true, false},
		{"a RayCluster", kind("ray.io", "v1", "RayCluster"), `{status: {conditions: [{type: "", status: "True"}]}}`, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			job := &unstructured.Unstructured{}
			g.Expect(yaml.Unmarshal([]byte(tc.status), &job.Object)).To(Succeed())
			ended, succeeded := Find(tc.kind).Ended(job)
			g.Expect([]bool{ended, succeeded}).To(Equal([]bool{tc.ended, tc.succeeded}))
		})
	}
}

// TestRoles: a kind that the roles leave out could be neither sent nor let start again.
func TestRoles(t *testing.T) {
	for _, role := range []struct {
		file  string
		verbs []string
	}{
		{"target-write/write_role.yaml", []string{"get", "create", "patch", "delete"}},
		{"admission/job_reader_role.yaml", []string{"get"}},
	} {
		g := NewWithT(t)
		data, err := os.ReadFile(filepath.Join("..", "..", "config", "rbac", role.file))
		g.Expect(err).NotTo(HaveOccurred())
		var got rbacv1.ClusterRole
		g.Expect(yaml.Unmarshal(data, &got)).To(Succeed())
		for _, k := range Table {
			g.Expect(slices.ContainsFunc(got.Rules, func(rule rbacv1.PolicyRule) bool {
				return slices.Contains(rule.APIGroups, k.Group) && slices.Contains(rule.Resources, k.Resource) && slices.Equal(rule.Verbs, role.verbs)
			})).To(BeTrue(), "%s lets %s be %v", role.file, k.Resource, role.verbs)
		}
	}
}
