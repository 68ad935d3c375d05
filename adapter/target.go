package adapter

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/clusters"
)

// Options describe a target beside its client config.
type Options struct {
	// Kueue describes the readmission gate; fields left out get the defaults that the CRD gives them.
	// Default: nil, which is plain mode, without queue and gate.
	Kueue *v1alpha1.KueueSpec
	// Name is what jobs are marked with, in v1alpha1.TargetAnnotation. Default: they are not marked with any.
	Name string
	// ObserveOnly makes the target observe-only whatever the gate says. Default: false.
	ObserveOnly bool
}

// Result is what preflight found.
type Result struct {
	// Mode says whether the target may be written to.
	Mode v1alpha1.Mode
	// Conditions are those of a DispatchTarget (see package v1alpha1), without times and generations.
	Conditions []metav1.Condition
	// Cluster identifies the cluster; its fields are empty as far as they could not be read.
	Cluster v1alpha1.ClusterIdentity
}

// Target is an open connection to one target cluster. Its methods may be called from several goroutines.
type Target struct {
	cluster     *clusters.Cluster
	name        string
	observeOnly bool
}

// Over is a Target over a connection that is open already and that its owner closes.
func Over(cluster *clusters.Cluster, name string, observeOnly bool) *Target {
	return &Target{cluster: cluster, name: name, observeOnly: observeOnly}
}

// Open connects to the cluster behind cfg and returns once preflight has its first verdict, which for a
// cluster that does not answer takes up to 10 s. That a target cannot be reached, or its gate not be
// proved, is in the Result, not in the error: the error is that of a cfg that cannot be used at all, a
// KueueSpec without clusterQueue, or ctx's.
func Open(ctx context.Context, cfg *rest.Config, opts Options) (*Target, error) {
	if opts.Kueue != nil && opts.Kueue.ClusterQueue == "" {
		return nil, fmt.Errorf("opening a target: Options.Kueue.ClusterQueue is required: name the ClusterQueue that jobs are sent to")
	}
	news := make(chan struct{}, 1)
	cluster, err := clusters.Connect(cfg, opts.Kueue, func() {
		select {
		case news <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return nil, fmt.Errorf("opening a target: %w", err)
	}
	target := Over(cluster, opts.Name, opts.ObserveOnly)
	for cluster.Snapshot().Preflighting() {
		select {
		case <-news:
		case <-ctx.Done():
			cluster.Close()
			return nil, fmt.Errorf("opening a target: %w", context.Cause(ctx))
		}
	}
	return target, nil
}

// Preflight says what is known of the target at this moment. It reads nothing: what the verdict rests on
// is watched, and a proof that was not renewed in time counts no more.
func (t *Target) Preflight() Result {
	snapshot := t.cluster.Snapshot()
	mode, conditions := snapshot.Conditions(t.observeOnly)
	return Result{Mode: mode, Conditions: conditions, Cluster: snapshot.Identity}
}

// Close ends the connection.
func (t *Target) Close() { t.cluster.Close() }
