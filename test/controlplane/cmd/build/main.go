// The command build builds what test clusters are made of, where it is not yet in the user's cache, and prints
// the folder that has all of it. With arguments it builds the programs of these names instead, such as promtool.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/dispatch-dev/dispatch/test/controlplane/binaries"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
	logger := log.New(os.Stderr, "controlplane: ", 0)
	if len(names) > 0 {
		_, err := binaries.Ensure(ctx, logger, names...)
		return err
	}
	dir, err := binaries.EnsureAll(ctx, logger)
	if err != nil {
		return err
	}
	fmt.Println(dir)
	return nil
}
