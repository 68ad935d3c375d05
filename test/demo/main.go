// Command demo shows dispatch at work on two real clusters, a hub and a target that runs Kueue, started as
// plain processes on this machine: a gate that is proved and three that are not, a job that is sent, evicted,
// held and granted, and the gate closing and opening again when its controller dies and comes back. Then it
// leaves all of it running until Ctrl-C; with --once it ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
)

func main() {
	once := flag.Bool("once", false, "end after the show, with an exit code that says whether it went as told")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	err := run(ctx, *once)
	switch {
	case ctx.Err() != nil:
		fmt.Println("\nstopped")
	case err != nil:
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

// demo is the two clusters and what runs on them.
type demo struct {
	hub, target        *controlplane.Cluster
	manager, admission *controlplane.Component
	folder             string
	samples            string
}

func run(ctx context.Context, once bool) error {
	d := &demo{}
	defer d.stop()
	if err := d.start(ctx); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	if once {
		return nil
	}
	say("All of it goes on running until Ctrl-C. To look around, in another terminal:")
	fmt.Printf("  alias hub='%s --kubeconfig=%s'\n", d.hub.KubectlPath(), d.hub.KubeconfigPath())
	fmt.Printf("  alias target='%s --kubeconfig=%s'\n", d.target.KubectlPath(), d.target.KubeconfigPath())
	fmt.Println("  hub get dispatchtargets,dispatchjobs -o wide")
	fmt.Println("  target get workloads,jobs,leases -A")
	fmt.Printf("  kill -9 %d      # dispatch-admission: the gate closes 30 s after its last renewal\n", d.admission.PID())
	fmt.Printf("  tail -f %s\n", d.manager.LogPath())
	<-ctx.Done()
	return nil
}

func (d *demo) stop() {
	for _, c := range []*controlplane.Component{d.manager, d.admission} {
		if c != nil {
			c.Stop()
		}
	}
	for _, c := range []*controlplane.Cluster{d.hub, d.target} {
		if c != nil {
			c.Stop()
		}
	}
	if d.folder != "" {
		_ = os.RemoveAll(d.folder)
	}
}

// start brings up both clusters and installs dispatch on them.
func (d *demo) start(ctx context.Context) error {
	root, err := install.Root()
	if err != nil {
		return err
	}
	d.samples = filepath.Join(root, "config", "samples")
	if d.folder, err = os.MkdirTemp("", "dispatch-demo-"); err != nil {
		return err
	}
	say("Starting the hub: etcd and kube-apiserver")
	if d.hub, err = controlplane.Start(ctx, controlplane.Options{}); err != nil {
		return err
	}
	say("Starting the target: the same, with Kueue, job controller, scheduler and two nodes played by KWOK")
	d.target, err = controlplane.Start(ctx, controlplane.Options{Kueue: true, ControllerManager: true, Scheduler: true, KWOK: true, Nodes: 2})
	if err != nil {
		return err
	}

	say("Installing dispatch: CRDs and roles from config/, both programs under their own ServiceAccounts")
	if err := install.Hub(ctx, d.hub); err != nil {
		return err
	}
	if err := install.Target(ctx, d.target); err != nil {
		return err
	}
	if err := install.TargetWrite(ctx, d.target); err != nil {
		return err
	}
	if err := install.Programs(ctx, d.folder); err != nil {
		return err
	}
	if d.admission, err = d.startProgram(ctx, d.target, "dispatch-admission", install.AdmissionAccount); err != nil {
		return err
	}
	if d.manager, err = d.startProgram(ctx, d.hub, "dispatch-manager", install.ManagerAccount); err != nil {
		return err
	}
	return d.createKubeConfigSecret(ctx)
}

func (d *demo) startProgram(ctx context.Context, cluster *controlplane.Cluster, program, account string) (*controlplane.Component, error) {
	cfg, err := cluster.ServiceAccountConfig(ctx, install.Namespace, account)
	if err != nil {
		return nil, err
	}
	process, err := install.Process{Program: program, Folder: d.folder, Config: cfg}.New()
	if err != nil {
		return nil, err
	}
	return process, process.Start(ctx)
}

// createKubeConfigSecret hands the hub what it needs to reach the target.
func (d *demo) createKubeConfigSecret(ctx context.Context) error {
	cfg, err := d.target.ServiceAccountConfig(ctx, install.Namespace, install.HubAccount)
	if err != nil {
		return err
	}
	kubeConfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return err
	}
	path := filepath.Join(d.folder, "gpu-west.kubeconfig")
	if err := os.WriteFile(path, kubeConfig, 0o600); err != nil {
		return err
	}
	_, err = d.hub.Kubectl(ctx, "create", "secret", "generic", "gpu-west", "--namespace="+install.Namespace, "--from-file=kubeconfig="+path)
	return err
}

func (d *demo) show(ctx context.Context) error {
	say("On the target: queues, and an AdmissionCheck that one of them lists")
	if err := d.kubectl(ctx, d.target, "apply", "-k", filepath.Join(d.samples, "target")); err != nil {
		return err
	}
	say("On the hub: four DispatchTargets, of which one can be proved")
	if err := d.kubectl(ctx, d.hub, "apply", "-k", d.samples); err != nil {
		return err
	}
	err := d.waitForTargets(ctx, 30*time.Second, map[string]string{
		"gpu-west":   "ReadWrite True Proved",
		"no-lease":   "ObserveOnly False LeaseNotFound",
		"not-listed": "ObserveOnly False AdmissionCheckNotListed",
		"forbidden":  "ObserveOnly Unknown Forbidden",
	})
	if err != nil {
		return err
	}

	if err := d.showJob(ctx); err != nil {
		return err
	}

	say("kill -9 dispatch-admission: nobody renews its Lease, and 30 s after the last renewal the gate closes")
	d.admission.Kill()
	if err := d.waitForTargets(ctx, time.Minute, map[string]string{"gpu-west": "ObserveOnly False LeaseStale"}); err != nil {
		return err
	}
	if err := d.kubectl(ctx, d.hub, "get", "dispatchtarget", "gpu-west", "-o", "wide"); err != nil {
		return err
	}
	say("The AdmissionCheck itself cannot tell. It still says Active:")
	if err := d.kubectl(ctx, d.target, "get", "admissioncheck", "dispatch", "-o", `jsonpath={.status.conditions[?(@.type=="Active")].status}{"\n"}`); err != nil {
		return err
	}

	say("A new dispatch-admission: the gate opens again")
	if err := d.admission.Start(ctx); err != nil {
		return err
	}
	return d.waitForTargets(ctx, time.Minute, map[string]string{"gpu-west": "ReadWrite True Proved"})
}

// showJob sends a job, lets Kueue evict it, and grants it a second admission.
func (d *demo) showJob(ctx context.Context) error {
	job, err := d.longJob()
	if err != nil {
		return err
	}
	say("A DispatchJob on the hub (the sample, its pods running for 10 s): it is sent, let through, and runs")
	if err := d.kubectl(ctx, d.hub, "apply", "-f", job); err != nil {
		return err
	}
	if err := d.waitForJob(ctx, "Running 1/1 Running"); err != nil {
		return err
	}

	say("The target's queue is drained and opened again: Kueue evicts the job, and would start it again")
	if err := d.kubectl(ctx, d.target, "patch", "clusterqueue", "gpu", "--type=merge", "-p", `{"spec":{"stopPolicy":"HoldAndDrain"}}`); err != nil {
		return err
	}
	if err := d.waitForJob(ctx, "Evicted 1/1 WaitingForQuota"); err != nil {
		return err
	}
	if err := d.kubectl(ctx, d.target, "patch", "clusterqueue", "gpu", "--type=merge", "-p", `{"spec":{"stopPolicy":"None"}}`); err != nil {
		return err
	}
	if err := d.waitForJob(ctx, "Waiting 1/1 WaitingForGrant"); err != nil {
		return err
	}
	if err := d.kubectl(ctx, d.target, "get", "admissiongrants"); err != nil {
		return err
	}

	say("It stays suspended until somebody says that it may start there again")
	if err := d.kubectl(ctx, d.hub, "patch", "dispatchjob", "sent", "--type=merge", "-p", `{"spec":{"admissions":2}}`); err != nil {
		return err
	}
	if err := d.waitForJob(ctx, "Succeeded 2/2"); err != nil {
		return err
	}

	say("Deleted on the hub, it is gone from the target")
	if err := d.kubectl(ctx, d.hub, "delete", "dispatchjob", "sent"); err != nil {
		return err
	}
	return d.waitFor(ctx, d.target, time.Minute, func(out string) bool { return out == "" }, "get", "jobs,workloads,admissiongrants", "-o", "name")
}

// longJob is the sample with an annotation by which KWOK lets its pods run for a while.
func (d *demo) longJob() (string, error) {
	data, err := os.ReadFile(filepath.Join(d.samples, "dispatchjob.yaml"))
	if err != nil {
		return "", err
	}
	job := map[string]any{}
	if err := yaml.Unmarshal(data, &job); err != nil {
		return "", err
	}
	if err := unstructured.SetNestedField(job, "10s", "spec", "template", "spec", "template", "metadata", "annotations", controlplane.CompletionDelayAnnotation); err != nil {
		return "", err
	}
	if data, err = yaml.Marshal(job); err != nil {
		return "", err
	}
	path := filepath.Join(d.folder, "dispatchjob.yaml")
	return path, os.WriteFile(path, data, 0o600)
}

// waitForJob prints `kubectl get dispatchjobs` whenever it changes, until phase, admissions and reason are as
// wanted.
func (d *demo) waitForJob(ctx context.Context, want string) error {
	return d.waitFor(ctx, d.hub, time.Minute, func(out string) bool { return strings.Contains(squeeze(out), "sent gpu-west "+want+" ") },
		"get", "dispatchjobs")
}

// waitForTargets prints `kubectl get dispatchtargets` whenever it changes, until each named target shows
// the mode, gate and reason wanted.
func (d *demo) waitForTargets(ctx context.Context, timeout time.Duration, want map[string]string) error {
	return d.waitFor(ctx, d.hub, timeout, func(out string) bool {
		for name, columns := range want {
			if !regexp.MustCompile(`(?m)^` + name + ` ` + columns + ` `).MatchString(squeeze(out)) {
				return false
			}
		}
		return true
	}, "get", "dispatchtargets")
}

// waitFor prints what a kubectl command says whenever that changes, but for ages, until it is as wanted.
func (d *demo) waitFor(ctx context.Context, cluster *controlplane.Cluster, timeout time.Duration, done func(out string) bool, args ...string) error {
	fmt.Printf("$ kubectl %s\n", strings.Join(args, " "))
	began, last := time.Now(), ""
	err := wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		out, err := cluster.Kubectl(ctx, args...)
		if err != nil {
			return false, err
		}
		if shown := age.ReplaceAllString(squeeze(out), ""); shown != last {
			fmt.Printf("--- after %s\n%s", time.Since(began).Round(100*time.Millisecond), out)
			last = shown
		}
		return done(out), nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return errors.New("that should have looked otherwise by now")
	}
	return err
}

var (
	spaces = regexp.MustCompile(` +`)
	// age is a last column such as 3s, or two for a job.
	age = regexp.MustCompile(`(?m)( \d+[smh]\S*)+ ?$`)
)

func squeeze(table string) string { return spaces.ReplaceAllString(table, " ") }

// kubectl runs a command in sight.
func (d *demo) kubectl(ctx context.Context, cluster *controlplane.Cluster, args ...string) error {
	shown := strings.ReplaceAll(strings.ReplaceAll(strings.Join(args, " "), d.samples, "config/samples"), d.folder+"/", "")
	fmt.Printf("$ kubectl %s\n", shown)
	out, err := cluster.Kubectl(ctx, args...)
	fmt.Print(out)
	return err
}

func say(what string) { fmt.Printf("\n=== %s\n", what) }
