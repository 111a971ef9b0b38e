// Command demo shows kube-vitals in a cluster on this machine: a real control plane, 20 simulated
// nodes with about 200 pods, kubectl top, a HorizontalPodAutoscaler, and kubectl vitals top. The cluster
// then stays up until the demo is interrupted.
//
// It needs Go, and a built kube-vitals and plugin, which the environment variables KUBE_VITALS and
// KUBECTL_VITALS name. With ONCE=1 it ends after the last step, and fails unless every step has shown
// what it should.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

func main() {
	program.Main("demo", func(ctx context.Context, _ []string) error {
		once := os.Getenv("ONCE") != ""
		return interruptible(ctx, run(ctx, os.Stdout, once), once)
	})
}

// interruptible returns how the demo ends. An interrupt is a failure only with ONCE=1.
func interruptible(ctx context.Context, err error, once bool) error {
	if err != nil && ctx.Err() != nil && !once {
		fmt.Fprintln(os.Stderr, "demo: interrupted")
		return nil
	}
	return err
}
