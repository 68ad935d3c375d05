// Package e2e tries dispatch on real clusters: a hub, and a target that runs Kueue, with both programs as
// processes under their own ServiceAccounts.
package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/test/controlplane"
	"github.com/dispatch-dev/dispatch/test/install"
)

var (
	// hub and target are the clusters that most specs share.
	hub, target *controlplane.Cluster
	// hubClient and targetClient are administrators'.
	hubClient, targetClient client.Client
	// hubOnTarget is what the hub's ServiceAccount needs to reach the target.
	hubOnTarget *rest.Config
	// programs is the folder with the programs under test and their logs.
	programs string
	// manager is dispatch-manager on the hub.
	manager *controlplane.Component
)

func TestE2E(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(20 * time.Second)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	RunSpecs(t, "e2e")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	programs = GinkgoT().TempDir()
	Expect(install.Programs(ctx, programs)).To(Succeed())

	hub = startCluster(ctx, controlplane.Options{AuditLevel: auditv1.LevelMetadata})
	hubClient = newClient(hub.Config())
	Expect(install.Hub(ctx, hub)).To(Succeed())

	target = startCluster(ctx, controlplane.Options{Kueue: true})
	targetClient = newClient(target.Config())
	Expect(install.Target(ctx, target)).To(Succeed())

	var err error
	hubOnTarget, err = target.ServiceAccountConfig(ctx, install.Namespace, install.HubAccount)
	Expect(err).NotTo(HaveOccurred())
	manager = startProcess(ctx, hub, install.Process{Program: "dispatch-manager"}, install.ManagerAccount)
}, NodeTimeout(15*time.Minute))

// startCluster starts a cluster for as long as the node that asks for it lasts.
func startCluster(ctx context.Context, options controlplane.Options) *controlplane.Cluster {
	GinkgoHelper()
	cluster, err := controlplane.Start(ctx, options)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(cluster.Stop)
	return cluster
}

// startProcess starts a program under a ServiceAccount of the cluster. Its log is shown if the spec fails.
func startProcess(ctx context.Context, cluster *controlplane.Cluster, p install.Process, account string) *controlplane.Component {
	GinkgoHelper()
	var err error
	p.Folder = programs
	p.Config, err = cluster.ServiceAccountConfig(ctx, install.Namespace, account)
	Expect(err).NotTo(HaveOccurred())
	process, err := p.New()
	Expect(err).NotTo(HaveOccurred())
	Expect(process.Start(ctx)).To(Succeed())
	DeferCleanup(func() {
		process.Stop()
		if CurrentSpecReport().Failed() {
			log, _ := os.ReadFile(process.LogPath())
			AddReportEntry(filepath.Base(process.LogPath()), ReportEntryVisibilityFailureOrVerbose, string(log))
		}
	})
	return process
}

func newClient(cfg *rest.Config) client.Client {
	GinkgoHelper()
	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(kueue.AddToScheme(scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	return c
}
