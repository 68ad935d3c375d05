// Command dispatch-manager runs on the hub. It follows the target cluster of
// each DispatchTarget and says in its status whether dispatch may write there.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/controllers"
	"github.com/dispatch-dev/dispatch/internal/clusters"
	"github.com/dispatch-dev/dispatch/internal/election"
)

func main() {
	flags := election.ManagerFlags(flag.CommandLine)
	namespace := flag.String("namespace", ownNamespace(),
		"The namespace of the Secrets with the targets' kubeconfigs. Default: the one that this process runs in.")
	var level slog.Level
	flag.TextVar(&level, "log-level", slog.LevelInfo, "The least level that is logged: debug, info, warn or error.")
	flag.Parse()
	logger := logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)

	if err := run(ctrl.SetupSignalHandler(), flags, *namespace); err != nil {
		fmt.Fprintln(os.Stderr, "dispatch-manager:", err)
		os.Exit(1)
	}
}

// ownNamespace is that of the pod or, outside of one, the default.
func ownNamespace() string {
	data, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return election.Namespace
	}
	return strings.TrimSpace(string(data))
}

// run returns when the manager has stopped; nothing runs beside it.
func run(ctx context.Context, flags *election.Flags, namespace string) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	mgr, err := election.NewManager(config, flags, ctrl.Options{
		Scheme: scheme,
		// Secrets of other namespaces are none of its business, and it may not read them.
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Namespaces: map[string]cache.Config{namespace: {}}},
		}},
	})
	if err != nil {
		return err
	}
	targets := clusters.NewSet(mgr.Fence)
	if err := metrics.Registry.Register(targets); err != nil {
		return fmt.Errorf("registering the targets' metrics: %w", err)
	}
	connections := &controllers.TargetConnectionReconciler{
		Client: mgr.GetClient(), Targets: targets, LocalConfig: config, Namespace: namespace,
	}
	if err := connections.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("setting up the connections to targets: %w", err)
	}
	statuses := &controllers.DispatchTargetReconciler{
		Client: mgr.GetClient(), Targets: targets, Recorder: mgr.GetEventRecorder("dispatch-manager"),
	}
	if err := statuses.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("setting up the DispatchTarget controller: %w", err)
	}
	jobs := &controllers.DispatchJobReconciler{
		Client: mgr.GetClient(), Targets: targets, Recorder: mgr.GetEventRecorder("dispatch-manager"),
	}
	if err := jobs.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("setting up the DispatchJob controller: %w", err)
	}
	return mgr.Start(ctx)
}
