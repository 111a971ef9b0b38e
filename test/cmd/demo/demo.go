package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/lab"
	"github.com/kube-vitals/kube-vitals/test/internal/poll"
)

const (
	nodes     = 20
	tableHead = 12 // lines shown of a long table

	figuresTimeout = 2 * time.Minute
	scaleTimeout   = 3 * time.Minute
)

// demo is a demonstration that is under way.
type demo struct {
	*lab.Lab
	out     io.Writer
	started time.Time
}

// demonstrate shows everything and, unless it is to be done once, stays up until the context ends.
func demonstrate(ctx context.Context, out io.Writer, binary string, once bool) error {
	d := &demo{out: out, started: time.Now()}
	d.step("starting a cluster")
	l, err := lab.Start(ctx, lab.Config{Binary: binary, Nodes: nodes, Progress: &indented{out}})
	if err != nil {
		return err
	}
	defer l.Stop()
	d.Lab = l
	for _, show := range []func(context.Context) error{d.showWorkloads, d.showTop, d.showAutoscaling} {
		if err := show(ctx); err != nil {
			return fmt.Errorf("%w%s", err, l.Server.Tail())
		}
	}
	if once {
		d.step("all as it should be")
		return nil
	}
	return d.stay(ctx)
}

// showWorkloads creates pods, and waits until the figures of all are there.
func (d *demo) showWorkloads(ctx context.Context) error {
	d.step("creating %d pods in %d namespaces", podCount(), len(namespaces))
	for _, n := range namespaces {
		if err := d.CreateNamespace(ctx, n.name); err != nil {
			return err
		}
	}
	if err := d.Apply(ctx, manifest()); err != nil {
		return err
	}
	return poll.Until(ctx, figuresTimeout, "the figures of all pods", func(ctx context.Context) error {
		table, err := d.Run(ctx, binaries.Kubectl, "top", "pods", "--all-namespaces", "--no-headers")
		if err != nil {
			return err
		}
		if rows := strings.Count(table, "\n"); rows < podCount() {
			return fmt.Errorf("%d of %d pods have figures", rows, podCount())
		}
		return nil
	})
}

// showTop shows the tables.
func (d *demo) showTop(ctx context.Context) error {
	d.step("what they use")
	table, err := d.kubectl(ctx, "top", "nodes")
	if err != nil {
		return err
	}
	if rows := strings.Count(table, "\n") - 1; rows != nodes {
		return fmt.Errorf("kubectl top nodes shows %d nodes, not %d", rows, nodes)
	}
	for _, args := range [][]string{
		{"top", "pods", "--all-namespaces", "--sort-by=cpu"},
		{"top", "pods", "--namespace=shop", "--selector=app=cart", "--containers"},
	} {
		if _, err := d.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// showAutoscaling puts load on a Deployment and takes it away again, and waits for the autoscaler
// to follow.
func (d *demo) showAutoscaling(ctx context.Context) error {
	d.step("a HorizontalPodAutoscaler holds Deployment shop/web at 50%% of the CPU that its pods request")
	if err := d.scaleTo(ctx, "100m", 1, 1); err != nil {
		return err
	}
	d.step("load: a whole core")
	if err := d.scaleTo(ctx, "1", 10, 11); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, "top", "pods", "--namespace=shop", "--selector=app=web"); err != nil {
		return err
	}
	d.step("load: a third of it")
	if err := d.scaleTo(ctx, "300m", 3, 3); err != nil {
		return err
	}
	_, err := d.kubectl(ctx, "get", "events", "--namespace=shop", "--field-selector=reason=SuccessfulRescale",
		"--sort-by=.metadata.creationTimestamp")
	return err
}

// scaleTo sets the load of the Deployment, in cores, and waits until the autoscaler has settled.
// The least and the most replicas are those that use within a tenth of half of what they request:
// an autoscaler leaves that alone.
func (d *demo) scaleTo(ctx context.Context, cores string, least, most int32) error {
	if _, err := d.kubectl(ctx, "annotate", "deployment", "web", "--namespace=shop", "--overwrite",
		"simulation.kube-vitals/load=web="+cores); err != nil {
		return err
	}
	var shown string
	return poll.Until(ctx, scaleTimeout, fmt.Sprintf("%d to %d replicas", least, most), func(ctx context.Context) error {
		hpa, err := d.Client.AutoscalingV2().HorizontalPodAutoscalers("shop").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		now := describe(hpa)
		if now != shown {
			fmt.Fprintf(d.out, "      %s\n", now)
			shown = now
		}
		replicas, percent := hpa.Status.CurrentReplicas, utilization(hpa)
		if replicas < least || replicas > most || hpa.Status.DesiredReplicas != replicas ||
			percent == nil || *percent < 45 || *percent > 55 {
			return errors.New(now)
		}
		return nil
	})
}

// describe is an autoscaler's status in a line.
func describe(hpa *autoscalingv2.HorizontalPodAutoscaler) string {
	cpu := "unknown"
	if percent := utilization(hpa); percent != nil {
		cpu = fmt.Sprintf("%d%%", *percent)
	}
	return fmt.Sprintf("cpu %s of 50%%, replicas %d, wanted %d", cpu, hpa.Status.CurrentReplicas, hpa.Status.DesiredReplicas)
}

// utilization is the CPU that an autoscaler sees, in percent of what the pods request; nil where it
// sees none.
func utilization(hpa *autoscalingv2.HorizontalPodAutoscaler) *int32 {
	for _, m := range hpa.Status.CurrentMetrics {
		if m.Resource != nil && m.Resource.Name == corev1.ResourceCPU {
			return m.Resource.Current.AverageUtilization
		}
	}
	return nil
}

// stay keeps everything up until the context ends.
func (d *demo) stay(ctx context.Context) error {
	d.step("all of it stays up until you press Ctrl-C; in another terminal:")
	fmt.Fprintf(d.out, `
  export KUBECONFIG=%s
  export PATH=%s:$PATH      # kubectl, kubectl-1.37 and helm
  kubectl top pods -A --containers
  kubectl get hpa -n shop -w
  kubectl annotate deployment web -n shop --overwrite simulation.kube-vitals/load=web=800m
  kubectl get --raw /apis/metrics.k8s.io/v1/nodes

kube-vitals serves on https://%s, its log is %s.

`, d.Kubeconfig, d.Binary(""), d.Server.Address, d.File("kube-vitals.log"))
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			d.step("ending all of it")
			return nil
		case <-ticker.C:
			if err := d.Running(); err != nil {
				return err
			}
		}
	}
}

// kubectl shows a command and the head of its output, and returns the whole.
func (d *demo) kubectl(ctx context.Context, args ...string) (string, error) {
	fmt.Fprintf(d.out, "    $ kubectl %s\n", strings.Join(args, " "))
	output, err := d.Run(ctx, binaries.Kubectl, args...)
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimRight(output, "\n"), "\n")
	rest := len(lines) - tableHead
	if len(lines) <= nodes+1 { // a table that fits is shown whole
		rest = 0
	}
	for _, line := range lines[:len(lines)-max(0, rest)] {
		fmt.Fprintf(d.out, "      %s\n", line)
	}
	if rest > 0 {
		fmt.Fprintf(d.out, "      … and %d more\n", rest)
	}
	return output, nil
}

// step says what comes next, and how much time has passed.
func (d *demo) step(format string, args ...any) {
	fmt.Fprintf(d.out, "==> [%3.0fs] %s\n", time.Since(d.started).Seconds(), fmt.Sprintf(format, args...))
}

// indented writes lines further to the right.
type indented struct{ io.Writer }

func (w *indented) Write(line []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, "    "); err != nil {
		return 0, err
	}
	return w.Writer.Write(line)
}
