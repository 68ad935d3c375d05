package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
)

// targetSecret is the Secret with the kubeconfig of the shared target.
const targetSecret = "shared-target"

var _ = Describe("A DispatchTarget", Ordered, ContinueOnFailure, func() {
	var admission *controlplane.Component

	BeforeAll(func(ctx SpecContext) {
		createKubeConfigSecret(ctx, targetSecret, hubOnTarget)
		for _, flavor := range []string{"west", "east"} {
			create(ctx, targetClient, &kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: flavor}})
		}
		// Leases other than the one that the hub's role names, and a namespace for them.
		create(ctx, targetClient, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "leases"}})
		create(ctx, targetClient, &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: "leases", Name: "hub"},
			Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "watch"},
			}},
		})
		create(ctx, targetClient, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "leases", Name: "hub"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "hub"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: install.Namespace, Name: install.HubAccount}},
		})
		create(ctx, targetClient, admissionCheck("dispatch", v1alpha1.DefaultControllerName))
		create(ctx, targetClient, clusterQueue("gpu", "dispatch"))
		admission = startProcess(ctx, target, install.Process{Program: "dispatch-admission"}, install.AdmissionAccount)
	})

	Describe("whose admission controller runs", Ordered, func() {
		BeforeAll(func(ctx SpecContext) {
			create(ctx, hubClient, dispatchTarget("gpu-west", targetSecret, &v1alpha1.KueueSpec{ClusterQueue: "gpu"}))
		})

		It("is ReadWrite, with its gate proved", func(ctx SpecContext) {
			Eventually(condition).WithArguments(ctx, "gpu-west", v1alpha1.ReadmissionGateCondition).Should(And(
				HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.ProvedReason)))
			t := get(ctx, "gpu-west")
			Expect(t.Status.Mode).To(Equal(v1alpha1.ModeReadWrite))
			Expect(t.Status.ObservedGeneration).To(Equal(t.Generation))
			for _, c := range t.Status.Conditions {
				Expect(c.ObservedGeneration).To(Equal(t.Generation), c.Type)
			}
			Expect(condition(ctx, "gpu-west", v1alpha1.ReadmissionGateCondition).Message).To(
				ContainSubstring(*readLease(ctx, "dispatch-system", "dispatch-admission").Spec.HolderIdentity))
			Eventually(condition).WithArguments(ctx, "gpu-west", v1alpha1.QueueActiveCondition).Should(HaveField("Status", metav1.ConditionTrue))
			var kubeSystem corev1.Namespace
			Expect(targetClient.Get(ctx, client.ObjectKey{Name: "kube-system"}, &kubeSystem)).To(Succeed())
			Expect(t.Status.Cluster).To(Equal(&v1alpha1.ClusterIdentity{UID: kubeSystem.UID, KubernetesVersion: "v1.37.2"}))
		})

		It("shows in kubectl get", func(ctx SpecContext) {
			out, err := hub.Kubectl(ctx, "get", "dt", "gpu-west")
			Expect(err).NotTo(HaveOccurred())
			lines := strings.Split(strings.TrimSpace(out), "\n")
			Expect(lines).To(HaveLen(2))
			Expect(strings.Fields(lines[0])).To(Equal([]string{"NAME", "MODE", "GATE", "REASON", "AGE"}))
			Expect(strings.Fields(lines[1])).To(HaveExactElements("gpu-west", "ReadWrite", "True", "Proved", Not(BeEmpty())))
			out, err = hub.Kubectl(ctx, "get", "dispatch", "-o", "wide")
			Expect(err).NotTo(HaveOccurred())
			Expect(out).To(And(ContainSubstring("MESSAGE"), ContainSubstring("v1.37.2"), ContainSubstring("dispatch-admission"), ContainSubstring("is held by")))
		})

		It("is not written to while its gate stays proved, through many renewals", func(ctx SpecContext) {
			before := get(ctx, "gpu-west")
			first := readLease(ctx, "dispatch-system", "dispatch-admission").Spec.RenewTime
			Eventually(func(g Gomega) {
				g.Expect(readLease(ctx, "dispatch-system", "dispatch-admission").Spec.RenewTime.Sub(first.Time)).To(BeNumerically(">", 20*time.Second))
			}).WithTimeout(time.Minute).Should(Succeed())
			Expect(get(ctx, "gpu-west").ResourceVersion).To(Equal(before.ResourceVersion))
			// The audit log is what also shows a write that changed nothing.
			events, err := hub.AuditEvents()
			Expect(err).NotTo(HaveOccurred())
			writes := 0
			for _, e := range events {
				if e.ObjectRef == nil || e.ObjectRef.Resource != "dispatchtargets" || e.Stage != auditv1.StageResponseComplete {
					continue
				}
				if e.ObjectRef.Subresource == "status" {
					writes++
					Expect(e.RequestReceivedTimestamp.Time).To(BeTemporally("<", first.Add(2*time.Second)), "a write in the steady state")
				}
			}
			Expect(writes).To(BeNumerically(">", 0), "the audit log shows the writes that there were")
		})

		It("becomes observe-only when the controller is killed, and ReadWrite when a new one runs", func(ctx SpecContext) {
			By("killing the controller")
			admission.Kill()
			lease := readLease(ctx, "dispatch-system", "dispatch-admission")
			Expect(*lease.Spec.HolderIdentity).NotTo(BeEmpty())
			expiry := lease.Spec.RenewTime.Add(2 * time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second)
			var closed time.Time
			Eventually(func(g Gomega) {
				g.Expect(checkActive(ctx)).To(Equal(metav1.ConditionTrue), "Active is never cleared")
				c := condition(ctx, "gpu-west", v1alpha1.ReadmissionGateCondition)
				if c.Status != metav1.ConditionTrue && closed.IsZero() {
					closed = time.Now()
				}
				g.Expect(c).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.LeaseStaleReason),
					HaveField("Message", "the admission controller's Lease was last renewed 31s ago, beyond 30s")))
			}).WithTimeout(time.Minute).Should(Succeed())
			Expect(closed).To(And(BeTemporally(">", expiry), BeTemporally("<", expiry.Add(time.Second))))
			t := get(ctx, "gpu-west")
			Expect(t.Status.Mode).To(Equal(v1alpha1.ModeObserveOnly))
			Expect(condition(ctx, "gpu-west", v1alpha1.ReachableCondition).Status).To(Equal(metav1.ConditionTrue))
			Expect(condition(ctx, "gpu-west", v1alpha1.ReadyCondition)).To(And(HaveField("Reason", v1alpha1.ObserveOnlyReason),
				HaveField("Message", "ReadmissionGate is False: the admission controller's Lease was last renewed 31s ago, beyond 30s")))
			Expect(checkActive(ctx)).To(Equal(metav1.ConditionTrue), "the AdmissionCheck cannot tell")

			By("starting a new one")
			Expect(admission.Start(ctx)).To(Succeed())
			Eventually(func() bool {
				return readLease(ctx, "dispatch-system", "dispatch-admission").Spec.RenewTime.After(lease.Spec.RenewTime.Time)
			}).Should(BeTrue())
			Eventually(condition).WithTimeout(10*time.Second).WithArguments(ctx, "gpu-west", v1alpha1.ReadmissionGateCondition).
				Should(HaveField("Reason", v1alpha1.ProvedReason))
			Expect(get(ctx, "gpu-west").Status.Mode).To(Equal(v1alpha1.ModeReadWrite))
			Expect(checkActive(ctx)).To(Equal(metav1.ConditionTrue))
		})

		It("tells of each transition by an event", func(ctx SpecContext) {
			Eventually(func(g Gomega) {
				out, err := hub.Kubectl(ctx, "get", "events.events.k8s.io", "-A", "-o", `jsonpath={range .items[?(@.regarding.name=="gpu-west")]}{.type}/{.reason}{"\n"}{end}`)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(strings.Fields(out)).To(And(ContainElements("Normal/Proved", "Warning/LeaseStale"), Not(ContainElement("Normal/Connected"))))
			}).Should(Succeed())
		})

		It("is observe-only at once when an admin says so, which is no fault", func(ctx SpecContext) {
			setObserveOnly(ctx, "gpu-west", true)
			Eventually(condition).WithTimeout(2*time.Second).WithArguments(ctx, "gpu-west", v1alpha1.ReadyCondition).
				Should(And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.ObserveOnlyRequestedReason)))
			Expect(get(ctx, "gpu-west").Status.Mode).To(Equal(v1alpha1.ModeObserveOnly))
			setObserveOnly(ctx, "gpu-west", false)
			Eventually(func() v1alpha1.Mode { return get(ctx, "gpu-west").Status.Mode }).Should(Equal(v1alpha1.ModeReadWrite))
		})
	})

	DescribeTable("names the rule of the gate that fails",
		func(ctx SpecContext, name string, prepare func(context.Context) *v1alpha1.KueueSpec, status metav1.ConditionStatus, reason, message string) {
			create(ctx, hubClient, dispatchTarget(name, targetSecret, prepare(ctx)))
			Eventually(condition).WithArguments(ctx, name, v1alpha1.ReadmissionGateCondition).Should(And(
				HaveField("Status", status), HaveField("Reason", reason), HaveField("Message", MatchRegexp("^"+message+"$"))))
			Expect(get(ctx, name).Status.Mode).To(Equal(v1alpha1.ModeObserveOnly))
			Expect(condition(ctx, name, v1alpha1.ReachableCondition).Status).To(Equal(metav1.ConditionTrue))
			Expect(condition(ctx, name, v1alpha1.ReadyCondition).Status).To(Equal(metav1.ConditionFalse))
		},
		Entry("no ClusterQueue", "no-queue", func(context.Context) *v1alpha1.KueueSpec {
			return &v1alpha1.KueueSpec{ClusterQueue: "absent"}
		}, metav1.ConditionFalse, v1alpha1.ClusterQueueNotFoundReason, "ClusterQueue absent does not exist"),
		Entry("the queue does not list the check", "not-listed", func(ctx context.Context) *v1alpha1.KueueSpec {
			create(ctx, targetClient, clusterQueue("unchecked"))
			return &v1alpha1.KueueSpec{ClusterQueue: "unchecked"}
		}, metav1.ConditionFalse, v1alpha1.AdmissionCheckNotListedReason, "ClusterQueue unchecked does not list AdmissionCheck dispatch"),
		Entry("the queue lists the check for some flavors", "partial", func(ctx context.Context) *v1alpha1.KueueSpec {
			queue := clusterQueue("partial", "dispatch")
			queue.Spec.AdmissionChecksStrategy.AdmissionChecks[0].OnFlavors = []kueue.ResourceFlavorReference{"west"}
			create(ctx, targetClient, queue)
			return &v1alpha1.KueueSpec{ClusterQueue: "partial"}
		}, metav1.ConditionFalse, v1alpha1.AdmissionCheckPartialReason, "ClusterQueue partial lists AdmissionCheck dispatch, but not for all its flavors: east left out"),
		Entry("no AdmissionCheck", "no-check", func(ctx context.Context) *v1alpha1.KueueSpec {
			create(ctx, targetClient, clusterQueue("no-check", "absent"))
			return &v1alpha1.KueueSpec{ClusterQueue: "no-check", AdmissionCheck: "absent"}
		}, metav1.ConditionFalse, v1alpha1.AdmissionCheckNotFoundReason, "AdmissionCheck absent does not exist"),
		Entry("another controller's AdmissionCheck", "foreign", func(ctx context.Context) *v1alpha1.KueueSpec {
			create(ctx, targetClient, admissionCheck("foreign", "example.com/other"))
			create(ctx, targetClient, clusterQueue("foreign", "foreign"))
			return &v1alpha1.KueueSpec{ClusterQueue: "foreign", AdmissionCheck: "foreign"}
		}, metav1.ConditionFalse, v1alpha1.ForeignControllerReason, `AdmissionCheck foreign belongs to controller "example.com/other", not to "dispatch.dev/admission"`),
		Entry("an AdmissionCheck that nobody has taken up", "inactive", func(ctx context.Context) *v1alpha1.KueueSpec {
			create(ctx, targetClient, admissionCheck("inactive", "example.com/nobody"))
			create(ctx, targetClient, clusterQueue("inactive", "inactive"))
			return &v1alpha1.KueueSpec{ClusterQueue: "inactive", AdmissionCheck: "inactive", ControllerName: "example.com/nobody"}
		}, metav1.ConditionFalse, v1alpha1.AdmissionCheckInactiveReason, "AdmissionCheck inactive has no condition Active: .*"),
		Entry("no Lease", "no-lease", func(context.Context) *v1alpha1.KueueSpec {
			return leaseOnly("absent")
		}, metav1.ConditionFalse, v1alpha1.LeaseNotFoundReason, "Lease leases/absent does not exist"),
		Entry("a Lease that was released", "released", func(ctx context.Context) *v1alpha1.KueueSpec {
			create(ctx, targetClient, lease("released", "", time.Now(), 1))
			return leaseOnly("released")
		}, metav1.ConditionFalse, v1alpha1.LeaseNotHeldReason, "the admission controller's Lease has no holder"),
		Entry("a Lease that was never renewed", "never-renewed", func(ctx context.Context) *v1alpha1.KueueSpec {
			l := lease("never-renewed", "somebody", time.Now(), 15)
			l.Spec.RenewTime = nil
			create(ctx, targetClient, l)
			return leaseOnly("never-renewed")
		}, metav1.ConditionFalse, v1alpha1.LeaseNeverRenewedReason, "the admission controller's Lease has never been renewed"),
		Entry("a Lease from the future", "skewed", func(ctx context.Context) *v1alpha1.KueueSpec {
			create(ctx, targetClient, lease("skewed", "somebody", time.Now().Add(time.Hour), 15))
			return leaseOnly("skewed")
		}, metav1.ConditionFalse, v1alpha1.ClockSkewReason, "the admission controller's Lease was renewed .* in our future, .*"),
		Entry("a Lease that may not be read", "forbidden", func(context.Context) *v1alpha1.KueueSpec {
			return &v1alpha1.KueueSpec{ClusterQueue: "gpu", AdmissionLease: &v1alpha1.LeaseReference{Namespace: "kube-system", Name: "secret"}}
		}, metav1.ConditionUnknown, v1alpha1.ForbiddenReason, "Lease kube-system/secret may not be read .*"),
	)

	It("says that Kueue is not installed where its API is not served", func(ctx SpecContext) {
		bare := startCluster(ctx, controlplane.Options{})
		Expect(install.Target(ctx, bare)).To(Succeed())
		cfg, err := bare.ServiceAccountConfig(ctx, install.Namespace, install.HubAccount)
		Expect(err).NotTo(HaveOccurred())
		createKubeConfigSecret(ctx, "bare", cfg)
		create(ctx, hubClient, dispatchTarget("bare", "bare", &v1alpha1.KueueSpec{ClusterQueue: "gpu"}))
		for _, c := range []string{v1alpha1.QueueActiveCondition, v1alpha1.ReadmissionGateCondition} {
			Eventually(condition).WithArguments(ctx, "bare", c).Should(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.KueueNotInstalledReason)))
		}
	})

	It("is Unreachable while its API server is down", func(ctx SpecContext) {
		down := startCluster(ctx, controlplane.Options{})
		createKubeConfigSecret(ctx, "down", down.Config())
		down.Stop()
		create(ctx, hubClient, dispatchTarget("down", "down", &v1alpha1.KueueSpec{ClusterQueue: "gpu"}))
		Eventually(condition).WithArguments(ctx, "down", v1alpha1.ReachableCondition).Should(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.UnreachableReason)))
		for _, c := range []string{v1alpha1.QueueActiveCondition, v1alpha1.ReadmissionGateCondition} {
			Expect(condition(ctx, "down", c)).To(And(
				HaveField("Status", metav1.ConditionUnknown), HaveField("Reason", v1alpha1.UnreachableReason)))
		}
	})

	It("says what is wrong with its kubeconfig, and recovers when that is mended", func(ctx SpecContext) {
		reachable := func() metav1.Condition { return condition(ctx, "mended", v1alpha1.ReachableCondition) }
		create(ctx, hubClient, dispatchTarget("mended", "mended", &v1alpha1.KueueSpec{ClusterQueue: "gpu"}))
		Eventually(reachable).Should(And(HaveField("Reason", v1alpha1.KubeConfigNotFoundReason),
			HaveField("Message", "Secret dispatch-system/mended does not exist")))

		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "mended"}, Data: map[string][]byte{"kubeconfig": []byte("{")}}
		create(ctx, hubClient, secret)
		Eventually(reachable).Should(HaveField("Reason", v1alpha1.KubeConfigInvalidReason))
		Expect(condition(ctx, "mended", v1alpha1.StalledCondition).Status).To(Equal(metav1.ConditionTrue))

		wrong := rest.CopyConfig(hubOnTarget)
		wrong.BearerToken = "wrong"
		updateKubeConfig(ctx, secret, wrong)
		Eventually(reachable).Should(HaveField("Reason", v1alpha1.UnauthorizedReason))

		updateKubeConfig(ctx, secret, hubOnTarget)
		Eventually(reachable).Should(HaveField("Reason", v1alpha1.ConnectedReason))
		Expect(meta.FindStatusCondition(get(ctx, "mended").Status.Conditions, v1alpha1.StalledCondition)).To(BeNil())
	})

	It("in plain mode needs no gate", func(ctx SpecContext) {
		create(ctx, hubClient, dispatchTarget("plain", targetSecret, nil))
		Eventually(condition).WithArguments(ctx, "plain", v1alpha1.ReadmissionGateCondition).Should(And(
			HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.NotRequiredReason)))
		Eventually(func() v1alpha1.Mode { return get(ctx, "plain").Status.Mode }).Should(Equal(v1alpha1.ModeReadWrite))
	})

	It("without kubeConfig is the manager's own cluster", func(ctx SpecContext) {
		local := dispatchTarget("local", "", nil)
		create(ctx, hubClient, local)
		var kubeSystem corev1.Namespace
		Expect(hubClient.Get(ctx, client.ObjectKey{Name: "kube-system"}, &kubeSystem)).To(Succeed())
		Eventually(func() v1alpha1.Mode { return get(ctx, "local").Status.Mode }).Should(Equal(v1alpha1.ModeReadWrite))
		Expect(get(ctx, "local").Status.Cluster.KubernetesVersion).To(Equal("v1.37.2"))
		Expect(get(ctx, "local").Status.Cluster.UID).To(BeEmpty(), "the manager's own role does not let it read kube-system")
	})

	It("is installed by the manifests that the README names, again with nothing changed", func(ctx SpecContext) {
		root, err := install.Root()
		Expect(err).NotTo(HaveOccurred())
		for _, folder := range []string{"config/default", "config/admission", "config/target-access"} {
			_, err := hub.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-k", filepath.Join(root, folder))
			Expect(err).NotTo(HaveOccurred())
			_, err = hub.Kubectl(ctx, "diff", "--server-side", "-k", filepath.Join(root, folder))
			Expect(err).NotTo(HaveOccurred(), "kubectl diff of %s", folder)
		}
		for _, deployment := range []string{"dispatch-manager", "dispatch-admission"} {
			_, err := hub.Kubectl(ctx, "get", "deployment", deployment, "--namespace="+install.Namespace)
			Expect(err).NotTo(HaveOccurred())
		}
	})

	It("says that a held queue takes no submissions, while its gate stays as it is", func(ctx SpecContext) {
		queue := clusterQueue("held", "dispatch")
		queue.Spec.StopPolicy = ptr.To(kueue.Hold)
		create(ctx, targetClient, queue)
		create(ctx, hubClient, dispatchTarget("held", targetSecret, &v1alpha1.KueueSpec{ClusterQueue: "held"}))
		Eventually(condition).WithArguments(ctx, "held", v1alpha1.QueueActiveCondition).Should(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.ClusterQueueInactiveReason)))
		Eventually(condition).WithArguments(ctx, "held", v1alpha1.ReadmissionGateCondition).Should(HaveField("Reason", v1alpha1.ProvedReason))
		Expect(get(ctx, "held").Status.Mode).To(Equal(v1alpha1.ModeReadWrite))
	})
})

// leaseOnly has everything in order but the Lease.
func leaseOnly(name string) *v1alpha1.KueueSpec {
	return &v1alpha1.KueueSpec{ClusterQueue: "gpu", AdmissionLease: &v1alpha1.LeaseReference{Namespace: "leases", Name: name}}
}

func lease(name, holder string, renewed time.Time, durationSeconds int32) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "leases", Name: name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(holder), RenewTime: ptr.To(metav1.NewMicroTime(renewed)), LeaseDurationSeconds: ptr.To(durationSeconds),
		},
	}
}

func admissionCheck(name, controllerName string) *kueue.AdmissionCheck {
	return &kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kueue.AdmissionCheckSpec{ControllerName: controllerName}}
}

// clusterQueue has the flavors west and east and lists the checks for both.
func clusterQueue(name string, checks ...kueue.AdmissionCheckReference) *kueue.ClusterQueue {
	queue := &kueue.ClusterQueue{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kueue.ClusterQueueSpec{
			NamespaceSelector: &metav1.LabelSelector{},
			ResourceGroups: []kueue.ResourceGroup{{
				CoveredResources: []corev1.ResourceName{corev1.ResourceCPU},
			}},
		},
	}
	for _, flavor := range []kueue.ResourceFlavorReference{"west", "east"} {
		queue.Spec.ResourceGroups[0].Flavors = append(queue.Spec.ResourceGroups[0].Flavors, kueue.FlavorQuotas{
			Name: flavor, Resources: []kueue.ResourceQuota{{Name: corev1.ResourceCPU, NominalQuota: resource.MustParse("4")}},
		})
	}
	if len(checks) > 0 {
		queue.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{}
		for _, check := range checks {
			queue.Spec.AdmissionChecksStrategy.AdmissionChecks = append(queue.Spec.AdmissionChecksStrategy.AdmissionChecks, kueue.AdmissionCheckStrategyRule{Name: check})
		}
	}
	return queue
}

// dispatchTarget reaches its cluster by a Secret; "" is the manager's own.
func dispatchTarget(name, secret string, kueueSpec *v1alpha1.KueueSpec) *v1alpha1.DispatchTarget {
	t := &v1alpha1.DispatchTarget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.DispatchTargetSpec{Kueue: kueueSpec}}
	if secret != "" {
		t.Spec.KubeConfig = &v1alpha1.KubeConfigSource{SecretRef: &v1alpha1.KubeConfigSecretReference{Name: secret}}
	}
	return t
}

// create creates an object for as long as the node that asks for it lasts.
func create(ctx context.Context, c client.Client, object client.Object) {
	GinkgoHelper()
	Expect(c.Create(ctx, object)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Expect(client.IgnoreNotFound(c.Delete(ctx, object))).To(Succeed())
	})
}

func createKubeConfigSecret(ctx context.Context, name string, cfg *rest.Config) {
	GinkgoHelper()
	kubeConfig, err := controlplane.Kubeconfig(cfg)
	Expect(err).NotTo(HaveOccurred())
	create(ctx, hubClient, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: name},
		Data:       map[string][]byte{"kubeconfig": kubeConfig},
	})
}

func updateKubeConfig(ctx context.Context, secret *corev1.Secret, cfg *rest.Config) {
	GinkgoHelper()
	kubeConfig, err := controlplane.Kubeconfig(cfg)
	Expect(err).NotTo(HaveOccurred())
	secret.Data["kubeconfig"] = kubeConfig
	Expect(hubClient.Update(ctx, secret)).To(Succeed())
}

func get(ctx context.Context, name string) *v1alpha1.DispatchTarget {
	GinkgoHelper()
	var t v1alpha1.DispatchTarget
	Expect(hubClient.Get(ctx, client.ObjectKey{Name: name}, &t)).To(Succeed())
	return &t
}

// condition is the zero value where it is absent.
func condition(ctx context.Context, name, conditionType string) metav1.Condition {
	GinkgoHelper()
	return ptr.Deref(meta.FindStatusCondition(get(ctx, name).Status.Conditions, conditionType), metav1.Condition{})
}

func setObserveOnly(ctx context.Context, name string, on bool) {
	GinkgoHelper()
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"observeOnly":%t}}`, on))
	Expect(hubClient.Patch(ctx, get(ctx, name), patch)).To(Succeed())
}

func readLease(ctx context.Context, namespace, name string) *coordinationv1.Lease {
	GinkgoHelper()
	var l coordinationv1.Lease
	Expect(targetClient.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &l)).To(Succeed())
	return &l
}

func checkActive(ctx context.Context) metav1.ConditionStatus {
	GinkgoHelper()
	var check kueue.AdmissionCheck
	Expect(targetClient.Get(ctx, client.ObjectKey{Name: "dispatch"}, &check)).To(Succeed())
	return ptr.Deref(meta.FindStatusCondition(check.Status.Conditions, kueue.AdmissionCheckActive), metav1.Condition{}).Status
}
