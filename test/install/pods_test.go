package install_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/controlplane/ports"
	"github.com/dispatch-dev/dispatch/test/install"
)

// pods does for dispatch's pods what a container engine would: while a pod runs, its program runs as a process
// on this machine, with the arguments of the pod's container and the token of the pod's ServiceAccount. All
// else about the pods is real: the Deployment and ReplicaSet controllers make them, the API server's Pod
// Security admission lets them in, and the scheduler binds them; KWOK says that they run.
type pods struct {
	t       *testing.T
	cluster *controlplane.Cluster
	kube    client.Client
	// name is the cluster's, for logs.
	name string
	// programs is the folder of the programs and of their logs.
	programs string

	mu        sync.Mutex
	processes map[types.UID]*process
	logs      []string
}

type process struct {
	*controlplane.Component
	pod             *corev1.Pod
	probes, metrics string // host:port
}

// start follows the cluster's pods until the function that it returns was called, or the test has ended.
func (p *pods) start() (stop func()) {
	p.processes = map[types.UID]*process{}
	ctx, cancel := context.WithCancel(p.t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		_ = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			if err := p.sync(ctx); err != nil && ctx.Err() == nil {
				p.t.Logf("pods of %s, which are looked at again: %v", p.name, err)
			}
			return false, nil
		})
		p.end(func(*process) bool { return true })
	})
	stop = func() {
		cancel()
		done.Wait()
	}
	p.t.Cleanup(func() {
		stop()
		if p.t.Failed() {
			for _, file := range p.logs {
				text, _ := os.ReadFile(file)
				p.t.Logf("--- %s\n%s", file, text[max(0, len(text)-5000):])
			}
		}
	})
	return stop
}

func (p *pods) sync(ctx context.Context) error {
	var list corev1.PodList
	if err := p.kube.List(ctx, &list, client.InNamespace(install.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "dispatch"}); err != nil {
		return err
	}
	running := map[types.UID]bool{}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Status.Phase != corev1.PodRunning || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		running[pod.UID] = true
		if err := p.ensure(ctx, pod); err != nil {
			return err
		}
	}
	p.end(func(process *process) bool { return !running[process.pod.UID] })
	return nil
}

// ensure sees to it that the pod's process runs. One that has ended is started again, as by a kubelet.
func (p *pods) ensure(ctx context.Context, pod *corev1.Pod) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if process := p.processes[pod.UID]; process != nil {
		if !process.Running() {
			p.t.Logf("the process of pod %s has ended with code %d", pod.Name, process.ExitCode())
		}
		return process.Start(ctx)
	}
	container := pod.Spec.Containers[0]
	if len(container.Command) > 0 {
		return errors.New("the container has a command: the image's entrypoint is not what runs")
	}
	config, err := p.cluster.ServiceAccountConfig(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return err
	}
	var addresses [2]string
	for i := range addresses {
		port, release, err := ports.Reserve()
		if err != nil {
			return err
		}
		p.t.Cleanup(release)
		addresses[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	program, _, _ := strings.Cut(path.Base(container.Image), ":")
	component, err := install.Process{
		Program: program, Name: p.name + "-" + pod.Name, Folder: p.programs, Config: config,
		// Where the processes of several pods share a machine, they cannot all have the same ports.
		Args: append(container.Args, "-health-probe-bind-address="+addresses[0], "-metrics-bind-address="+addresses[1]),
	}.New()
	if err != nil {
		return err
	}
	if err := component.Start(ctx); err != nil {
		return err
	}
	p.logs = append(p.logs, component.LogPath())
	p.processes[pod.UID] = &process{Component: component, pod: pod.DeepCopy(), probes: addresses[0], metrics: addresses[1]}
	return nil
}

func (p *pods) end(over func(*process) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ending sync.WaitGroup
	for uid, process := range p.processes {
		if over(process) {
			ending.Go(process.Stop)
			delete(p.processes, uid)
		}
	}
	ending.Wait()
}

func (p *pods) all() []*process {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*process
	for _, process := range p.processes {
		all = append(all, process)
	}
	return all
}

// expectProbes looks that so many pods run, and that each answers its probes, and its metrics.
func (p *pods) expectProbes(t *testing.T, replicas int) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(p.all).WithTimeout(patience).Should(HaveLen(replicas))
	for _, process := range p.all() {
		container := process.pod.Spec.Containers[0]
		for _, url := range []string{
			process.probes + container.LivenessProbe.HTTPGet.Path,
			process.probes + container.ReadinessProbe.HTTPGet.Path,
			process.metrics + "/metrics",
		} {
			g.Eventually(func() error { return answersOK("http://" + url) }).WithTimeout(patience).Should(Succeed())
		}
	}
}

// expectNothingForbidden looks that no process has missed a permission so far.
func (p *pods) expectNothingForbidden(t *testing.T) {
	t.Helper()
	for _, file := range p.logs {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "forbidden") {
				t.Errorf("%s: %s", path.Base(file), line)
			}
		}
	}
}

func answersOK(url string) error {
	response, err := http.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	return err
}
