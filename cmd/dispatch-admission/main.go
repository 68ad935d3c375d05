// Command dispatch-admission runs on each target cluster, beside Kueue. It
// answers for dispatch's AdmissionChecks and decides which Workloads may start.
// Its Lease is the heartbeat by which dispatchers tell that the gate is guarded.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
	"github.com/dispatch-dev/dispatch/controllers"
	"github.com/dispatch-dev/dispatch/internal/election"
)

func main() {
	flags := election.AdmissionFlags(flag.CommandLine)
	controllerName := flag.String("controller-name", "dispatch.dev/admission",
		"The spec.controllerName of the AdmissionChecks to answer for.")
	var level slog.Level
	flag.TextVar(&level, "log-level", slog.LevelInfo, "The least level that is logged: debug, info, warn or error.")
	flag.Parse()
	logger := logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)

	if err := run(ctrl.SetupSignalHandler(), flags, *controllerName); err != nil {
		fmt.Fprintln(os.Stderr, "dispatch-admission:", err)
		os.Exit(1)
	}
}

// run returns when the manager has stopped; nothing runs beside it.
func run(ctx context.Context, flags *election.Flags, controllerName string) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, kueuev1beta2.AddToScheme, dispatchv1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	mgr, err := election.NewManager(config, flags, ctrl.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	checks := &controllers.AdmissionCheckReconciler{Client: mgr.GetClient(), ControllerName: controllerName}
	if err := checks.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("setting up the AdmissionCheck controller: %w", err)
	}
	workloads := &controllers.WorkloadReconciler{Client: mgr.GetClient(), ControllerName: controllerName}
	if err := workloads.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("setting up the Workload controller: %w", err)
	}
	return mgr.Start(ctx)
}
