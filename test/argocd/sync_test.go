package argocd

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

const (
	healthy, degraded, suspended, progressing = "Healthy", "Degraded", "Suspended", "Progressing"

	notLookedAt = "dispatch-manager has not looked at this generation yet"
	readWrite   = "ReadWrite: the target may be written to"
	running     = "Running: admitted"
)

func TestArgoCDSyncsTargetsAndShowsWhatTheGateSays(t *testing.T) {
	w := newTest(t)
	w.startCluster()
	w.startArgoCD()

	// The repository has samples, a target without its Secret, and a DispatchJob that does not end by itself.
	w.Expect(os.MkdirAll(filepath.Join(w.repository(), "targets"), 0o755)).To(Succeed())
	w.git("init", "--initial-branch=main")
	target := w.sample("dispatchtarget.yaml")
	w.commit(target)
	w.commit(w.sample("dispatchtarget_no_lease.yaml"))
	secretless := w.sample("dispatchtarget_no_lease.yaml")
	secretless.SetName("no-secret")
	w.set(secretless, "no-secret", "spec", "kubeConfig", "secretRef", "name")
	w.commit(secretless)
	w.commit(w.sample("dispatchjob.yaml")) // sent
	job := w.sample("dispatchjob.yaml")
	job.SetName("train")
	w.set(job, map[string]any{controlplane.CompletionDelayAnnotation: kueuejobs.UntilEvicted.String()},
		"spec", "template", "spec", "template", "metadata", "annotations")
	w.commit(job)
	app := w.sample("argocd/application.yaml")
	w.set(app, "file://"+w.repository(), "spec", "source", "repoURL")
	w.Expect(w.kube.Create(w.ctx, app)).To(Succeed())

	// Before dispatch-manager runs.
	w.eventuallyHealth("gpu-west", progressing, Equal(notLookedAt))
	w.capture("DispatchTarget", "gpu-west", "progressing_fresh")
	w.eventuallyHealth("train", progressing, Equal(notLookedAt))
	w.capture("DispatchJob", "train", "progressing_fresh")

	w.start(w.manager)
	w.eventuallyHealth("gpu-west", healthy, Equal(readWrite))
	w.capture("DispatchTarget", "gpu-west", "healthy_proved")
	w.eventuallyHealth("no-lease", degraded, Equal("LeaseNotFound: Lease dispatch-system/dispatch-admission-old does not exist"))
	w.capture("DispatchTarget", "no-lease", "degraded_lease_not_found")
	w.eventuallyHealth("no-secret", degraded, Equal("KubeConfigNotFound: Secret dispatch-system/no-secret does not exist"))
	w.capture("DispatchTarget", "no-secret", "degraded_kubeconfig_not_found")
	// Argo CD looks again when the health changes, but not when only its message does.
	w.eventuallyHealth("sent", healthy, Not(BeEmpty()))
	w.kubectl("wait", "--for=condition=Finished", "dispatchjob/sent", "-n", "default", "--timeout=2m")
	w.capture("DispatchJob", "sent", "healthy_succeeded")
	w.eventuallyHealth("train", healthy, Equal(running))
	w.capture("DispatchJob", "train", "healthy_running")
	w.Expect(field[string](w, w.app(w).Object, "status", "health", "status")).To(Equal(degraded), "the worst of all")

	w.noDrift()
	w.heldJob(job)
	w.closedGate(target)

	w.kubectl("delete", "job", "train", "-n", "default")
	w.eventuallyHealth("train", degraded, Equal("Deleted: the job was deleted on the target before it finished"))
	w.capture("DispatchJob", "train", "degraded_deleted")
}

// noDrift: neither our defaults nor our status are a difference from what is in git.
func (w *test) noDrift() {
	w.t.Helper()
	w.refresh()
	w.expectSynced(w)
	versions := func() string {
		return w.kubectl("get", "dispatchtargets", "-o", "jsonpath={.items[*].metadata.resourceVersion}") + " " +
			w.kubectl("get", "dispatchjobs", "-n", "default", "-o", "jsonpath={.items[*].metadata.resourceVersion}")
	}
	before := versions()
	w.Expect(w.sync()).To(And(HaveLen(5), HaveEach(HaveSuffix(" serverside-applied"))))
	w.Expect(versions()).To(Equal(before), "nothing is written")
	w.refresh()
	w.expectSynced(w)
}

// heldJob evicts the DispatchJob's job and grants it another admission with kubectl.
func (w *test) heldJob(job *unstructured.Unstructured) {
	w.t.Helper()
	w.setStopPolicy("HoldAndDrain")
	w.eventuallyHealth("gpu-west", degraded, HavePrefix("ClusterQueueInactive: "))
	w.capture("DispatchTarget", "gpu-west", "degraded_queue_held")
	w.eventuallyHealth("train", progressing, HavePrefix("WaitingForQuota: evicted (ClusterQueueStopped)"))
	w.capture("DispatchJob", "train", "progressing_evicted")
	w.setStopPolicy("None")
	w.eventuallyHealth("gpu-west", healthy, Equal(readWrite))
	w.eventuallyHealth("train", degraded, And(HavePrefix("WaitingForGrant: evicted (ClusterQueueStopped)"), HaveSuffix("raise spec.admissions to 2 to let it start again")))
	w.capture("DispatchJob", "train", "degraded_waiting_for_grant")
	grant := w.kubectl("get", "admissiongrant", "-n", "default", "-o", `jsonpath={.items[?(@.spec.jobRef.name=="train")].metadata.name}`)
	w.capture("AdmissionGrant", grant, "degraded_waiting")

	w.kubectl("patch", "dispatchjob", "train", "-n", "default", "--type=merge", "--patch", `{"spec":{"admissions":2}}`)
	w.eventuallyHealth("train", healthy, Equal(running))
	w.capture("AdmissionGrant", grant, "healthy_used")
	w.refresh()
	w.expectSynced(w)
	w.Expect(w.sync()).To(HaveKeyWithValue("train", "dispatchjob.dispatch.dev/train serverside-applied"))
	w.Expect(w.admissions("train")).To(BeEquivalentTo(2))
	// Also when something else of it is changed in git.
	job.SetLabels(map[string]string{"changed": "true"})
	w.commit(job)
	w.eventuallyDeployed()
	w.Expect(w.kubectl("get", "dispatchjob", "train", "-n", "default", "-o", "jsonpath={.metadata.labels}")).To(Equal(`{"changed":"true"}`))
	w.Expect(w.admissions("train")).To(BeEquivalentTo(2))
	w.eventuallyHealth("train", healthy, Equal(running))
}

// closedGate kills dispatch-admission and starts it again; then an admin asks for observe-only by git.
func (w *test) closedGate(target *unstructured.Unstructured) {
	w.t.Helper()
	setObserveOnly := func(on bool) {
		w.t.Helper()
		w.set(target, on, "spec", "observeOnly")
		w.commit(target)
		w.eventuallyDeployed()
	}
	w.admission.Kill()
	w.eventuallyHealth("gpu-west", degraded, MatchRegexp(`^LeaseStale: the admission controller's Lease was last renewed 3\ds ago, beyond 30s$`))
	w.capture("DispatchTarget", "gpu-west", "degraded_lease_stale")
	w.start(w.admission)
	w.eventuallyHealth("gpu-west", healthy, Equal(readWrite))

	// A new generation that nobody has looked at yet has the old one's status.
	w.manager.Stop()
	setObserveOnly(true)
	w.eventuallyHealth("gpu-west", progressing, Equal(notLookedAt))
	w.capture("DispatchTarget", "gpu-west", "progressing_older_generation")
	w.kubectl("patch", "dispatchjob", "train", "-n", "default", "--type=merge", "--patch", `{"spec":{"admissions":3}}`)
	w.eventuallyHealth("train", progressing, Equal(notLookedAt))
	w.capture("DispatchJob", "train", "progressing_older_generation")
	w.start(w.manager)
	w.eventuallyHealth("gpu-west", suspended, Equal("ObserveOnlyRequested: spec.observeOnly is set: nothing is written to the target"))
	w.capture("DispatchTarget", "gpu-west", "suspended_observe_only")
	w.eventuallyHealth("train", degraded, HavePrefix("TargetObserveOnly: "))

	held := w.sample("dispatchjob.yaml")
	held.SetName("held")
	w.commit(held)
	w.eventuallyDeployed()
	w.eventuallyHealth("held", degraded, HavePrefix("TargetObserveOnly: "))
	w.capture("DispatchJob", "held", "degraded_target_observe_only")

	setObserveOnly(false)
	w.eventuallyHealth("gpu-west", healthy, Equal(readWrite))
	w.eventuallyHealth("held", healthy, Not(BeEmpty()))
	w.eventuallyHealth("train", healthy, Equal(running))
}
