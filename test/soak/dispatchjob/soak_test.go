// Package dispatchjob submits, cancels and grants DispatchJobs while the hub's managers are killed at random
// moments and the network between them and the target is cut and delayed, and looks that no job was sent
// twice, lost, or left behind.
package dispatchjob

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/faultproxy"
	"github.com/dispatch-dev/dispatch/test/install"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

var (
	kills = flag.Int64("kills", 12, "How often a manager is killed.")
	users = flag.Int("jobs", 16, "How many DispatchJobs there are at a time.")
	seed  = flag.Uint64("seed", uint64(time.Now().UnixNano()), "Seed of what happens when.")
)

const (
	// namespace is that of the jobs, and the name of their queue.
	namespace = "soak"
	// replicas of dispatch-manager all act at the same time: a harder test than election would allow. What a
	// killed one has sent, and what is still on its way, meets another that is at work already.
	replicas = 2
	// stuckAfter is when a job is stuck of which nothing has changed. One that was submitted in two tries waits
	// 30 s, until no request to create it can be under way.
	stuckAfter = 4 * time.Minute
)

// soak is one run.
type soak struct {
	Gomega
	t                       *testing.T
	hub, target             *controlplane.Cluster
	hubClient, targetClient client.WithWatch
	// jobs has the DispatchJobs as a watch on the hub tells of them.
	jobs      cache.Cache
	network   *faultproxy.TCP
	seen      *seen
	admission *controlplane.Component
	managers  []*controlplane.Component
	// left is how many kills are to come.
	left   atomic.Int64
	counts counts
}

// counts are what the run has done.
type counts struct {
	sent, succeeded, cancelled, ttl                atomic.Int32
	killed, killedBetween                          atomic.Int32
	deactivated, workloadsDeleted, drained, grants atomic.Int32
	cut, refused, delayed, blackHoled              atomic.Int32
	admissionRestarted                             atomic.Int32
}

func TestDispatchJobsUnderCrashes(t *testing.T) {
	log.SetLogger(logr.Discard())
	t.Logf("-kills=%d -jobs=%d -seed=%d", *kills, *users, *seed)
	s := &soak{Gomega: NewWithT(t), t: t, seen: newSeen(t)}
	s.left.Store(*kills)
	s.setUp(t.Context())

	began := time.Now()
	all, ctx := errgroup.WithContext(t.Context())
	// Managers and faults end when the last user is served; users send no more once the last kill is done.
	faults, stop := context.WithCancel(ctx)
	for i, manager := range s.managers {
		all.Go(func() error { return s.killAtRandom(faults, manager, s.random(1, i)) })
	}
	all.Go(func() error { return s.keepAdmission(faults) })
	all.Go(func() error { return s.disturbNetwork(faults, s.random(2, 0)) })
	all.Go(func() error { return s.evictAtRandom(faults, s.random(3, 0)) })
	all.Go(func() error {
		defer stop()
		serving, whileServing := errgroup.WithContext(ctx)
		for i := range *users {
			serving.Go(func() error { return s.use(whileServing, fmt.Sprintf("job-%d", i), s.random(4, i)) })
		}
		if err := serving.Wait(); err != nil {
			return err
		}
		t.Logf("the last job is done after %s", time.Since(began).Round(time.Second))
		return s.nothingLeft(ctx)
	})
	s.Expect(all.Wait()).To(Succeed())
	s.report(time.Since(began))
}

// random is one goroutine's own, so that the order in which they run does not matter.
func (s *soak) random(kind, i int) *rand.Rand {
	return rand.New(rand.NewPCG(*seed, uint64(kind*1000+i)))
}

func (s *soak) setUp(ctx context.Context) {
	s.hub = controlplane.StartForTest(s.t, controlplane.Options{})
	s.target = controlplane.StartForTest(s.t, controlplane.Options{
		Kueue: true, ControllerManager: true, Scheduler: true, KWOK: true,
		Controllers: []string{
			"job-controller", "garbage-collector-controller", "namespace-controller", "serviceaccount-controller",
			"ttl-after-finished-controller",
		},
	})
	var err error
	s.hubClient, err = kueuejobs.NewClient(s.hub.Config())
	s.Expect(err).NotTo(HaveOccurred())
	s.targetClient, err = kueuejobs.NewClient(s.target.Config())
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(install.Hub(ctx, s.hub)).To(Succeed())
	s.Expect(install.Target(ctx, s.target)).To(Succeed())
	s.Expect(install.TargetWrite(ctx, s.target)).To(Succeed())
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		kueuejobs.ResourceFlavor(),
		kueuejobs.AdmissionCheck(kueuejobs.Check, v1alpha1.DefaultControllerName),
		kueuejobs.ClusterQueue(namespace, 24, kueuejobs.Check),
		kueuejobs.LocalQueue(namespace, namespace),
	} {
		s.Expect(s.targetClient.Create(ctx, object)).To(Succeed())
	}
	s.Expect(s.hubClient.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	_, err = kueuejobs.WatchStarts(ctx, s.target.Config(), s.seen.job)
	s.Expect(err).NotTo(HaveOccurred())
	s.followDispatchJobs(ctx)

	folder := s.t.TempDir()
	s.Expect(install.Programs(ctx, folder)).To(Succeed())
	s.admission = s.program(ctx, s.target, folder, "dispatch-admission", "admission", install.AdmissionAccount)
	for i := range replicas {
		s.managers = append(s.managers, s.program(ctx, s.hub, folder, "dispatch-manager", fmt.Sprintf("manager-%d", i),
			install.ManagerAccount, "-leader-elect=false"))
	}
	s.connect(ctx)
}

// connect makes the DispatchTarget, which the hub reaches through the proxy.
func (s *soak) connect(ctx context.Context) {
	config, err := s.target.ServiceAccountConfig(ctx, install.Namespace, install.HubAccount)
	s.Expect(err).NotTo(HaveOccurred())
	s.network, err = faultproxy.NewTCP(strings.TrimPrefix(config.Host, "https://"))
	s.Expect(err).NotTo(HaveOccurred())
	s.t.Cleanup(s.network.Close)
	config = rest.CopyConfig(config)
	config.Host = "https://" + s.network.Address()
	kubeConfig, err := controlplane.Kubeconfig(config)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(s.hubClient.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "target"},
		Data:       map[string][]byte{"kubeconfig": kubeConfig},
	})).To(Succeed())
	s.Expect(s.hubClient.Create(ctx, &v1alpha1.DispatchTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "target"},
		Spec: v1alpha1.DispatchTargetSpec{
			KubeConfig:        &v1alpha1.KubeConfigSource{SecretRef: &v1alpha1.KubeConfigSecretReference{Name: "target"}},
			Kueue:             &v1alpha1.KueueSpec{ClusterQueue: namespace},
			AllowedNamespaces: &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromAll},
		},
	})).To(Succeed())
}

// program starts one of dispatch's, and keeps its log with those of the cluster if the test fails.
func (s *soak) program(ctx context.Context, cluster *controlplane.Cluster, folder, program, name, account string, args ...string) *controlplane.Component {
	config, err := cluster.ServiceAccountConfig(ctx, install.Namespace, account)
	s.Expect(err).NotTo(HaveOccurred())
	process, err := install.Process{Program: program, Name: name, Folder: folder, Config: config, Args: args}.New()
	s.Expect(err).NotTo(HaveOccurred())
	s.t.Cleanup(func() {
		process.Stop()
		if s.t.Failed() {
			_ = os.Rename(process.LogPath(), filepath.Join(cluster.LogDir(), name+".log")) // else there is none
		}
	})
	s.Expect(process.Start(ctx)).To(Succeed())
	return process
}

// nothingLeft waits until the target has no job, nor anything that belongs to one.
func (s *soak) nothingLeft(ctx context.Context) error {
	return poll(ctx, func(ctx context.Context) (string, bool, error) {
		var left []string
		for _, list := range []client.ObjectList{&batchv1.JobList{}, &kueuev1beta2.WorkloadList{}, &v1alpha1.AdmissionGrantList{}, &corev1.PodList{}} {
			if err := s.targetClient.List(ctx, list, client.InNamespace(namespace)); err != nil {
				return "", false, err
			}
			err := meta.EachListItem(list, func(o runtime.Object) error {
				object, err := meta.Accessor(o)
				if err != nil {
					return err
				}
				left = append(left, fmt.Sprintf("%T %s", o, object.GetName()))
				return nil
			})
			if err != nil {
				return "", false, err
			}
		}
		return "left on the target: " + strings.Join(left, ", "), len(left) == 0, nil
	})
}

// poll asks until it is done, or an error, or the state has been the same for too long.
func poll(ctx context.Context, ask func(context.Context) (state string, done bool, err error)) error {
	last, since := "", time.Now()
	return wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		state, done, err := ask(ctx)
		if done || err != nil {
			return done, err
		}
		if state != last {
			last, since = state, time.Now()
		}
		if time.Since(since) > stuckAfter {
			return false, fmt.Errorf("nothing has changed for %s: %s", stuckAfter, state)
		}
		return false, nil
	})
}

func (s *soak) report(took time.Duration) {
	c, j := &s.counts, s.seen.sum()
	s.t.Logf("%s: %d DispatchJobs, up to %d at a time: %d succeeded, %d deleted before; %d with ttlSecondsAfterFinished 0",
		took.Round(time.Second), c.sent.Load(), *users, c.succeeded.Load(), c.cancelled.Load(), c.ttl.Load())
	s.t.Logf("%d kill -9 of %d managers, %d of them with a job under way between intent and uid; connections cut %d, refused %d, delayed %d, black-holed %d times",
		c.killed.Load(), replicas, c.killedBetween.Load(), c.cut.Load(), c.refused.Load(), c.delayed.Load(), c.blackHoled.Load())
	s.t.Logf("%d Jobs on the target, of %d submissions; %d were tried more than once; %d starts, %d granted; evicted: %d deactivated, %d Workloads deleted, %d times the queue drained; %d grants after an eviction",
		j.jobs, j.submissions, j.retried, j.starts, j.granted, c.deactivated.Load(), c.workloadsDeleted.Load(), c.drained.Load(), c.grants.Load())
	s.t.Logf("dispatch-admission was started again %d times", c.admissionRestarted.Load())
	s.t.Log("none submitted twice, none lost, none started ungranted, nothing left on the target")
}
