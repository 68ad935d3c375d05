package clusters

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

// Set holds the connection of each DispatchTarget by its name. NewSet makes one.
type Set struct {
	fence    transport.WrapperFunc
	mu       sync.Mutex
	closed   bool
	members  map[string]*member
	onChange []func(name string)
	onGrant  func(target string, job *types.NamespacedName)
	// closing is the connections that are being closed.
	closing sync.WaitGroup
}

// member is one target: either connected, or refused before anything was dialled.
type member struct {
	spec    v1alpha1.DispatchTargetSpec
	version string
	cluster *Cluster
	refused gate.Verdict
}

// NewSet makes an empty Set. fence wraps the transport of all its connections: it refuses what would change
// an object on a target once this process may not act any more. Required, so that nobody forgets it.
func NewSet(fence transport.WrapperFunc) *Set {
	if fence == nil {
		panic("clusters: a Set without a fence")
	}
	return &Set{fence: fence}
}

// OnChange adds what is called, without blocking, with the name of each target whose Snapshot has
// changed. Changes before it is added are not told.
func (s *Set) OnChange(f func(name string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onChange = append(s.onChange, f)
}

func (s *Set) changed(name string) {
	s.mu.Lock()
	all := s.onChange
	s.mu.Unlock()
	for _, f := range all {
		f(name)
	}
}

// OnGrant sets what is called, without blocking, when an AdmissionGrant on a target has changed, with the
// name of its job, or with nil when any may have. Changes before it is set are not told.
func (s *Set) OnGrant(f func(target string, job *types.NamespacedName)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onGrant = f
}

func (s *Set) grantChanged(target string, job *types.NamespacedName) {
	s.mu.Lock()
	f := s.onGrant
	s.mu.Unlock()
	if f != nil {
		f(target, job)
	}
}

// Cluster is the connection of a target, if the Set has it as this spec describes it. Nil: the target is
// refused, or not connected yet.
func (s *Set) Cluster(name string, spec v1alpha1.DispatchTargetSpec) *Cluster {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[name]
	if m == nil || !sameTarget(m.spec, spec) {
		return nil
	}
	return m.cluster
}

// Connect follows the target with cfg, in place of any earlier connection. It does nothing where the
// target is connected already by the same version of its credentials and for the same spec.
func (s *Set) Connect(name string, spec v1alpha1.DispatchTargetSpec, version string, cfg *rest.Config) error {
	s.mu.Lock()
	if m := s.members[name]; m != nil && m.cluster != nil && m.version == version && sameTarget(m.spec, spec) {
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(s.fence)
	cluster, err := Connect(cfg, spec.Kueue, func() { s.changed(name) })
	if err != nil {
		return err
	}
	if spec.Kueue != nil {
		cluster.running.Go(func() {
			cluster.followGrants(
				func(job types.NamespacedName) { s.grantChanged(name, &job) },
				func() { s.grantChanged(name, nil) })
		})
	}
	s.replace(name, &member{spec: spec, version: version, cluster: cluster})
	return nil
}

// Refuse records why the target is not dialled, in place of any earlier connection.
func (s *Set) Refuse(name string, spec v1alpha1.DispatchTargetSpec, reason, message string) {
	s.replace(name, &member{spec: spec, refused: gate.Refused(spec.Kueue, reason, message)})
}

// Remove forgets the target and gives back what its connection held.
func (s *Set) Remove(name string) { s.replace(name, nil) }

func (s *Set) replace(name string, next *member) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		if next != nil && next.cluster != nil {
			next.cluster.Close()
		}
		return
	}
	previous := s.members[name]
	if next == nil {
		delete(s.members, name)
	} else {
		if s.members == nil {
			s.members = map[string]*member{}
		}
		s.members[name] = next
	}
	if previous != nil && previous.cluster != nil {
		// Apart, because it waits for requests under way to end.
		s.closing.Go(previous.cluster.Close)
	}
	s.mu.Unlock()
	if next != nil {
		s.changed(name)
	}
}

// Snapshot is what is known of the target, if the Set has it as this spec describes it.
func (s *Set) Snapshot(name string, spec v1alpha1.DispatchTargetSpec) (Snapshot, bool) {
	s.mu.Lock()
	m := s.members[name]
	s.mu.Unlock()
	if m == nil || !sameTarget(m.spec, spec) {
		return Snapshot{}, false
	}
	if m.cluster == nil {
		return Snapshot{Verdict: m.refused}, true
	}
	return m.cluster.Snapshot(), true
}

// Close closes all connections, for good, and waits for it.
func (s *Set) Close() {
	s.mu.Lock()
	for _, m := range s.members {
		if m.cluster != nil {
			s.closing.Go(m.cluster.Close)
		}
	}
	s.closed, s.members, s.onChange, s.onGrant = true, nil, nil, nil
	s.mu.Unlock()
	s.closing.Wait()
}

// sameTarget compares what a connection depends on.
func sameTarget(a, b v1alpha1.DispatchTargetSpec) bool {
	return equality.Semantic.DeepEqual(a.KubeConfig, b.KubeConfig) && equality.Semantic.DeepEqual(a.Kueue, b.Kueue)
}
