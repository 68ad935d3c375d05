// Package install_test installs dispatch, uses it, upgrades it and takes it away again, as docs/install.md says
// and by the commands on that page.
package install_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

// patience is for a loaded machine: nothing here takes a tenth of it on an idle one.
const patience = 3 * time.Minute

// site is one cluster, as its administrator has it before dispatch comes.
type site struct {
	*controlplane.Cluster
	name string
	kube client.WithWatch
	// before is what it had.
	before []string
}

func startSite(ctx context.Context, name string, options controlplane.Options) (*site, error) {
	options.ControllerManager, options.Scheduler, options.KWOK = true, true, true
	options.Controllers = []string{
		"deployment-controller", "replicaset-controller", "disruption-controller", "job-controller", "namespace-controller",
		"garbage-collector-controller", "serviceaccount-controller", "clusterrole-aggregation-controller",
	}
	options.AuditLevel = auditv1.LevelMetadata
	options.StartTimeout = 10 * time.Minute // two at once, of every part that there is
	options.AdmissionPlugins = []string{"OwnerReferencesPermissionEnforcement"}
	// As an API server before Kubernetes 1.34: clients then list before they watch, which takes a permission of
	// its own.
	options.Args = map[string][]string{"kube-apiserver": {"--feature-gates=WatchList=false"}}
	cluster, err := controlplane.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	kube, err := kueuejobs.NewClient(cluster.Config())
	return &site{Cluster: cluster, name: name, kube: kube}, err
}

// startSites starts a hub, and a target with Kueue and a queue in use.
func startSites(t *testing.T) (hub, target *site) {
	t.Helper()
	start, ctx := errgroup.WithContext(t.Context())
	start.Go(func() (err error) {
		hub, err = startSite(ctx, "hub", controlplane.Options{})
		return err
	})
	start.Go(func() (err error) {
		if target, err = startSite(ctx, "gpu-west", controlplane.Options{Kueue: true}); err != nil {
			return err
		}
		// First, since the garbage collector takes up to 30 s to know them.
		return errors.Join(
			target.ApplyYAML(ctx, jobKindCRDs()),
			target.kube.Create(ctx, kueuejobs.ResourceFlavor()),
			target.kube.Create(ctx, kueuejobs.ClusterQueue(queue, 32)),
			target.kube.Create(ctx, kueuejobs.LocalQueue(namespace, queue)),
		)
	})
	err := start.Wait()
	for _, s := range []*site{hub, target} {
		if s == nil {
			continue
		}
		t.Cleanup(func() {
			if t.Failed() {
				s.KeepLogs()
				t.Logf("logs of %s are kept in %s", s.name, s.LogDir())
			}
			s.Stop()
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*site{hub, target} {
		if s.before, err = inventory(t.Context(), s.Config()); err != nil {
			t.Fatal(err)
		}
	}
	return hub, target
}

// workplace is a folder with what the page's commands need of a checkout, and the environment that they see:
// kubectl, the contexts hub and gpu-west, of which gpu-west is the current one, and in docker's place a script
// that notes how it was called.
func workplace(t *testing.T, hub, target *site) (folder string, env []string) {
	t.Helper()
	root, err := install.Root()
	if err != nil {
		t.Fatal(err)
	}
	folder = t.TempDir()
	bin := filepath.Join(folder, "bin")
	kubeconfig := filepath.Join(folder, "kubeconfig")
	contexts := clientcmdapi.NewConfig()
	contexts.CurrentContext = target.name
	for _, s := range []*site{hub, target} {
		config, err := clientcmd.LoadFromFile(s.KubeconfigPath())
		if err != nil {
			t.Fatal(err)
		}
		current := config.Contexts[config.CurrentContext]
		contexts.Clusters[s.name], contexts.AuthInfos[s.name] = config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
		contexts.Contexts[s.name] = &clientcmdapi.Context{Cluster: s.name, AuthInfo: s.name}
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		os.Mkdir(bin, 0o755),
		os.Symlink(hub.KubectlPath(), filepath.Join(bin, "kubectl")),
		os.WriteFile(filepath.Join(bin, "docker"), []byte("#!/bin/sh\necho docker \"$@\"\n"), 0o755),
		os.CopyFS(filepath.Join(folder, "config"), os.DirFS(filepath.Join(root, "config"))),
		os.WriteFile(filepath.Join(folder, "Makefile"), makefile, 0o644),
		clientcmd.WriteToFile(*contexts, kubeconfig),
	)
	if err != nil {
		t.Fatal(err)
	}
	return folder, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+folder, "KUBECONFIG="+kubeconfig)
}

// TestInstallationByThePage goes through docs/install.md from top to bottom.
func TestInstallationByThePage(t *testing.T) {
	log.SetLogger(logr.Discard())
	programs := t.TempDir()
	if err := install.Programs(t.Context(), programs); err != nil {
		t.Fatal(err)
	}
	hub, target := startSites(t)
	folder, env := workplace(t, hub, target)
	page := openPage(t, "docs/install.md", folder, env)
	hubPods := &pods{t: t, cluster: hub.Cluster, kube: hub.kube, name: hub.name, programs: programs}
	targetPods := &pods{t: t, cluster: target.Cluster, kube: target.kube, name: target.name, programs: programs}
	stopHubPods := hubPods.start()
	targetPods.start()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	u := newUser(t, hub, target)

	page.run("Images", "make docker-push")
	for _, program := range []string{"dispatch-manager", "dispatch-admission"} {
		g.Expect(page.out).To(ContainSubstring(
			"docker buildx build --platform linux/amd64,linux/arm64 --target %[1]s -t registry.example/dispatch/%[1]s:v0.1.0 --push .\n", program))
	}

	page.run("The target", "kubectl --context=gpu-west apply --server-side -f dist/install-target.yaml")
	page.run("The target", "kubectl --context=gpu-west apply --server-side -f - <<EOF")
	page.run("The hub", "kubectl --context=hub apply --server-side -f dist/install-hub.yaml")
	page.run("Connecting them", "kubectl config --kubeconfig=gpu-west.kubeconfig set")
	page.run("Connecting them", "kubectl create secret generic gpu-west")
	g.Expect(filepath.Join(folder, "gpu-west.kubeconfig")).NotTo(BeAnExistingFile())
	page.run("Connecting them", "kubectl --context=hub apply --server-side -f config/samples/dispatchtarget.yaml")
	page.shows("Connecting them", "NAME")
	page.run("Connecting them", "kubectl --context=gpu-west apply --server-side -k config/rbac/target-write")

	t.Run("pods", func(t *testing.T) {
		for site, pods := range map[*site]*pods{hub: hubPods, target: targetPods} {
			pods.expectProbes(t, 2)
			expectRestricted(t, site)
			expectBudgetAndPolicy(t, site)
		}
	})
	t.Run("applied again, nothing changes", func(t *testing.T) {
		for file, site := range map[string]*site{"dist/install-hub.yaml": hub, "dist/install-target.yaml": target} {
			expectUnchanged(t, site, filepath.Join(folder, file), "--server-side")
		}
	})

	// All that dispatch does for its users. One job waits and one that was sent runs, in the end.
	u.unreachable()
	waiting := u.readmission()
	u.strayReady()
	sent := u.send()
	for _, job := range sent {
		if ref := job.Status.Submission.Job; ref.Kind != "Job" {
			u.ownWorkload(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind), job.Name, ref.UID)
		}
	}
	u.gone(target.kube, u.furtherOwners()...)
	u.ownerless()
	running := sent[0]
	u.raise(running)
	for _, job := range sent[1:] {
		u.gone(hub.kube, job)
	}
	hubPods.expectNothingForbidden(t)
	targetPods.expectNothingForbidden(t)

	// Renewing the token, while it is in use.
	page.again("kubectl config --kubeconfig=gpu-west.kubeconfig set")
	page.again("kubectl create secret generic gpu-west")
	page.run("Upgrading", "make docker-push")
	g.Eventually(func(g Gomega) {
		for _, pods := range []*pods{hubPods, targetPods} {
			g.Expect(pods.all()).To(HaveLen(2))
			for _, process := range pods.all() {
				g.Expect(process.pod.Spec.Containers[0].Image).To(HaveSuffix(":v0.1.1"))
			}
		}
	}).Should(Succeed())
	g.Eventually(func(g Gomega) {
		var dt v1alpha1.DispatchTarget
		g.Expect(hub.kube.Get(t.Context(), client.ObjectKey{Name: "gpu-west"}, &dt)).To(Succeed())
		g.Expect(dt.Status.Mode).To(Equal(v1alpha1.ModeReadWrite))
	}).Should(Succeed())
	u.grantOf(waiting.UID, held)

	page.run("Uninstalling a target", "kubectl --context=hub get dispatchjobs")
	g.Expect(page.out).To(ContainSubstring(`dispatchjob.dispatch.dev "%s" deleted`, running.Name))
	page.run("Uninstalling a target", "kubectl --context=gpu-west get admissiongrants -A")
	g.Expect(page.out).To(MatchRegexp(`(?m)^default +\S+ +train +2 +2 +True `), "the job that waits")
	page.run("Uninstalling a target", "kubectl --context=gpu-west get clusterqueues")
	g.Expect(page.out).To(MatchRegexp(`(?m)^gpu +dispatch$`))
	expectRuns(t, target, waiting)
	next := kueuejobs.Job(namespace, "next", queue, kueuejobs.UntilEvicted)
	g.Expect(target.kube.Create(t.Context(), next)).To(Succeed())
	expectRuns(t, target, next)
	page.run("Uninstalling a target", "kubectl --context=gpu-west delete deployment dispatch-admission")
	page.run("Uninstalling a target", "kubectl --context=gpu-west delete --ignore-not-found -k config/rbac/target-write")
	expectRuns(t, target, waiting)
	u.gone(target.kube, waiting, next)
	expectAsBefore(t, target)

	page.run("Uninstalling the hub", "kubectl --context=hub delete dispatchjobs")
	expectAsBefore(t, hub)
	stopHubPods()

	page.run("One cluster as hub and target", "kubectl apply --server-side -f dist/install-single-cluster.yaml")
	targetPods.expectProbes(t, 4)
	expectUnchanged(t, target, filepath.Join(folder, "dist/install-single-cluster.yaml"), "--server-side")
	page.end()

	t.Run("applied by kubectl itself, and again", func(t *testing.T) {
		file := filepath.Join(folder, "dist/install-single-cluster.yaml")
		if _, err := hub.Kubectl(t.Context(), "apply", "-f", file); err != nil {
			t.Fatal(err)
		}
		expectUnchanged(t, hub, file)
	})
	t.Run("every permission is used", func(t *testing.T) {
		expectAllUsed(t, hub.Cluster, "config/default")
		expectAllUsed(t, target.Cluster, "config/admission", "config/target-access", "config/rbac/target-write")
	})
}

// expectRuns waits until Kueue has let the job run.
func expectRuns(t *testing.T, s *site, job *batchv1.Job) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		current := &batchv1.Job{}
		g.Expect(s.kube.Get(t.Context(), client.ObjectKeyFromObject(job), current)).To(Succeed())
		g.Expect(current.Spec.Suspend).To(HaveValue(BeFalse()))
		g.Expect(current.Status.Active).To(BeEquivalentTo(1))
	}).WithTimeout(patience).Should(Succeed())
}

// expectAsBefore waits until the cluster has exactly what it had before dispatch was installed.
func expectAsBefore(t *testing.T, s *site) {
	t.Helper()
	var now []string
	g := NewWithT(t)
	g.Eventually(func() ([]string, error) {
		all, err := inventory(t.Context(), s.Config())
		now = nil
		for _, object := range all {
			if !belongsToTest(object) {
				now = append(now, object)
			}
		}
		return now, err
	}).WithTimeout(patience).Should(Equal(s.before))
	if t.Failed() {
		t.FailNow()
	}
}

// belongsToTest: the people's roles.
func belongsToTest(object string) bool {
	return strings.HasPrefix(object, "rolebindings.") &&
		(strings.HasSuffix(object, "/"+granter) || strings.HasSuffix(object, "/"+viewer))
}

// expectUnchanged applies the file once more, in the way that the flags say.
func expectUnchanged(t *testing.T, s *site, file string, flags ...string) {
	t.Helper()
	versions := func() string {
		out, err := s.Kubectl(t.Context(), "get", "-f", file, "-o", `jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid} {.metadata.resourceVersion}{"\n"}{end}`)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	// A Deployment's status may change by itself meanwhile.
	NewWithT(t).Eventually(func(g Gomega) {
		before := versions()
		_, err := s.Kubectl(t.Context(), append([]string{"apply", "-f", file}, flags...)...)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(versions()).To(Equal(before))
	}).WithTimeout(patience).Should(Succeed())
	if out, err := s.Kubectl(t.Context(), append([]string{"diff", "-f", file}, flags...)...); err != nil {
		t.Errorf("kubectl diff of %s: %v\n%s", file, err, out)
	}
}

// expectRestricted looks that the namespace takes only restricted pods: that dispatch's were let in is seen by
// their running.
func expectRestricted(t *testing.T, s *site) {
	t.Helper()
	var pods corev1.PodList
	if err := s.kube.List(t.Context(), &pods, client.InNamespace(install.Namespace)); err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) == 0 {
		t.Fatal("there are no pods")
	}
	create := func(change func(*corev1.PodSpec)) error {
		pod := &corev1.Pod{Spec: *pods.Items[0].Spec.DeepCopy()}
		pod.Namespace, pod.Name, pod.Spec.NodeName = install.Namespace, "try", ""
		pod.Labels = pods.Items[0].Labels
		change(&pod.Spec)
		return s.kube.Create(t.Context(), pod, client.DryRunAll)
	}
	g := NewWithT(t)
	g.Expect(create(func(*corev1.PodSpec) {})).To(Succeed())
	for what, change := range map[string]func(*corev1.PodSpec){
		"root":                 func(spec *corev1.PodSpec) { spec.SecurityContext.RunAsNonRoot = nil },
		"any system call":      func(spec *corev1.PodSpec) { spec.SecurityContext.SeccompProfile = nil },
		"capabilities":         func(spec *corev1.PodSpec) { spec.Containers[0].SecurityContext.Capabilities = nil },
		"privilege escalation": func(spec *corev1.PodSpec) { spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil },
	} {
		g.Expect(create(change)).To(MatchError(ContainSubstring("violates PodSecurity")), what)
	}
	for i := range pods.Items {
		for _, container := range pods.Items[i].Spec.Containers {
			g.Expect(container.SecurityContext.ReadOnlyRootFilesystem).To(HaveValue(BeTrue()))
			g.Expect(container.Resources.Requests).To(And(HaveKey(corev1.ResourceCPU), HaveKey(corev1.ResourceMemory)))
		}
	}
}

// expectBudgetAndPolicy looks that each of the site's Deployments has a PodDisruptionBudget and a NetworkPolicy,
// and that they are for its pods.
func expectBudgetAndPolicy(t *testing.T, s *site) {
	t.Helper()
	g := NewWithT(t)
	var deployments appsv1.DeploymentList
	g.Expect(s.kube.List(t.Context(), &deployments, client.InNamespace(install.Namespace))).To(Succeed())
	g.Expect(deployments.Items).NotTo(BeEmpty())
	for i := range deployments.Items {
		deployment := &deployments.Items[i]
		key := client.ObjectKeyFromObject(deployment)
		g.Expect(deployment.Spec.Replicas).To(HaveValue(BeEquivalentTo(2)))
		g.Eventually(func(g Gomega) {
			budget := &policyv1.PodDisruptionBudget{}
			g.Expect(s.kube.Get(t.Context(), key, budget)).To(Succeed())
			g.Expect(budget.Status.ExpectedPods).To(BeEquivalentTo(2))
			g.Expect(budget.Status.CurrentHealthy).To(BeEquivalentTo(2))
			g.Expect(budget.Status.DisruptionsAllowed).To(BeEquivalentTo(1))
		}).WithTimeout(patience).Should(Succeed())
		policy := &networkingv1.NetworkPolicy{}
		g.Expect(s.kube.Get(t.Context(), key, policy)).To(Succeed())
		template := deployment.Spec.Template
		g.Expect(labels.SelectorFromSet(policy.Spec.PodSelector.MatchLabels).Matches(labels.Set(template.Labels))).To(BeTrue())
		for _, rule := range policy.Spec.Ingress {
			for _, port := range rule.Ports {
				g.Expect(template.Spec.Containers[0].Ports).To(ContainElement(HaveField("Name", port.Port.StrVal)))
			}
		}
	}
}
