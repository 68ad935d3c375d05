package controllers

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// TestStartsNeverExceedGrants lets a model of Kueue, of users and of three replicas that all believe
// they lead do their steps in random orders, and looks after each step: the job has not started more
// often than granted. In the end everything is allowed to come to rest: then the job runs, or it waits
// for a grant that a start has used up, and with one more it runs.
func TestStartsNeverExceedGrants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){"step": w.anyStep(w.actions()), "": func(*rapid.T) { w.check() }})
		w.comeToRest()
	})
}

// world is the model. Kueue's part follows v0.17.0: what it writes strictly is based on the current
// Workload; what its scheduler writes loosely replaces all that Kueue writes by what is in an old copy.
type world struct {
	t       *rapid.T
	now     time.Time
	version int

	// workloads and grants are all versions there were; nil is a version in which it did not exist.
	workloads []*kueuev1beta2.Workload
	grants    []*dispatchv1alpha1.AdmissionGrant
	nextUID   int
	// pendingSince and reservedSince are the versions from which the scheduler's copies can be.
	pendingSince, reservedSince int

	generation int64
	running    bool
	jobSeen    int // version of the Workload that Kueue's job controller has seen

	queueHeld  bool
	otherCheck bool
	replicas   [3]replica

	starts, admissions int
	// openedRunning: an admission was opened while the job had not stopped yet, so that its generation
	// told nothing. Counting one start too many is then right.
	openedRunning bool
	trace         []string // what was written, to read a failure by
}

func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

// replica is one dispatch-admission: caches that lag, and what it is about to write.
type replica struct {
	workload, grant int // versions that its caches have
	plan            []func() bool
}

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, now: time.Unix(100000, 0), generation: 1,
		workloads: []*kueuev1beta2.Workload{nil}, grants: []*dispatchv1alpha1.AdmissionGrant{nil},
		otherCheck: rapid.Bool().Draw(t, "with another check"),
	}
	w.createWorkload()
	return w
}

func (w *world) workload() *kueuev1beta2.Workload { return w.workloads[len(w.workloads)-1] }

func (w *world) grant() *dispatchv1alpha1.AdmissionGrant { return w.grants[len(w.grants)-1] }

func (w *world) nextVersion() string {
	w.version++
	return strconv.Itoa(w.version)
}

// write makes wl the current Workload. It counts admissions as a watch sees them.
func (w *world) write(wl *kueuev1beta2.Workload) {
	before := w.workload()
	if wl != nil {
		wl.ResourceVersion = w.nextVersion()
		if isTrue(wl, kueuev1beta2.WorkloadAdmitted) && (before == nil || !isTrue(before, kueuev1beta2.WorkloadAdmitted)) {
			w.admissions++
		}
		w.note("Workload %s@%s deleting=%t %s", wl.UID, wl.ResourceVersion, !wl.DeletionTimestamp.IsZero(), describe(wl))
	} else {
		w.note("Workload gone")
	}
	w.workloads = append(w.workloads, wl)
	latest := len(w.workloads) - 1
	has := func(wl *kueuev1beta2.Workload) bool {
		return wl != nil && isTrue(wl, kueuev1beta2.WorkloadQuotaReserved)
	}
	if has(wl) && !has(before) {
		w.reservedSince = latest
	}
	if !has(wl) && (has(before) || before == nil || wl == nil) {
		w.pendingSince = latest
	}
}

func (w *world) createWorkload() {
	w.nextUID++
	b := makeWorkload("workload-" + strconv.Itoa(w.nextUID))
	if w.otherCheck {
		b.check(otherCheck, kueuev1beta2.CheckStatePending)
	}
	w.write(b.obj())
}

func (w *world) set(wl *kueuev1beta2.Workload, kind string, status bool) {
	condition := metav1.Condition{
		Type: kind, Status: metav1.ConditionFalse, Reason: kind, LastTransitionTime: metav1.NewTime(w.now.Truncate(time.Second)),
	}
	if status {
		condition.Status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&wl.Status.Conditions, condition)
}

func (w *world) syncAdmitted(wl *kueuev1beta2.Workload) {
	admit := isTrue(wl, kueuev1beta2.WorkloadQuotaReserved)
	for _, entry := range wl.Status.AdmissionChecks {
		admit = admit && entry.State == kueuev1beta2.CheckStateReady
	}
	if admit != isTrue(wl, kueuev1beta2.WorkloadAdmitted) {
		w.set(wl, kueuev1beta2.WorkloadAdmitted, admit)
	}
}

func (w *world) unreserve(wl *kueuev1beta2.Workload) {
	w.set(wl, kueuev1beta2.WorkloadQuotaReserved, false)
	wl.Status.Admission = nil
	w.syncAdmitted(wl)
}

func (w *world) evictCopy(wl *kueuev1beta2.Workload) {
	w.set(wl, kueuev1beta2.WorkloadEvicted, true)
	for i := range wl.Status.AdmissionChecks {
		if wl.Status.AdmissionChecks[i].State != kueuev1beta2.CheckStatePending {
			wl.Status.AdmissionChecks[i].State = kueuev1beta2.CheckStatePending
			wl.Status.AdmissionChecks[i].Message = "Reset to Pending after eviction"
		}
	}
	stats := &kueuev1beta2.SchedulingStats{Evictions: []kueuev1beta2.WorkloadSchedulingStatsEviction{{Count: evictions(wl) + 1}}}
	wl.Status.SchedulingStats = stats
}

// copyOf draws one of the versions since the given one that are of the Workload that there is now.
func (w *world) copyOf(since int, fits func(*kueuev1beta2.Workload) bool) *kueuev1beta2.Workload {
	var copies []*kueuev1beta2.Workload
	for _, wl := range w.workloads[since:] {
		if wl != nil && w.workload() != nil && wl.UID == w.workload().UID && fits(wl) {
			copies = append(copies, wl)
		}
	}
	if len(copies) == 0 {
		panic(notNow{})
	}
	return copies[uniform(w.t, "copy", len(copies))].DeepCopy()
}

// current is a copy of the Workload to change.
func (w *world) current(fits func(*kueuev1beta2.Workload) bool) *kueuev1beta2.Workload {
	wl := w.workload()
	if wl == nil || !wl.DeletionTimestamp.IsZero() || !fits(wl) {
		panic(notNow{})
	}
	return wl.DeepCopy()
}

func holdsQuota(wl *kueuev1beta2.Workload) bool {
	return isTrue(wl, kueuev1beta2.WorkloadQuotaReserved)
}

func isActive(wl *kueuev1beta2.Workload) bool { return ptr.Deref(wl.Spec.Active, true) }

func (w *world) actions() []func(*rapid.T) {
	actions := []func(*rapid.T){
		// clock
		func(t *rapid.T) {
			w.now = w.now.Add(time.Duration(rapid.IntRange(1, 3).Draw(t, "x")) * 400 * time.Millisecond)
		},
		// reserve
		func(t *rapid.T) { w.reserve(false) },
		// job
		func(t *rapid.T) { w.reconcileJob(w.jobSeen + uniform(t, "seen", len(w.workloads)-w.jobSeen)) },
		// evict
		func(t *rapid.T) {
			wl := w.current(func(wl *kueuev1beta2.Workload) bool { return isTrue(wl, kueuev1beta2.WorkloadAdmitted) && reserved(wl) })
			w.evictCopy(wl)
			w.write(wl)
		},
		// preempt from an old copy
		func(t *rapid.T) {
			w.current(holdsQuota)
			wl := w.copyOf(w.reservedSince, holdsQuota)
			w.evictCopy(wl)
			w.write(wl)
		},
		// hold queue
		func(t *rapid.T) {
			wl := w.current(func(wl *kueuev1beta2.Workload) bool {
				return holdsQuota(wl) && !isTrue(wl, kueuev1beta2.WorkloadAdmitted)
			})
			w.queueHeld = true
			w.unreserve(wl)
			w.write(wl)
		},
		// release queue
		func(t *rapid.T) { w.queueHeld = false },
		// deactivate
		func(t *rapid.T) {
			wl := w.current(func(wl *kueuev1beta2.Workload) bool { return holdsQuota(wl) && isActive(wl) })
			wl.Spec.Active = ptr.To(false)
			w.write(wl)
			evicted := wl.DeepCopy()
			w.evictCopy(evicted)
			w.write(evicted)
		},
		// reactivate
		func(t *rapid.T) { w.reactivate() },
		// other check
		func(t *rapid.T) {
			w.setOther(rapid.SampledFrom([]kueuev1beta2.CheckState{kueuev1beta2.CheckStateReady, kueuev1beta2.CheckStateRetry}).Draw(t, "state"))
		},
		// evict for retry
		func(t *rapid.T) { w.evictForRetry() },
		// delete Workload
		func(t *rapid.T) {
			wl := w.current(func(*kueuev1beta2.Workload) bool { return true })
			wl.DeletionTimestamp = ptr.To(metav1.NewTime(w.now))
			w.write(wl)
		},
		// raise grant
		func(t *rapid.T) { w.raise(1) },
		// crash
		func(t *rapid.T) {
			*w.replicaFor(t) = replica{workload: len(w.workloads) - 1, grant: len(w.grants) - 1}
		},
	}
	// What makes a job start is likelier than what stops it, else nothing would ever start.
	for _, progress := range []func(*rapid.T){
		func(*rapid.T) { w.advance() },
		func(*rapid.T) { w.advance() },
		func(t *rapid.T) { w.observe(t, w.replicaFor(t)) },
		func(t *rapid.T) { w.step(w.replicaFor(t)) },
		func(t *rapid.T) { w.step(w.replicaFor(t)) },
		func(t *rapid.T) { w.upToDate(w.replicaFor(t)) },
		func(*rapid.T) { w.reserve(true) },
		func(*rapid.T) { w.admit() },
		func(*rapid.T) { w.reconcileJob(len(w.workloads) - 1) },
	} {
		actions = append(actions, progress, progress, progress, progress)
	}
	return actions
}

// step draws one of the actions, each as likely as any other. (rapid's own choice prefers the first, and
// ends a run after a few steps that were not possible.)
func (w *world) anyStep(actions []func(*rapid.T)) func(*rapid.T) {
	return func(t *rapid.T) {
		defer func() {
			if r := recover(); r != nil && r != (notNow{}) {
				panic(r)
			}
		}()
		actions[uniform(t, "step", len(actions))](t)
	}
}

// uniform draws a number below n.
func uniform(t *rapid.T, label string, n int) int {
	number := 0
	for bit := 1; bit < n*4; bit *= 2 {
		if rapid.Bool().Draw(t, label) {
			number += bit
		}
	}
	return number % n
}

// notNow ends a step that is not possible as things are.
type notNow struct{}

// observe has a replica decide by caches that lag.
func (w *world) observe(t *rapid.T, r *replica) {
	r.workload = r.workload + uniform(t, "workload seen", len(w.workloads)-r.workload)
	r.grant = r.grant + uniform(t, "grant seen", len(w.grants)-r.grant)
	w.plan(r)
}

// upToDate has a replica decide by what there is, and write it.
func (w *world) upToDate(r *replica) {
	r.workload, r.grant = len(w.workloads)-1, len(w.grants)-1
	w.plan(r)
	for len(r.plan) > 0 {
		w.step(r)
	}
}

func (w *world) replicaFor(t *rapid.T) *replica {
	return &w.replicas[uniform(t, "replica", len(w.replicas))]
}

func (w *world) check() {
	if w.starts > int(w.granted()) {
		w.t.Fatalf("%d starts, %d granted\n%s", w.starts, w.granted(), w)
	}
	if grant := w.grant(); !w.openedRunning && grant != nil && int(ptr.Deref(grant.Status.Admissions, 0)) > w.admissions {
		w.t.Fatalf("%d admissions counted, %d seen\n%s", *grant.Status.Admissions, w.admissions, w)
	}
}

func (w *world) granted() int32 {
	if w.grant() == nil {
		return 1
	}
	return w.grant().Spec.Admissions
}

func (w *world) raise(by int32) {
	if w.grant() == nil {
		panic(notNow{})
	}
	grant := w.grant().DeepCopy()
	grant.Spec.Admissions += by
	w.writeGrant(grant)
}

func (w *world) writeGrant(grant *dispatchv1alpha1.AdmissionGrant) {
	grant.ResourceVersion = w.nextVersion()
	w.openedRunning = w.openedRunning || (grant.Status.Opened != nil && grant.Status.Opened.SuspendedGeneration == 0)
	w.note("grant@%s %d of %d, opened %+v", grant.ResourceVersion, ptr.Deref(grant.Status.Admissions, -1), grant.Spec.Admissions, grant.Status.Opened)
	w.grants = append(w.grants, grant)
}

// reserve is the scheduler: loose, from any copy since the Workload was queued.
func (w *world) reserve(upToDate bool) {
	w.current(func(wl *kueuev1beta2.Workload) bool { return !holdsQuota(wl) && isActive(wl) && !w.queueHeld })
	wl := w.workload().DeepCopy()
	if !upToDate {
		wl = w.copyOf(w.pendingSince, func(wl *kueuev1beta2.Workload) bool {
			return !holdsQuota(wl) && isActive(wl) && wl.DeletionTimestamp.IsZero()
		})
	}
	for _, entry := range wl.Status.AdmissionChecks {
		if entry.State == kueuev1beta2.CheckStateRetry {
			panic(notNow{})
		}
	}
	wl.Status.Admission = &kueuev1beta2.Admission{ClusterQueue: testQueue}
	w.set(wl, kueuev1beta2.WorkloadQuotaReserved, true)
	if isTrue(wl, kueuev1beta2.WorkloadEvicted) {
		w.set(wl, kueuev1beta2.WorkloadEvicted, false)
	}
	w.syncAdmitted(wl)
	w.write(wl)
}

// admit is Kueue's Workload controller.
func (w *world) admit() {
	wl := w.current(func(wl *kueuev1beta2.Workload) bool { return !isTrue(wl, kueuev1beta2.WorkloadAdmitted) })
	w.syncAdmitted(wl)
	if isTrue(wl, kueuev1beta2.WorkloadAdmitted) {
		w.write(wl)
	}
}

func (w *world) reactivate() {
	wl := w.current(func(wl *kueuev1beta2.Workload) bool { return !isActive(wl) })
	wl.Spec.Active = ptr.To(true)
	w.write(wl)
}

func (w *world) setOther(state kueuev1beta2.CheckState) {
	wl := w.current(reserved)
	for i := range wl.Status.AdmissionChecks {
		entry := &wl.Status.AdmissionChecks[i]
		if entry.Name == otherCheck && entry.State == kueuev1beta2.CheckStatePending {
			entry.State = state
			w.write(wl)
			return
		}
	}
	panic(notNow{})
}

// evictForRetry is Kueue's answer to a check that says Retry. One that outlived its reservation is only
// reset: Kueue does not reserve quota for such a Workload until then.
func (w *world) evictForRetry() {
	wl := w.current(func(wl *kueuev1beta2.Workload) bool {
		return anyInState(wl.Status.AdmissionChecks, kueuev1beta2.CheckStateRetry)
	})
	wasReserved := reserved(wl)
	evicted := isTrue(wl, kueuev1beta2.WorkloadEvicted)
	w.evictCopy(wl)
	if !wasReserved && !evicted {
		w.set(wl, kueuev1beta2.WorkloadEvicted, false)
	}
	w.write(wl)
}

// reconcileJob is Kueue's job controller, which may lag but sees versions in order.
func (w *world) reconcileJob(seen int) {
	w.jobSeen = seen
	wl := w.workloads[seen]
	current := w.workload()
	isCurrent := seen == len(w.workloads)-1
	switch {
	case wl == nil:
		if current == nil {
			w.stopJob()
			w.createWorkload()
		}
	case !wl.DeletionTimestamp.IsZero():
		w.stopJob()
		if isCurrent {
			w.write(nil)
		}
	case isTrue(wl, kueuev1beta2.WorkloadEvicted):
		w.stopJob()
		if isCurrent && holdsQuota(wl) {
			released := wl.DeepCopy()
			w.unreserve(released)
			w.write(released)
		}
	case isTrue(wl, kueuev1beta2.WorkloadAdmitted) && !w.running:
		w.running = true
		w.generation++
		w.starts++
		w.note("job starts, generation %d", w.generation)
	case !isTrue(wl, kueuev1beta2.WorkloadAdmitted):
		w.stopJob()
	}
}

func (w *world) stopJob() {
	if w.running {
		w.running = false
		w.generation++
		w.note("job stops, generation %d", w.generation)
	}
}

// plan has a replica decide by what its caches have.
func (w *world) plan(r *replica) {
	r.plan = nil
	wl, grant := w.workloads[r.workload], w.grants[r.grant]
	if wl == nil {
		return
	}
	if grant != nil && grant.Status.Accounted != nil && mustInt(wl.ResourceVersion) < mustInt(grant.Status.Accounted.ResourceVersion) {
		return
	}
	d := decide(situation{
		workload: wl, grant: grant, own: checkNames{ourCheck: true}, listed: checkNames{ourCheck: true, otherCheck: true},
		job: jobState{generation: w.generation, suspended: !w.running}, now: w.now,
	})
	if d.needsGrant {
		r.plan = append(r.plan, func() bool {
			if w.grant() != nil {
				return false
			}
			grant = newGrant(wl, d.newGranted)
			grant.UID = types.UID("grant")
			w.writeGrant(grant)
			return true
		})
	}
	if d.status != nil {
		r.plan = append(r.plan, func() bool {
			if w.grant() == nil || w.grant().ResourceVersion != grant.ResourceVersion {
				return false
			}
			changed := w.grant().DeepCopy()
			changed.Status = *d.status
			w.writeGrant(changed)
			grant = changed
			return true
		})
	}
	if d.entries != nil {
		r.plan = append(r.plan, func() bool {
			if d.action == actionSetBack && d.status == nil && grant != w.grant() {
				return false
			}
			if w.workload() == nil || w.workload().ResourceVersion != wl.ResourceVersion {
				return false
			}
			changed := wl.DeepCopy()
			for _, entry := range d.entries {
				for i := range changed.Status.AdmissionChecks {
					if changed.Status.AdmissionChecks[i].Name == entry.Name {
						changed.Status.AdmissionChecks[i] = entry
					}
				}
			}
			w.write(changed)
			return true
		})
	}
}

func (w *world) step(r *replica) {
	if len(r.plan) == 0 {
		panic(notNow{})
	}
	write := r.plan[0]
	r.plan = r.plan[1:]
	if !write() {
		r.plan = nil
	}
}

func mustInt(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

// settle lets every part do what it has to do, with caches that do not lag.
func (w *world) settle() {
	for range 30 {
		w.upToDate(&w.replicas[0])
		w.reconcileJob(len(w.workloads) - 1)
		w.now = w.now.Add(time.Second)
		w.advance()
		w.check()
	}
}

// advance does what Kueue and the other check's controller would do next.
func (w *world) advance() {
	wl := w.workload()
	switch {
	case wl == nil || !wl.DeletionTimestamp.IsZero() || isTrue(wl, kueuev1beta2.WorkloadEvicted) && holdsQuota(wl):
		w.reconcileJob(len(w.workloads) - 1)
	case !isActive(wl):
		w.reactivate()
	case anyInState(wl.Status.AdmissionChecks, kueuev1beta2.CheckStateRetry):
		w.evictForRetry()
	case !holdsQuota(wl):
		w.reserve(true)
	case wl.Status.AdmissionChecks[len(wl.Status.AdmissionChecks)-1].State == kueuev1beta2.CheckStatePending && w.otherCheck:
		w.setOther(kueuev1beta2.CheckStateReady)
	case !isTrue(wl, kueuev1beta2.WorkloadAdmitted):
		w.admit()
	default:
		w.reconcileJob(len(w.workloads) - 1)
	}
}

func (w *world) comeToRest() {
	w.queueHeld = false
	w.replicas = [3]replica{}
	w.settle()
	if w.running {
		return
	}
	used := *w.grant().Status.Admissions
	waiting := meta.IsStatusConditionTrue(w.grant().Status.Conditions, dispatchv1alpha1.WaitingCondition)
	if !waiting || used < w.grant().Spec.Admissions || w.grant().Status.Opened != nil {
		w.t.Fatalf("stuck: it neither runs nor waits for a grant\n%s", w)
	}
	w.raise(used + 1 - w.grant().Spec.Admissions)
	w.settle()
	if !w.running {
		w.t.Fatalf("stuck: it does not run although it is granted\n%s", w)
	}
}

func (w *world) String() string {
	return fmt.Sprintf("%d starts, %d admissions seen, running %t\n%s", w.starts, w.admissions, w.running, strings.Join(w.trace, "\n"))
}

// describe is a Workload's state in a few words.
func describe(wl *kueuev1beta2.Workload) string {
	var words []string
	for _, condition := range wl.Status.Conditions {
		words = append(words, fmt.Sprintf("%s=%s(%d)", condition.Type, condition.Status, condition.LastTransitionTime.Unix()))
	}
	for _, entry := range wl.Status.AdmissionChecks {
		words = append(words, fmt.Sprintf("%s:%s", entry.Name, entry.State))
	}
	return fmt.Sprintf("%s evictions=%d", strings.Join(words, " "), evictions(wl))
}
