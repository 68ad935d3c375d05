// Package soak evicts and readmits jobs on real Kueue while two replicas of dispatch-admission that both
// lead are killed at random moments, and counts starts against grants.
package soak

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

var (
	rounds = flag.Int("rounds", 20, "How often every job is evicted and readmitted.")
	seed   = flag.Uint64("seed", uint64(time.Now().UnixNano()), "Seed of what happens when.")
)

const (
	namespace = "soak"
	jobs      = 4
	replicas  = 2
	// stuckAfter is when a job that neither runs nor waits for a grant is stuck.
	stuckAfter = 90 * time.Second
)

// soak is one run.
type soak struct {
	Gomega
	kube    client.WithWatch
	starts  *kueuejobs.Starts
	random  *rand.Rand
	jobs    []*batchv1.Job
	evicted map[string]int
	kills   atomic.Int32
}

func TestReadmissionsUnderCrashes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := &soak{Gomega: NewWithT(t), random: rand.New(rand.NewPCG(*seed, 0)), evicted: map[string]int{}}
	t.Logf("-rounds=%d -seed=%d", *rounds, *seed)
	cluster := controlplane.StartForTest(t, controlplane.Options{Kueue: true, ControllerManager: true, Scheduler: true, KWOK: true})
	s.setUp(ctx, t, cluster)
	// All cleanups of the test come after the killers have ended.
	killing := make(chan struct{})
	killersDone := s.runReplicas(ctx, t, cluster, killing)
	defer func() { close(killing); <-killersDone }()

	began := time.Now()
	for range *rounds {
		// Half of the evictions meet jobs that run, the others jobs that are just being let through.
		if s.random.IntN(2) == 0 {
			s.waitUntilAtRest(ctx)
		}
		s.evict(ctx)
		s.waitUntilAtRest(ctx)
		s.grantAgain(ctx)
	}
	s.waitUntilAtRest(ctx)

	started, used, granted := 0, 0, 0
	for _, job := range s.jobs {
		grant := s.grantOf(ctx, job)
		started += s.starts.Of(job.UID)
		used += int(*grant.Status.Admissions)
		granted += int(grant.Spec.Admissions)
	}
	t.Logf("%d rounds in %s: %d jobs, %d starts, %d counted, %d granted; %d kill -9 of %d leading replicas; jobs evicted %v; none started ungranted, none lost, none stuck",
		*rounds, time.Since(began).Round(time.Second), jobs, started, used, granted, s.kills.Load(), replicas, s.evicted)
}

func (s *soak) setUp(ctx context.Context, t *testing.T, cluster *controlplane.Cluster) {
	var err error
	s.kube, err = kueuejobs.NewClient(cluster.Config())
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(install.Target(ctx, cluster)).To(Succeed())
	s.starts, err = kueuejobs.WatchStarts(ctx, cluster.Config())
	s.Expect(err).NotTo(HaveOccurred())
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		kueuejobs.ResourceFlavor(),
		kueuejobs.AdmissionCheck(kueuejobs.Check, dispatchv1alpha1.DefaultControllerName),
		kueuejobs.ClusterQueue(namespace, jobs, kueuejobs.Check),
		kueuejobs.LocalQueue(namespace, namespace),
		&kueuev1beta2.WorkloadPriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 100},
		// Every process has a Lease of its own, so that it leads whatever the others do.
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "any-lease"},
			Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"},
			}},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "any-lease"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "any-lease"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: install.Namespace, Name: install.AdmissionAccount}},
		},
	} {
		s.Expect(s.kube.Create(ctx, object)).To(Succeed())
	}
	for i := range jobs {
		job := kueuejobs.Job(namespace, fmt.Sprintf("job-%d", i), namespace, kueuejobs.UntilEvicted)
		s.Expect(s.kube.Create(ctx, job)).To(Succeed())
		s.jobs = append(s.jobs, job)
	}
	t.Cleanup(func() {
		if t.Failed() {
			s.dump(t)
		}
	})
}

// runReplicas keeps the replicas running and kills each at random moments, until stop is closed.
func (s *soak) runReplicas(ctx context.Context, t *testing.T, cluster *controlplane.Cluster, stop <-chan struct{}) <-chan struct{} {
	folder := t.TempDir()
	s.Expect(install.Programs(ctx, folder)).To(Succeed())
	config, err := cluster.ServiceAccountConfig(ctx, install.Namespace, install.AdmissionAccount)
	s.Expect(err).NotTo(HaveOccurred())
	ended := make(chan struct{}, replicas)
	for replica := range replicas {
		random := rand.New(rand.NewPCG(*seed, uint64(replica+1)))
		go func() {
			defer func() { ended <- struct{}{} }()
			for life := 0; ; life++ {
				name := fmt.Sprintf("admission-%d-%d", replica, life)
				process, err := install.Process{
					Program: "dispatch-admission", Name: name, Folder: folder, Config: config, Args: []string{"-lease-name=" + name},
				}.New()
				if err == nil {
					err = process.Start(ctx)
				}
				if err != nil {
					t.Errorf("starting %s: %v", name, err)
					return
				}
				select {
				case <-stop:
					process.Stop()
					return
				case <-time.After(time.Second + time.Duration(random.IntN(6000))*time.Millisecond):
					process.Kill()
					s.kills.Add(1)
				}
				if log, err := os.ReadFile(process.LogPath()); err == nil && strings.Contains(string(log), "without an opened admission") {
					t.Errorf("%s reports a start that was not granted; its log is %s", name, filepath.Base(process.LogPath()))
				}
			}
		}()
	}
	done := make(chan struct{})
	go func() {
		for range replicas {
			<-ended
		}
		close(done)
	}()
	return done
}

// evict takes every job's admission away, by one of several ways.
func (s *soak) evict(ctx context.Context) {
	ways := map[string]func(context.Context){
		"ClusterQueue stopped": s.stopQueue,
		"Workloads deleted":    s.deleteWorkloads,
		"deactivated":          s.deactivate,
		"preempted":            s.preempt,
	}
	way := slices.Sorted(maps.Keys(ways))[s.random.IntN(len(ways))]
	s.evicted[way] += jobs
	ways[way](ctx)
}

func (s *soak) stopQueue(ctx context.Context) {
	stop := func(policy kueuev1beta2.StopPolicy) {
		queue := &kueuev1beta2.ClusterQueue{}
		s.Expect(s.kube.Get(ctx, client.ObjectKey{Name: namespace}, queue)).To(Succeed())
		before := queue.DeepCopy()
		queue.Spec.StopPolicy = ptr.To(policy)
		s.Expect(s.kube.Patch(ctx, queue, client.MergeFrom(before))).To(Succeed())
	}
	stop(kueuev1beta2.HoldAndDrain)
	s.waitUntilSuspended(ctx)
	stop(kueuev1beta2.None)
}

func (s *soak) deleteWorkloads(ctx context.Context) {
	for _, job := range s.jobs {
		s.Eventually(func() error { return s.kube.Delete(ctx, s.workload(ctx, job)) }).WithTimeout(stuckAfter).Should(Succeed())
	}
	s.waitUntilSuspended(ctx)
}

func (s *soak) deactivate(ctx context.Context) {
	setActive := func(active bool) {
		for _, job := range s.jobs {
			s.Eventually(func() error {
				wl := s.workload(ctx, job)
				wl.Spec.Active = ptr.To(active)
				return s.kube.Update(ctx, wl)
			}).WithTimeout(stuckAfter).Should(Succeed())
		}
	}
	setActive(false)
	s.waitUntilSuspended(ctx)
	setActive(true)
}

func (s *soak) preempt(ctx context.Context) {
	urgent := kueuejobs.Job(namespace, fmt.Sprintf("urgent-%d", s.evicted["preempted"]), namespace, kueuejobs.UntilEvicted)
	urgent.Labels[kueuejobs.PriorityLabel] = "high"
	urgent.Spec.Parallelism, urgent.Spec.Completions = ptr.To[int32](jobs), ptr.To[int32](jobs)
	s.Expect(s.kube.Create(ctx, urgent)).To(Succeed())
	s.waitUntilSuspended(ctx)
	s.Eventually(s.starts.Of).WithArguments(urgent.UID).WithTimeout(stuckAfter).Should(Equal(1))
	s.Expect(s.kube.Delete(ctx, urgent, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
}

func (s *soak) waitUntilSuspended(ctx context.Context) {
	for _, job := range s.jobs {
		s.Eventually(func(g Gomega) {
			current := &batchv1.Job{}
			g.Expect(s.kube.Get(ctx, client.ObjectKeyFromObject(job), current)).To(Succeed())
			g.Expect(ptr.Deref(current.Spec.Suspend, false)).To(BeTrue())
		}).WithTimeout(stuckAfter).Should(Succeed(), "job %s is not stopped", job.Name)
	}
}

// waitUntilAtRest waits until every job runs, or holds quota and waits for a grant since all it has are
// used up, and looks that none started more often than granted.
func (s *soak) waitUntilAtRest(ctx context.Context) {
	for _, job := range s.jobs {
		s.Eventually(func(g Gomega) {
			wl, grant, current := s.workload(ctx, job), s.grantOf(ctx, job), &batchv1.Job{}
			g.Expect(s.kube.Get(ctx, client.ObjectKeyFromObject(job), current)).To(Succeed())
			g.Expect(grant).NotTo(BeNil())
			used := ptr.Deref(grant.Status.Admissions, 0)
			if !ptr.Deref(current.Spec.Suspend, false) {
				g.Expect(meta.IsStatusConditionTrue(wl.Status.Conditions, kueuev1beta2.WorkloadAdmitted)).To(BeTrue())
				g.Expect(grant.Status.Opened).To(BeNil(), "the start is counted")
				return
			}
			g.Expect(reserved(wl)).To(BeTrue())
			g.Expect(meta.FindStatusCondition(grant.Status.Conditions, dispatchv1alpha1.WaitingCondition)).To(
				HaveField("Reason", dispatchv1alpha1.NotGrantedReason))
			g.Expect(used).To(BeNumerically(">=", grant.Spec.Admissions))
		}).WithTimeout(stuckAfter).Should(Succeed(), "job %s is lost or stuck", job.Name)
		s.Expect(s.starts.Of(job.UID)).To(BeNumerically("<=", s.grantOf(ctx, job).Spec.Admissions), "job %s started ungranted", job.Name)
	}
}

func reserved(wl *kueuev1beta2.Workload) bool {
	return meta.IsStatusConditionTrue(wl.Status.Conditions, kueuev1beta2.WorkloadQuotaReserved) &&
		!meta.IsStatusConditionTrue(wl.Status.Conditions, kueuev1beta2.WorkloadEvicted)
}

// grantAgain grants one more admission to every job that has used all of its own.
func (s *soak) grantAgain(ctx context.Context) {
	for _, job := range s.jobs {
		grant := s.grantOf(ctx, job)
		before := grant.DeepCopy()
		grant.Spec.Admissions = max(grant.Spec.Admissions, *grant.Status.Admissions+1)
		s.Expect(s.kube.Patch(ctx, grant, client.MergeFrom(before))).To(Succeed())
	}
}

// workload is the Job's Workload; an empty one if it is being recreated.
func (s *soak) workload(ctx context.Context, job *batchv1.Job) *kueuev1beta2.Workload {
	list := &kueuev1beta2.WorkloadList{}
	s.Expect(s.kube.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{"kueue.x-k8s.io/job-uid": string(job.UID)})).To(Succeed())
	if len(list.Items) == 0 {
		return &kueuev1beta2.Workload{}
	}
	return &list.Items[0]
}

func (s *soak) grantOf(ctx context.Context, job *batchv1.Job) *dispatchv1alpha1.AdmissionGrant {
	list := &dispatchv1alpha1.AdmissionGrantList{}
	s.Expect(s.kube.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
	for i := range list.Items {
		if list.Items[i].Spec.JobRef.UID == job.UID {
			return &list.Items[i]
		}
	}
	return nil
}

// dump shows what each job and its grant look like.
func (s *soak) dump(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	for _, job := range s.jobs {
		t.Logf("%s: %d starts\nWorkload %+v\ngrant %+v", job.Name, s.starts.Of(job.UID), s.workload(ctx, job).Status, s.grantOf(ctx, job))
	}
}
