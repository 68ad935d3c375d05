package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

// These kinds have no field that suspends them: Kueue makes their pods with a scheduling gate, takes it
// off to start them, and deletes them to stop them.
const podGate = "kueue.x-k8s.io/admission"

var _ = Describe("A group of pods", func() {
	It("starts once, and its replacements stay gated until they are granted", func(ctx SpecContext) {
		s := newSite(ctx, kueuejobs.Check)
		s.setCPUs(ctx, 2)
		group := func(names ...string) []*corev1.Pod {
			GinkgoHelper()
			var pods []*corev1.Pod
			for _, name := range names {
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: s.name, Name: name,
						Labels:      map[string]string{kueuejobs.QueueLabel: s.name, kueuejobs.PriorityLabel: "low", "kueue.x-k8s.io/pod-group-name": "team"},
						Annotations: map[string]string{"kueue.x-k8s.io/pod-group-total-count": "2"},
					},
					Spec: podSpec(),
				}
				createWithServiceAccount(ctx, pod)
				pods = append(pods, pod)
			}
			return pods
		}
		pods := group("a", "b")
		DeferCleanup(func(ctx SpecContext) { deleteWorkload(ctx, s.name, "team") })
		for _, pod := range pods {
			Expect(pod.Spec.SchedulingGates).To(ContainElement(HaveField("Name", podGate)), "held until admitted")
		}
		eventuallyPodsRun(ctx, pods...)
		current := eventuallyUsed(ctx, s.name, "team", 1)
		Expect(current.Spec.JobRef).To(And(HaveField("Kind", "Pod"), HaveField("Name", BeElementOf("a", "b"))))
		Expect(current.OwnerReferences).To(HaveLen(2))
		for _, pod := range pods {
			Expect(current.OwnerReferences).To(ContainElement(metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}))
		}

		By("preempting it, and making its pods anew")
		s.submit(ctx, "urgent", kueuejobs.UntilEvicted, priority("high"))
		for _, pod := range pods {
			eventuallyStopped(ctx, pod)
		}
		again := group("c", "d")
		deleteJob(ctx, s, "urgent")
		eventuallyWorkloadHeld(ctx, s.name, "team", 2, again...)
		Expect(events(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, UID: current.Spec.JobRef.UID}})).To(
			ContainSubstring("AdmissionHeld: admission 2 waits since "))

		By("granting it")
		raiseGrant(ctx, current, 2)
		eventuallyPodsRun(ctx, again...)
		current = eventuallyUsed(ctx, s.name, "team", 2)
		for _, pod := range again {
			Expect(current.OwnerReferences).To(ContainElement(HaveField("UID", pod.UID)), "so that the grant lives as long as they do")
		}
	})
})

var _ = Describe("A StatefulSet", func() {
	It("has one grant, under which its pods that are made anew after an eviction stay gated", func(ctx SpecContext) {
		s := newSite(ctx, kueuejobs.Check)
		s.setCPUs(ctx, 2)
		labels := map[string]string{"app": "serve"}
		set := &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: s.name, Name: "serve", Labels: map[string]string{kueuejobs.QueueLabel: s.name, kueuejobs.PriorityLabel: "low"},
			},
			Spec: appsv1.StatefulSetSpec{
				Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: labels}, PodManagementPolicy: appsv1.ParallelPodManagement,
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()},
			},
		}
		set.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
		createWithServiceAccount(ctx, set)
		DeferCleanup(func(ctx SpecContext) {
			Expect(kube.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		})
		podsOf := func() []*corev1.Pod {
			GinkgoHelper()
			return podsLabelled(ctx, s.name, labels)
		}
		Eventually(podsOf).Should(HaveLen(2))
		first := podsOf()
		eventuallyPodsRun(ctx, first...)
		var name string
		Eventually(func() []metav1.OwnerReference {
			wl := workloadsOf(ctx, set)
			Expect(wl).To(HaveLen(1))
			name = wl[0].Name
			return wl[0].OwnerReferences
		}).Should(HaveLen(3), "the set and its pods")
		current := eventuallyUsed(ctx, s.name, name, 1)
		Expect(current.Spec.JobRef).To(Equal(dispatchv1alpha1.JobReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: set.Name, UID: set.UID}))

		By("preempting it: its pods are deleted, and its controller makes new ones")
		s.submit(ctx, "urgent", kueuejobs.UntilEvicted, priority("high"))
		Eventually(func(g Gomega) {
			pods := podsOf()
			g.Expect(pods).To(HaveLen(2))
			for _, pod := range pods {
				g.Expect(pod.UID).NotTo(BeElementOf(first[0].UID, first[1].UID))
			}
		}).Should(Succeed())
		deleteJob(ctx, s, "urgent")
		eventuallyWorkloadHeld(ctx, s.name, name, 2, podsOf()...)
		raiseGrant(ctx, current, 2)
		eventuallyPodsRun(ctx, podsOf()...)
		eventuallyUsed(ctx, s.name, name, 2)

		By("losing one of its pods: Kueue does not ask again for the one that replaces it")
		lost := podsOf()[0]
		Expect(kube.Delete(ctx, lost)).To(Succeed())
		Eventually(func(g Gomega) {
			pods := podsOf()
			g.Expect(pods).To(HaveLen(2))
			for _, pod := range pods {
				g.Expect(pod.UID).NotTo(Equal(lost.UID))
				g.Expect(pod.Status.Phase).To(Equal(corev1.PodRunning))
			}
		}).Should(Succeed())
		eventuallyUsed(ctx, s.name, name, 2)
	})
})

var _ = Describe("A kind that owns several Workloads", func() {
	It("has a grant for each, and their counts do not mix", func(ctx SpecContext) {
		s := newSite(ctx, kueuejobs.Check)
		s.setCPUs(ctx, 2)
		set := leaderWorkerSet(s, 2)
		Eventually(func() error { return kube.Create(ctx, set) }).Should(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			Expect(kube.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		})
		pods := []*corev1.Pod{leaderWorkerPod(ctx, set, 0), leaderWorkerPod(ctx, set, 1)}
		eventuallyPodsRun(ctx, pods...)
		Eventually(workloadsOf).WithArguments(ctx, set).Should(HaveLen(2))
		var names [2]string
		for _, wl := range workloadsOf(ctx, set) {
			names[int(wl.Annotations["kueue.x-k8s.io/component-workload-index"][0]-'0')] = wl.Name
		}
		for i, name := range names {
			current := eventuallyUsed(ctx, s.name, name, 1)
			Expect(current.Spec.JobRef).To(And(HaveField("Kind", "LeaderWorkerSet"), HaveField("UID", set.GetUID())))
			Eventually(func() []metav1.OwnerReference { return grantNamed(ctx, s.name, name).OwnerReferences }).Should(ConsistOf(
				HaveField("UID", set.GetUID()), HaveField("UID", pods[i].UID)))
		}

		By("evicting the first")
		setActive := func(active bool) {
			GinkgoHelper()
			out, err := cluster.Kubectl(ctx, "patch", "workload", names[0], "-n", s.name, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"active":%t}}`, active))
			Expect(err).NotTo(HaveOccurred(), out)
		}
		setActive(false)
		Eventually(func() error { return kube.Get(ctx, client.ObjectKeyFromObject(pods[0]), pods[0]) }).Should(MatchError(ContainSubstring("not found")))
		again := leaderWorkerPod(ctx, set, 0)
		setActive(true)
		eventuallyWorkloadHeld(ctx, s.name, names[0], 2, again)
		Expect(hasCondition(workloadNamed(ctx, s.name, names[1]), kueuev1beta2.WorkloadAdmitted)).To(BeTrue())

		By("granting another of the second, which is none of the first")
		raiseGrant(ctx, grantNamed(ctx, s.name, names[1]), 2)
		eventuallyWorkloadHeld(ctx, s.name, names[0], 2, again)
		raiseGrant(ctx, grantNamed(ctx, s.name, names[0]), 2)
		eventuallyPodsRun(ctx, again)
		eventuallyUsed(ctx, s.name, names[0], 2)
		eventuallyUsed(ctx, s.name, names[1], 1)
	})
})

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: ptr.To[int64](0),
		Containers: []corev1.Container{{
			Name: "main", Image: "nothing",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}},
	}
}

// createWithServiceAccount waits for the namespace's ServiceAccount, without which there are no pods.
func createWithServiceAccount(ctx context.Context, object client.Object) {
	GinkgoHelper()
	Eventually(func() error {
		return kube.Get(ctx, client.ObjectKey{Namespace: object.GetNamespace(), Name: "default"}, &corev1.ServiceAccount{})
	}).Should(Succeed())
	Expect(kube.Create(ctx, object)).To(Succeed())
}

func podsLabelled(ctx context.Context, namespace string, labels map[string]string) []*corev1.Pod {
	GinkgoHelper()
	list := &corev1.PodList{}
	Expect(kube.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels(labels))).To(Succeed())
	var pods []*corev1.Pod
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods
}

func eventuallyPodsRun(ctx context.Context, pods ...*corev1.Pod) {
	GinkgoHelper()
	Expect(pods).NotTo(BeEmpty())
	Eventually(func(g Gomega) {
		for _, pod := range pods {
			current := &corev1.Pod{}
			g.Expect(kube.Get(ctx, client.ObjectKeyFromObject(pod), current)).To(Succeed())
			g.Expect(current.Spec.SchedulingGates).To(BeEmpty())
			g.Expect(current.Status.Phase).To(Equal(corev1.PodRunning))
		}
	}).Should(Succeed())
}

// eventuallyStopped waits until Kueue has deleted the pod, and ends it as a kubelet would: KWOK plays
// only the deletion.
func eventuallyStopped(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(kube.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		g.Expect(pod.DeletionTimestamp).NotTo(BeNil())
		pod.Status.Phase = corev1.PodFailed
		g.Expect(kube.Status().Update(ctx, pod)).To(Succeed())
	}).Should(Succeed())
}

// eventuallyUsed waits until the grant says that so many of its admissions are used.
func eventuallyUsed(ctx context.Context, namespace, name string, n int) *dispatchv1alpha1.AdmissionGrant {
	GinkgoHelper()
	var current *dispatchv1alpha1.AdmissionGrant
	Eventually(func(g Gomega) {
		current = grantNamed(ctx, namespace, name)
		g.Expect(current).NotTo(BeNil())
		g.Expect(usedOf(current)).To(Equal(n))
		g.Expect(current.Status.Opened).To(BeNil())
	}).Should(Succeed())
	return current
}

// eventuallyWorkloadHeld waits until the Workload's nth admission is held back while quota is reserved,
// and looks that its pods stay gated.
func eventuallyWorkloadHeld(ctx context.Context, namespace, name string, n int, pods ...*corev1.Pod) {
	GinkgoHelper()
	Expect(pods).NotTo(BeEmpty())
	Eventually(func(g Gomega) {
		wl := workloadNamed(ctx, namespace, name)
		g.Expect(hasCondition(wl, kueuev1beta2.WorkloadQuotaReserved)).To(BeTrue())
		g.Expect(entryOf(wl, kueuejobs.Check)).To(beHeld(grantNamed(ctx, namespace, name), n))
	}).Should(Succeed())
	Consistently(func(g Gomega) {
		for _, pod := range pods {
			current := &corev1.Pod{}
			g.Expect(kube.Get(ctx, client.ObjectKeyFromObject(pod), current)).To(Succeed())
			g.Expect(current.UID).To(Equal(pod.UID))
			g.Expect(current.Spec.SchedulingGates).To(ContainElement(HaveField("Name", podGate)))
		}
		g.Expect(usedOf(grantNamed(ctx, namespace, name))).To(Equal(n - 1))
	}).Should(Succeed())
}

// workloadsOf are the Workloads that the object owns.
func workloadsOf(ctx context.Context, owner client.Object) []kueuev1beta2.Workload {
	GinkgoHelper()
	list := &kueuev1beta2.WorkloadList{}
	Expect(kube.List(ctx, list, client.InNamespace(owner.GetNamespace()))).To(Succeed())
	return slices.DeleteFunc(list.Items, func(wl kueuev1beta2.Workload) bool {
		return !slices.ContainsFunc(wl.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.UID == owner.GetUID() })
	})
}

func deleteWorkload(ctx context.Context, namespace, name string) {
	GinkgoHelper()
	wl := &kueuev1beta2.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	Expect(client.IgnoreNotFound(kube.Delete(ctx, wl))).To(Succeed())
}

// installLeaderWorkerSets installs the CRD alone. The tests do what its controller would.
func installLeaderWorkerSets(ctx context.Context) {
	GinkgoHelper()
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", "sigs.k8s.io/lws@v0.8.0").Output()
	Expect(err).NotTo(HaveOccurred())
	var module struct{ Dir string }
	Expect(json.Unmarshal(out, &module)).To(Succeed())
	Expect(cluster.Apply(ctx, filepath.Join(module.Dir, "config", "crd", "bases", "leaderworkerset.x-k8s.io_leaderworkersets.yaml"))).To(Succeed())
	Eventually(func() error { // a CRD that has no conditions yet is an error to kubectl wait
		_, err := cluster.Kubectl(ctx, "wait", "--for=condition=Established", "crd/leaderworkersets.leaderworkerset.x-k8s.io")
		return err
	}).Should(Succeed())
}

// leaderWorkerSet has so many groups of one pod each.
func leaderWorkerSet(s site, groups int64) *unstructured.Unstructured {
	GinkgoHelper()
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(ptr.To(podSpec()))
	Expect(err).NotTo(HaveOccurred())
	spec["restartPolicy"] = "Always"
	set := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"replicas": groups,
		// What the webhook of LeaderWorkerSets would fill in.
		"startupPolicy":        "LeaderCreated",
		"rolloutStrategy":      map[string]any{"type": "RollingUpdate"},
		"leaderWorkerTemplate": map[string]any{"size": int64(1), "workerTemplate": map[string]any{"spec": spec}},
	}}}
	set.SetAPIVersion("leaderworkerset.x-k8s.io/v1")
	set.SetKind("LeaderWorkerSet")
	set.SetNamespace(s.name)
	set.SetName("infer")
	set.SetLabels(map[string]string{kueuejobs.QueueLabel: s.name, kueuejobs.PriorityLabel: "low"})
	return set
}

// leaderWorkerPod is the pod of one group, as the controller of LeaderWorkerSets would make it.
func leaderWorkerPod(ctx context.Context, set *unstructured.Unstructured, group int) *corev1.Pod {
	GinkgoHelper()
	content, _, err := unstructured.NestedMap(set.Object, "spec", "leaderWorkerTemplate", "workerTemplate")
	Expect(err).NotTo(HaveOccurred())
	template := &corev1.PodTemplateSpec{}
	Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(content, template)).To(Succeed())
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.Name = set.GetNamespace(), fmt.Sprintf("%s-%d", set.GetName(), group)
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: set.GetAPIVersion(), Kind: set.GetKind(), Name: set.GetName(), UID: set.GetUID(),
	}}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels["leaderworkerset.sigs.k8s.io/name"] = set.GetName()
	pod.Labels["leaderworkerset.sigs.k8s.io/group-index"] = fmt.Sprint(group)
	createWithServiceAccount(ctx, pod)
	return pod
}
