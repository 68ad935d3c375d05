package controlplane

import (
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	kueueconfig "sigs.k8s.io/kueue/apis/config/v1beta2"

	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
)

// Options say which parts a cluster has besides etcd and kube-apiserver, and
// how they are set up. The zero value is etcd and kube-apiserver alone.
type Options struct {
	// Kueue runs Kueue. Default: false.
	Kueue bool
	// ConfigureKueue changes Kueue's configuration before Kueue starts. What it
	// gets is Kueue's own default, but for these: only the integration
	// batch/job, no leader election, no visibility, metrics or health server,
	// and certificates and ports that fit this cluster. Default: nil.
	ConfigureKueue func(*kueueconfig.Configuration)

	// ControllerManager runs kube-controller-manager, without which Jobs make no
	// pods, namespaces are never deleted and owner references do nothing. Also,
	// pods can then only be made where their ServiceAccount exists.
	// Default: false.
	ControllerManager bool
	// Controllers are those that kube-controller-manager runs. Default:
	// job-controller, garbage-collector-controller, namespace-controller and
	// serviceaccount-controller.
	Controllers []string

	// Scheduler runs kube-scheduler. Default: false.
	Scheduler bool

	// KWOK runs KWOK, which plays nodes and their kubelets: pods bound to a node
	// become ready at once, and those of a Job succeed at once, or after the
	// delay in the annotation CompletionDelayAnnotation. Default: false.
	KWOK bool
	// Nodes is how many nodes KWOK plays. Default: 1.
	Nodes int
	// NodeCapacity is what each node has to give. Default: 32 CPUs, 256Gi of
	// memory and 110 pods.
	NodeCapacity corev1.ResourceList

	// AdmissionPlugins are enabled in kube-apiserver in addition to its default
	// ones, such as OwnerReferencesPermissionEnforcement. Default: none.
	AdmissionPlugins []string
	// AuditLevel turns the audit log on. Default: no audit log.
	AuditLevel auditv1.Level

	// Args are further arguments by the name of the program, such as
	// {"kube-apiserver": {"--max-requests-inflight=10"}}. They come last, so
	// that they override the ones given otherwise. Default: none.
	Args map[string][]string

	// StartTimeout bounds the start, but not the building of programs that goes
	// before it. Default: 3 minutes, which is for a loaded machine.
	StartTimeout time.Duration
}

// setDefaults also refuses options that contradict each other.
func (o *Options) setDefaults() error {
	if o.ConfigureKueue != nil && !o.Kueue {
		return errors.New("options: ConfigureKueue is set but Kueue is off")
	}
	if len(o.Controllers) > 0 && !o.ControllerManager {
		return errors.New("options: Controllers are set but ControllerManager is off")
	}
	if (o.Nodes != 0 || o.NodeCapacity != nil) && !o.KWOK {
		return errors.New("options: Nodes or NodeCapacity are set but KWOK is off")
	}
	for name := range o.Args {
		if !slices.Contains(o.programs(), name) {
			return errors.New("options: Args are set for " + name + ", which is off or unknown")
		}
	}
	if len(o.Controllers) == 0 {
		o.Controllers = []string{
			"job-controller", "garbage-collector-controller",
			"namespace-controller", "serviceaccount-controller",
		}
	}
	if o.Nodes == 0 {
		o.Nodes = 1
	}
	if o.NodeCapacity == nil {
		o.NodeCapacity = corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("32"),
			corev1.ResourceMemory: resource.MustParse("256Gi"),
			corev1.ResourcePods:   resource.MustParse("110"),
		}
	}
	o.Args = maps.Clone(o.Args)
	if o.StartTimeout == 0 {
		o.StartTimeout = 3 * time.Minute
	}
	return nil
}

// programs are those that run in the cluster.
func (o *Options) programs() []string {
	programs := []string{binaries.Etcd, binaries.KubeAPIServer}
	if o.ControllerManager {
		programs = append(programs, binaries.KubeControllerManager)
	}
	if o.Scheduler {
		programs = append(programs, binaries.KubeScheduler)
	}
	if o.Kueue {
		programs = append(programs, binaries.Kueue)
	}
	if o.KWOK {
		programs = append(programs, binaries.KWOK)
	}
	return programs
}

// files are all that a start needs.
func (o *Options) files() []string {
	files := append(o.programs(), binaries.Kubectl)
	if o.Kueue {
		files = append(files, binaries.KueueManifests)
	}
	if o.KWOK {
		files = append(files, binaries.KWOKCRDs, binaries.KWOKStages)
	}
	return files
}
