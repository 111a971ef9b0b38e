// Command bench measures what a metrics server costs in a large cluster, and prints Markdown tables.
//
// etcd, kube-apiserver and the metrics server are real, and etcd holds Node and Pod objects of
// realistic size. The kubelets are simulated: each has a loopback address and a certificate of its
// own, and the metrics server verifies every connection.
//
// Without -only, bench measures which metrics are served when after a start, CPU and memory while
// the server scrapes, and CPU and latency of typical requests, which go directly to the server. CPU
// is the process time (user and system) in /proc, so kubelets and clients do not count. If -beside
// names another server, it is measured next, in the same cluster, and the table has the ratio of the
// two.
//
// With -only, bench measures something else: "limit"
// (whether the server holds the chart's memory limit under the worst loads), "scale" (one row of a
// CSV file for each size of the cluster and each server, which the command "bench plot" draws),
// "attack" (whether it does when clients attack it, and still serves others),
// "profile" (what owns the memory and CPU of a server that only scrapes),
// "slow" (which metrics of slow kubelets are served, and how many requests these get),
// "reaction" (how soon HorizontalPodAutoscalers react to a load, and how often they do without need),
// "autoscalers" (what up to 2000 of them cost, and how often they read) or
// "rules" (how soon they react in virtual time, for different windows of a rate and kinds of kubelets, and how far
// first rates are off).
//
// Everything listens on loopback addresses, uses a temporary folder, and ends with this program.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

// measurements are the values of -only.
var measurements = map[string]func(context.Context, config, shape) error{
	"":         inCluster(measureCost),
	"attack":   inCluster(measureAttacks),
	"limit":    inCluster(measureLimit),
	"scale":    inCluster(measureScale),
	"profile":  inCluster(measureProfile),
	"slow":     inCluster(measureSlow),
	"reaction": measureReaction, "autoscalers": measureAutoscalers,
	"rules": func(context.Context, config, shape) error {
		simulateRules()
		simulateKubelets()
		simulateFastReads()
		simulateSteady()
		simulateFirst()
		return nil
	},
}

// inCluster returns a function that starts a cluster, measures something in it, and stops it.
func inCluster(measure func(context.Context, *bench) error) func(context.Context, config, shape) error {
	return func(ctx context.Context, cfg config, s shape) error {
		b, err := newBench(ctx, cfg, s, housekeeping)
		if err != nil {
			return err
		}
		defer b.close()
		return measure(ctx, b)
	}
}

func main() { program.Main("bench", run) }

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == plotCommand {
		return runPlot(args[1:])
	}
	cfg, err := parse(args)
	if err != nil {
		return err
	}
	for _, s := range cfg.sizes {
		if err := measurements[cfg.only](ctx, cfg, s); err != nil {
			return fmt.Errorf("with %d nodes: %w", s.nodes, err)
		}
	}
	return nil
}

// config are the flags.
type config struct {
	server     string
	beside     string
	serverArgs []string
	only       string
	sizes      []shape
	rounds     int
	resolution time.Duration
	csv        string // file
	match      string // of names of attacks and modes
}

// parseSizes parses sizes such as 100 or 20000x5.
func parseSizes(text string) (sizes []shape, err error) {
	for field := range strings.SplitSeq(strings.ReplaceAll(text, " ", ""), ",") {
		s := shape{perNode: podsPerNode}
		_, _ = fmt.Sscanf(field, "%dx%d", &s.nodes, &s.perNode)
		isSize := slices.Contains([]string{fmt.Sprint(s.nodes), fmt.Sprintf("%dx%d", s.nodes, s.perNode)}, field)
		if !isSize || s.nodes < 1 || s.nodes > 20000 || s.perNode < 5 || s.perNode > 250 {
			err = errors.Join(err, fmt.Errorf(
				"-nodes: %q is not a number from 1 to 20000, or followed by x and a number of pods from 5 to 250", field))
		}
		sizes = append(sizes, s)
	}
	return sizes, err
}

func parse(args []string) (cfg config, err error) {
	names := slices.Sorted(maps.Keys(measurements))[1:]
	flags := program.Flags("bench")
	flags.StringVar(&cfg.server, "server", "", "the `executable` to measure: kube-vitals or metrics-server")
	flags.StringVar(&cfg.beside, "beside", "", "another `executable` to measure in the same cluster")
	flags.StringVar(&cfg.only, "only", "", "another `measurement`: "+strings.Join(names, ", "))
	nodes := flags.String("nodes", "1000", "`numbers` of nodes, such as 100,1000,5000; 20000x5: with 5 pods on each")
	flags.IntVar(&cfg.rounds, "rounds", 3, "how often to measure; tables show the medians")
	flags.DurationVar(&cfg.resolution, "metric-resolution", 15*time.Second, "the interval between two scrapes of a node")
	flags.StringVar(&cfg.csv, "csv", "", "for -only=scale: append rows to this `file`")
	flags.StringVar(&cfg.match, "match", "", "for -only=attack and reaction: only the rows whose names have this `text`")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	cfg.serverArgs = flags.Args()
	cfg.sizes, err = parseSizes(*nodes)
	errs := []error{err, process.CheckExecutable("-server", cfg.server)}
	if cfg.beside != "" {
		errs = append(errs, process.CheckExecutable("-beside", cfg.beside))
		if !slices.Contains([]string{"", "scale", "slow", "reaction", "autoscalers"}, cfg.only) {
			errs = append(errs, fmt.Errorf("-beside: cannot be combined with -only=%s", cfg.only))
		}
	}
	if measurements[cfg.only] == nil {
		errs = append(errs, fmt.Errorf("-only: %q is not one of %q", cfg.only, names))
	}
	if cfg.rounds < 1 || cfg.resolution < time.Second {
		errs = append(errs, errors.New("-rounds must be at least 1, and -metric-resolution at least 1s"))
	}
	return cfg, errors.Join(errs...)
}
