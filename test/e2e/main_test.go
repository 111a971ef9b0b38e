// Package e2e tests the built kube-vitals from outside: behind a real API server's aggregation
// layer, with the real kubectl, helm and HorizontalPodAutoscaler, and with no more permissions than
// its chart gives it. KUBE_VITALS names the binary; without it, that is bin/kube-vitals of the
// checkout.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

const (
	labNodes = 6
	// soon is how long to wait for what takes some scrapes: two for a rate, and time for a busy
	// machine.
	soon = time.Minute
)

// shared is the cluster of all tests. Each keeps to a namespace, and to nodes, of its own.
var shared *lab

// lab is a cluster with kube-vitals.
type lab struct {
	*cluster.Cluster
	Server *cluster.Server
}

func startLab(ctx context.Context, nodes int, progress io.Writer) (*lab, error) {
	c, err := cluster.Start(ctx, cluster.Config{Progress: progress, Nodes: simulation.Nodes(nodes)})
	if err != nil {
		return nil, err
	}
	s, err := c.Install(ctx)
	if err != nil {
		c.Stop()
		return nil, err
	}
	return &lab{Cluster: c, Server: s}, nil
}

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := runAll(ctx, m)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func runAll(ctx context.Context, m *testing.M) (int, error) {
	l, err := startLab(ctx, labNodes, os.Stderr)
	if err != nil {
		return 0, err
	}
	defer l.Stop()
	shared = l
	done := make(chan int, 1)
	go func() { done <- m.Run() }()
	select {
	case <-ctx.Done():
		return 0, errors.New("interrupted")
	case code := <-done:
		if code != 0 {
			fmt.Fprintln(os.Stderr, l.Server.Tail())
		}
		return code, l.Running()
	}
}

// kubectl runs kubectl as the administrator and gives what it prints.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := shared.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// kubectlFails runs kubectl and gives its complaint.
func kubectlFails(t *testing.T, args ...string) string {
	t.Helper()
	out, err := shared.Kubectl(t.Context(), args...)
	if err == nil {
		t.Fatalf("kubectl %s succeeded:\n%s", strings.Join(args, " "), out)
	}
	return err.Error()
}

// eventually waits until try succeeds.
func eventually(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	if err := process.Poll(t.Context(), soon, what, try); err != nil {
		t.Fatal(err)
	}
}

// runPods creates a namespace with a pod for each name, and waits until all have figures. Each has
// the containers main and side, of which main uses 250 millicores and 100 MiB; the label app is the
// pod's name.
func runPods(t *testing.T, namespace, node string, names ...string) {
	t.Helper()
	if err := shared.CreateNamespace(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the test's own context has ended
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if _, err := shared.Kubectl(ctx, "delete", "namespace", namespace, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	var manifest strings.Builder
	for _, name := range names {
		fmt.Fprintf(&manifest, `
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  namespace: %[2]s
  labels: {app: %[1]s, tier: test}
  annotations:
    simulation.kube-vitals/cpu: main=0.25,side=0
    simulation.kube-vitals/memory: main=104857600,side=8388608
spec:
  nodeName: %[3]s
  containers:
  - {name: main, image: none}
  - {name: side, image: none}
---`, name, namespace, node)
	}
	if err := shared.Apply(t.Context(), manifest.String()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "figures of the pods in "+namespace, func(ctx context.Context) error {
		out, err := shared.Kubectl(ctx, "get", "podmetrics", "--namespace", namespace, "--no-headers")
		if err == nil && strings.Count(out, "\n") != len(names) {
			err = fmt.Errorf("%d of %d pods have figures:\n%s", strings.Count(out, "\n"), len(names), out)
		}
		return err
	})
}
