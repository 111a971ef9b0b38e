// Command demo shows kube-vitals in a cluster on this machine: a real control plane, 20 simulated
// nodes with about 200 pods, kubectl top, and a HorizontalPodAutoscaler. The cluster then stays up
// until the demo is interrupted.
//
// It needs Go and a built kube-vitals, which the environment variable KUBE_VITALS names. With
// ONCE=1 it ends after the last step, and fails unless every step has shown what it should.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	once := os.Getenv("ONCE") != ""
	err := run(ctx, os.Stdout, once)
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
	}
	if failed(err, ctx.Err() != nil, once) {
		os.Exit(1)
	}
}

// failed reports whether the demo exits with status 1. An interrupt is a failure only with ONCE=1.
func failed(err error, interrupted, once bool) bool { return err != nil && (once || !interrupted) }
