package election

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

// leads says what the metric says.
func (r *replica) leads() (bool, error) {
	text, err := fetch(r.metrics + "/metrics")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "leader_election_master_status{") {
			return strings.HasSuffix(strings.TrimSpace(line), " 1"), nil
		}
	}
	return false, errors.New("no metric leader_election_master_status")
}

func (r *replica) ready() error {
	_, err := fetch(r.probes + "/readyz/standing")
	return err
}

func (r *replica) live() error {
	_, err := fetch(r.probes + "/healthz/lease")
	return err
}

func fetch(url string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return string(body), err
}

// leaseVersion is one write of a Lease, and when the test saw it.
type leaseVersion struct {
	holder      string
	transitions int32
	renewed     time.Time
	seen        time.Time
}

// history is every version of a Lease since the test began to watch.
type history struct {
	mu       sync.Mutex
	versions []leaseVersion
}

// watchLease follows the election's Lease, which need not exist yet.
func (e *election) watchLease() *history {
	e.t.Helper()
	watcher, err := e.client.Watch(e.t.Context(), &coordinationv1.LeaseList{},
		client.InNamespace(e.namespace), client.MatchingFields{"metadata.name": e.program})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(watcher.Stop)
	h := &history{}
	go func() {
		for event := range watcher.ResultChan() {
			lease, ok := event.Object.(*coordinationv1.Lease)
			if !ok {
				continue
			}
			version := leaseVersion{
				holder:      ptr.Deref(lease.Spec.HolderIdentity, ""),
				transitions: ptr.Deref(lease.Spec.LeaseTransitions, 0),
				seen:        time.Now(),
			}
			if lease.Spec.RenewTime != nil {
				version.renewed = lease.Spec.RenewTime.Time
			}
			h.mu.Lock()
			h.versions = append(h.versions, version)
			h.mu.Unlock()
		}
	}()
	return h
}

func (h *history) all() []leaseVersion {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.versions)
}

// holders are the holders in their order, "" where the Lease was released.
func (h *history) holders() []string {
	var holders []string
	for _, v := range h.all() {
		if len(holders) == 0 || holders[len(holders)-1] != v.holder {
			holders = append(holders, v.holder)
		}
	}
	return holders
}

func (h *history) last() leaseVersion {
	versions := h.all()
	if len(versions) == 0 {
		return leaseVersion{}
	}
	return versions[len(versions)-1]
}

// gaps are the times between two versions of the Lease that touch the time from
// since to until, longest first; until the next version to come counts as well.
func (h *history) gaps(since, until time.Time) []time.Duration {
	var gaps []time.Duration
	before := since
	for _, v := range h.all() {
		if v.seen.After(since) && v.seen.Before(until) {
			gaps = append(gaps, v.seen.Sub(before))
		}
		if v.seen.Before(until) {
			before = v.seen
		}
	}
	gaps = append(gaps, until.Sub(before))
	slices.Sort(gaps)
	slices.Reverse(gaps)
	return gaps
}

// measureStalls writes a Lease of its own again and again, past all proxies. The
// longest that this took is what the machine and the API server add to any
// renewal: next to nothing, unless the machine is busy with something else.
func (e *election) measureStalls() (longest func() time.Duration) {
	e.t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "stalls"}}
	if err := e.client.Create(e.t.Context(), lease); err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(e.t.Context())
	result := make(chan time.Duration, 1)
	go func() {
		var longest time.Duration
		for {
			next := time.After(250 * time.Millisecond)
			start := time.Now()
			lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(start))
			err := e.client.Update(ctx, lease)
			if ctx.Err() != nil {
				result <- longest
				return
			}
			if err != nil {
				e.t.Errorf("writing a Lease to measure stalls: %v", err)
			}
			longest = max(longest, time.Since(start))
			<-next
		}
	}()
	return func() time.Duration { cancel(); return <-result }
}

// gateReader judges the election's Lease by the gate's own rule, as often as it
// can be expected to change its mind.
type gateReader struct {
	mu    sync.Mutex
	reads int
	shut  []string
}

// readGate reads until the test ends, or stop is called. The Lease must exist.
func (e *election) readGate() *gateReader {
	e.t.Helper()
	r := &gateReader{}
	ctx, cancel := context.WithCancel(e.t.Context())
	done := make(chan struct{})
	e.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		r.run(ctx, e)
	}()
	return r
}

func (r *gateReader) run(ctx context.Context, e *election) {
	start := time.Now()
	spec := &v1alpha1.KueueSpec{ClusterQueue: "gpu", AdmissionCheck: "dispatch", ControllerName: e.controllerName}
	evidence := provedButForTheLease(spec)
	ticks := time.NewTicker(50 * time.Millisecond)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		lease := &coordinationv1.Lease{}
		err := e.client.Get(ctx, client.ObjectKey{Namespace: e.namespace, Name: e.program}, lease)
		if ctx.Err() != nil {
			return
		}
		// One second on the monotonic clock, because there zero means never.
		now := gate.Instant{Wall: time.Now(), Mono: time.Since(start) + time.Second}
		evidence.SawLease(lease, err, now.Mono)
		r.saw(gate.Judge(spec, evidence, now).ReadmissionGate, time.Since(start))
	}
}

func (r *gateReader) saw(finding gate.Finding, at time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	if finding.Status != metav1.ConditionTrue {
		r.shut = append(r.shut, fmt.Sprintf("after %s: %s: %s", at.Round(time.Millisecond), finding.Reason, finding.Message))
	}
}

// verdicts are the number of reads, and what was said whenever the gate was not
// proved.
func (r *gateReader) verdicts() (reads int, shut []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reads, slices.Clone(r.shut)
}

// provedButForTheLease satisfies the first three of the gate's rules.
func provedButForTheLease(spec *v1alpha1.KueueSpec) gate.Evidence {
	queue := &kueuev1beta2.ClusterQueue{}
	queue.Spec.AdmissionChecksStrategy = &kueuev1beta2.AdmissionChecksStrategy{
		AdmissionChecks: []kueuev1beta2.AdmissionCheckStrategyRule{{Name: kueuev1beta2.AdmissionCheckReference(spec.AdmissionCheck)}},
	}
	check := &kueuev1beta2.AdmissionCheck{}
	check.Spec.ControllerName = spec.ControllerName
	check.Status.Conditions = []metav1.Condition{{Type: kueuev1beta2.AdmissionCheckActive, Status: metav1.ConditionTrue}}
	var evidence gate.Evidence
	evidence.ClusterQueue.Answer(queue, nil, 0)
	evidence.AdmissionCheck.Answer(check, nil, 0)
	return evidence
}

// landed are the requests of one process that changed something at or after
// since, according to the audit log.
func landed(t testing.TB, e *election, r *replica, since time.Time) []string {
	t.Helper()
	events, err := e.cluster.AuditEvents()
	if err != nil {
		t.Fatal(err)
	}
	var requests []string
	for i := range events {
		event := &events[i]
		if slices.Contains([]string{"get", "list", "watch"}, event.Verb) || event.ResponseStatus == nil ||
			event.ResponseStatus.Code >= http.StatusMultipleChoices || event.RequestReceivedTimestamp.Time.Before(since) ||
			!slices.Contains(event.User.Extra["authentication.kubernetes.io/credential-id"], r.credential) {
			continue
		}
		requests = append(requests, fmt.Sprintf("%s %s", event.Verb, event.RequestURI))
	}
	return requests
}

// lastLine is the last one that the process printed.
func (r *replica) lastLine() (string, error) {
	text, err := os.ReadFile(r.LogPath())
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1], err
}
