package install_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
)

// granter and viewer are people with the roles that are for people.
const granter, viewer = "granter", "viewer"

// people have ClusterRoles that nothing in config/ binds.
var people = map[string]string{
	"dispatch-admission-granter":      granter,
	"dispatch-admission-grant-viewer": viewer,
}

// permission is one verb on one resource that a role gives to somebody.
type permission struct {
	user, role            string
	group, resource, verb string
	namespace             string   // empty: in all
	names                 []string // empty: all
}

func (p permission) String() string {
	return fmt.Sprintf("%s: %s lets %s %s.%s %v", p.user, p.role, p.verb, p.resource, p.group, p.names)
}

// usedBy says whether a request was one that needs the permission.
func (p permission) usedBy(event *auditv1.Event) bool {
	ref := event.ObjectRef
	if ref == nil || event.Annotations["authorization.k8s.io/decision"] != "allow" {
		return false
	}
	user := event.User.Username
	if event.ImpersonatedUser != nil {
		user = event.ImpersonatedUser.Username
	}
	resource := ref.Resource
	if ref.Subresource != "" {
		resource += "/" + ref.Subresource
	}
	return user == p.user && event.Verb == p.verb && ref.APIGroup == p.group && resource == p.resource &&
		(p.namespace == "" || ref.Namespace == p.namespace) &&
		(len(p.names) == 0 || slices.Contains(p.names, ref.Name))
}

// permissions are all that the manifests of a folder give to dispatch's accounts, and to people.
func permissions(ctx context.Context, cluster *controlplane.Cluster, folder string) ([]permission, error) {
	root, err := install.Root()
	if err != nil {
		return nil, err
	}
	manifests, err := cluster.Kubectl(ctx, "kustomize", filepath.Join(root, folder))
	if err != nil {
		return nil, err
	}
	type role struct {
		namespace, name string
		rules           []rbacv1.PolicyRule
	}
	var roles []role
	users := map[string]string{} // by namespace/role
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(manifests)), 4096)
	for {
		var object unstructured.Unstructured
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		convert := func(into any) error {
			return runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, into, true)
		}
		switch object.GetKind() {
		case "ClusterRole", "Role":
			var r rbacv1.Role // a ClusterRole has the same, and its aggregation is not ours
			if err := convert(&r); err != nil {
				return nil, err
			}
			roles = append(roles, role{r.Namespace, r.Name, r.Rules})
		case "ClusterRoleBinding", "RoleBinding":
			var b rbacv1.RoleBinding
			if err := convert(&b); err != nil {
				return nil, err
			}
			if len(b.Subjects) != 1 || b.Subjects[0].Kind != rbacv1.ServiceAccountKind || b.Subjects[0].Namespace != install.Namespace {
				return nil, fmt.Errorf("%s %s is not for one account of dispatch's", object.GetKind(), b.Name)
			}
			users[b.Namespace+"/"+b.RoleRef.Name] = "system:serviceaccount:" + install.Namespace + ":" + b.Subjects[0].Name
		}
	}
	var all []permission
	for _, r := range roles {
		user := users[r.namespace+"/"+r.name]
		if user == "" {
			user = people[r.name]
		}
		if user == "" {
			return nil, fmt.Errorf("role %s is bound to nobody, and no person has it in this test", r.name)
		}
		for _, rule := range r.rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						all = append(all, permission{
							user: user, role: r.name, group: group, resource: resource, verb: verb,
							namespace: r.namespace, names: rule.ResourceNames,
						})
					}
				}
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s gives no permissions", folder)
	}
	return all, nil
}

// expectAllUsed looks into the audit log for a request that needs each permission.
func expectAllUsed(t *testing.T, cluster *controlplane.Cluster, folders ...string) {
	t.Helper()
	events, err := cluster.AuditEvents()
	if err != nil {
		t.Fatal(err)
	}
	used := 0
	var unused []string
	for _, folder := range folders {
		all, err := permissions(t.Context(), cluster, folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			if slices.ContainsFunc(events, func(event auditv1.Event) bool { return p.usedBy(&event) }) {
				used++
			} else {
				unused = append(unused, p.String())
			}
		}
	}
	t.Logf("%d permissions were used, in %d requests", used, len(events))
	if len(unused) > 0 {
		t.Errorf("%d were not:\n%s", len(unused), strings.Join(unused, "\n"))
	}
}
