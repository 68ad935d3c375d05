package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
)

// realFleet has the objects of many targets on one real API server, whose CPU would not suffice for one
// server each. Kueue does not run: what it and dispatch-admission would write, an administrator does.
type realFleet struct {
	b      *testing.B
	client client.Client
	config *rest.Config // of the hub's ServiceAccount
	names  []string
	// renewed is when each Lease was last renewed, each for one goroutine until kill has ended them.
	renewed []time.Time
	stop    func()
	count   atomic.Int64
}

func newRealFleet(b *testing.B, targets int) *realFleet {
	b.Helper()
	ctx := b.Context()
	cluster := controlplane.StartForTest(b, controlplane.Options{})
	if err := errors.Join(install.KueueCRDs(ctx, cluster), install.Target(ctx, cluster)); err != nil {
		b.Fatal(err)
	}
	f := &realFleet{b: b, renewed: make([]time.Time, targets)}
	var err error
	if f.client, err = client.New(cluster.Config(), client.Options{Scheme: scheme}); err != nil {
		b.Fatal(err)
	}
	if f.config, err = cluster.ServiceAccountConfig(ctx, install.Namespace, install.HubAccount); err != nil {
		b.Fatal(err)
	}
	if err := f.allowLeases(ctx); err != nil {
		b.Fatal(err)
	}
	for i := range targets {
		f.names = append(f.names, fmt.Sprintf("real-%04d", i))
	}
	if err := each(ctx, f.names, f.create); err != nil {
		b.Fatal(err)
	}
	f.revive()
	b.Cleanup(func() { f.stop() })
	return f
}

// allowLeases lets the hub read all Leases in dispatch's namespace: the role that it has names one.
func (f *realFleet) allowLeases(ctx context.Context) error {
	meta := metav1.ObjectMeta{Namespace: install.Namespace, Name: "fleet"}
	if err := f.client.Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "watch"},
	}}}); err != nil {
		return err
	}
	return f.client.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: install.Namespace, Name: install.HubAccount}},
	})
}

func (f *realFleet) create(ctx context.Context, name string) error {
	queue, check := clusterQueue(name, name), admissionCheck(name)
	queueStatus, checkStatus := queue.Status, check.Status
	for _, object := range []client.Object{queue, check, lease(install.Namespace, name, time.Now())} {
		if err := f.client.Create(ctx, object); err != nil {
			return err
		}
	}
	queue.Status, check.Status = queueStatus, checkStatus
	if err := f.client.Status().Update(ctx, queue); err != nil {
		return err
	}
	return f.client.Status().Update(ctx, check)
}

func (f *realFleet) targets() ([]target, error) {
	kubeConfig, err := controlplane.Kubeconfig(f.config)
	if err != nil {
		return nil, err
	}
	targets := make([]target, len(f.names))
	for i, name := range f.names {
		targets[i] = target{Name: name, KubeConfig: kubeConfig, Kueue: v1alpha1.KueueSpec{
			ClusterQueue: name, AdmissionCheck: name,
			AdmissionLease: &v1alpha1.LeaseReference{Namespace: install.Namespace, Name: name},
		}}
	}
	return targets, nil
}

func (f *realFleet) revive() {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i, name := range f.names {
		all.Go(func() {
			next := time.After(renewPeriod * time.Duration(i) / time.Duration(len(f.names)))
			for {
				select {
				case <-ctx.Done():
					return
				case <-next:
				}
				next = time.After(renewPeriod)
				if err := f.renew(context.WithoutCancel(ctx), i); err != nil {
					f.b.Errorf("renewing the Lease of %s: %v", name, err)
				}
			}
		})
	}
	f.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
}

func (f *realFleet) renew(ctx context.Context, i int) error {
	now := metav1.NewMicroTime(time.Now().Truncate(time.Microsecond))
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": now}})
	if err != nil {
		return err
	}
	if err := f.client.Patch(ctx, lease(install.Namespace, f.names[i], now.Time), client.RawPatch(types.MergePatchType, patch)); err != nil {
		return err
	}
	f.renewed[i] = now.Time
	f.count.Add(1)
	return nil
}

func (f *realFleet) kill() { f.stop() }

func (f *realFleet) renewals() int64 { return f.count.Load() }

func (f *realFleet) lastRenewal(i int) time.Time { return f.renewed[i] }
