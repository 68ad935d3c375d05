// Package dispatchjob measures what it costs to send a job through dispatch: from the apply of a DispatchJob
// on the hub until its status says Admitted, against plain suspended Jobs that a bare client creates on the
// same target in the same run; and what dispatch-manager takes for DispatchJobs that are live.
//
// The plain Jobs go to the same queue and through the same gate, so that the ratio says what the way over the
// hub costs, and nothing of what Kueue and dispatch-admission do on the target for both alike.
package dispatchjob

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/bench/usage"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
	"github.com/dispatch-dev/dispatch/test/kueuejobs"
)

var (
	atOnce = flag.Int("dispatch.jobs", 200, "How many jobs are applied at once.")
	live   = flag.Int("dispatch.live", 1000, "With how many live DispatchJobs the manager is measured; 0 leaves this part out.")
	window = flag.Duration("dispatch.window", 30*time.Second, "For how long the manager is measured with them.")
)

const (
	// namespace is that of all jobs, and the name of their queue.
	namespace = "bench"
	// creators apply jobs side by side.
	creators = 16
	// single is how many jobs are applied one after the other, each once the one before is admitted.
	single = 20
	// patience is how long a busy machine may take to admit a job.
	patience = 5 * time.Minute
	// settling is what the manager gets to calm down, as in the other benchmarks.
	settling = 10 * time.Second
)

// tables are printed last, since a benchmark's own log is cut off after ten lines.
var tables []string

func TestMain(m *testing.M) {
	flag.Parse()
	log.SetLogger(logr.Discard())
	code := m.Run()
	for _, t := range tables {
		fmt.Print(t)
	}
	os.Exit(code)
}

// bench is a hub and a target.
type bench struct {
	Gomega
	b                       *testing.B
	hub, target             *controlplane.Cluster
	hubClient, targetClient client.WithWatch
	manager                 *controlplane.Component

	mu sync.Mutex
	// onHub and onTarget say when each job was first seen Admitted, on the hub by its DispatchJob, on the
	// target by its Workload.
	onHub, onTarget map[string]time.Time
	created         int
}

func newBench(b *testing.B) *bench {
	b.Helper()
	ctx := b.Context()
	x := &bench{Gomega: NewWithT(b), b: b, onHub: map[string]time.Time{}, onTarget: map[string]time.Time{}}
	x.hub = controlplane.StartForTest(b, controlplane.Options{AuditLevel: auditv1.LevelMetadata})
	// Without controllers and nodes: nothing is measured of what comes after Admitted.
	x.target = controlplane.StartForTest(b, controlplane.Options{Kueue: true, AuditLevel: auditv1.LevelMetadata})
	var err error
	x.hubClient, err = kueuejobs.NewClient(x.hub.Config())
	x.Expect(err).NotTo(HaveOccurred())
	x.targetClient, err = kueuejobs.NewClient(x.target.Config())
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(install.Hub(ctx, x.hub)).To(Succeed())
	x.Expect(install.Target(ctx, x.target)).To(Succeed())
	x.Expect(install.TargetWrite(ctx, x.target)).To(Succeed())
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		kueuejobs.ResourceFlavor(),
		kueuejobs.AdmissionCheck(kueuejobs.Check, v1alpha1.DefaultControllerName),
		kueuejobs.ClusterQueue(namespace, 1_000_000, kueuejobs.Check),
		kueuejobs.LocalQueue(namespace, namespace),
	} {
		x.Expect(x.targetClient.Create(ctx, object)).To(Succeed())
	}
	config, err := x.target.ServiceAccountConfig(ctx, install.Namespace, install.HubAccount)
	x.Expect(err).NotTo(HaveOccurred())
	kubeConfig, err := controlplane.Kubeconfig(config)
	x.Expect(err).NotTo(HaveOccurred())
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "target"},
			Data:       map[string][]byte{"kubeconfig": kubeConfig},
		},
		&v1alpha1.DispatchTarget{
			ObjectMeta: metav1.ObjectMeta{Name: "target"},
			Spec: v1alpha1.DispatchTargetSpec{
				KubeConfig:        &v1alpha1.KubeConfigSource{SecretRef: &v1alpha1.KubeConfigSecretReference{Name: "target"}},
				Kueue:             &v1alpha1.KueueSpec{ClusterQueue: namespace},
				AllowedNamespaces: &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromAll},
			},
		},
	} {
		x.Expect(x.hubClient.Create(ctx, object)).To(Succeed())
	}
	follow(ctx, x, x.hub, &v1alpha1.DispatchJob{}, func(job *v1alpha1.DispatchJob) {
		x.note(x.onHub, job.Name, job.Status.Conditions)
	})
	follow(ctx, x, x.target, &kueuev1beta2.Workload{}, func(wl *kueuev1beta2.Workload) {
		for _, owner := range wl.OwnerReferences {
			x.note(x.onTarget, owner.Name, wl.Status.Conditions)
		}
	})
	folder := b.TempDir()
	x.Expect(install.Programs(ctx, folder)).To(Succeed())
	x.start(folder, x.target, "dispatch-admission", install.AdmissionAccount)
	x.manager = x.start(folder, x.hub, "dispatch-manager", install.ManagerAccount)
	return x
}

func (x *bench) start(folder string, cluster *controlplane.Cluster, program, account string) *controlplane.Component {
	config, err := cluster.ServiceAccountConfig(x.b.Context(), install.Namespace, account)
	x.Expect(err).NotTo(HaveOccurred())
	process, err := install.Process{Program: program, Folder: folder, Config: config}.New()
	x.Expect(err).NotTo(HaveOccurred())
	x.b.Cleanup(process.Stop)
	x.Expect(process.Start(x.b.Context())).To(Succeed())
	return process
}

// follow calls seen for every version of every object of a kind that a watch tells of.
func follow[T client.Object](ctx context.Context, x *bench, cluster *controlplane.Cluster, kind T, seen func(T)) {
	watching, err := cache.New(cluster.Config(), cache.Options{Scheme: x.hubClient.Scheme()})
	x.Expect(err).NotTo(HaveOccurred())
	go func() { _ = watching.Start(ctx) }() // ends with the context
	informer, err := watching.GetInformer(ctx, kind)
	x.Expect(err).NotTo(HaveOccurred())
	handle := func(o any) {
		if object, ok := o.(T); ok {
			seen(object)
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: handle, UpdateFunc: func(_, o any) { handle(o) }})
	x.Expect(err).NotTo(HaveOccurred())
}

func (x *bench) note(admitted map[string]time.Time, name string, conditions []metav1.Condition) {
	if !meta.IsStatusConditionTrue(conditions, kueuev1beta2.WorkloadAdmitted) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if admitted[name].IsZero() {
		admitted[name] = time.Now()
	}
}

func (x *bench) admittedAt(admitted map[string]time.Time, name string) time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	return admitted[name]
}

// dispatch applies a DispatchJob on the hub.
func (x *bench) dispatch(ctx context.Context, name string) error {
	job := kueuejobs.Job(namespace, name, namespace, time.Hour)
	template, err := json.Marshal(map[string]any{"apiVersion": "batch/v1", "kind": "Job", "spec": job.Spec})
	if err != nil {
		return err
	}
	return x.hubClient.Create(ctx, &v1alpha1.DispatchJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.DispatchJobSpec{
			TargetRef: v1alpha1.TargetReference{Name: "target"}, LocalQueue: namespace, Admissions: 1,
			Template: apiruntime.RawExtension{Raw: template},
		},
	})
}

// create makes the same job on the target.
func (x *bench) create(ctx context.Context, name string) error {
	return x.targetClient.Create(ctx, kueuejobs.Job(namespace, name, namespace, time.Hour))
}

// measured is one side's figures.
type measured struct {
	latencies []time.Duration
	took      time.Duration
}

// measure applies n jobs at once, and waits until all are admitted.
func (m *measured) measure(x *bench, n int, prefix string, apply func(context.Context, string) error, admitted map[string]time.Time) {
	x.b.Helper()
	names := make([]string, n)
	applied := make([]time.Time, n)
	for i := range names {
		x.created++
		names[i] = fmt.Sprintf("%s-%04d", prefix, x.created)
	}
	began := time.Now()
	var all sync.WaitGroup
	numbers := make(chan int)
	for range min(n, creators) {
		all.Go(func() {
			for i := range numbers {
				applied[i] = time.Now()
				if err := apply(x.b.Context(), names[i]); err != nil {
					x.b.Errorf("applying %s: %v", names[i], err)
				}
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	all.Wait()
	last := began
	for i, name := range names {
		x.Eventually(x.admittedAt).WithArguments(admitted, name).WithTimeout(patience).WithPolling(time.Millisecond).ShouldNot(BeZero())
		at := x.admittedAt(admitted, name)
		m.latencies = append(m.latencies, at.Sub(applied[i]))
		if at.After(last) {
			last = at
		}
	}
	m.took += last.Sub(began)
}

func (m *measured) percentile(p int) time.Duration {
	slices.Sort(m.latencies)
	return m.latencies[min(len(m.latencies)*p/100, len(m.latencies)-1)]
}

func (m *measured) perSecond() float64 { return float64(len(m.latencies)) / m.took.Seconds() }

// requests are those of one user of a cluster since a moment: reads and writes. Watches, Leases and
// events are left out.
func (x *bench) requests(cluster *controlplane.Cluster, account string, since time.Time) (reads, writes int) {
	events, err := cluster.AuditEvents()
	x.Expect(err).NotTo(HaveOccurred())
	for _, e := range events {
		if e.Stage != auditv1.StageResponseComplete || e.RequestReceivedTimestamp.Time.Before(since) || e.ObjectRef == nil ||
			e.User.Username != "system:serviceaccount:"+install.Namespace+":"+account || e.ObjectRef.Resource == "leases" || e.ObjectRef.Resource == "events" {
			continue
		}
		switch e.Verb {
		case "watch":
		case "get", "list":
			reads++
		default:
			writes++
		}
	}
	return reads, writes
}

// BenchmarkDispatchJob measures from apply to Admitted, and then the manager with many live DispatchJobs.
func BenchmarkDispatchJob(b *testing.B) {
	usage.SkipWithout(b)
	for b.Loop() {
		x := newBench(b)
		// The gate is proved, and all caches are filled.
		(&measured{}).measure(x, 1, "first", x.dispatch, x.onHub)
		none := usage.ResidentMemory(b, x.manager.PID())

		t := table{b: b, none: none}
		for range single {
			t.one.measure(x, 1, "one", x.dispatch, x.onHub)
			t.oneBare.measure(x, 1, "one-bare", x.create, x.onTarget)
		}
		t.manyBare.measure(x, *atOnce, "many-bare", x.create, x.onTarget)
		began, cpu := time.Now(), usage.CPUTime(b, x.manager.PID())
		t.many.measure(x, *atOnce, "many", x.dispatch, x.onHub)
		t.cpu = usage.CPUTime(b, x.manager.PID()) - cpu
		t.targetReads, t.targetWrites = x.requests(x.target, install.HubAccount, began)
		t.hubReads, t.hubWrites = x.requests(x.hub, install.ManagerAccount, began)
		if more := *live - 1 - single - *atOnce; more > 0 {
			(&measured{}).measure(x, more, "live", x.dispatch, x.onHub)
			time.Sleep(settling)
			began, cpu := time.Now(), usage.CPUTime(b, x.manager.PID())
			time.Sleep(*window)
			t.liveCPU = usage.CPUTime(b, x.manager.PID()) - cpu
			t.liveReads, _ = x.requests(x.target, install.HubAccount, began)
			_, t.liveHubWrites = x.requests(x.hub, install.ManagerAccount, began)
			t.live = usage.ResidentMemory(b, x.manager.PID())
		}
		t.load = usage.LoadAverage(b)
		t.report()
	}
}

// table is the result of a run.
type table struct {
	b                            *testing.B
	one, oneBare, many, manyBare measured
	cpu                          time.Duration
	targetReads, targetWrites    int
	hubReads, hubWrites          int
	none, live                   int64
	liveCPU                      time.Duration
	liveReads, liveHubWrites     int
	load                         string
}

func (t *table) report() {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 1, ' ', 0)
	row := func(cells ...string) { _, _ = fmt.Fprintln(w, "| "+strings.Join(cells, "\t| ")+"\t|") }
	latency := func(what string, p int, ours, bare *measured) {
		a, b := ours.percentile(p), bare.percentile(p)
		row(fmt.Sprintf("%s: p%d from apply to Admitted", what, p), milliseconds(a), milliseconds(b), fmt.Sprintf("%.2f", float64(a)/float64(b)))
	}
	many := fmt.Sprintf("%d at once", *atOnce)
	perJob := func(n int) string { return fmt.Sprintf("%.1f", float64(n)/float64(*atOnce)) }
	row("jobs to one target with real Kueue", "DispatchJobs", "plain Jobs", "ratio")
	row("---", "---", "---", "---")
	latency("one at a time", 50, &t.one, &t.oneBare)
	latency("one at a time", 99, &t.one, &t.oneBare)
	latency(many, 50, &t.many, &t.manyBare)
	latency(many, 99, &t.many, &t.manyBare)
	row(many+": admitted per second", fmt.Sprintf("%.1f", t.many.perSecond()), fmt.Sprintf("%.1f", t.manyBare.perSecond()), fmt.Sprintf("%.2f", t.many.perSecond()/t.manyBare.perSecond()))
	row(many+": requests to the target per job, reads and writes", perJob(t.targetReads)+", "+perJob(t.targetWrites), "0, 1", "")
	row(many+": requests to the hub per job, reads and writes", perJob(t.hubReads)+", "+perJob(t.hubWrites), "", "")
	row(many+": dispatch-manager's CPU per job", milliseconds(t.cpu/time.Duration(*atOnce)), "", "")
	row("dispatch-manager's memory without jobs", mebibytes(t.none), "", "")
	if t.live > 0 {
		perThousand := (t.live - t.none) * 1000 / int64(*live)
		row(fmt.Sprintf("dispatch-manager's memory with %d live DispatchJobs", *live), mebibytes(t.live), "", "")
		row("memory per 1,000 live DispatchJobs", mebibytes(perThousand), "", "")
		perMinute := func(n float64) float64 { return n / window.Minutes() * 1000 / float64(*live) }
		row("CPU per 1,000 live DispatchJobs and minute", fmt.Sprintf("%.2f s", perMinute(t.liveCPU.Seconds())), "", "")
		row("reads from the target per 1,000 live DispatchJobs and minute", fmt.Sprintf("%.0f", perMinute(float64(t.liveReads))), "", "")
		row("writes to the hub per 1,000 live DispatchJobs and minute", fmt.Sprintf("%.0f", perMinute(float64(t.liveHubWrites))), "", "")
		t.b.ReportMetric(float64(perThousand)/(1<<20), "MiB/1000-jobs")
	}
	row("load average of the machine at the end, cores", t.load+", "+strconv.Itoa(runtime.NumCPU()), "", "")
	_ = w.Flush() // a Builder takes everything
	tables = append(tables, "\n"+out.String())

	t.b.ReportMetric(t.many.perSecond(), "jobs/s")
	t.b.ReportMetric(t.many.perSecond()/t.manyBare.perSecond(), "throughput-ratio")
	t.b.ReportMetric(float64(t.many.percentile(50).Milliseconds()), "p50-ms")
	t.b.ReportMetric(float64(t.many.percentile(99).Milliseconds()), "p99-ms")
	t.b.ReportMetric(float64(t.many.percentile(50))/float64(t.manyBare.percentile(50)), "p50-ratio")
	t.b.ReportMetric(float64(t.many.percentile(99))/float64(t.manyBare.percentile(99)), "p99-ratio")
	t.b.ReportMetric(0, "ns/op")
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
