// Package controlplane starts real Kubernetes clusters for tests, as plain
// processes on this machine: etcd and kube-apiserver and, where a test asks for
// them, kube-controller-manager, kube-scheduler, Kueue and KWOK. No container
// engine and no download but Go modules is needed; package binaries builds the
// programs once per machine.
//
//	func TestAdmission(t *testing.T) {
//		cluster := controlplane.StartForTest(t, controlplane.Options{
//			Kueue: true, ControllerManager: true, Scheduler: true, KWOK: true,
//		})
//		config, err := cluster.ServiceAccountConfig(ctx, "dispatch-system", "dispatch-admission")
//		...
//	}
//
// With GinkgoT() it works the same. A suite that shares one cluster calls Start
// and Stop itself. A start takes some seconds, most with Kueue, which makes its
// certificates; BenchmarkStart measures it.
//
// # What is real, and what is not
//
// The API server authenticates and authorizes with RBAC as any does; run what
// is under test with ServiceAccountConfig, so that a missing permission fails a
// test, and only the test itself with Config, which is an administrator's.
// Kueue runs outside a pod, with its own manifests, its own RBAC, its own
// webhooks and its own certificates. Nodes and the containers on them are
// played by KWOK: pods of Jobs succeed at once, or after the delay in the
// annotation CompletionDelayAnnotation; to change more, change or delete KWOK's
// Stage objects, which are ordinary objects in the cluster.
//
// Things take the time that they take in any cluster: an RBAC rule is seen some
// milliseconds after it was written, and the garbage collector notices a new
// CustomResourceDefinition within 30 s. So poll, with Eventually. The aggregated
// roles (view, edit, admin) are empty unless Options.Controllers has
// clusterrole-aggregation-controller.
//
// # Breaking things
//
// Each part is a [Component], which a test stops, kills or freezes and brings
// back: Cluster.APIServer.Kill(), then Start, on the same port and with the same
// data. Package faultproxy breaks connections and answers instead.
//
// # What is left
//
// Nothing runs on after Stop, nor after a failed Start, nor, on Linux, after the
// test process has ended in whatever way. The folder of a cluster, in the
// temporary folder, is removed but for the logs of a failed test; if the process
// was killed, by the next start of a cluster. To keep the logs of every cluster,
// set DISPATCH_CONTROLPLANE_KEEP_LOGS.
package controlplane
