package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// Goals for the start, in seconds.
const (
	goalFirst = 1.0 // from the sync of the caches to the first metrics
	goalAll   = 5   // from the start of the process to all metrics
)

// startTimes are when a server served what, in seconds since the start of its process.
type startTimes struct {
	nodesSynced, podsSynced float64 // the caches of objects; 0: the server has no such probe
	firstNode, allNodes     float64
	firstPod, allPods       float64
	ready                   float64
	podsAtGoal              float64 // the share of pods that have metrics after goalAll
	cpu                     float64 // of the process, until all metrics were served
	peak                    float64 // highest RSS until then, in MiB
}

func (t startTimes) firstAfterSync() float64 {
	return max(t.firstNode, t.firstPod) - max(t.nodesSynced, t.podsSynced)
}

func (t startTimes) all() float64 { return max(t.allNodes, t.allPods) }

// Pauses between two requests, up to 1000 nodes; in larger clusters, they are longer by the same
// factor. All requests together cost the server a few percent of a core.
const (
	probePause = 20 * time.Millisecond
	nodesPause = 50 * time.Millisecond
	podsPause  = 100 * time.Millisecond
)

// watchStart waits until a server serves all metrics. Each kind of object is requested
// independently, so that a long response does not delay the others.
func watchStart(ctx context.Context, server *cluster.Standalone, s shape) (t startTimes, err error) {
	limit := 2*time.Minute + time.Duration(s.nodes)*100*time.Millisecond
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not all nodes and pods have metrics after %s", limit))
	defer cancel()
	w := startWatch{server}
	shop := request{path: namespacePods(shopNamespace), accept: cluster.TypeProtobuf}
	nodes := request{path: allNodes, accept: cluster.TypeProtobuf}
	pods := request{path: allPods, accept: cluster.TypeProtobuf}
	nodesPause, podsPause := s.scalePause(nodesPause), s.scalePause(podsPause)
	var group sync.WaitGroup
	errs := make([]error, 6)
	for i, f := range []func() error{
		func() error { return w.untilProbe(ctx, "/readyz/nodes", &t.nodesSynced) },
		func() error { return w.untilProbe(ctx, "/readyz/pods", &t.podsSynced) },
		func() error { return w.untilProbe(ctx, "/readyz", &t.ready) },
		func() error {
			return errors.Join(
				w.untilItems(ctx, nodesPause, nodes, 1, &t.firstNode),
				w.untilItems(ctx, nodesPause, nodes, s.nodes, &t.allNodes))
		},
		func() error {
			// Lists of all pods would slow down the start. They begin when one namespace, whose
			// pods are on many nodes, is complete.
			return errors.Join(
				w.untilItems(ctx, podsPause, shop, 1, &t.firstPod),
				w.untilItems(ctx, podsPause, shop, s.shop, new(float64)),
				w.untilItems(ctx, podsPause, pods, s.pods(), &t.allPods))
		},
		func() error {
			if err := sleep(ctx, time.Until(server.Started.Add(goalAll*time.Second))); err != nil {
				return err
			}
			if n, _, err := pods.count(ctx, server); err == nil { // an error: the server is starting
				t.podsAtGoal = float64(n) / float64(s.pods())
			}
			return nil
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
	peak, err := process.PeakResident(server.Process.PID())
	t.cpu, t.peak = cpu.Seconds(), float64(peak)/(1<<20)
	return t, err
}

func (s shape) scalePause(d time.Duration) time.Duration {
	return time.Duration(max(1, s.nodes/1000) * int(d))
}

type startWatch struct{ server *cluster.Standalone }

// untilProbe waits until a probe succeeds or is not found, in which case *at is 0.
func (w startWatch) untilProbe(ctx context.Context, path string, at *float64) error {
	found := true
	err := w.until(ctx, probePause, at, func() (time.Time, bool) {
		_, _, err := w.server.Get(ctx, path, cluster.TypeJSON)
		var status *cluster.StatusError
		found = !errors.As(err, &status) || status.Code != http.StatusNotFound
		return time.Now(), err == nil || !found
	})
	if !found {
		*at = 0
	}
	return err
}

// untilItems waits until a response has at least this many items. Errors mean that the server is
// starting.
func (w startWatch) untilItems(ctx context.Context, pause time.Duration, r request, want int, at *float64) error {
	return w.until(ctx, pause, at, func() (time.Time, bool) {
		n, received, err := r.count(ctx, w.server)
		return received, err == nil && n >= want
	})
}

func (w startWatch) until(ctx context.Context, pause time.Duration, at *float64, try func() (time.Time, bool)) error {
	for {
		when, ok := try()
		if ok {
			*at = when.Sub(w.server.Started).Seconds()
			return nil
		}
		if err := w.server.Process.Running(); err != nil {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// measureStart starts the server several times.
func measureStart(ctx context.Context, b *bench) error {
	var rounds []startTimes
	for range b.rounds {
		// Kubelets need two samples to report that a container uses no CPU.
		if err := sleep(ctx, 2*housekeeping); err != nil {
			return err
		}
		s, times, err := b.startServer(ctx, b.server, b.serverArgs...)
		if err != nil {
			return err
		}
		stopServer(s)
		rounds = append(rounds, times)
	}
	t := newTable(fmt.Sprintf("Start of %s: %d nodes, %d pods, %d starts",
		filepath.Base(b.server), b.nodes, b.pods(), len(rounds)), "Since the start of the process", "median", "worst", "goal")
	row := func(name, format, goal string, worst float64, value func(startTimes) float64) {
		var values []float64
		for _, r := range rounds {
			values = append(values, value(r))
		}
		t.row(name, fmt.Sprintf(format, median(values)), fmt.Sprintf(format, percentile(values, worst)), goal)
	}
	seconds := func(name, goal string, value func(startTimes) float64) { row(name, "%.2f s", goal, 100, value) }
	seconds("cache of nodes has synced", "", func(t startTimes) float64 { return t.nodesSynced })
	seconds("cache of pods has synced", "", func(t startTimes) float64 { return t.podsSynced })
	seconds("first node has metrics", "", func(t startTimes) float64 { return t.firstNode })
	seconds("first pod has metrics", "", func(t startTimes) float64 { return t.firstPod })
	seconds("first node and first pod, after the caches have synced",
		fmt.Sprintf("≤ %g s", goalFirst), startTimes.firstAfterSync)
	seconds("all nodes have metrics", "", func(t startTimes) float64 { return t.allNodes })
	seconds("all pods have metrics", "", func(t startTimes) float64 { return t.allPods })
	seconds("all nodes and pods have metrics", fmt.Sprintf("≤ %d s", goalAll), startTimes.all)
	row(fmt.Sprintf("pods with metrics after %d s", goalAll), "%.1f %%", "100 %", 0,
		func(t startTimes) float64 { return 100 * t.podsAtGoal })
	seconds("ready", "", func(t startTimes) float64 { return t.ready })
	seconds("CPU until all metrics", "", func(t startTimes) float64 { return t.cpu })
	row("peak memory until all metrics: RSS", "%.0f MiB", "", 100, func(t startTimes) float64 { return t.peak })
	t.print(os.Stdout)
	return nil
}
