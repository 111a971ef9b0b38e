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
	"github.com/kube-vitals/kube-vitals/test/internal/process"
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
	items := func(path string, pause time.Duration, want int, at *float64) error {
		r := request{path: path, accept: cluster.TypeProtobuf}
		return until(ctx, server, time.Duration(slower*int(pause)), at, func() (time.Time, bool) {
			n, received, err := r.count(ctx, server)
			return received, err == nil && n >= want // an error: the server is starting
		})
	}
	shop := namespacePods(shopNamespace)
	var firstNode, firstPod, allNodesAt, allPodsAt, ready float64
	var group sync.WaitGroup
	errs := make([]error, 3)
	for i, f := range []func() error{
		func() error {
			return until(ctx, server, nodesPause, &ready, func() (time.Time, bool) {
				_, _, err := server.Get(ctx, "/readyz", cluster.TypeJSON)
				return time.Now(), err == nil
			})
		},
		func() error {
			return errors.Join(items(allNodes, nodesPause, 1, &firstNode), items(allNodes, nodesPause, s.nodes, &allNodesAt))
		},
		func() error {
			// Lists of all pods would slow down the start. They begin when one namespace, whose
			// pods are on many nodes, is complete.
			return errors.Join(items(shop, podsPause, 1, &firstPod), items(shop, podsPause, s.shop, new(float64)),
				items(allPods, podsPause, s.pods(), &allPodsAt))
		},
	} {
		group.Go(func() { errs[i] = f() })
	}
	group.Wait()
	cpu, cpuErr := process.CPUTime(server.Process.PID())
	peak, peakErr := mebibytes(process.PeakResident(server.Process.PID()))
	return map[string]float64{
		"first_node_seconds": firstNode, "first_pod_seconds": firstPod, "all_nodes_seconds": allNodesAt,
		"all_pods_seconds": allPodsAt, "ready_seconds": ready, "start_cpu_seconds": cpu.Seconds(),
		"peak_start_mib": peak, "start_seconds": max(allNodesAt, allPodsAt),
	}, errors.Join(slices.Concat(errs, []error{cpuErr, peakErr})...)
}

// until sets *at to when try has succeeded.
func until(
	ctx context.Context, server *cluster.Standalone, pause time.Duration, at *float64, try func() (time.Time, bool),
) error {
	for {
		when, ok := try()
		if ok {
			*at = when.Sub(server.Started).Seconds()
			return nil
		}
		if err := errors.Join(server.Process.Running(), program.Sleep(ctx, pause)); err != nil {
			return err
		}
	}
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
