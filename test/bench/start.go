package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

// startQuantities are when a server serves what, from the start of its process on, and what that costs.
var startQuantities = []quantity{
	{"first_node_seconds", "first node has metrics, s", "%.2f", false},
	{"first_pod_seconds", "first pod has metrics, s", "%.2f", false},
	{"all_nodes_seconds", "all nodes have metrics, s", "%.2f", false},
	{"all_pods_seconds", "all pods have metrics, s", "%.2f", false},
	{"ready_seconds", "ready, s", "%.2f", false},
	{"start_cpu_seconds", "CPU until all metrics, s", "%.2f", false},
	{"peak_start_mib", "peak memory until all metrics: RSS, MiB", "%.0f", false},
}

// Pauses between two requests, up to 1000 nodes; in larger clusters, they are longer by the same
// factor. All requests together cost the server a few percent of a core.
const (
	nodesPause = 50 * time.Millisecond
	podsPause  = 100 * time.Millisecond
)

// watchStart waits until a server serves all metrics, and returns the values of startQuantities and of
// start_seconds. Each kind of object is requested independently, so that a long response does not delay
// the others.
func watchStart(ctx context.Context, server *cluster.Standalone, s shape) (map[string]float64, error) {
	limit := 2*time.Minute + time.Duration(s.nodes)*100*time.Millisecond
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not all nodes and pods have metrics after %s", limit))
	defer cancel()
	slower := max(1, s.nodes/1000)
	nodes, pods := nodesPause*time.Duration(slower), podsPause*time.Duration(slower)
	var mu sync.Mutex
	var err error
	values := map[string]float64{}
	// items sends a request until the response has so many items.
	items := func(column, path string, want int, pause time.Duration) {
		r := request{path: path, accept: cluster.TypeProtobuf}
		for {
			n, received, countErr := r.count(ctx, server) // an error: the server is starting
			ended := errors.Join(server.Process.Running(), context.Cause(ctx))
			if isServed := countErr == nil && n >= want; isServed || ended != nil {
				mu.Lock()
				defer mu.Unlock()
				values[column] = received.Sub(server.Started).Seconds()
				if !isServed {
					err = ended
				}
				return
			}
			_ = program.Sleep(ctx, pause)
		}
	}
	shop := namespacePods(shopNamespace)
	var group sync.WaitGroup
	group.Go(func() { items("ready_seconds", "/readyz", 0, nodesPause) })
	group.Go(func() {
		items("first_node_seconds", allNodes, 1, nodes)
		items("all_nodes_seconds", allNodes, s.nodes, nodes)
	})
	group.Go(func() {
		// Lists of all pods would slow down the start. They begin when one namespace, whose pods are on
		// many nodes, is complete.
		items("first_pod_seconds", shop, 1, pods)
		items("shop_seconds", shop, s.shop(), pods)
		items("all_pods_seconds", allPods, s.pods(), pods)
	})
	group.Wait()
	if err != nil {
		return nil, err
	}
	u, err := server.Process.Usage()
	values["start_cpu_seconds"], values["peak_start_mib"] = u.CPU.Seconds(), mebibytes(u.Peak)
	values["start_seconds"] = max(values["all_nodes_seconds"], values["all_pods_seconds"])
	return values, err
}

// measureStart starts the server several times.
func measureStart(ctx context.Context, b *bench) error {
	values := map[string][]float64{}
	for range b.rounds {
		// Kubelets need two samples to report that a container uses no CPU.
		if err := program.Sleep(ctx, 2*housekeeping); err != nil {
			return err
		}
		s, start, err := b.startServer(ctx, b.server, b.serverArgs...)
		if err != nil {
			return err
		}
		stopServer(s)
		for column, v := range start {
			values[column] = append(values[column], v)
		}
	}
	t := newTable(fmt.Sprintf("Start of %s: %d nodes, %d pods, %d starts", filepath.Base(b.server), b.nodes, b.pods(),
		b.rounds), "Since the start of the process", "median", "worst")
	for _, q := range startQuantities {
		v := values[q.column]
		t.row(q.title, fmt.Sprintf(q.format, median(v)), fmt.Sprintf(q.format, slices.Max(v)))
	}
	t.print(os.Stdout)
	return nil
}
