package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

const (
	nodes    = 20
	maxLines = 12 // shown of a table that has more lines than there are nodes

	metricsTimeout = 2 * time.Minute
	scaleTimeout   = 3 * time.Minute
)

// demo is a running demonstration.
type demo struct {
	*cluster.Cluster
	out     io.Writer
	started time.Time
}

// run shows every step and, unless once is set, keeps the cluster up until the context ends.
func run(ctx context.Context, out io.Writer, once bool) error {
	d := &demo{out: out, started: time.Now()}
	d.step("Starting a cluster on this machine")
	c, err := cluster.Start(ctx, cluster.Config{Progress: &indented{out}, Nodes: simulation.Nodes(nodes)})
	if err != nil {
		return err
	}
	defer c.Stop()
	d.Cluster = c
	if err := d.createWorkloads(ctx); err != nil {
		return err
	}
	d.step("Installing kube-vitals, and waiting for two samples of each pod")
	server, err := c.Install(ctx)
	if err != nil {
		return err
	}
	for _, show := range []func(context.Context) error{d.showTop, d.showAutoscaling, d.showVitals} {
		if err := show(ctx); err != nil {
			return fmt.Errorf("%w%s", err, server.Tail())
		}
	}
	if once {
		d.step("Done: every step has shown what it should")
		return nil
	}
	return d.wait(ctx, server.Address)
}

// createWorkloads creates pods. They start while kube-vitals is installed.
func (d *demo) createWorkloads(ctx context.Context) error {
	d.step("Creating %d pods in %d namespaces", podCount(), len(namespaces))
	for _, n := range namespaces {
		if err := d.CreateNamespace(ctx, n.name); err != nil {
			return err
		}
	}
	return d.Apply(ctx, manifest())
}

// awaitMetrics waits until kubectl top pods shows n pods.
func (d *demo) awaitMetrics(ctx context.Context, n int, args ...string) error {
	return process.Poll(ctx, metricsTimeout, fmt.Sprintf("metrics of %d pods", n), func(ctx context.Context) error {
		table, err := d.Kubectl(ctx, append([]string{"top", "pods", "--no-headers"}, args...)...)
		if got := strings.Count(table, "\n"); err == nil && got != n {
			err = fmt.Errorf("%d pods have metrics", got)
		}
		return err
	})
}

// showTop shows tables of kubectl top as soon as all pods have metrics.
func (d *demo) showTop(ctx context.Context) error {
	if err := d.awaitMetrics(ctx, podCount(), "--all-namespaces"); err != nil {
		return err
	}
	d.step("kubectl top shows the current usage that kube-vitals serves as metrics.k8s.io")
	table, err := d.show(ctx, "top", "nodes")
	if err != nil {
		return err
	}
	if rows := strings.Count(table, "\n") - 1; rows != nodes {
		return fmt.Errorf("kubectl top nodes shows %d nodes, want %d", rows, nodes)
	}
	for _, args := range [][]string{
		{"top", "pods", "--all-namespaces", "--sort-by=cpu"},
		{"top", "pods", "--namespace=shop", "--selector=app=cart", "--containers"},
	} {
		if _, err := d.show(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// showAutoscaling changes the load of a Deployment, and waits for the autoscaler to follow.
func (d *demo) showAutoscaling(ctx context.Context) error {
	d.step("A HorizontalPodAutoscaler scales the Deployment web in namespace shop")
	d.note("Each pod requests 200m of CPU. The autoscaler adds and removes pods until the average")
	d.note("usage is 50%% of the request; it tolerates 45%% to 55%%. An annotation simulates the load,")
	d.note("which the pods share.")
	if err := d.scale(ctx, "100m", 1, 1); err != nil {
		return err
	}
	d.step("More load: 1000m are 50%% of the requests of 10 pods, and 45%% of those of 11")
	if err := d.scale(ctx, "1000m", 10, 11); err != nil {
		return err
	}
	d.step("Less load: 300m are 50%% of the requests of 3 pods")
	if err := d.scale(ctx, "300m", 3, 3); err != nil {
		return err
	}
	d.step("The autoscaler gave these reasons")
	_, err := d.show(ctx, "get", "events", "--namespace=shop", "--field-selector=reason=SuccessfulRescale",
		"--sort-by=.metadata.creationTimestamp", "--output=custom-columns=MESSAGE:.message")
	return err
}

// showVitals shows the plugin's tables, with the requests and the autoscaler.
func (d *demo) showVitals(ctx context.Context) error {
	d.step("kubectl vitals top shows usage beside requests, and what the autoscaler sees")
	plugin, err := d.Plugin()
	if err != nil {
		return err
	}
	for _, show := range []struct{ args, want string }{
		{"workloads --namespace=shop", "deployment/web "}, {"namespaces --sort-by=cpu", "media "},
		{"nodes --sort-by=cpu-percent", "node-"},
	} {
		args := append([]string{"top"}, strings.Fields(show.args)...)
		d.note("$ kubectl vitals %s", strings.Join(args, " "))
		table, err := d.Run(ctx, plugin, args...)
		if err != nil {
			return err
		}
		if !strings.Contains(table, show.want) || strings.Contains(table, " 0/") {
			return fmt.Errorf("it shows\n%s", table)
		}
		d.print(table)
	}
	return nil
}

// scale sets the load of the Deployment, waits until the autoscaler has settled at a number of
// replicas, and shows their usage. The autoscaler tolerates a deviation of a tenth from its target.
func (d *demo) scale(ctx context.Context, load string, least, most int) error {
	if _, err := d.show(ctx, "annotate", "deployment", "web", "--namespace=shop", "--overwrite",
		"simulation.kube-vitals/load=web="+load); err != nil {
		return err
	}
	var current, desired, percent int
	var shown string
	err := process.Poll(ctx, scaleTimeout, fmt.Sprintf("%d to %d replicas", least, most), func(ctx context.Context) error {
		status, err := d.Kubectl(ctx, "get", "hpa", "web", "--namespace=shop", "--output=jsonpath="+
			"{.status.currentReplicas} {.status.desiredReplicas} "+
			"{.status.currentMetrics[0].resource.current.averageUtilization}")
		if err != nil {
			return err
		}
		if _, err := fmt.Sscan(status, &current, &desired, &percent); err != nil {
			return fmt.Errorf("the autoscaler has no metrics yet: %q", status)
		}
		line := fmt.Sprintf("replicas: %2d, average CPU: %3d%% of the request", current, percent)
		if desired != current {
			line += fmt.Sprintf(", scaling to %d", desired)
		}
		if line != shown {
			d.note("  %s", line)
			shown = line
		}
		if current < least || current > most || desired != current || percent < 45 || percent > 55 {
			return errors.New(line)
		}
		return nil
	})
	if err != nil {
		return err
	}
	selected := []string{"--namespace=shop", "--selector=app=web"}
	// New pods appear in kubectl top after their second scrape, and the autoscaler does not wait.
	if err := d.awaitMetrics(ctx, current, selected...); err != nil {
		return err
	}
	_, err = d.show(ctx, append([]string{"top", "pods"}, selected...)...)
	return err
}

// wait keeps the cluster up until the context ends.
func (d *demo) wait(ctx context.Context, address string) error {
	plugin, err := d.Plugin()
	if err != nil {
		return err
	}
	d.step("The cluster stays up until you press Ctrl-C. Try it in another terminal:")
	fmt.Fprintf(d.out, `
  export KUBECONFIG=%s
  export PATH=%s:%s:$PATH      # kubectl, helm and the plugin

  kubectl vitals top --all-namespaces --watch
  kubectl top pods --all-namespaces --containers
  kubectl get --raw /apis/metrics.k8s.io/v1/nodes

  kubectl get hpa --namespace shop --watch           # see it follow the next command
  kubectl annotate deployment web --namespace shop --overwrite simulation.kube-vitals/load=web=800m

kube-vitals runs outside of the cluster, with --metric-resolution=5s, and logs to
%s
This prints the state of each node, and its metrics:

  alias vitals="kubectl --server=https://%s --insecure-skip-tls-verify get --raw"
  vitals '/nodez?format=json'
  vitals /metrics

`, d.Kubeconfig, d.Binary(""), filepath.Dir(plugin), d.File("kube-vitals.log"), address)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			d.step("Stopping the cluster")
			return nil
		case <-ticker.C:
			if err := d.Running(); err != nil {
				return err
			}
		}
	}
}

// show prints a kubectl command and the beginning of its output, and returns the whole output.
func (d *demo) show(ctx context.Context, args ...string) (string, error) {
	d.note("$ kubectl %s", strings.Join(args, " "))
	output, err := d.Kubectl(ctx, args...)
	if err != nil {
		return "", err
	}
	d.print(output)
	return output, nil
}

// print prints the beginning of the output of a command.
func (d *demo) print(output string) {
	lines := strings.Split(strings.TrimRight(output, "\n"), "\n")
	shown := lines
	if len(lines) > nodes+1 {
		shown = lines[:maxLines]
	}
	for _, line := range shown {
		d.note("  %s", strings.TrimRight(line, " "))
	}
	if hidden := len(lines) - len(shown); hidden > 0 {
		d.note("  … and %d more lines", hidden)
	}
}

// step prints the heading of a step, with the seconds since the start.
func (d *demo) step(format string, args ...any) {
	fmt.Fprintf(d.out, "==> [%3.0fs] %s\n", time.Since(d.started).Seconds(), fmt.Sprintf(format, args...))
}

// note prints an indented line.
func (d *demo) note(format string, args ...any) { fmt.Fprintf(d.out, "    "+format+"\n", args...) }

// indented indents each write, which must be a line.
type indented struct{ io.Writer }

func (w *indented) Write(line []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, "    "); err != nil {
		return 0, err
	}
	return w.Writer.Write(line)
}
