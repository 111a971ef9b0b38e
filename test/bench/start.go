package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

// What a server has to reach, by the targets.
const (
	targetFirst = 1.0 // seconds from the caches' sync to the first figures
	targetAll   = 5   // seconds from the start of the process to all figures
)

// startResult is when a server had what: seconds since the start of its process.
type startResult struct {
	// It knows what exists: the caches have synced. 0: the server does not tell.
	NodesKnown float64 `json:"nodesKnownSeconds"`
	PodsKnown  float64 `json:"podsKnownSeconds"`

	FirstNode float64 `json:"firstNodeSeconds"`
	AllNodes  float64 `json:"allNodesSeconds"`
	FirstPod  float64 `json:"firstPodSeconds"`
	AllPods   float64 `json:"allPodsSeconds"`
	// PodsInTime is the share of all pods that have figures after targetAll.
	PodsInTime float64 `json:"podsInTime"`

	Ready float64 `json:"readySeconds"` // for those who need not come to it
}

// afterSync is the time from the caches' sync to the first figures of nodes and of pods.
func (r startResult) afterSync() float64 {
	return max(r.FirstNode, r.FirstPod) - max(r.NodesKnown, r.PodsKnown)
}

// all is the time from the start of the process to the last figures.
func (r startResult) all() float64 { return max(r.AllNodes, r.AllPods) }

// startWatch looks on while a server starts. Each kind of thing is asked for on its own, so that a
// long answer about one does not delay the news of another.
type startWatch struct {
	server *cluster.Standalone
	shape  shape
}

// The pauses between two questions. All together cost the server some percent of a core.
const (
	pauseProbe = 20 * time.Millisecond
	pauseNodes = 50 * time.Millisecond
	pausePods  = 100 * time.Millisecond
)

// watch waits until there are all figures.
func (s startWatch) watch(ctx context.Context) (r startResult, err error) {
	limit := 2*time.Minute + time.Duration(s.shape.nodes)*20*time.Millisecond
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("after %s, not all nodes and pods have figures", limit))
	defer cancel()
	shop := request{path: cluster.V1beta1 + "/namespaces/" + shopNamespace + "/pods", accept: cluster.TypeProtobuf}
	nodes := request{path: cluster.V1beta1 + "/nodes", accept: cluster.TypeProtobuf}
	pods := request{path: cluster.V1beta1 + "/pods", accept: cluster.TypeProtobuf}
	var watches sync.WaitGroup
	errs := make([]error, 6)
	for i, p := range []struct {
		path string
		at   *float64
	}{
		{"/readyz/nodes", &r.NodesKnown},
		{"/readyz/pods", &r.PodsKnown},
		{"/readyz", &r.Ready},
	} {
		watches.Go(func() { errs[i] = s.probe(ctx, p.path, p.at) })
	}
	watches.Go(func() {
		errs[3] = errors.Join(
			s.until(ctx, &r.FirstNode, pauseNodes, s.has(nodes, 1)),
			s.until(ctx, &r.AllNodes, pauseNodes, s.has(nodes, s.shape.nodes)),
		)
	})
	watches.Go(func() {
		// A LIST of all pods would delay what it waits for. One namespace, whose pods are on many
		// nodes, stands for the others until it has all.
		errs[4] = errors.Join(
			s.until(ctx, &r.FirstPod, pausePods, s.has(shop, 1)),
			s.until(ctx, new(float64), pausePods, s.has(shop, s.shape.shop)),
			s.until(ctx, &r.AllPods, pausePods, s.has(pods, s.shape.pods())),
		)
	})
	watches.Go(func() {
		if errs[5] = sleep(ctx, time.Until(s.server.Started.Add(targetAll*time.Second))); errs[5] != nil {
			return
		}
		if n, _, err := pods.count(ctx, s.server.Direct, s.server.URL); err == nil { // or it is still starting
			r.PodsInTime = float64(n) / float64(s.shape.pods())
		}
	})
	watches.Wait()
	return r, errors.Join(errs...)
}

// probe waits until a probe succeeds, or is not there.
func (s startWatch) probe(ctx context.Context, path string, at *float64) error {
	var known bool
	err := s.until(ctx, at, pauseProbe, func(ctx context.Context) (time.Time, bool) {
		_, _, err := s.server.Get(ctx, path, cluster.TypeJSON)
		var status *cluster.StatusError
		known = !errors.As(err, &status) || status.Code != http.StatusNotFound
		return time.Now(), err == nil || !known
	})
	if !known {
		*at = 0
	}
	return err
}

// has asks whether so many items are in the answer to a request. An error is a no: the server is
// starting.
func (s startWatch) has(r request, want int) func(context.Context) (time.Time, bool) {
	return func(ctx context.Context) (time.Time, bool) {
		n, began, err := r.count(ctx, s.server.Direct, s.server.URL)
		return began, err == nil && n >= want
	}
}

// until asks until the answer is yes, and notes of when the answer is.
func (s startWatch) until(ctx context.Context, at *float64, pause time.Duration, ask func(context.Context) (time.Time, bool)) error {
	for {
		when, yes := ask(ctx)
		if yes {
			*at = when.Sub(s.server.Started).Seconds()
			return nil
		}
		if err := s.server.Process.Running(); err != nil {
			return err
		}
		if sleep(ctx, pause) != nil {
			return context.Cause(ctx)
		}
	}
}

// measureStart starts the server several times in a cluster of one size, and prints when there were
// figures.
func measureStart(ctx context.Context, cfg config, nodes int, out io.Writer, progress func(string, ...any)) error {
	shape := newShape(nodes)
	w, err := newWorld(ctx, cfg, progress)
	if err != nil {
		return err
	}
	defer w.Stop()
	progress("starting %d kubelets", nodes)
	port, err := startApart(ctx, cfg, w, shape)
	if err != nil {
		return err
	}
	if err := fill(ctx, w, shape, port, progress); err != nil {
		return err
	}
	var rounds []startResult
	for range cfg.rounds {
		// The control plane is still busy with its own start, and containers that idle must be seen
		// to idle.
		if err := sleep(ctx, 2*housekeeping); err != nil {
			return err
		}
		progress("starting %s", cfg.server)
		s, err := w.StartStandalone(cfg.server, cfg.resolution, cfg.serverArgs...)
		if err != nil {
			return err
		}
		r, err := startWatch{server: s, shape: shape}.watch(ctx)
		if err != nil {
			return err
		}
		if err := s.Stop(); err != nil {
			progress("note: the server did not end with exit status 0: %v", err)
		}
		rounds = append(rounds, r)
	}
	return printStart(out, cfg, shape, rounds)
}

func printStart(out io.Writer, cfg config, s shape, rounds []startResult) error {
	t := newTable(fmt.Sprintf("%s starts: %d nodes, %d pods, medians of %d starts", cfg.name(), s.nodes, s.pods(), len(rounds)),
		"Since the start of the process", "median", "worst", "target")
	row := func(name string, target float64, pick func(startResult) float64) {
		var values []float64
		for _, r := range rounds {
			values = append(values, pick(r))
		}
		goal := ""
		if target > 0 {
			goal = fmt.Sprintf("≤ %g s", target)
		}
		t.row(name, fmt.Sprintf("%.2f s", median(values)), fmt.Sprintf("%.2f s", percentile(values, 100)), goal)
	}
	row("it knows the nodes", 0, func(r startResult) float64 { return r.NodesKnown })
	row("it knows the pods", 0, func(r startResult) float64 { return r.PodsKnown })
	row("first node has figures", 0, func(r startResult) float64 { return r.FirstNode })
	row("first pod has figures", 0, func(r startResult) float64 { return r.FirstPod })
	row("first node and first pod, after it knows all", targetFirst, startResult.afterSync)
	row("all nodes have figures", 0, func(r startResult) float64 { return r.AllNodes })
	row("all pods have figures", 0, func(r startResult) float64 { return r.AllPods })
	row("all nodes and pods have figures", targetAll, startResult.all)
	var inTime []float64
	for _, r := range rounds {
		inTime = append(inTime, 100*r.PodsInTime)
	}
	t.row(fmt.Sprintf("pods that have figures, asked after %d s", targetAll), fmt.Sprintf("%.1f %%", median(inTime)),
		fmt.Sprintf("%.1f %%", percentile(inTime, 0)), "100 %")
	row("ready", 0, func(r startResult) float64 { return r.Ready })
	return t.print(out)
}

// selected is the path of an app's pods in a namespace.
func selected(namespace, app string) string {
	return cluster.V1beta1 + "/namespaces/" + namespace + "/pods?labelSelector=" + url.QueryEscape(objects.Selector(app))
}
