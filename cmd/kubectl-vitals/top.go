package main

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-vitals/kube-vitals/internal/terminal"
	"github.com/kube-vitals/kube-vitals/pkg/top"
)

const topHelp = `top shows the usage of CPU and memory beside requests and limits, and why usage is missing: of
workloads (by default), pods (po), namespaces (ns) or nodes (no). docs/top.md describes the columns.

It exits with 0, with 1 if something could not be read, or with 2 if it has nothing to show.`

// gcPercent trades CPU time for memory: 30,000 pods need 90 MiB instead of 125 MiB (BenchmarkPods).
const gcPercent = 30

// kinds are the arguments that select what top shows.
var kinds = map[string]string{
	"workloads": top.Workloads, "workload": top.Workloads, "pods": top.Pods, "pod": top.Pods, "po": top.Pods,
	"namespaces": top.Namespaces, "namespace": top.Namespaces, "ns": top.Namespaces,
	"nodes": top.Nodes, "node": top.Nodes, "no": top.Nodes,
}

func (o *options) topCommand() *cobra.Command {
	c, all, timeout := &top.Config{Out: o.out, Interval: 5 * time.Second}, false, time.Duration(0)
	cmd := &cobra.Command{
		Use:   "top [workloads|pods|namespaces|nodes] [NAME...]",
		Short: "Show usage beside requests and limits, and why usage is missing", Long: topHelp,
		Example: "  kubectl vitals top --all-namespaces --sort-by=cpu-percent\n" +
			"  kubectl vitals top pods --namespace=shop --selector=app=web --containers\n" +
			"  kubectl vitals top nodes --watch",
	}
	flags := cmd.Flags()
	flags.StringVarP(&c.Namespace, "namespace", "n", "",
		"the namespace (default: that of the context; of namespaces: all)")
	flags.BoolVarP(&all, "all-namespaces", "A", false, "show all namespaces")
	flags.StringVarP(&c.Selector, "selector", "l", "", "a label selector of pods, or with nodes of nodes")
	flags.StringVar(&c.FieldSelector, "field-selector", "", "a field selector of pods, or with nodes of nodes")
	flags.BoolVar(&c.Containers, "containers", false, "with pods: show each container")
	flags.StringVar(&c.SortBy, "sort-by", "name",
		"the order: name, cpu, memory, or one of these with -request, -limit, -allocatable or -percent (cpu-percent)")
	flags.BoolVar(&c.NoHeaders, "no-headers", false, "print no header and no total")
	flags.StringVarP(&c.Output, "output", "o", "", "the format of the output: wide, json, yaml or name (default: a table)")
	flags.BoolVarP(&c.Watch, "watch", "w", false, "show it again every 5 seconds")
	flags.DurationVar(&timeout, "timeout", 30*time.Second, "the timeout of each request")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var errs []error
		if c.Kind = top.Workloads; len(args) > 0 {
			if c.Kind, c.Names = kinds[args[0]], args[1:]; c.Kind == "" {
				errs = append(errs, fmt.Errorf("top shows workloads, pods, namespaces or nodes, not %q", args[0]))
			}
		}
		if timeout <= 0 {
			errs = append(errs, fmt.Errorf("--timeout must be above 0, but is %v", timeout))
		}
		client, namespace, err := o.connect()
		if errs = append(errs, c.Validate(), err); errors.Join(errs...) != nil {
			return errors.Join(errs...)
		}
		if all || c.Kind == top.Nodes {
			c.Namespace = ""
		} else if c.Namespace == "" && c.Kind != top.Namespaces {
			c.Namespace = namespace
		}
		debug.SetGCPercent(gcPercent)
		client.Timeout, client.UserAgent = timeout, "kube-vitals-top/"+version
		c.Client, c.ErrOut, c.Screen = client, cmd.ErrOrStderr(), terminal.Of(o.out)
		complete, err := top.Run(cmd.Context(), *c)
		if err == nil && !complete {
			o.code = exitBroken
		}
		return err
	}
	return cmd
}
