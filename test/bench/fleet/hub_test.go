package fleet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
)

// atATime is how many requests set something up side by side.
const atATime = 10

// patience is how long a busy machine may take to bring all gates into one status.
const patience = 5 * time.Minute

var scheme = newScheme()

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(kueue.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	return scheme
}

// hub is a real cluster with a DispatchTarget and a Secret for each target.
type hub struct {
	cluster *controlplane.Cluster
	targets int

	mu    sync.Mutex
	gates map[string]gateSeen
}

// gateSeen is the status of a gate and when the watch first told of it.
type gateSeen struct {
	status metav1.ConditionStatus
	at     time.Time
}

func newHub(b *testing.B, targets []target) *hub {
	b.Helper()
	h := &hub{cluster: controlplane.StartForTest(b, hubOptions), targets: len(targets), gates: map[string]gateSeen{}}
	root, err := install.Root()
	if err != nil {
		b.Fatal(err)
	}
	// With the FlowSchema that keeps the manager's Lease from waiting behind its other requests.
	if err := errors.Join(install.Hub(b.Context(), h.cluster), h.cluster.Apply(b.Context(), filepath.Join(root, "config/apf"))); err != nil {
		b.Fatal(err)
	}
	c, err := client.NewWithWatch(h.cluster.Config(), client.Options{Scheme: scheme})
	if err != nil {
		b.Fatal(err)
	}
	if err := each(b.Context(), targets, func(ctx context.Context, t target) error { return createTarget(ctx, c, t) }); err != nil {
		b.Fatal(err)
	}
	var list v1alpha1.DispatchTargetList
	stream, err := c.Watch(b.Context(), &list)
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		for event := range stream.ResultChan() {
			if t, ok := event.Object.(*v1alpha1.DispatchTarget); ok {
				h.saw(t, time.Now())
			}
		}
	}()
	return h
}

func each[T any](ctx context.Context, items []T, do func(context.Context, T) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atATime)
	for _, item := range items {
		group.Go(func() error { return do(ctx, item) })
	}
	return group.Wait()
}

func createTarget(ctx context.Context, c client.Client, t target) error {
	if err := c.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: t.Name},
		Data:       map[string][]byte{v1alpha1.DefaultKubeConfigKey: t.KubeConfig},
	}); err != nil {
		return err
	}
	return c.Create(ctx, &v1alpha1.DispatchTarget{
		ObjectMeta: metav1.ObjectMeta{Name: t.Name},
		Spec: v1alpha1.DispatchTargetSpec{
			KubeConfig: &v1alpha1.KubeConfigSource{SecretRef: &v1alpha1.KubeConfigSecretReference{Name: t.Name}},
			Kueue:      &t.Kueue,
		},
	})
}

func (h *hub) saw(t *v1alpha1.DispatchTarget, now time.Time) {
	status := metav1.ConditionUnknown
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ReadmissionGateCondition); c != nil {
		status = c.Status
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gates[t.Name].status != status {
		h.gates[t.Name] = gateSeen{status, now}
	}
}

// wait waits until all gates have this status, and gives the moment at which each was seen to have it.
func (h *hub) wait(b *testing.B, manager *controlplane.Component, status metav1.ConditionStatus) map[string]time.Time {
	b.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		seen := map[string]time.Time{}
		h.mu.Lock()
		for name, gate := range h.gates {
			if gate.status == status {
				seen[name] = gate.at
			}
		}
		h.mu.Unlock()
		if len(seen) == h.targets {
			return seen
		}
		if !manager.Running() || time.Now().After(deadline) {
			b.Fatalf("of %d gates, %d became %s; the manager runs: %t; its log: %s",
				h.targets, len(seen), status, manager.Running(), manager.LogPath())
		}
	}
}

// writes are the requests by which dispatch-manager changed something on the hub, or tried to.
type writes struct {
	statuses, events, others int
	// lease are the renewals of its own Lease.
	lease int
	// took is what the hub itself needed for each status, sorted.
	took []time.Duration
}

func (w writes) String() string {
	if w.others != 0 {
		return fmt.Sprintf("%d status, %d event, %d other", w.statuses, w.events, w.others)
	}
	return fmt.Sprintf("%d status, %d event", w.statuses, w.events)
}

func (h *hub) writes(b *testing.B, from, to time.Time) writes {
	b.Helper()
	if wait := time.Until(to); wait > 0 {
		time.Sleep(wait)
	}
	log, err := h.cluster.AuditEvents()
	if err != nil {
		b.Fatal(err)
	}
	var w writes
	for _, e := range log {
		at := e.RequestReceivedTimestamp.Time
		if e.Stage != auditv1.StageResponseComplete || at.Before(from) || at.After(to) || e.ObjectRef == nil ||
			e.User.Username != "system:serviceaccount:"+install.Namespace+":"+install.ManagerAccount {
			continue
		}
		switch e.Verb {
		case "get", "list", "watch":
			continue
		}
		switch e.ObjectRef.Resource {
		case "dispatchtargets":
			w.statuses++
			w.took = append(w.took, e.StageTimestamp.Sub(at))
		case "events":
			w.events++
		case "leases":
			w.lease++
		default:
			w.others++
		}
	}
	slices.Sort(w.took)
	return w
}
