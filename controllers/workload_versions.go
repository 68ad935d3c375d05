package controllers

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
)

// writtenVersions remembers what this process wrote last about each Workload, so that it does not decide
// from a cache that lacks that. It only saves writes that would be refused: what others wrote, and what
// this process wrote before it was restarted, is kept apart by the versions in each write.
type writtenVersions struct {
	mu       sync.Mutex
	versions map[types.NamespacedName]objectVersions
}

type objectVersions struct {
	workload, grant string
}

func (w *writtenVersions) workload(key types.NamespacedName, version string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.versions[key]
	v.workload = version
	w.versions[key] = v
}

func (w *writtenVersions) grant(key types.NamespacedName, version string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.versions[key]
	v.grant = version
	w.versions[key] = v
}

func (w *writtenVersions) forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.versions, key)
}

// aheadOf says whether one of the two, as the cache has it, is older than what was written. An object
// that the cache does not have was either not seen yet or is deleted: then nothing is known.
func (w *writtenVersions) aheadOf(key types.NamespacedName, wl *kueuev1beta2.Workload, grant *dispatchv1alpha1.AdmissionGrant) bool {
	w.mu.Lock()
	v := w.versions[key]
	w.mu.Unlock()
	return (wl != nil && older(wl, v.workload)) || (grant != nil && older(grant, v.grant))
}

func older(object client.Object, version string) bool {
	if version == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(object.GetResourceVersion(), version)
	return err == nil && order < 0
}
