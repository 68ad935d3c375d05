// Package kueuejobs makes the queues and jobs that the tests of readmission share, and counts how often
// each job starts.
package kueuejobs

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
)

const (
	// Flavor is the ResourceFlavor of every queue here.
	Flavor = "default"
	// Check is the AdmissionCheck that dispatch-admission answers for.
	Check = "dispatch"
	// OtherCheck is an AdmissionCheck that the tests answer for.
	OtherCheck = "other"
	// QueueLabel names a job's LocalQueue.
	QueueLabel = "kueue.x-k8s.io/queue-name"
	// PriorityLabel names a job's WorkloadPriorityClass.
	PriorityLabel = "kueue.x-k8s.io/priority-class"
	// UntilEvicted is the run time of a job that is not to finish by itself.
	UntilEvicted = time.Hour
)

// NewClient is a client that knows every type that the tests use, without a limit on its requests.
func NewClient(config *rest.Config) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, kueuev1beta2.AddToScheme, dispatchv1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	config = rest.CopyConfig(config)
	config.QPS = -1
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}

// ResourceFlavor is the one flavor.
func ResourceFlavor() *kueuev1beta2.ResourceFlavor {
	return &kueuev1beta2.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: Flavor}}
}

// AdmissionCheck has the controllerName given.
func AdmissionCheck(name, controllerName string) *kueuev1beta2.AdmissionCheck {
	return &kueuev1beta2.AdmissionCheck{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       kueuev1beta2.AdmissionCheckSpec{ControllerName: controllerName},
	}
}

// ClusterQueue has so many CPUs, lets a job of higher priority preempt one of lower, and lists the
// checks.
func ClusterQueue(name string, cpus int64, checks ...string) *kueuev1beta2.ClusterQueue {
	return &kueuev1beta2.ClusterQueue{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kueuev1beta2.ClusterQueueSpec{
			NamespaceSelector: &metav1.LabelSelector{},
			Preemption:        &kueuev1beta2.ClusterQueuePreemption{WithinClusterQueue: kueuev1beta2.PreemptionPolicyLowerPriority},
			ResourceGroups: []kueuev1beta2.ResourceGroup{{
				CoveredResources: []corev1.ResourceName{corev1.ResourceCPU},
				Flavors: []kueuev1beta2.FlavorQuotas{{
					Name: Flavor,
					Resources: []kueuev1beta2.ResourceQuota{{
						Name: corev1.ResourceCPU, NominalQuota: *resource.NewQuantity(cpus, resource.DecimalSI),
					}},
				}},
			}},
			AdmissionChecksStrategy: Checks(checks...),
		},
	}
}

// Checks lists AdmissionChecks for all flavors; nil if there are none.
func Checks(names ...string) *kueuev1beta2.AdmissionChecksStrategy {
	if len(names) == 0 {
		return nil
	}
	strategy := &kueuev1beta2.AdmissionChecksStrategy{}
	for _, name := range names {
		strategy.AdmissionChecks = append(strategy.AdmissionChecks, kueuev1beta2.AdmissionCheckStrategyRule{
			Name: kueuev1beta2.AdmissionCheckReference(name),
		})
	}
	return strategy
}

// LocalQueue leads to the ClusterQueue of the same name.
func LocalQueue(namespace, name string) *kueuev1beta2.LocalQueue {
	return &kueuev1beta2.LocalQueue{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       kueuev1beta2.LocalQueueSpec{ClusterQueue: kueuev1beta2.ClusterQueueReference(name)},
	}
}

// Job needs one CPU of the queue and succeeds after it has run for so long.
func Job(namespace, name, queue string, runs time.Duration) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{QueueLabel: queue}},
		Spec: batchv1.JobSpec{
			Suspend: ptr.To(true),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{controlplane.CompletionDelayAnnotation: runs.String()}},
				Spec: corev1.PodSpec{
					RestartPolicy:                 corev1.RestartPolicyNever,
					TerminationGracePeriodSeconds: ptr.To[int64](0),
					Containers: []corev1.Container{{
						Name: "main", Image: "nothing",
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
					}},
				},
			},
		},
	}
}
