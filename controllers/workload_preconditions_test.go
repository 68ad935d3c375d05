package controllers

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
)

// TestWrites tries the writes of dispatch-admission on a real API server.
func TestWrites(t *testing.T) {
	kube := installAPIs(t, controlplane.StartForTest(t, controlplane.Options{}))
	t.Run("are refused on anything old", func(t *testing.T) { testWritesAreRefusedOnAnythingOld(t, kube) })
	t.Run("are our own", func(t *testing.T) { testWritesAreOurOwn(t, kube) })
}

// testWritesAreRefusedOnAnythingOld changes what a write is based on right before each of the writes, on
// a real API server, and looks that the write has left no trace.
func testWritesAreRefusedOnAnythingOld(t *testing.T, kube client.WithWatch) {
	ctx := t.Context()

	type world struct {
		Gomega
		wl    *kueuev1beta2.Workload
		grant *dispatchv1alpha1.AdmissionGrant
	}
	touch := func(w *world, object client.Object) {
		fresh, ok := object.DeepCopyObject().(client.Object)
		w.Expect(ok).To(BeTrue())
		w.Expect(kube.Get(ctx, client.ObjectKeyFromObject(object), fresh)).To(Succeed())
		fresh.SetAnnotations(map[string]string{"touched": "yes"})
		w.Expect(kube.Update(ctx, fresh)).To(Succeed())
	}
	ran := func(wl *kueuev1beta2.Workload) {
		(&workloadWrapper{*wl}).admitted(false, at(20)).evicted(false, at(30), "Previously: Preempted").DeepCopyInto(wl)
	}
	for name, tc := range map[string]struct {
		// status is what the Workload has beside its reservation.
		status func(*kueuev1beta2.Workload)
		// noReservation leaves that out.
		noReservation bool
		// grant, if set, exists before; edit changes it.
		granted, used int32
		edit          func(*world, *dispatchv1alpha1.AdmissionGrant)
		// before is the write before which something changes, as verb, kind and subresource.
		before string
		change func(*world)
		// unwritten holds if the write was refused.
		unwritten func(*world)
	}{
		"Ready, Workload changed": {
			before: "apply Workload/status", change: func(w *world) { touch(w, w.wl) },
			unwritten: func(w *world) {
				w.Expect(w.wl.Status.AdmissionChecks[0].State).To(Equal(kueuev1beta2.CheckStatePending))
				w.Expect(w.grant.Status.Opened).NotTo(BeNil(), "it is recorded, and goes on from here")
			},
		},
		"opened, grant changed": {
			granted: 2, used: 1, status: ran,
			before: "patch AdmissionGrant/status", change: func(w *world) { touch(w, w.grant) },
			unwritten: func(w *world) {
				w.Expect(w.grant.Status.Opened).To(BeNil())
				w.Expect(w.wl.Status.AdmissionChecks[0].State).To(Equal(kueuev1beta2.CheckStatePending), "nothing is let through that is not recorded")
			},
		},
		"a start counted, grant changed": {
			granted: 1, used: 0,
			edit: func(w *world, grant *dispatchv1alpha1.AdmissionGrant) {
				(&grantWrapper{grant}).opened(w.wl, 1)
				grant.Status.Accounted.Admitted, grant.Status.Accounted.AdmittedTime = "", nil // as it was before the start
			},
			status: func(wl *kueuev1beta2.Workload) {
				(&workloadWrapper{*wl}).admitted(true, at(20)).check(ourCheck, kueuev1beta2.CheckStateReady).DeepCopyInto(wl)
			},
			before: "patch AdmissionGrant/status", change: func(w *world) { touch(w, w.grant) },
			unwritten: func(w *world) { w.Expect(*w.grant.Status.Admissions).To(Equal(int32(0))) },
		},
		"the held message, Workload changed": {
			granted: 1, used: 1, status: ran,
			before: "apply Workload/status", change: func(w *world) { touch(w, w.wl) },
			unwritten: func(w *world) { w.Expect(w.wl.Status.AdmissionChecks[0].Message).To(BeEmpty()) },
		},
		"set back, Workload changed": {
			noReservation: true, granted: 1, used: 0,
			edit: func(w *world, grant *dispatchv1alpha1.AdmissionGrant) {
				w.wl.Status.Conditions = []metav1.Condition{{Type: kueuev1beta2.WorkloadQuotaReserved, LastTransitionTime: metav1.NewTime(at(1))}}
				(&grantWrapper{grant}).opened(w.wl, 1)
			},
			status: func(wl *kueuev1beta2.Workload) {
				(&workloadWrapper{*wl}).check(ourCheck, kueuev1beta2.CheckStateReady).DeepCopyInto(wl)
			},
			before: "apply Workload/status", change: func(w *world) { touch(w, w.wl) },
			unwritten: func(w *world) {
				w.Expect(w.wl.Status.AdmissionChecks[0].State).To(Equal(kueuev1beta2.CheckStateReady))
			},
		},
		"set back, grant changed": {
			granted: 1, used: 1,
			status: func(wl *kueuev1beta2.Workload) {
				ran(wl)
				(&workloadWrapper{*wl}).check(ourCheck, kueuev1beta2.CheckStateReady).DeepCopyInto(wl)
			},
			edit: func(w *world, grant *dispatchv1alpha1.AdmissionGrant) {
				// Nothing of the status is to be written, so that only the read of the grant is left to notice.
				grant.Status = *decide(situation{
					workload: w.wl, grant: grant, own: checkNames{ourCheck: true}, listed: checkNames{ourCheck: true}, now: at(60),
				}).status
			},
			before: "get AdmissionGrant", change: func(w *world) { touch(w, w.grant) },
			unwritten: func(w *world) {
				w.Expect(w.wl.Status.AdmissionChecks[0].State).To(Equal(kueuev1beta2.CheckStateReady))
			},
		},
		"adopted, grant changed": {
			granted: 2, used: 1, status: ran,
			edit:   func(_ *world, grant *dispatchv1alpha1.AdmissionGrant) { grant.Finalizers = nil },
			before: "apply AdmissionGrant", change: func(w *world) { touch(w, w.grant) },
			unwritten: func(w *world) { w.Expect(w.grant.Finalizers).To(BeEmpty()) },
		},
		"made, grant exists": {
			before: "create AdmissionGrant", change: func(w *world) {
				grant := newGrant(w.wl, 7)
				w.Expect(kube.Create(ctx, grant)).To(Succeed())
			},
			unwritten: func(w *world) {
				w.Expect(w.grant.Spec.Admissions).To(Equal(int32(7)))
				w.Expect(w.wl.Status.AdmissionChecks[0].State).To(Equal(kueuev1beta2.CheckStatePending))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{Gomega: NewWithT(t)}
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
			w.Expect(kube.Create(ctx, namespace)).To(Succeed())
			job := testJob(namespace.Name)
			w.Expect(kube.Create(ctx, job)).To(Succeed())
			b := makeWorkload("")
			if !tc.noReservation {
				b.reserved(at(30))
			}
			w.wl = b.obj()
			w.wl.Namespace, w.wl.ResourceVersion = namespace.Name, ""
			w.wl.OwnerReferences[0].UID = job.UID
			w.wl.Spec.PodSets = []kueuev1beta2.PodSet{{Name: "main", Count: 1, Template: job.Spec.Template}}
			if !tc.noReservation {
				w.wl.Status.Admission.PodSetAssignments = []kueuev1beta2.PodSetAssignment{{Name: "main"}}
			}
			for i := range w.wl.Status.AdmissionChecks {
				w.wl.Status.AdmissionChecks[i].LastTransitionTime = metav1.NewTime(at(0))
			}
			if tc.status != nil {
				tc.status(w.wl)
			}
			status := *w.wl.Status.DeepCopy()
			w.Expect(kube.Create(ctx, w.wl)).To(Succeed())
			w.wl.Status = status
			w.Expect(kube.Status().Update(ctx, w.wl)).To(Succeed())
			if tc.granted > 0 {
				w.grant = makeGrant(w.wl, tc.granted, tc.used).obj()
				w.grant.UID, w.grant.ResourceVersion = "", ""
				if tc.edit != nil {
					tc.edit(w, w.grant)
				}
				status := *w.grant.Status.DeepCopy()
				w.Expect(kube.Create(ctx, w.grant)).To(Succeed())
				w.grant.Status = status
				w.Expect(kube.Status().Update(ctx, w.grant)).To(Succeed())
			}

			changed := 0
			r := testReconciler(kube, func(write string) {
				if write == tc.before && changed == 0 {
					changed++
					tc.change(w)
				}
			})
			_, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(w.wl)})

			w.Expect(err).NotTo(HaveOccurred(), "that something has changed is no error")
			w.Expect(changed).To(Equal(1), "the write was tried")
			w.grant = &dispatchv1alpha1.AdmissionGrant{}
			w.Expect(kube.Get(ctx, client.ObjectKeyFromObject(w.wl), w.grant)).To(Succeed())
			w.Expect(kube.Get(ctx, client.ObjectKeyFromObject(w.wl), w.wl)).To(Succeed())
			tc.unwritten(w)
		})
	}

	t.Run("released, grant changed", func(t *testing.T) {
		g := NewWithT(t)
		grant := newGrant(makeWorkload("w1").obj(), 1)
		grant.Namespace, grant.Name = "default", "released"
		g.Expect(kube.Create(ctx, grant)).To(Succeed())
		g.Expect(kube.Delete(ctx, grant)).To(Succeed())
		key := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(grant)}
		r := testReconciler(kube, func(write string) {
			if write == "patch AdmissionGrant" {
				g.Expect(kube.Get(ctx, key.NamespacedName, grant)).To(Succeed())
				grant.Annotations = map[string]string{"touched": "yes"}
				g.Expect(kube.Update(ctx, grant)).To(Succeed())
			}
		})
		_, err := r.Reconcile(ctx, key)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(kube.Get(ctx, key.NamespacedName, grant)).To(Succeed(), "the finalizer is still there")
	})

	t.Run("deleted, grant made anew", func(t *testing.T) {
		g := NewWithT(t)
		grant := newGrant(makeWorkload("w1").obj(), 1)
		grant.Namespace, grant.Name, grant.Finalizers = "default", "anew", nil
		g.Expect(kube.Create(ctx, grant)).To(Succeed())
		key := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(grant)}
		r := testReconciler(kube, func(write string) {
			if write == "delete AdmissionGrant" {
				g.Expect(kube.Delete(ctx, grant)).To(Succeed())
				grant.UID, grant.ResourceVersion = "", ""
				g.Expect(kube.Create(ctx, grant)).To(Succeed())
			}
		})
		_, err := r.Reconcile(ctx, key)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(kube.Get(ctx, key.NamespacedName, grant)).To(Succeed(), "the new one is left alone")
	})

	t.Run("deleted, grant changed", func(t *testing.T) {
		g := NewWithT(t)
		grant := newGrant(makeWorkload("w1").obj(), 1)
		grant.Namespace, grant.Name, grant.Finalizers = "default", "changed", nil
		g.Expect(kube.Create(ctx, grant)).To(Succeed())
		key := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(grant)}
		tried := 0
		r := testReconciler(kube, func(write string) {
			if write == "delete AdmissionGrant" {
				tried++
				g.Expect(kube.Get(ctx, key.NamespacedName, grant)).To(Succeed())
				grant.Annotations = map[string]string{"touched": "yes"}
				g.Expect(kube.Update(ctx, grant)).To(Succeed())
			}
		})
		_, err := r.Reconcile(ctx, key)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(tried).To(Equal(1))
		g.Expect(kube.Get(ctx, key.NamespacedName, grant)).To(Succeed(), "it is looked at again before it goes")
	})

	t.Run("Active, AdmissionCheck made anew", func(t *testing.T) {
		g := NewWithT(t)
		check := testCheck("anew", dispatchv1alpha1.DefaultControllerName)
		g.Expect(kube.Create(ctx, check)).To(Succeed())
		r := &AdmissionCheckReconciler{
			Client: hooked(kube, func(string) {
				g.Expect(kube.Delete(ctx, check)).To(Succeed())
				check = testCheck("anew", "example.com/other")
				g.Expect(kube.Create(ctx, check)).To(Succeed())
			}, "apply AdmissionCheck/status"),
			ControllerName: dispatchv1alpha1.DefaultControllerName, Clock: clock.RealClock{},
		}
		_, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: types.NamespacedName{Name: "anew"}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(kube.Get(ctx, client.ObjectKeyFromObject(check), check)).To(Succeed())
		g.Expect(check.Status.Conditions).To(BeEmpty())
	})
}

// testWritesAreOurOwn looks that the writes prevail over what others have written to the same fields, that
// they are made as our own field owner, and that they take nothing over beside those fields.
func testWritesAreOurOwn(t *testing.T, kube client.WithWatch) {
	g := NewWithT(t)
	ctx := t.Context()
	// managed are the fields that dispatch-admission owns of the object or its subresource.
	managed := func(object client.Object, operation metav1.ManagedFieldsOperationType, subresource string) string {
		g.Expect(kube.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
		for _, entry := range object.GetManagedFields() {
			if entry.Manager == "dispatch-admission" && entry.Operation == operation && entry.Subresource == subresource {
				return entry.FieldsV1.GetRawString()
			}
		}
		return ""
	}
	job := testJob("default")
	g.Expect(kube.Create(ctx, job)).To(Succeed())
	wl := makeWorkload("").reserved(at(30)).check(otherCheck, kueuev1beta2.CheckStatePending).obj()
	wl.Namespace, wl.ResourceVersion, wl.OwnerReferences[0].UID = "default", "", job.UID
	wl.Spec.PodSets = []kueuev1beta2.PodSet{{Name: "main", Count: 1, Template: job.Spec.Template}}
	wl.Status.Admission.PodSetAssignments = []kueuev1beta2.PodSetAssignment{{Name: "main"}}
	for i := range wl.Status.AdmissionChecks {
		wl.Status.AdmissionChecks[i].LastTransitionTime = metav1.NewTime(at(0))
	}
	status := *wl.Status.DeepCopy()
	g.Expect(kube.Create(ctx, wl)).To(Succeed())
	wl.Status = status
	g.Expect(kube.Status().Update(ctx, wl)).To(Succeed(), "as another field owner")
	key := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(wl)}
	grant := &dispatchv1alpha1.AdmissionGrant{ObjectMeta: metav1.ObjectMeta{Namespace: wl.Namespace, Name: wl.Name}}

	r := testReconciler(kube, func(string) {})
	_, err := r.Reconcile(ctx, key)
	g.Expect(err).NotTo(HaveOccurred())

	g.Expect(managed(grant, metav1.ManagedFieldsOperationUpdate, "")).To(ContainSubstring(`"f:jobRef"`), "made")
	g.Expect(managed(grant, metav1.ManagedFieldsOperationUpdate, "status")).To(ContainSubstring(`"f:opened"`), "status")
	entries := managed(wl, metav1.ManagedFieldsOperationApply, "status")
	g.Expect(entries).To(ContainSubstring(ourCheck), "entries")
	g.Expect(entries).NotTo(Or(ContainSubstring(otherCheck), ContainSubstring("f:conditions"), ContainSubstring(`"f:admission"`)))
	g.Expect(wl.Status.AdmissionChecks).To(ConsistOf(
		And(HaveField("Name", BeEquivalentTo(ourCheck)), HaveField("State", kueuev1beta2.CheckStateReady)),
		And(HaveField("Name", BeEquivalentTo(otherCheck)), HaveField("State", kueuev1beta2.CheckStatePending))))

	// A user takes the finalizer off and writes the status as their own.
	grant.Finalizers = nil
	g.Expect(kube.Update(ctx, grant)).To(Succeed())
	grant.Status.Opened.Number = 7
	g.Expect(kube.Status().Update(ctx, grant)).To(Succeed())
	wl.Status.AdmissionChecks[0].State = kueuev1beta2.CheckStatePending
	(&workloadWrapper{*wl}).admitted(true, at(40)).DeepCopyInto(wl)
	g.Expect(kube.Status().Update(ctx, wl)).To(Succeed())
	_, err = testReconciler(kube, func(string) {}).Reconcile(ctx, key)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(managed(grant, metav1.ManagedFieldsOperationApply, "")).To(ContainSubstring(dispatchv1alpha1.AdmissionCountFinalizer), "adopted")
	g.Expect(grant.Finalizers).To(ConsistOf(dispatchv1alpha1.AdmissionCountFinalizer))
	g.Expect(*grant.Status.Admissions).To(Equal(int32(1)))
	g.Expect(grant.Status.Opened).To(BeNil())

	check := testCheck("active", dispatchv1alpha1.DefaultControllerName)
	g.Expect(kube.Create(ctx, check)).To(Succeed())
	check.Status.Conditions = []metav1.Condition{
		{Type: kueuev1beta2.AdmissionCheckActive, Status: metav1.ConditionFalse, Reason: "Other", LastTransitionTime: metav1.NewTime(at(0))},
		{Type: "Other", Status: metav1.ConditionTrue, Reason: "Other", LastTransitionTime: metav1.NewTime(at(0))},
	}
	g.Expect(kube.Status().Update(ctx, check)).To(Succeed())
	checks := &AdmissionCheckReconciler{Client: kube, ControllerName: dispatchv1alpha1.DefaultControllerName, Clock: clock.RealClock{}}
	_, err = checks.Reconcile(ctx, ctrl.Request{NamespacedName: types.NamespacedName{Name: check.Name}})
	g.Expect(err).NotTo(HaveOccurred())
	active := managed(check, metav1.ManagedFieldsOperationApply, "status")
	g.Expect(active).To(And(ContainSubstring(kueuev1beta2.AdmissionCheckActive), Not(ContainSubstring("Other"))))
	g.Expect(check.Status.Conditions).To(ConsistOf(
		And(HaveField("Type", kueuev1beta2.AdmissionCheckActive), HaveField("Status", metav1.ConditionTrue)), HaveField("Type", "Other")))
}

func TestPreconditions(t *testing.T) {
	wl := makeWorkload("w1").version("7").obj()
	apply := preconditioned(kueuev1beta2.GroupVersion.WithKind("Workload"), wl)
	if apply.GetUID() != "w1" || apply.GetResourceVersion() != "7" {
		t.Errorf("an apply without what it is based on: %v", apply.Object)
	}
}

// testReconciler reads from the API server and tells of each request before it is made.
func testReconciler(kube client.WithWatch, tell func(string)) *WorkloadReconciler {
	c := hooked(kube, tell)
	return &WorkloadReconciler{
		Client: hooked(kube, tell, "apply", "create", "delete", "patch"), ControllerName: dispatchv1alpha1.DefaultControllerName,
		Clock: clock.RealClock{}, reader: c, recorder: &events.FakeRecorder{},
		written: &writtenVersions{versions: map[types.NamespacedName]objectVersions{}}, waiting: newWaitingWorkloads(),
	}
}

// hooked tells of each request that begins with one of the prefixes, or of all.
func hooked(kube client.WithWatch, tell func(string), prefixes ...string) client.WithWatch {
	hook := func(verb string, object any, subResource string) {
		kind := strings.TrimPrefix(fmt.Sprintf("%T", object), "*v1alpha1.")
		if u, ok := object.(interface{ GetKind() string }); ok {
			kind = u.GetKind()
		}
		request := verb + " " + kind
		if subResource != "" {
			request += "/" + subResource
		}
		for _, prefix := range prefixes {
			if strings.HasPrefix(request, prefix) {
				tell(request)
				return
			}
		}
		if len(prefixes) == 0 {
			tell(request)
		}
	}
	return interceptor.NewClient(kube, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			hook("get", obj, "")
			return c.Get(ctx, key, obj, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			hook("create", obj, "")
			return c.Create(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			hook("delete", obj, "")
			return c.Delete(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			hook("patch", obj, "")
			return c.Patch(ctx, obj, patch, opts...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			hook("apply", obj, "")
			return c.Apply(ctx, obj, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			hook("patch", obj, name)
			return c.SubResource(name).Patch(ctx, obj, patch, opts...)
		},
		SubResourceApply: func(ctx context.Context, c client.Client, name string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			hook("apply", obj, name)
			return c.SubResource(name).Apply(ctx, obj, opts...)
		},
	})
}

// installAPIs installs Kueue's CRDs and ours, a ClusterQueue and its AdmissionCheck.
func installAPIs(t *testing.T, cluster *controlplane.Cluster) client.WithWatch {
	t.Helper()
	g := NewWithT(t)
	ctx := t.Context()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue").Output()
	g.Expect(err).NotTo(HaveOccurred())
	bases := filepath.Join(strings.TrimSpace(string(module)), "config", "components", "crd", "bases")
	for _, file := range []string{"admissionchecks", "clusterqueues", "workloads"} {
		g.Expect(cluster.Apply(ctx, filepath.Join(bases, "kueue.x-k8s.io_"+file+".yaml"))).To(Succeed())
	}
	g.Expect(cluster.Apply(ctx, "../config/crd")).To(Succeed())
	_, err = cluster.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all")
	g.Expect(err).NotTo(HaveOccurred())

	scheme := runtime.NewScheme()
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	g.Expect(kueuev1beta2.AddToScheme(scheme)).To(Succeed())
	g.Expect(dispatchv1alpha1.AddToScheme(scheme)).To(Succeed())
	kube, err := client.NewWithWatch(cluster.Config(), client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kube.Create(ctx, testCheck(ourCheck, dispatchv1alpha1.DefaultControllerName))).To(Succeed())
	g.Expect(kube.Create(ctx, &kueuev1beta2.ClusterQueue{
		ObjectMeta: metav1.ObjectMeta{Name: testQueue},
		Spec: kueuev1beta2.ClusterQueueSpec{AdmissionChecksStrategy: &kueuev1beta2.AdmissionChecksStrategy{
			AdmissionChecks: []kueuev1beta2.AdmissionCheckStrategyRule{{Name: ourCheck}},
		}},
	})).To(Succeed())
	return kube
}

func testCheck(name, controllerName string) *kueuev1beta2.AdmissionCheck {
	return &kueuev1beta2.AdmissionCheck{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kueuev1beta2.AdmissionCheckSpec{ControllerName: controllerName},
	}
}

func testJob(namespace string) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "train"},
		Spec: batchv1.JobSpec{Suspend: ptr.To(true), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "nothing"}},
		}}},
	}
}
