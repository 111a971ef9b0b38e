// Command bench measures what a metrics server costs in a large cluster, and prints Markdown
// tables.
//
// etcd, kube-apiserver and the metrics server are real, and etcd holds Node and Pod objects of
// realistic size. The kubelets are simulated by a second process: each has a loopback address and a
// certificate of its own, and the metrics server verifies every connection.
//
// Without -only, bench measures how long it takes until all metrics are served, CPU and memory
// while the server scrapes, and CPU and latency of typical requests, which go directly to the
// server. CPU is the process time (user and system) in /proc, so kubelets and clients do not count.
// For comparison, a third process downloads the same kubelet responses with net/http and discards
// them.
//
// With -prometheus, the server reads its metrics from a Prometheus that scrapes the kubelets, whose
// CPU and memory are measured too. If -beside names prometheus-adapter, it reads from the same
// Prometheus, and the CPU of Prometheus is measured for each request. Any other server that -beside
// names scrapes the kubelets itself.
//
// With -only, bench measures something else: "start" (which metrics are served when), "failures"
// (what is served while scrapes fail, and when the metrics of removed nodes expire), "newpods" (how
// soon new pods have metrics), "limit" (whether the server
// holds the chart's memory limit under the worst loads), "scale" (one row of a CSV file for each
// size of the cluster and each server, which the command "bench plot" draws) or "reaction" (how soon
// HorizontalPodAutoscalers react to a load, and how often they do without need).
//
// Everything listens on loopback addresses, uses a temporary folder, and ends with this program.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// measurements are the values of -only.
var measurements = map[string]struct {
	measure   func(context.Context, *bench) error
	inProcess bool // run the kubelets in this process, to change what they do
}{
	"":               {measureCost, false},
	"start":          {measureStart, false},
	"failures":       {measureFailures, true},
	"newpods":        {measureNewPods, true},
	"limit":          {measureLimit, true},
	scaleMeasurement: {measureScale, false},
	reactionOnly:     {}, // starts its own clusters
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		stop()
		os.Exit(1)
	}
}

// run runs the process that the arguments name: bench starts itself as its helper processes.
func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case kubeletsProcess:
			return runKubelets(ctx, args[1:])
		case downloadProcess:
			return runDownload(ctx, args[1:])
		case plotCommand:
			return runPlot(args[1:], os.Stdout)
		}
	}
	cfg, err := parse(args)
	if err != nil {
		return err
	}
	for _, s := range cfg.sizes {
		if err := measure(ctx, cfg, s); err != nil {
			return fmt.Errorf("with %d nodes: %w", s.nodes, err)
		}
	}
	return nil
}

func measure(ctx context.Context, cfg config, s size) error {
	if cfg.only == reactionOnly {
		return measureReaction(ctx, cfg, s)
	}
	m := measurements[cfg.only]
	b, err := newBench(ctx, cfg, s, m.inProcess)
	if err != nil {
		return err
	}
	defer b.close()
	return m.measure(ctx, b)
}

// config are the flags.
type config struct {
	kubeletOptions
	reactionOptions
	server           string
	beside           string
	prometheus       string
	serverArgs       []string
	only             string
	sizes            []size
	containersPerPod int
	rounds           int
	duration         time.Duration
	failing          float64
	rate             float64
	resolution       time.Duration
	limit            uint64 // bytes
	burst            int
	keep             bool
	agents           []string
	file             string
	smallObjects     bool
	minFree          int
}

// size is how many nodes a cluster has, and how many pods each of them has.
type size struct{ nodes, pods int }

// parseSizes parses sizes such as 100 or 20000x5.
func parseSizes(text string, pods int) (sizes []size, err error) {
	for field := range strings.SplitSeq(text, ",") {
		s := size{pods: pods}
		nodes, own, hasOwn := strings.Cut(strings.TrimSpace(field), "x")
		var errs [2]error
		s.nodes, errs[0] = strconv.Atoi(nodes)
		if hasOwn {
			s.pods, errs[1] = strconv.Atoi(own)
		}
		if errors.Join(errs[:]...) != nil || s.nodes < 1 || s.nodes > 20000 || s.pods < 5 || s.pods > 250 {
			err = errors.Join(err, fmt.Errorf(
				"-nodes: %q is not a number from 1 to 20000, or followed by x and a number of pods from 5 to 250", field))
		}
		sizes = append(sizes, s)
	}
	return sizes, err
}

func parse(args []string) (cfg config, err error) {
	var nodes string
	var pods int
	onDemand := "" // not set
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&cfg.server, "server", "", "the `executable` to measure: kube-vitals or metrics-server")
	flags.StringVar(&cfg.beside, "beside", "", "another `executable` to measure in the same cluster")
	flags.StringVar(&cfg.prometheus, "prometheus", "", "the `executable` of a Prometheus, from which kube-vitals reads")
	flags.StringVar(&cfg.only, "only", "",
		"another `measurement`: start, failures, newpods, limit, scale or reaction")
	flags.StringVar(&nodes, "nodes", "1000", "`numbers` of nodes, such as 100,1000,5000; 20000x5: with 5 pods on each")
	flags.IntVar(&pods, "pods", podsPerNode, "`number` of pods on each node")
	flags.IntVar(&cfg.containersPerPod, "containers", containersPerPod, "`number` of containers in each pod")
	flags.IntVar(&cfg.rounds, "rounds", 3, "how often to measure; tables show the medians")
	flags.DurationVar(&cfg.duration, "duration", 3*time.Minute, "how long to measure -only=failures, newpods or reaction")
	flags.Float64Var(&cfg.failing, "failing", 0.3, "for -only=failures: the `share` of scrapes that fail, 0 to 1")
	flags.Float64Var(&cfg.rate, "rate", 1, "for -only=newpods: how many pods start per second")
	flags.Float64Var(&cfg.idle, "idle", 0.1, "the `share` of containers that use no CPU, 0 to 1")
	flags.BoolFunc("on-demand", "kubelets sample containers for each request, not every 10s; "+
		"the default of -only=reaction", func(value string) error {
		set, err := strconv.ParseBool(value)
		onDemand = strconv.FormatBool(set)
		return err
	})
	flags.DurationVar(&cfg.resolution, "metric-resolution", 15*time.Second, "the interval between two scrapes of a node")
	limit := flags.Uint64("memory-limit", 1024, "for -only=limit: the memory limit in `MiB`, by default that of the chart")
	flags.IntVar(&cfg.burst, "burst", 390, "for -only=limit: how many `requests` are sent at once")
	flags.Func("agent", "for -only=scale: the `executable` of a Prometheus to measure in agent mode, or of a vmagent",
		func(path string) error { cfg.agents = append(cfg.agents, path); return nil })
	flags.StringVar(&cfg.file, "csv", "", "for -only=scale: the `file` to which rows are appended")
	flags.BoolVar(&cfg.smallObjects, "small-objects", false,
		"write nodes and pods without what no metrics server reads, so that larger clusters fit on this machine")
	flags.IntVar(&cfg.minFree, "min-free", 1, "for -only=scale: stop if this machine has less free memory, in `GiB`")
	cfg.addReactionFlags(flags)
	flags.BoolVar(&cfg.keep, "keep", false, "keep the temporary folder with logs and certificates")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), "usage: bench -server=EXECUTABLE [flags] [-- flags of the server]\n\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	cfg.serverArgs, cfg.limit = flags.Args(), *limit<<20
	switch {
	case cfg.only == "newpods":
		cfg.onDemand = "odd" // to compare both
	case onDemand == "true", onDemand == "" && cfg.only == reactionOnly:
		cfg.onDemand = "all"
	}
	cfg.sizes, err = parseSizes(nodes, pods)
	if pods < 5 || pods > 250 {
		err = errors.Join(err, fmt.Errorf("-pods: %d is not from 5 to 250", pods))
	}
	return cfg, errors.Join(err, cfg.validate())
}

func (cfg config) validate() error {
	errs := []error{process.CheckExecutable("-server", cfg.server)}
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	if cfg.beside != "" {
		errs = append(errs, process.CheckExecutable("-beside", cfg.beside))
		check(cfg.only == "" || cfg.only == scaleMeasurement || cfg.only == reactionOnly,
			"-beside: cannot be combined with -only=%s", cfg.only)
	}
	if cfg.prometheus != "" {
		errs = append(errs, process.CheckExecutable("-prometheus", cfg.prometheus))
		check(cfg.only == "", "-prometheus: cannot be combined with -only")
	}
	for _, agent := range cfg.agents {
		errs = append(errs, process.CheckExecutable("-agent", agent))
		check(cfg.only == scaleMeasurement, "-agent: requires -only=scale")
	}
	check(cfg.file == "" || cfg.only == scaleMeasurement, "-csv: requires -only=scale")
	_, known := measurements[cfg.only]
	check(known, "-only: %q is not one of %q", cfg.only, slices.Sorted(maps.Keys(measurements))[1:])
	check(cfg.duration > 0, "-duration: %s is not positive", cfg.duration)
	check(cfg.failing >= 0 && cfg.failing <= 1, "-failing: %g is not from 0 to 1", cfg.failing)
	check(cfg.idle >= 0 && cfg.idle <= 1, "-idle: %g is not from 0 to 1", cfg.idle)
	check(cfg.rate > 0 && cfg.rate <= 100, "-rate: %g is not above 0 and up to 100", cfg.rate)
	check(cfg.containersPerPod >= 1 && cfg.containersPerPod <= 10, "-containers: %d is not from 1 to 10",
		cfg.containersPerPod)
	check(cfg.rounds >= 1, "-rounds: %d is less than 1", cfg.rounds)
	check(cfg.limit >= 1<<20 && cfg.limit <= 1<<40, "-memory-limit: %d MiB is not from 1 to 1048576", cfg.limit>>20)
	check(cfg.burst >= 1 && cfg.burst <= 10000, "-burst: %d is not from 1 to 10000", cfg.burst)
	if cfg.only == reactionOnly {
		errs = append(errs, cfg.validateReaction())
	}
	check(cfg.resolution >= time.Second, "-metric-resolution: %s is less than 1s", cfg.resolution)
	return errors.Join(errs...)
}

var started = time.Now()

// logf prints a line of progress with the seconds since the start of the program.
func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%4.0fs  %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
}

// sleep returns the cause of the context if that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
