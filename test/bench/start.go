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

// startTimes are when a server served what, in seconds since the start of its process.
type startTimes struct {
	firstNode, allNodes float64
	firstPod, allPods   float64
	ready               float64
	cpu                 float64 // of the process, until all metrics were served
	peak                float64 // highest RSS until then, in MiB
}

func (t startTimes) all() float64 { return max(t.allNodes, t.allPods) }

// Pauses between two requests, up to 1000 nodes; in larger clusters, they are longer by the same
// factor. All requests together cost the server a few percent of a core.
const (
	nodesPause = 50 * time.Millisecond
	podsPause  = 100 * time.Millisecond
)

// watchStart waits until a server serves all metrics. Each kind of object is requested
// independently, so that a long response does not delay the others.
func watchStart(ctx context.Context, server *cluster.Standalone, s shape) (t startTimes, err error) {
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
	var group sync.WaitGroup
	errs := make([]error, 3)
	for i, f := range []func() error{
		func() error {
			return until(ctx, server, nodesPause, &t.ready, func() (time.Time, bool) {
				_, _, err := server.Get(ctx, "/readyz", cluster.TypeJSON)
				return time.Now(), err == nil
			})
		},
		func() error {
			return errors.Join(items(allNodes, nodesPause, 1, &t.firstNode), items(allNodes, nodesPause, s.nodes, &t.allNodes))
		},
		func() error {
			// Lists of all pods would slow down the start. They begin when one namespace, whose
			// pods are on many nodes, is complete.
			return errors.Join(items(shop, podsPause, 1, &t.firstPod), items(shop, podsPause, s.shop, new(float64)),
				items(allPods, podsPause, s.pods(), &t.allPods))
		},
	} {
		group.Go(func() { errs[i] = f() })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return t, err
	}
	cpu, err := process.CPUTime(server.Process.PID())
	if err != nil {
		return t, err
	}
	t.cpu = cpu.Seconds()
	t.peak, err = mebibytes(process.PeakResident(server.Process.PID()))
	return t, err
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
	columns := []struct {
		name, format string
		value        func(startTimes) float64
	}{
		{"first node has metrics", "%.2f s", func(t startTimes) float64 { return t.firstNode }},
		{"first pod has metrics", "%.2f s", func(t startTimes) float64 { return t.firstPod }},
		{"all nodes have metrics", "%.2f s", func(t startTimes) float64 { return t.allNodes }},
		{"all pods have metrics", "%.2f s", func(t startTimes) float64 { return t.allPods }},
		{"ready", "%.2f s", func(t startTimes) float64 { return t.ready }},
		{"CPU until all metrics", "%.2f s", func(t startTimes) float64 { return t.cpu }},
		{"peak memory until all metrics: RSS", "%.0f MiB", func(t startTimes) float64 { return t.peak }},
	}
	values := make([][]float64, len(columns))
	for range b.rounds {
		// Kubelets need two samples to report that a container uses no CPU.
		if err := program.Sleep(ctx, 2*housekeeping); err != nil {
			return err
		}
		s, times, err := b.startServer(ctx, b.server, b.serverArgs...)
		if err != nil {
			return err
		}
		stopServer(s)
		for i, c := range columns {
			values[i] = append(values[i], c.value(times))
		}
	}
	t := newTable(fmt.Sprintf("Start of %s: %d nodes, %d pods, %d starts", filepath.Base(b.server), b.nodes, b.pods(),
		b.rounds), "Since the start of the process", "median", "worst")
	for i, c := range columns {
		t.row(c.name, fmt.Sprintf(c.format, median(values[i])), fmt.Sprintf(c.format, slices.Max(values[i])))
	}
	t.print(os.Stdout)
	return nil
}
