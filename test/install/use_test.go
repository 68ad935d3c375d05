package install_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/jobkind"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

const (
	namespace = metav1.NamespaceDefault
	queue     = "gpu"
)

// furtherKinds can own a Workload, but are not sent: they have no suspend field, or never end.
var furtherKinds = []jobkind.Kind{
	{GroupVersionKind: schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"}, Resource: "leaderworkersets"},
	{GroupVersionKind: schema.GroupVersionKind{Group: "ray.io", Version: "v1", Kind: "RayService"}, Resource: "rayservices"},
}

// jobKindCRDs are the kinds of jobs that other projects bring, without their fields and their controllers.
func jobKindCRDs() []byte {
	var manifests strings.Builder
	for _, k := range append(furtherKinds, jobkind.Table...) {
		if k.Group == batchv1.GroupName {
			continue
		}
		fmt.Fprintf(&manifests, `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.%[2]s, annotations: {api-approved.kubernetes.io: "unapproved, for tests"}}
spec:
  group: %[2]s
  names: {kind: %[3]s, plural: %[1]s, singular: %[4]s, listKind: %[3]sList}
  scope: Namespaced
  versions:
  - name: %[5]s
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, k.Resource, k.Group, k.Kind, strings.ToLower(k.Kind), k.Version)
	}
	return []byte(manifests.String())
}

// user tries, on an installation, all that dispatch is there for.
type user struct {
	*GomegaWithT
	ctx         context.Context
	hub, target *site
}

func newUser(t *testing.T, hub, target *site) *user {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	return &user{GomegaWithT: g, ctx: t.Context(), hub: hub, target: target}
}

// grantOf waits until the job's grant is as wanted.
func (u *user) grantOf(job types.UID, wanted func(g Gomega, grant *v1alpha1.AdmissionGrant)) *v1alpha1.AdmissionGrant {
	var found *v1alpha1.AdmissionGrant
	u.Eventually(func(g Gomega) {
		found = nil
		var grants v1alpha1.AdmissionGrantList
		g.Expect(u.target.kube.List(u.ctx, &grants, client.InNamespace(namespace))).To(Succeed())
		for i := range grants.Items {
			if grants.Items[i].Spec.JobRef.UID == job {
				found = &grants.Items[i]
			}
		}
		g.Expect(found).NotTo(BeNil(), "the job has no grant")
		wanted(g, found)
	}).Should(Succeed())
	return found
}

func started(times int32) func(Gomega, *v1alpha1.AdmissionGrant) {
	return func(g Gomega, grant *v1alpha1.AdmissionGrant) {
		g.Expect(grant.Status.Admissions).To(HaveValue(Equal(times)))
	}
}

func held(g Gomega, grant *v1alpha1.AdmissionGrant) {
	g.Expect(meta.IsStatusConditionTrue(grant.Status.Conditions, v1alpha1.WaitingCondition)).To(BeTrue(), "nothing is held back")
}

// stopQueue sets the queue's stop policy and waits until Kueue has seen it.
func (u *user) stopQueue(policy kueue.StopPolicy) {
	u.Eventually(func(g Gomega) {
		cq := &kueue.ClusterQueue{}
		g.Expect(u.target.kube.Get(u.ctx, client.ObjectKey{Name: queue}, cq)).To(Succeed())
		before := cq.DeepCopy()
		cq.Spec.StopPolicy = &policy
		g.Expect(u.target.kube.Patch(u.ctx, cq, client.MergeFrom(before))).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(cq.Status.Conditions, kueue.ClusterQueueActive)).To(Equal(policy == kueue.None))
	}).Should(Succeed())
	// The hub tells of it.
	u.Eventually(func(g Gomega) {
		var dt v1alpha1.DispatchTarget
		g.Expect(u.hub.kube.Get(u.ctx, client.ObjectKey{Name: "gpu-west"}, &dt)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(dt.Status.Conditions, v1alpha1.QueueActiveCondition)).To(Equal(policy == kueue.None))
	}).Should(Succeed())
}

// evict evicts all jobs of the queue and lets Kueue admit them again, which dispatch then holds back.
func (u *user) evict(job types.UID) *v1alpha1.AdmissionGrant {
	u.stopQueue(kueue.HoldAndDrain)
	u.grantOf(job, func(g Gomega, grant *v1alpha1.AdmissionGrant) {
		g.Expect(meta.IsStatusConditionTrue(grant.Status.Conditions, kueue.WorkloadQuotaReserved)).To(BeFalse())
	})
	u.stopQueue(kueue.None)
	return u.grantOf(job, held)
}

// as is a client of somebody with a role of this name.
func (u *user) as(name, role string) client.WithWatch {
	u.Expect(u.target.kube.Create(u.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	})).To(Succeed())
	config := u.target.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: name}
	kube, err := kueuejobs.NewClient(config)
	u.Expect(err).NotTo(HaveOccurred())
	return kube
}

// read reads grants in every way that there is.
func (u *user) read(kube client.WithWatch, grant *v1alpha1.AdmissionGrant) {
	u.Eventually(func() error { // the role may be a moment old
		return kube.Get(u.ctx, client.ObjectKeyFromObject(grant), grant)
	}).Should(Succeed())
	u.Expect(kube.List(u.ctx, &v1alpha1.AdmissionGrantList{}, client.InNamespace(namespace))).To(Succeed())
	watch, err := kube.Watch(u.ctx, &v1alpha1.AdmissionGrantList{}, client.InNamespace(namespace))
	u.Expect(err).NotTo(HaveOccurred())
	watch.Stop()
}

// unreachable: a target without a Secret, two of whose conditions have the same reason, which is one event.
func (u *user) unreachable() {
	dt := &v1alpha1.DispatchTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "no-secret"},
		Spec: v1alpha1.DispatchTargetSpec{
			KubeConfig: &v1alpha1.KubeConfigSource{SecretRef: &v1alpha1.KubeConfigSecretReference{Name: "no-secret"}},
			Kueue:      &v1alpha1.KueueSpec{ClusterQueue: queue},
		},
	}
	u.Expect(u.hub.kube.Create(u.ctx, dt)).To(Succeed())
	u.Eventually(func(g Gomega) {
		var all eventsv1.EventList
		g.Expect(u.hub.kube.List(u.ctx, &all)).To(Succeed())
		g.Expect(all.Items).To(ContainElement(And(
			HaveField("Regarding.UID", dt.UID), HaveField("Reason", v1alpha1.UnreachableReason),
			HaveField("Series", HaveValue(HaveField("Count", BeEquivalentTo(2)))))))
	}).Should(Succeed())
	u.gone(u.hub.kube, dt)
}

// readmission: a job runs, is evicted, is granted a second admission by a person, and is evicted again. It then
// waits.
func (u *user) readmission() *batchv1.Job {
	job := kueuejobs.Job(namespace, "train", queue, kueuejobs.UntilEvicted)
	u.Expect(u.target.kube.Create(u.ctx, job)).To(Succeed())
	u.grantOf(job.UID, started(1))
	grant := u.evict(job.UID)

	u.read(u.as(viewer, "view"), grant.DeepCopy())
	person := u.as(granter, "dispatch-admission-granter")
	u.read(person, grant)
	u.Expect(person.Create(u.ctx, &v1alpha1.AdmissionGrant{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "own"}, Spec: grant.Spec,
	})).To(MatchError(ContainSubstring("forbidden")), "a person makes no grants")
	u.Expect(person.Delete(u.ctx, grant)).To(MatchError(ContainSubstring("forbidden")), "nor deletes them")
	before := grant.DeepCopy()
	grant.Spec.Admissions = 2
	u.Expect(person.Patch(u.ctx, grant, client.MergeFrom(before))).To(Succeed())
	u.grantOf(job.UID, started(2))
	u.Eventually(func(g Gomega) {
		g.Expect(person.Get(u.ctx, client.ObjectKeyFromObject(grant), grant)).To(Succeed())
		g.Expect(person.Update(u.ctx, grant)).To(Succeed())
	}).Should(Succeed())
	u.evict(job.UID)
	return job
}

// strayReady: somebody sets the check of a job without quota to Ready, and dispatch-admission sets it back.
func (u *user) strayReady() {
	u.stopQueue(kueue.Hold)
	job := kueuejobs.Job(namespace, "stray", queue, time.Second)
	u.Expect(u.target.kube.Create(u.ctx, job)).To(Succeed())
	var wl *kueue.Workload
	u.Eventually(func(g Gomega) {
		var workloads kueue.WorkloadList
		g.Expect(u.target.kube.List(u.ctx, &workloads, client.MatchingLabels{"kueue.x-k8s.io/job-uid": string(job.UID)})).To(Succeed())
		g.Expect(workloads.Items).To(HaveLen(1))
		wl = &workloads.Items[0]
		before := wl.DeepCopy()
		wl.Status.AdmissionChecks = []kueue.AdmissionCheckState{{
			Name: kueuejobs.Check, State: kueue.CheckStateReady, Message: "by hand", LastTransitionTime: metav1.Now(),
		}}
		g.Expect(u.target.kube.Status().Patch(u.ctx, wl, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))).To(Succeed())
	}).Should(Succeed())
	u.Eventually(func(g Gomega) {
		g.Expect(u.target.kube.Get(u.ctx, client.ObjectKeyFromObject(wl), wl)).To(Succeed())
		g.Expect(wl.Status.AdmissionChecks).To(HaveExactElements(And(
			HaveField("State", kueue.CheckStatePending), HaveField("Message", HavePrefix("set back to Pending")))))
	}).Should(Succeed())
	u.Expect(u.target.kube.Delete(u.ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
	u.stopQueue(kueue.None)
}

// send sends a job of each kind; the batch Job runs.
func (u *user) send() []*v1alpha1.DispatchJob {
	var sent []*v1alpha1.DispatchJob
	for i := range jobkind.Table {
		kind := &jobkind.Table[i]
		template := map[string]any{"spec": map[string]any{}}
		if kind.Group == batchv1.GroupName {
			job := kueuejobs.Job("", "", "", kueuejobs.UntilEvicted)
			job.Labels, job.Spec.Suspend = nil, nil
			var err error
			template, err = runtime.DefaultUnstructuredConverter.ToUnstructured(job)
			u.Expect(err).NotTo(HaveOccurred())
			delete(template, "status")
			delete(template, "metadata")
		}
		template["apiVersion"], template["kind"] = kind.GroupVersion().String(), kind.Kind
		raw, err := json.Marshal(template)
		u.Expect(err).NotTo(HaveOccurred())
		job := &v1alpha1.DispatchJob{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "sent-" + strings.ToLower(kind.Kind)},
			Spec: v1alpha1.DispatchJobSpec{
				TargetRef: v1alpha1.TargetReference{Name: "gpu-west"}, LocalQueue: queue, Admissions: 1,
				Template: runtime.RawExtension{Raw: raw},
			},
		}
		u.Expect(u.hub.kube.Create(u.ctx, job)).To(Succeed())
		sent = append(sent, job)
	}
	for _, job := range sent {
		u.Eventually(func(g Gomega) {
			g.Expect(u.hub.kube.Get(u.ctx, client.ObjectKeyFromObject(job), job)).To(Succeed())
			g.Expect(job.Status.Submission).NotTo(BeNil(), "%v", job.Status.Conditions)
			g.Expect(job.Status.Submission.Job).NotTo(BeNil(), "%v", job.Status.Conditions)
		}).Should(Succeed())
	}
	return sent
}

// ownWorkload makes a Workload for a job of a kind whose integration Kueue does not have here, and waits until
// dispatch-admission has looked at the job and made a grant.
func (u *user) ownWorkload(gvk schema.GroupVersionKind, name string, uid types.UID) {
	wl := workload("of-" + name)
	wl.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: name, UID: uid, Controller: ptr.To(true),
	}}
	u.Expect(u.target.kube.Create(u.ctx, wl)).To(Succeed(), gvk.Kind)
	u.grantOf(uid, started(1))
}

// ownerless: a Workload that no job owns has a grant, which stays when it is deleted, until the Workload goes.
func (u *user) ownerless() {
	wl := workload("alone")
	u.Expect(u.target.kube.Create(u.ctx, wl)).To(Succeed())
	grant := u.grantOf(wl.UID, started(1))
	u.Expect(u.target.kube.Delete(u.ctx, grant)).To(Succeed())
	u.grantOf(wl.UID, func(g Gomega, grant *v1alpha1.AdmissionGrant) {
		g.Expect(grant.DeletionTimestamp).NotTo(BeNil())
	})
	u.gone(u.target.kube, wl, grant)
}

func workload(name string) *kueue.Workload {
	return &kueue.Workload{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: kueue.WorkloadSpec{QueueName: queue, PodSets: []kueue.PodSet{{
			Name: kueue.DefaultPodSetName, Count: 1,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers: []corev1.Container{{Name: "main", Image: "nothing", Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")},
				}}},
			}},
		}}},
	}
}

// furtherOwners makes one object of each kind that can own a Workload but is not sent.
func (u *user) furtherOwners() []client.Object {
	labels := map[string]string{"app": "owner"}
	pod := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nothing"}}, NodeSelector: map[string]string{"none": "such"}},
	}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	owner := metav1.ObjectMeta{Namespace: namespace, Name: "owner"}
	owners := []client.Object{
		&corev1.Pod{ObjectMeta: owner, Spec: pod.Spec},
		&appsv1.Deployment{ObjectMeta: owner, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](0), Selector: selector, Template: pod}},
		&appsv1.ReplicaSet{ObjectMeta: owner, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](0), Selector: selector, Template: pod}},
		&appsv1.StatefulSet{ObjectMeta: owner, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](0), Selector: selector, Template: pod}},
	}
	for _, kind := range furtherKinds {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(kind.GroupVersionKind)
		object.SetNamespace(namespace)
		object.SetName("owner")
		owners = append(owners, object)
	}
	for _, object := range owners {
		gvk, err := u.target.kube.GroupVersionKindFor(object)
		u.Expect(err).NotTo(HaveOccurred())
		object.SetName("owner-" + strings.ToLower(gvk.Kind))
		u.Expect(u.target.kube.Create(u.ctx, object)).To(Succeed(), gvk.Kind)
		u.ownWorkload(gvk, object.GetName(), object.GetUID())
	}
	return owners
}

// gone waits until none of the objects is left.
func (u *user) gone(kube client.Client, objects ...client.Object) {
	for _, object := range objects {
		u.Expect(client.IgnoreNotFound(kube.Delete(u.ctx, object, client.PropagationPolicy(metav1.DeletePropagationBackground)))).To(Succeed())
	}
	for _, object := range objects {
		u.Eventually(func() error {
			return kube.Get(u.ctx, client.ObjectKeyFromObject(object), object)
		}).Should(Satisfy(apierrors.IsNotFound), object.GetName())
	}
}

// raise lets a DispatchJob's job start twice, which the hub passes on.
func (u *user) raise(job *v1alpha1.DispatchJob) {
	before := job.DeepCopy()
	job.Spec.Admissions = 2
	u.Expect(u.hub.kube.Patch(u.ctx, job, client.MergeFrom(before))).To(Succeed())
	u.grantOf(job.Status.Submission.Job.UID, func(g Gomega, grant *v1alpha1.AdmissionGrant) {
		g.Expect(grant.Spec.Admissions).To(BeEquivalentTo(2))
	})
}
