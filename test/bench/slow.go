package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"time"

	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

const (
	// slowWarmUp is the time until every kubelet that responds has done so a few times.
	slowWarmUp = 2 * time.Minute
	// slowPause is the time between two lists of all pods.
	slowPause = 5 * time.Second
)

// slowDelays are how long kubelets take to respond, each on an equal share of the nodes; 0: they never do. Their
// samples are from the arrival of the request, or up to 10 seconds before.
func slowDelays() []time.Duration {
	return []time.Duration{time.Millisecond, 5 * time.Second, 12 * time.Second, 25 * time.Second, 0}
}

// slowGroup is what is served of the nodes with one delay.
type slowGroup struct {
	pods, served int // in all lists
	ages         []float64
	begun        int // requests for metrics
}

// measureSlow measures which metrics of slow kubelets each server has, and what it asks of them.
func measureSlow(ctx context.Context, b *bench) error {
	delays, nodes := slowDelays(), map[string]int{}
	for i, k := range b.kubelets {
		if delay := delays[i%len(delays)]; delay > 0 {
			k.SetFaults(kubelettest.Late(delay))
		} else {
			k.SetFaults(kubelettest.Hang)
		}
	}
	for i := range b.pods() {
		p := b.pod(i)
		nodes[p.Namespace+"/"+p.Name] = p.Node
	}
	t := newTable(fmt.Sprintf("Metrics of slow kubelets, %d nodes, for %d minutes", b.nodes, b.rounds),
		"server", "kubelets respond after", "pods served", "age p50", "age max", "requests a minute and kubelet")
	args := b.serverArgs // of the first server
	for _, executable := range []string{b.server, b.beside} {
		if executable == "" {
			continue
		}
		groups, err := b.observeSlow(ctx, executable, args, nodes)
		if err != nil {
			return fmt.Errorf("%s: %w", executable, err)
		}
		for i, g := range groups {
			delay := "never"
			if delays[i] > 0 {
				delay = delays[i].String()
			}
			kubelets := (b.nodes - i + len(delays) - 1) / len(delays)
			t.row(filepath.Base(executable), delay, fmt.Sprintf("%.1f %%", 100*float64(g.served)/float64(max(1, g.pods))),
				fmt.Sprintf("%.0f s", median(g.ages)), fmt.Sprintf("%.0f s", percentile(g.ages, 100)),
				fmt.Sprintf("%.1f", float64(g.begun)/float64(max(1, kubelets)*b.rounds)))
		}
		args = nil
	}
	t.print()
	return nil
}

// observeSlow runs a server, and lists all pods for some minutes. nodes has the node of each pod.
func (b *bench) observeSlow(
	ctx context.Context, executable string, args []string, nodes map[string]int,
) ([]slowGroup, error) {
	program.Logf("starting %s", executable)
	server, err := b.cluster.StartStandalone(executable, b.resolution, args...)
	if err != nil {
		return nil, err
	}
	defer stopServer(server)
	if err := program.Sleep(ctx, slowWarmUp); err != nil {
		return nil, err
	}
	groups := make([]slowGroup, len(slowDelays()))
	group := func(node int) *slowGroup { return &groups[node%len(groups)] }
	for i, k := range b.kubelets {
		group(i).begun -= k.Requests(kubelettest.ResourcePath)
	}
	for end := time.Now().Add(time.Duration(b.rounds) * time.Minute); time.Now().Before(end); {
		list, err := b.listUsage(ctx, server)
		if err != nil {
			return nil, err
		}
		for _, node := range nodes {
			group(node).pods++
		}
		for i := range list.Items {
			pod := &list.Items[i]
			g := group(nodes[pod.Namespace+"/"+pod.Name])
			g.served++
			g.ages = append(g.ages, time.Since(pod.Timestamp.Time).Seconds())
		}
		if err := program.Sleep(ctx, slowPause); err != nil {
			return nil, err
		}
	}
	for i, k := range b.kubelets {
		group(i).begun += k.Requests(kubelettest.ResourcePath)
	}
	return groups, server.Process.Running()
}

// listUsage lists the usage of all pods.
func (b *bench) listUsage(ctx context.Context, server *cluster.Standalone) (*metricsv1beta1.PodMetricsList, error) {
	response, err := b.listPods("JSON", cluster.TypeJSON).send(ctx, server)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	list := &metricsv1beta1.PodMetricsList{}
	return list, json.Unmarshal(body, list)
}
