package controlplane

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"
)

const queues = `
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: batch}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors:
    - name: default
      resources: [{name: cpu, nominalQuota: 4}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: batch, namespace: default}
spec: {clusterQueue: batch}
`

const job = `
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  namespace: default
  labels: {kueue.x-k8s.io/queue-name: batch}
spec:
  suspend: true
  completions: 2
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: nothing, resources: {requests: {cpu: 1}}}
`

func TestJobRunsThroughKueue(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	cluster := StartForTest(t, Options{Kueue: true, ControllerManager: true, Scheduler: true, KWOK: true, Nodes: 2})
	get := func(what ...string) func() (string, error) {
		return func() (string, error) { return cluster.Kubectl(ctx, append([]string{"get"}, what...)...) }
	}
	condition := func(name string) string {
		return `jsonpath={.status.conditions[?(@.type=="` + name + `")].status}`
	}
	g.Expect(cluster.ApplyYAML(ctx, []byte(queues))).To(Succeed())
	g.Expect(cluster.ApplyYAML(ctx, []byte(job))).To(Succeed())
	g.Eventually(get("job", "train", "-o", condition("Complete")), patience).Should(Equal("True"))
	g.Expect(get("workloads", "-o", `jsonpath={.items[*].status.admission.clusterQueue}`)()).To(Equal("batch"))
	g.Expect(get("pods", "-o", `jsonpath={.items[*].status.phase}`)()).To(Equal("Succeeded Succeeded"))

	// Owner references do something.
	_, err := cluster.Kubectl(ctx, "delete", "job", "train", "--cascade=foreground")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(get("workloads,pods", "-o", "name"), patience).Should(BeEmpty())

	// Without Kueue its webhooks let nothing through, and it comes back.
	cluster.Kueue.Stop()
	g.Expect(cluster.ApplyYAML(ctx, []byte(job))).To(MatchError(ContainSubstring("kueue-webhook-service")))
	g.Expect(cluster.Kueue.Start(ctx)).To(Succeed())
	g.Expect(cluster.ApplyYAML(ctx, []byte(job))).To(Succeed())
	g.Eventually(get("job", "train", "-o", condition("Complete")), patience).Should(Equal("True"))
}

func TestPodRunsAsLongAsItsAnnotationSays(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	cluster := StartForTest(t, Options{ControllerManager: true, Scheduler: true, KWOK: true})
	g.Expect(cluster.ApplyYAML(ctx, []byte(`
apiVersion: batch/v1
kind: Job
metadata: {name: long, namespace: default}
spec:
  template:
    metadata: {annotations: {`+CompletionDelayAnnotation+`: 1h}}
    spec: {restartPolicy: Never, containers: [{name: main, image: nothing}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: short, namespace: default}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: nothing}]}
`))).To(Succeed())
	status := func(job string) func() (string, error) {
		return func() (string, error) {
			return cluster.Kubectl(ctx, "get", "job", job, "-o", "jsonpath={.status.ready} {.status.succeeded}")
		}
	}
	g.Eventually(status("short"), patience).Should(Equal("0 1"))
	g.Eventually(status("long"), patience).Should(Equal("1 "))
}

func TestConfigureKueue(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	// Nothing makes pods here, so that they are never ready.
	cluster := StartForTest(t, Options{Kueue: true, ConfigureKueue: func(config *kueueconfig.Configuration) {
		config.WaitForPodsReady = &kueueconfig.WaitForPodsReady{
			Timeout: metav1.Duration{Duration: time.Second},
			RequeuingStrategy: &kueueconfig.RequeuingStrategy{
				BackoffBaseSeconds: ptr.To[int32](1),
				BackoffMaxSeconds:  ptr.To[int32](1),
			},
		}
	}})
	g.Expect(cluster.ApplyYAML(ctx, []byte(queues))).To(Succeed())
	g.Expect(cluster.ApplyYAML(ctx, []byte(job))).To(Succeed())
	g.Eventually(func() (string, error) {
		return cluster.Kubectl(ctx, "get", "workloads", "-o", "jsonpath={.items[*].status.schedulingStats.evictions[*].reason}")
	}, patience).Should(Equal("PodsReadyTimeout"))
}
