// The command build builds what test clusters are made of, where
// it is not yet in the user's cache, and prints the folder that has all of it.
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
	dir, err := binaries.EnsureAll(ctx, log.New(os.Stderr, "controlplane: ", 0))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
	fmt.Println(dir)
}
