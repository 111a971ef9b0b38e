// Command demo shows kube-vitals at work in a cluster on this machine: a real control plane, 20
// simulated nodes, some 200 pods, the real kubectl top, and a real HorizontalPodAutoscaler. It then
// stays up until it is interrupted.
//
// It needs nothing but Go, and a built kube-vitals. With ONCE=1 in its environment it does not stay
// up, and succeeds only if all showed what it should.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	binary := flag.String("server", "", "absolute path of the built kube-vitals; by default bin/kube-vitals of the checkout")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	once := os.Getenv("ONCE") != ""
	err := demonstrate(ctx, os.Stdout, *binary, once)
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

// failed reports whether the demo has failed. An interrupt is no failure, except with ONCE=1, which
// succeeds only if everything was shown.
func failed(err error, interrupted, once bool) bool { return err != nil && (once || !interrupted) }
