package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

// watchStart waits until a server serves all metrics, and returns when it serves what, from the
// start of its process on, and what that costs. Each kind of object is requested independently, so that a
// long response does not delay the others.
func watchStart(ctx context.Context, server *cluster.Standalone, s shape) (map[string]float64, error) {
	limit := 2*time.Minute + time.Duration(s.nodes)*100*time.Millisecond
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not all nodes and pods have metrics after %s", limit))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var mu sync.Mutex
	values := map[string]float64{}
	// items sends a request until the response has so many items. All requests together cost the server a few
	// percent of a core: in clusters of more than 1000 nodes, the pauses are longer.
	items := func(column, path string, want int, pause time.Duration) {
		r := request{path: path, accept: cluster.TypeProtobuf}
		for ended := error(nil); ended == nil; ended = program.Sleep(ctx, pause*time.Duration(max(1, s.nodes/1000))) {
			n, received, err := r.count(ctx, server) // an error: the server is starting
			if err == nil && n >= want {
				mu.Lock()
				defer mu.Unlock()
				values[column] = received.Sub(server.Started).Seconds()
				return
			}
			if err := server.Process.Running(); err != nil {
				fail(err)
			}
		}
	}
	const nodesPause, podsPause = 50 * time.Millisecond, 100 * time.Millisecond
	shop := namespacePods(shopNamespace)
	var group sync.WaitGroup
	group.Go(func() { items("ready_seconds", "/readyz", 0, nodesPause) })
	group.Go(func() {
		items("first_node_seconds", allNodes, 1, nodesPause)
		items("all_nodes_seconds", allNodes, s.nodes, nodesPause)
	})
	group.Go(func() {
		// Lists of all pods would slow down the start. They begin when one namespace, whose pods are on
		// many nodes, is complete.
		items("first_pod_seconds", shop, 1, podsPause)
		items("shop_seconds", shop, s.shop(), podsPause)
		items("all_pods_seconds", allPods, s.pods(), podsPause)
	})
	group.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	u, err := server.Process.Usage()
	values["start_cpu_seconds"], values["peak_start_mib"] = u.CPU.Seconds(), mebibytes(u.Peak)
	values["start_seconds"] = max(values["all_nodes_seconds"], values["all_pods_seconds"])
	return values, err
}
