package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

const (
	// settling is the time from the last new autoscaler to the measurement.
	settling = 2 * syncPeriod
	// probePause is the time between two lists whose latency is measured. They are lists like those of autoscalers.
	probePause = 50 * time.Millisecond
)

// autoscalerCounts are how many autoscalers there are, one after the other in the same cluster.
func autoscalerCounts() []int { return []int{0, 100, 1000, 2000} }

// measureAutoscalers measures what many autoscalers cost each server, and how often they read.
func measureAutoscalers(ctx context.Context, cfg config, s shape) error {
	title := fmt.Sprintf("Autoscalers of %d pods that read every %s: %d nodes", podsPerAutoscaler, syncPeriod, s.nodes)
	t := newTable(title, "server", "autoscalers", "read every", "LIST: p50", "p99", "CPU, cores", "of a LIST, ms")
	for _, executable := range []string{cfg.server, cfg.beside} {
		if executable == "" {
			continue
		}
		m := mode{name: filepath.Base(executable), beside: executable == cfg.beside, period: syncPeriod}
		if err := measureCounts(ctx, cfg, m, s, t); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	t.print()
	return nil
}

// measureCounts adds a row for each number of autoscalers.
func measureCounts(ctx context.Context, cfg config, m mode, s shape, t *table) (err error) {
	counts := autoscalerCounts()
	r := &reaction{mode: m, autoscalers: steadyAutoscalers(s, counts[len(counts)-1]), decisions: map[string]decisions{}}
	if r.bench, err = newBench(ctx, cfg, s, 0, r.autoscalers...); err != nil {
		return err
	}
	defer r.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.startAll(ctx); err != nil {
		return err
	}
	created, idle := 0, 0.0
	for _, n := range counts {
		if err := r.createAutoscalers(ctx, spread(r.autoscalers[created:n], m.period)); err != nil {
			return err
		}
		created = n
		program.Logf("%s: waiting for %d autoscalers to settle", r.name, n)
		if err := program.Sleep(ctx, settling); err != nil {
			return err
		}
		cores, lists, latencies, err := r.observeReads(ctx)
		if err != nil {
			return err
		}
		period, perList := "", ""
		if n == 0 {
			idle = cores
		} else {
			period, perList = fmt.Sprintf("%.1f s", float64(n)/lists), fmt.Sprintf("%.2f", 1e3*(cores-idle)/lists)
		}
		t.row(r.name, fmt.Sprint(n), period, fmt.Sprintf("%.1f ms", percentile(latencies, 50)),
			fmt.Sprintf("%.1f ms", percentile(latencies, 99)), fmt.Sprintf("%.3f", cores), perList)
	}
	return r.cluster.Running()
}

// steadyAutoscalers returns autoscalers whose pods are as busy as these want.
func steadyAutoscalers(s shape, n int) []autoscaler {
	list := make([]autoscaler, n)
	for i := range list {
		list[i].name = fmt.Sprintf("steady-%04d", i)
		for j := range podsPerAutoscaler {
			index := podsPerAutoscaler*i + j
			pod := objects.NewPod(reactionNamespace, list[i].name, index%s.nodes, s.pods()+index)
			pod.Containers = 1
			list[i].pods, list[i].loads = append(list[i].pods, pod), append(list[i].loads, load{{0, target}})
		}
	}
	return list
}

// spread sets when autoscalers are created: at equal distances in the period.
func spread(list []autoscaler, period time.Duration) []autoscaler {
	for i := range list {
		list[i].phase = period * time.Duration(i) / time.Duration(len(list))
	}
	return list
}

// observeReads returns the CPU of the server, how many lists the controller requests per second, and the latency of
// lists in milliseconds.
func (r *reaction) observeReads(ctx context.Context) (cores, lists float64, latencies []float64, err error) {
	before, err := r.countLists(ctx)
	if err != nil {
		return 0, 0, nil, err
	}
	u, elapsed, err := usageDuring(r.server.Process, func() error {
		for start := time.Now(); time.Since(start) < time.Duration(r.rounds)*r.period; {
			a := r.autoscalers[len(latencies)%len(r.autoscalers)]
			sent := time.Now()
			if err := selectorRequest(reactionNamespace, a.name, podsPerAutoscaler, 0).discard(ctx, r.server); err != nil {
				return err
			}
			latencies = append(latencies, 1e3*time.Since(sent).Seconds())
			if err := program.Sleep(ctx, probePause); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, 0, nil, err
	}
	after, err := r.countLists(ctx)
	lists = (after - before - float64(len(latencies))) / elapsed.Seconds()
	return u.CPU.Seconds() / elapsed.Seconds(), lists, latencies, err
}

// countLists returns the number of lists of pods that the server has served.
func (r *reaction) countLists(ctx context.Context) (n float64, err error) {
	telemetry, err := r.server.Telemetry(ctx)
	for series, value := range telemetry {
		isList := strings.Contains(series, `resource="pods"`) && strings.Contains(series, `verb="LIST"`)
		if strings.HasPrefix(series, "apiserver_request_total{") && isList {
			n += value
		}
	}
	return n, err
}
