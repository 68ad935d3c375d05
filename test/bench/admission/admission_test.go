// Package admission measures how fast dispatch-admission lets Workloads through, against a bare loop that
// does the same writes on the same API server in the same run. The test plays Kueue: it reserves quota.
package admission

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

const (
	namespace = "default"
	queue     = "bench"
	// baselineCheck is the check that the bare loop answers for.
	baselineCheck = "baseline"
	// concurrency is dispatch-admission's default, and the bare loop's.
	concurrency = 8
	// reservers reserve quota at a time.
	reservers = 16
)

// bench is a cluster with dispatch-admission and the bare loop, each with its check.
type bench struct {
	Gomega
	b       *testing.B
	config  *controlplane.Cluster
	kube    client.WithWatch
	job     *batchv1.Job
	folder  string
	process *controlplane.Component

	mu    sync.Mutex
	ready map[string]time.Time
	next  int
	// reserved are the Workloads that the bare loop is to let through.
	reserved chan *kueuev1beta2.Workload
}

func newBench(ctx context.Context, b *testing.B) *bench {
	x := &bench{
		Gomega: NewWithT(b), b: b, folder: b.TempDir(), ready: map[string]time.Time{}, reserved: make(chan *kueuev1beta2.Workload, 10000),
		config: controlplane.StartForTest(b, controlplane.Options{}),
	}
	var err error
	x.kube, err = kueuejobs.NewClient(x.config.Config())
	x.Expect(err).NotTo(HaveOccurred())
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue").Output()
	x.Expect(err).NotTo(HaveOccurred())
	for _, kind := range []string{"admissionchecks", "clusterqueues", "workloads"} {
		x.Expect(x.config.Apply(ctx, filepath.Join(strings.TrimSpace(string(module)), "config/components/crd/bases", "kueue.x-k8s.io_"+kind+".yaml"))).To(Succeed())
	}
	x.Expect(install.Target(ctx, x.config)).To(Succeed())
	x.Eventually(func() error { return x.kube.List(ctx, &kueuev1beta2.WorkloadList{}) }).WithTimeout(time.Minute).Should(Succeed())
	x.Expect(install.Programs(ctx, x.folder)).To(Succeed())
	x.job = kueuejobs.Job(namespace, "bench", queue, time.Hour)
	for _, object := range []client.Object{
		x.job, kueuejobs.ClusterQueue(queue, 1, kueuejobs.Check, baselineCheck),
		kueuejobs.AdmissionCheck(kueuejobs.Check, dispatchv1alpha1.DefaultControllerName),
		kueuejobs.AdmissionCheck(baselineCheck, "example.com/baseline"),
	} {
		x.Expect(x.kube.Create(ctx, object)).To(Succeed())
	}
	config, err := x.config.ServiceAccountConfig(ctx, install.Namespace, install.AdmissionAccount)
	x.Expect(err).NotTo(HaveOccurred())
	x.process, err = install.Process{Program: "dispatch-admission", Folder: x.folder, Config: config, Args: []string{"-log-level=error"}}.New()
	x.Expect(err).NotTo(HaveOccurred())
	b.Cleanup(func() { x.process.Stop() })

	go x.follow(ctx)
	for range concurrency {
		go func() {
			for wl := range x.reserved {
				if err := x.letThrough(ctx, wl); err != nil && ctx.Err() == nil {
					b.Errorf("the bare loop: %v", err)
				}
			}
		}()
	}
	return x
}

// follow notes when Workloads become Ready, and feeds the bare loop. The API server ends a watch when the
// CRD settles; a new one begins with what there is.
func (x *bench) follow(ctx context.Context) {
	queued := map[string]bool{}
	for ctx.Err() == nil {
		watching, err := x.kube.Watch(ctx, &kueuev1beta2.WorkloadList{})
		if err != nil {
			continue
		}
		for event := range watching.ResultChan() {
			wl, ok := event.Object.(*kueuev1beta2.Workload)
			if !ok || len(wl.Status.AdmissionChecks) == 0 {
				continue
			}
			entry := wl.Status.AdmissionChecks[0]
			if entry.State == kueuev1beta2.CheckStateReady {
				x.noteReady(wl.Name)
			} else if entry.Name == baselineCheck && !queued[wl.Name] && meta.IsStatusConditionTrue(wl.Status.Conditions, kueuev1beta2.WorkloadQuotaReserved) {
				queued[wl.Name] = true
				x.reserved <- wl
			}
		}
	}
}

func (x *bench) noteReady(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ready[name].IsZero() {
		x.ready[name] = time.Now()
	}
}

// letThrough does what dispatch-admission writes for a first admission, and nothing else.
func (x *bench) letThrough(ctx context.Context, wl *kueuev1beta2.Workload) error {
	grant := &dispatchv1alpha1.AdmissionGrant{
		ObjectMeta: metav1.ObjectMeta{
			// Under the Workload's own name dispatch-admission would take it up.
			Namespace: wl.Namespace, Name: "bare-" + wl.Name, Finalizers: []string{dispatchv1alpha1.AdmissionCountFinalizer},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: x.job.Name, UID: x.job.UID}},
		},
		Spec: dispatchv1alpha1.AdmissionGrantSpec{
			JobRef:     dispatchv1alpha1.JobReference{APIVersion: "batch/v1", Kind: "Job", Name: x.job.Name, UID: x.job.UID},
			Admissions: 1,
		},
	}
	if err := x.kube.Create(ctx, grant); err != nil {
		return err
	}
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	before := grant.DeepCopy()
	grant.Status = dispatchv1alpha1.AdmissionGrantStatus{
		Admissions: ptr.To[int32](0),
		Opened:     &dispatchv1alpha1.OpenedAdmission{Number: 1, Time: now, WorkloadUID: wl.UID, ReservedTime: now, SuspendedGeneration: 1},
		Accounted:  &dispatchv1alpha1.AccountedWorkload{UID: wl.UID, ResourceVersion: wl.ResourceVersion},
		Conditions: []metav1.Condition{
			{Type: "Waiting", Status: metav1.ConditionFalse, Reason: "NotWaiting", Message: "nothing is held back", LastTransitionTime: now},
			{Type: "QuotaReserved", Status: metav1.ConditionTrue, Reason: "QuotaReserved", LastTransitionTime: now},
		},
	}
	if err := x.kube.Status().Patch(ctx, grant, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	return x.apply(ctx, kueuev1beta2.GroupVersion.String(), "Workload", wl, &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{
		"admissionChecks": []any{map[string]any{"name": baselineCheck, "state": "Ready", "message": "admission 1 of 1 granted", "lastTransitionTime": now.Format(time.RFC3339)}},
	}}})
}

func (x *bench) apply(ctx context.Context, apiVersion, kind string, object client.Object, apply *unstructured.Unstructured) error {
	apply.SetAPIVersion(apiVersion)
	apply.SetKind(kind)
	apply.SetNamespace(object.GetNamespace())
	apply.SetName(object.GetName())
	apply.SetResourceVersion(object.GetResourceVersion())
	return x.kube.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(apply), client.FieldOwner("baseline"), client.ForceOwnership)
}

// workloads creates n Workloads with the check, without quota.
func (x *bench) workloads(ctx context.Context, n int, check string) []*kueuev1beta2.Workload {
	created := make([]*kueuev1beta2.Workload, n)
	first := x.next
	x.next += n
	inParallel(n, func(i int) {
		wl := &kueuev1beta2.Workload{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: fmt.Sprintf("%s-%d", check, first+i),
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: x.job.Name, UID: x.job.UID, Controller: ptr.To(true)}},
			},
			Spec: kueuev1beta2.WorkloadSpec{PodSets: []kueuev1beta2.PodSet{{Name: "main", Count: 1, Template: x.job.Spec.Template}}},
		}
		x.check(x.kube.Create(ctx, wl))
		wl.Status.AdmissionChecks = []kueuev1beta2.AdmissionCheckState{{
			Name: kueuev1beta2.AdmissionCheckReference(check), State: kueuev1beta2.CheckStatePending, LastTransitionTime: metav1.Now(),
		}}
		x.check(x.kube.Status().Update(ctx, wl))
		created[i] = wl
	})
	return created
}

func inParallel(n int, do func(int)) {
	var all sync.WaitGroup
	numbers := make(chan int)
	for range min(n, reservers) {
		all.Go(func() {
			for i := range numbers {
				do(i)
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	all.Wait()
}

func (x *bench) reserve(ctx context.Context, wl *kueuev1beta2.Workload) {
	wl.Status.Admission = &kueuev1beta2.Admission{
		ClusterQueue: queue, PodSetAssignments: []kueuev1beta2.PodSetAssignment{{Name: "main"}},
	}
	meta.SetStatusCondition(&wl.Status.Conditions, metav1.Condition{
		Type: kueuev1beta2.WorkloadQuotaReserved, Status: metav1.ConditionTrue, Reason: "QuotaReserved",
	})
	x.check(x.kube.Status().Update(ctx, wl))
}

// check is for goroutines, which may not end the benchmark.
func (x *bench) check(err error) {
	if err != nil {
		x.b.Errorf("playing Kueue: %v", err)
	}
}

// readyAt is when the Workload became Ready; zero before.
func (x *bench) readyAt(wl *kueuev1beta2.Workload) time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ready[wl.Name]
}

// measured is one side's figures.
type measured struct {
	latencies []time.Duration
	decided   int
	took      time.Duration
}

// measure reserves quota for n Workloads and waits until all are Ready.
func (m *measured) measure(ctx context.Context, x *bench, n int, check string) {
	workloads := x.workloads(ctx, n, check)
	reservedAt := make([]time.Time, n)
	began := time.Now()
	inParallel(n, func(i int) {
		x.reserve(ctx, workloads[i])
		reservedAt[i] = time.Now()
	})
	last := began
	for i, wl := range workloads {
		x.Eventually(x.readyAt).WithArguments(wl).WithTimeout(5 * time.Minute).WithPolling(time.Millisecond).ShouldNot(BeZero())
		at := x.readyAt(wl)
		m.latencies = append(m.latencies, at.Sub(reservedAt[i]))
		if at.After(last) {
			last = at
		}
	}
	m.decided += n
	m.took += last.Sub(began)
}

func (m *measured) percentile(p int) time.Duration {
	slices.Sort(m.latencies)
	return m.latencies[min(len(m.latencies)*p/100, len(m.latencies)-1)]
}

func (m *measured) perSecond() float64 { return float64(m.decided) / m.took.Seconds() }

// BenchmarkReady measures from QuotaReserved to Ready, first admissions, each side in turn.
func BenchmarkReady(b *testing.B) {
	ctx := b.Context()
	x := newBench(ctx, b)
	x.Expect(x.process.Start(ctx)).To(Succeed())
	(&measured{}).measure(ctx, x, 1, kueuejobs.Check) // it leads, and its caches are filled
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("workloads=%d", n), func(b *testing.B) {
			ours, baseline := &measured{}, &measured{}
			for b.Loop() {
				ours.measure(ctx, x, n, kueuejobs.Check)
				baseline.measure(ctx, x, n, baselineCheck)
			}
			b.ReportMetric(float64(ours.percentile(50).Milliseconds()), "p50-ms")
			b.ReportMetric(float64(ours.percentile(99).Milliseconds()), "p99-ms")
			b.ReportMetric(float64(ours.percentile(50))/float64(baseline.percentile(50)), "p50-ratio")
			b.ReportMetric(float64(ours.percentile(99))/float64(baseline.percentile(99)), "p99-ratio")
			b.ReportMetric(ours.perSecond(), "decisions/s")
			b.ReportMetric(ours.perSecond()/baseline.perSecond(), "throughput-ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkFirstDecision measures from the start of the process to its first decision, with none and with
// 10,000 Workloads there, and what listing those costs.
func BenchmarkFirstDecision(b *testing.B) {
	const present = 10000
	ctx := b.Context()
	x := newBench(ctx, b)
	first := func() time.Duration {
		wl := x.workloads(ctx, 1, kueuejobs.Check)[0]
		x.reserve(ctx, wl)
		began := time.Now()
		x.Expect(x.process.Start(ctx)).To(Succeed())
		x.Eventually(x.readyAt).WithArguments(wl).WithTimeout(5 * time.Minute).WithPolling(time.Millisecond).ShouldNot(BeZero())
		took := x.readyAt(wl).Sub(began)
		x.process.Kill()
		// The next process would wait for this one's Lease.
		_, err := x.config.Kubectl(ctx, "-n", install.Namespace, "delete", "lease", "dispatch-admission")
		x.Expect(err).NotTo(HaveOccurred())
		return took
	}
	for b.Loop() {
		without := first()
		x.workloads(ctx, present, kueuejobs.Check)
		began := time.Now()
		x.Expect(x.kube.List(ctx, &kueuev1beta2.WorkloadList{})).To(Succeed())
		listing := time.Since(began)
		with := first()
		b.ReportMetric(float64(without.Milliseconds()), "none-ms")
		b.ReportMetric(float64(with.Milliseconds()), "10000-ms")
		b.ReportMetric(float64(listing.Milliseconds()), "listing-ms")
		b.ReportMetric(float64(with-without)/float64(listing), "delay/listing")
		b.ReportMetric(0, "ns/op")
	}
}
