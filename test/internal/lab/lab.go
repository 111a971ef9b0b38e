// Package lab puts all parts together, for tests and for the demo: a control plane, simulated
// nodes, and the built kube-vitals, installed by its chart.
package lab

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/server"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// Config says what to start.
type Config struct {
	Binary   string // the built kube-vitals; empty: what server.Binary finds
	Nodes    int
	Progress io.Writer // where to write what is being done
}

// Lab is a running cluster with metrics.k8s.io. Stop ends it.
type Lab struct {
	*cluster.Cluster
	Simulation *simulation.Simulation
	Server     *server.Server
	KubeVitals string // the built program
	Chart      string // the chart's folder
}

// Start builds what has not been built yet but kube-vitals itself, and starts everything.
func Start(ctx context.Context, cfg Config) (*Lab, error) {
	checkout, err := binaries.Checkout(ctx)
	if err != nil {
		return nil, err
	}
	binary := cfg.Binary
	if binary == "" {
		if binary, err = server.Binary(checkout); err != nil {
			return nil, err
		}
	}
	programs, err := binaries.Build(ctx, cfg.Progress)
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, cluster.Config{Binaries: programs, Progress: cfg.Progress})
	if err != nil {
		return nil, err
	}
	l := &Lab{Cluster: c, KubeVitals: binary, Chart: filepath.Join(checkout, "charts", "kube-vitals")}
	if err := l.start(ctx, cfg); err != nil {
		l.Stop()
		return nil, err
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context, cfg Config) (err error) {
	fmt.Fprintf(cfg.Progress, "starting %d nodes, each with a kubelet on an address of its own\n", cfg.Nodes)
	l.Simulation, err = simulation.New(ctx, simulation.Config{Client: l.Client, CA: l.CA, Log: cfg.Progress})
	if err != nil {
		return err
	}
	for i := range cfg.Nodes {
		if err := l.Simulation.AddNode(ctx, Node(i+1)); err != nil {
			return err
		}
	}
	fmt.Fprintln(cfg.Progress, "installing the chart with helm, and starting kube-vitals with its ServiceAccount and flags")
	l.Server, err = server.Start(ctx, l.Cluster, server.Config{Binary: l.KubeVitals, Chart: l.Chart})
	return err
}

// Node is the i-th node of a lab: in one of three zones, and every second one with swap.
func Node(i int) simulation.Node {
	return simulation.Node{
		Name:   fmt.Sprintf("node-%02d", i),
		Labels: map[string]string{corev1.LabelTopologyZone: string(rune('a' + i%3))},
		Swap:   i%2 == 0,
	}
}

// Stop ends everything.
func (l *Lab) Stop() {
	if l.Simulation != nil {
		l.Simulation.Close() // first, or it would complain that the API server is gone
	}
	l.Cluster.Stop()
}
