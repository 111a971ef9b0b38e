package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

// printReaction prints the table, and how to read it.
func printReaction(w io.Writer, cfg config, nodes int, results []*reactionResult) {
	sampling := "sample containers for each request"
	if cfg.onDemand == "" {
		sampling = fmt.Sprintf("sample containers every %s", housekeeping)
	}
	phases := "the autoscalers of a node read at the same time"
	if cfg.ownPhases {
		phases = "each autoscaler reads at a time of its own"
	}
	t := newTable(fmt.Sprintf("Reaction of %d autoscalers for each load: %d nodes, %g %% with their pods; kubelets %s; %s",
		cfg.autoscalers, nodes, 100*cfg.watched, sampling, phases),
		"Mode", "scrapes a node and minute", "of watched nodes", "CPU",
		"first decision after a step: p50", "p95", "right decision: p50", "p95", "after the step down: p50",
		"behind a ramp: mean", "changes by spikes", "by noise")
	for _, r := range results {
		t.row(r.name, fmt.Sprintf("%.1f", r.scrapes), fmt.Sprintf("%.1f", r.scrapesWatched),
			fmt.Sprintf("%.1f m", r.millicores),
			seconds(percentile(r.first, 50)), seconds(percentile(r.first, 95)),
			seconds(percentile(r.right, 50)), seconds(percentile(r.right, 95)),
			seconds(percentile(r.down, 50)), seconds(mean(r.ramp)),
			fmt.Sprintf("%.1f", r.spikes), fmt.Sprintf("%.1f", r.noise))
	}
	t.print(w)
	fmt.Fprintf(w, "\nChanges of desiredReplicas are per autoscaler and hour; spikes and noise need none. ")
	fmt.Fprintf(w, "CPU is that of the server.\n")
	fmt.Fprintf(w, "Steps: %.0fm to %.0fm per pod, target %.0fm, %d pods, %d replicas are right.\n",
		1e3*stepLow, 1e3*stepHigh, 1e3*target, podsPerAutoscaler, stepReplicas)
	fmt.Fprintf(w, "The controller has its defaults, such as a read every %s. Scale-down stabilization is 0s in the "+
		"autoscalers,\nso that they return soon after a wrong decision.\n", syncPeriod)
	for _, r := range results {
		note := fmt.Sprintf("%d steps, %d ramp replicas", len(r.first), len(r.ramp))
		if r.skipped > 0 {
			note += fmt.Sprintf(", %d steps skipped because the autoscaler had not returned to the minimum", r.skipped)
		}
		fmt.Fprintf(w, "- %s: %s; flags: %s\n", r.name, note,
			strings.Join(append([]string{"--metric-resolution=" + r.resolution.String()}, r.args...), " "))
	}
}

// seconds formats a delay.
func seconds(v float64) string {
	if math.IsInf(v, 1) {
		return "never"
	}
	return fmt.Sprintf("%.1f s", v)
}

// writeReactionPlot writes the distribution of the time from a step to the right decision.
func writeReactionPlot(cfg config, results []*reactionResult) error {
	const limit = 60
	p := curvePlot{
		title:  "From a step of the load to the right number of replicas",
		x:      "seconds since the step",
		y:      "autoscalers that have decided, %",
		xLimit: limit,
		yLimit: 100,
	}
	for _, r := range results {
		l := distribution(r.name, slices.Sorted(slices.Values(r.right)), limit)
		l.dashed = r.beside
		p.curves = append(p.curves, l)
	}
	f, err := os.Create(cfg.plot)
	if err != nil {
		return err
	}
	return errors.Join(p.write(f), f.Close())
}
