// Command programs builds the programs of the test cluster, which otherwise happens when the first
// cluster starts. It needs only the standard library, so on a new machine it runs within seconds
// and shows the progress of the longest build.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if _, err := binaries.Build(ctx, binaries.ControlPlane(), os.Stdout); err != nil {
		stop()
		fmt.Fprintf(os.Stderr, "programs: %v\n", err)
		os.Exit(1)
	}
}
