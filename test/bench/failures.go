package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

const (
	// stoppedNodes is how many kubelets are stopped for longer than metrics are served.
	stoppedNodes = 5
	// maxAgeIntervals is the default of --max-sample-age in intervals.
	maxAgeIntervals = 4
	// listPause is the pause between two lists.
	listPause = 250 * time.Millisecond
	// timestampUnit is the unit of timestamps, which are truncated, in seconds.
	timestampUnit = 1.0
)

// failures is what a server serves while kubelets fail.
type failures struct {
	*bench
	server *cluster.Standalone

	served  []float64 // share of pods in each list
	oldest  float64   // seconds, of any pod
	expired []float64 // age of the metrics of stopped nodes and their pods when they are last served, in seconds
	back    []float64 // seconds from the return of a stopped node until it and its pods are served
}

// measureFailures measures what is served while a share of the scrapes fails and after kubelets
// have been stopped.
func measureFailures(ctx context.Context, b *bench) (err error) {
	f := &failures{bench: b}
	if f.server, _, err = b.startServer(ctx, b.server, b.serverArgs...); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{f.failScrapes, f.stopKubelets} {
		if err := step(ctx); err != nil {
			return errors.Join(err, f.server.Process.Running())
		}
	}
	f.print()
	return nil
}

// failScrapes lists pods while random scrapes fail.
func (f *failures) failScrapes(ctx context.Context) error {
	logf("%.0f %% of all scrapes fail for %s", 100*f.failing, f.duration)
	faults := []kubelettest.Fault{
		kubelettest.Refuse, kubelettest.Hang, kubelettest.Status(http.StatusInternalServerError), kubelettest.HalfBody,
	}
	share := 1 - math.Pow(1-f.failing, 1/float64(len(faults))) // of each fault; they are independent
	for i, k := range f.kubelets.byNode {
		var random []kubelettest.Fault
		for j, fault := range faults {
			random = append(random, kubelettest.Sometimes(share, uint64(i*len(faults)+j), fault))
		}
		k.SetFaults(random...)
	}
	for end := time.Now().Add(f.duration); time.Now().Before(end); {
		sent := time.Now()
		pods, err := f.server.Pods(ctx, allPods, cluster.TypeProtobuf)
		if err != nil {
			return err
		}
		f.served = append(f.served, float64(len(pods.Items))/float64(f.pods()))
		for _, pod := range pods.Items {
			f.oldest = max(f.oldest, sent.Sub(pod.Timestamp.Time).Seconds())
		}
		if err := sleep(ctx, listPause); err != nil {
			return err
		}
	}
	for _, k := range f.kubelets.byNode {
		k.SetFaults()
	}
	return sleep(ctx, 2*f.resolution) // until all metrics are new
}

// stopKubelets stops some kubelets until their metrics have expired, and starts them again.
func (f *failures) stopKubelets(ctx context.Context) error {
	stopped := min(stoppedNodes, f.nodes)
	logf("stopping %d kubelets", stopped)
	for i := range stopped {
		f.kubelets.Remove(objects.NodeName(i))
	}
	last := map[string]time.Time{} // timestamps by name
	err := f.poll(ctx, stopped, "metrics of stopped nodes are still served", func(now map[string]time.Time) bool {
		for name, timestamp := range last {
			if _, ok := now[name]; !ok {
				f.expired = append(f.expired, time.Since(timestamp).Seconds())
			}
		}
		last = now
		return len(now) == 0
	})
	if err != nil {
		return err
	}
	logf("starting them again")
	restarted := time.Now()
	for i := range stopped {
		if _, err := f.kubelets.Add(f.kubelets.byNode[i], kubelettest.Address(i)); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	return f.poll(ctx, stopped, "nodes that are back are not served", func(now map[string]time.Time) bool {
		for name := range now {
			if !seen[name] {
				seen[name] = true
				f.back = append(f.back, time.Since(restarted).Seconds())
			}
		}
		return len(seen) == stopped*(1+f.perNode)
	})
}

// poll calls done with the timestamps of the first nodes and their pods until it returns true.
func (f *failures) poll(ctx context.Context, nodes int, problem string, done func(map[string]time.Time) bool) error {
	limit := 2 * maxAgeIntervals * f.resolution
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("after %s, %s", limit, problem))
	defer cancel()
	for {
		now, err := f.timestamps(ctx, nodes)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		if done(now) {
			return nil
		}
		if err := sleep(ctx, listPause); err != nil {
			return err
		}
	}
}

// timestamps returns the timestamps of the metrics of the first nodes (by NAME) and of their pods
// (by NAMESPACE/NAME) that are served.
func (f *failures) timestamps(ctx context.Context, nodes int) (map[string]time.Time, error) {
	served := map[string]time.Time{}
	nodeList, err := f.server.Nodes(ctx, allNodes, cluster.TypeProtobuf)
	if err != nil {
		return nil, err
	}
	for _, node := range nodeList.Items {
		served[node.Name] = node.Timestamp.Time
	}
	podList, err := f.server.Pods(ctx, allPods, cluster.TypeProtobuf)
	if err != nil {
		return nil, err
	}
	for _, pod := range podList.Items {
		served[pod.Namespace+"/"+pod.Name] = pod.Timestamp.Time
	}
	found := map[string]time.Time{}
	add := func(name string) {
		if at, ok := served[name]; ok {
			found[name] = at
		}
	}
	for i := range nodes {
		add(objects.NodeName(i))
	}
	for i := range f.pods() {
		if p := f.pod(i); p.Node < nodes {
			add(p.Namespace + "/" + p.Name)
		}
	}
	return found, nil
}

func (f *failures) print() {
	maxAge := (maxAgeIntervals * f.resolution).Seconds()
	t := newTable(fmt.Sprintf("%s: %d nodes, %d pods, resolution %s; %.0f %% of the scrapes fail for %s",
		filepath.Base(f.config.server), f.nodes, f.pods(), f.resolution, 100*f.failing, f.duration),
		"Measure", "measured", "goal")
	row := func(name, format string, value float64, goal string) {
		t.row(name, fmt.Sprintf(format, value), goal)
	}
	row("pods served, minimum", "%.2f %%", 100*percentile(f.served, 0), "100 %")
	row("pods served, mean", "%.2f %%", 100*mean(f.served), "100 %")
	row("oldest metrics served", "%.1f s", f.oldest, fmt.Sprintf("≤ %g s", maxAge+timestampUnit))
	row("age at which metrics of a stopped node expire, minimum", "%.1f s", percentile(f.expired, 0),
		fmt.Sprintf("≥ %g s", maxAge))
	row("age at which metrics of a stopped node expire, maximum", "%.1f s", percentile(f.expired, 100),
		fmt.Sprintf("≤ %g s", maxAge+timestampUnit+2*listPause.Seconds()))
	row("time until a node that is back is served, maximum", "%.1f s", percentile(f.back, 100),
		fmt.Sprintf("≤ %g s", f.resolution.Seconds()))
	t.print(os.Stdout)
	fmt.Printf("\nTimestamps are truncated to seconds, so an age may seem %g s too high. Metrics are listed every %s.\n",
		timestampUnit, listPause)
}
