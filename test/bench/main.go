// Command load measures what a metrics server costs in a large cluster, and prints a table.
//
// The cluster is simulated and real at once. Real are etcd and kube-apiserver, which hold Node and
// Pod objects with all the ballast that such objects have (annotations, managedFields, statuses),
// the kubelets' protocol, TLS verified on every connection, and the server under test, an unaltered
// executable. Simulated are the kubelets: thousands in one process, apart from the server, each on
// a loopback address and with a certificate of its own.
//
// Measured are the time until there are figures, CPU and memory while scraping, and CPU and latency
// of the usual requests, which go straight to the server. CPU is process time (user and system)
// from /proc, so that neither the kubelets nor the clients count; it is the median of several
// rounds. In the same run, a process that does nothing but fetch the same answers, and throws them
// away, shows the floor: what no server can go below.
//
// With --only, it measures one thing instead: "start", when there are which figures; "failures",
// what is served while a share of all scrapes fails, and when the figures of nodes that are gone
// vanish; "newpods", how soon new pods have figures.
//
// Everything listens on loopback and lives in a temporary folder; all of it ends with this program.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := dispatch(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "load:", err)
		}
		stop()
		os.Exit(1)
	}
}

// dispatch tells the processes apart that this executable is started as.
func dispatch(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "fleet":
			return fleet(ctx, args[1:])
		case "floor":
			return floor(ctx, args[1:])
		}
	}
	cfg, err := parse(args)
	if err != nil {
		return err
	}
	return run(ctx, cfg)
}

// config is what the flags say.
type config struct {
	server     string        // the executable under test
	beside     string        // another one, to be measured in the same clusters; empty: none
	serverArgs []string      // more arguments for it
	bin        string        // folder with etcd and kube-apiserver
	only       string        // what to measure; empty: all that a server costs
	nodes      []int         // sizes of the clusters, measured one after the other
	rounds     int           // how often each thing is measured
	duration   time.Duration // for how long to look on, where it takes time
	failing    float64       // share of scrapes that fail, 0 to 1
	rate       float64       // new pods a second
	idle       float64       // share of containers that do nothing
	onDemand   bool          // the kubelets take samples of containers on demand
	resolution time.Duration // the server's --metric-resolution
	json       string        // file for the results; empty: none
	keep       bool          // do not remove the temporary folders
}

func parse(args []string) (config, error) {
	var cfg config
	var nodes string
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	flags.StringVar(&cfg.server, "server", "", "the `executable` to measure: kube-vitals, or metrics-server, which takes the same flags")
	flags.StringVar(&cfg.beside, "beside", "", "another `executable`, to be measured after it in the same clusters")
	flags.StringVar(&cfg.bin, "bin", "", "the `folder` with the executables etcd and kube-apiserver; without it they are built, once")
	flags.StringVar(&cfg.only, "only", "", "measure only one `thing`: start, failures or newpods")
	flags.StringVar(&nodes, "nodes", "1000", "the `numbers` of nodes to measure with, as in 100,1000,5000")
	flags.IntVar(&cfg.rounds, "rounds", 3, "how often each thing is measured; the medians are printed")
	flags.DurationVar(&cfg.duration, "duration", 3*time.Minute, "with --only=failures or newpods: for how long to look on")
	flags.Float64Var(&cfg.failing, "failing", 0.3, "with --only=failures: the `share` of scrapes that fail, 0 to 1")
	flags.Float64Var(&cfg.rate, "rate", 1, "with --only=newpods: how many pods start a second")
	flags.Float64Var(&cfg.idle, "idle", 0.1, "the `share` of containers that do nothing, 0 to 1: a kubelet's own rate of them is 0")
	flags.BoolVar(&cfg.onDemand, "on-demand", false, "let the kubelets take samples of containers on demand, as some do, not every 10s")
	flags.DurationVar(&cfg.resolution, "metric-resolution", 15*time.Second, "the interval between two scrapes of a node")
	flags.StringVar(&cfg.json, "json", "", "write the results to this `file`, too")
	flags.BoolVar(&cfg.keep, "keep", false, "keep the temporary folders with logs and certificates")
	flags.Usage = func() {
		_, _ = fmt.Fprint(flags.Output(), "usage: load --server=EXECUTABLE [flags] [-- more arguments for the server]\n\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	cfg.serverArgs = flags.Args()
	var err error
	cfg.nodes, err = sizes(nodes)
	return cfg, errors.Join(err, cfg.validate())
}

func sizes(list string) (nodes []int, err error) {
	for s := range strings.SplitSeq(list, ",") {
		n, convErr := strconv.Atoi(strings.TrimSpace(s))
		if convErr != nil || n < 1 || n > 20000 {
			err = errors.Join(err, fmt.Errorf("--nodes: %q is not a number from 1 to 20000", s))
		}
		nodes = append(nodes, n)
	}
	return nodes, err
}

func (cfg config) validate() error {
	var errs []error
	executable := func(flag, path string) { errs = append(errs, process.CheckExecutable(flag, path)) }
	executable("--server", cfg.server)
	if cfg.beside != "" {
		executable("--beside", cfg.beside)
	}
	if cfg.beside != "" && cfg.only != "" {
		errs = append(errs, errors.New("--beside: with --only there is one server; leave one of them out"))
	}
	if cfg.bin != "" {
		executable("--bin", filepath.Join(cfg.bin, binaries.Etcd))
		executable("--bin", filepath.Join(cfg.bin, binaries.APIServer))
	}
	switch cfg.only {
	case "", "start", "failures", "newpods":
	default:
		errs = append(errs, fmt.Errorf("--only: %q is not start, failures or newpods", cfg.only))
	}
	if cfg.only != "" && cfg.json != "" {
		errs = append(errs, errors.New("--json: there is no file with --only; leave one of them out"))
	}
	if cfg.duration <= 0 {
		errs = append(errs, fmt.Errorf("--duration: %s is not positive", cfg.duration))
	}
	share := func(flag string, value float64) {
		if value < 0 || value > 1 {
			errs = append(errs, fmt.Errorf("%s: %g is not from 0 to 1", flag, value))
		}
	}
	share("--failing", cfg.failing)
	share("--idle", cfg.idle)
	if cfg.rate <= 0 || cfg.rate > 100 {
		errs = append(errs, fmt.Errorf("--rate: %g is not above 0 and up to 100", cfg.rate))
	}
	if cfg.rounds < 1 {
		errs = append(errs, fmt.Errorf("--rounds: %d is less than 1", cfg.rounds))
	}
	if cfg.resolution < time.Second {
		errs = append(errs, fmt.Errorf("--metric-resolution: %s is less than 1s", cfg.resolution))
	}
	return errors.Join(errs...)
}

// name is how the results call the server.
func (cfg config) name() string { return filepath.Base(cfg.server) }

// run measures one size after the other. What has been measured is printed and kept even if a later
// size fails.
func run(ctx context.Context, cfg config) error {
	var results []*result
	var failed error
	for _, nodes := range cfg.nodes {
		some, err := measure(ctx, cfg, nodes)
		if err != nil && ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		if err != nil {
			failed = fmt.Errorf("measuring with %d nodes: %w", nodes, err)
			break
		}
		results = append(results, some...)
	}
	if cfg.json == "" || len(results) == 0 {
		return failed
	}
	text, err := json.MarshalIndent(results, "", "  ")
	if err == nil {
		err = os.WriteFile(cfg.json, append(text, '\n'), 0o644)
	}
	if err != nil {
		err = fmt.Errorf("the results cannot be kept: %w", err)
	}
	return errors.Join(failed, err)
}

// measure measures with one size of cluster, and prints what it finds. There are results, one for
// each server, only of a whole measurement.
func measure(ctx context.Context, cfg config, nodes int) ([]*result, error) {
	began := time.Now()
	progress := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%4.0fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	switch cfg.only {
	case "start":
		return nil, measureStart(ctx, cfg, nodes, os.Stdout, progress)
	case "failures":
		return nil, measureFailures(ctx, cfg, nodes, os.Stdout, progress)
	case "newpods":
		return nil, measureNewPods(ctx, cfg, nodes, os.Stdout, progress)
	default:
		results, err := measureCost(ctx, cfg, nodes, progress)
		if err != nil {
			return nil, err
		}
		for _, r := range results {
			err = errors.Join(err, r.print(os.Stdout))
		}
		return results, err
	}
}

// measureCost builds a cluster, measures what each server costs in it, one after the other, and
// then the floor.
func measureCost(ctx context.Context, cfg config, nodes int, progress func(string, ...any)) ([]*result, error) {
	shape := newShape(nodes)
	w, err := newWorld(ctx, cfg, progress)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	progress("starting %d kubelets", nodes)
	port, err := startApart(ctx, cfg, w, shape)
	if err != nil {
		return nil, err
	}
	if err := fill(ctx, w, shape, port, progress); err != nil {
		return nil, err
	}
	ours, err := measureServer(ctx, cfg, w, shape, cfg.server, cfg.serverArgs, progress)
	if err != nil {
		return nil, err
	}
	results := []*result{ours}
	if cfg.beside != "" {
		other, err := measureServer(ctx, cfg, w, shape, cfg.beside, nil, progress)
		if err != nil {
			return nil, err
		}
		results = append(results, other)
	}
	if err := measureFloor(ctx, cfg, w, ours, progress); err != nil {
		return nil, err
	}
	for _, r := range results {
		r.Floor = ours.Floor
	}
	return results, nil
}

// measureServer measures what one server costs.
func measureServer(ctx context.Context, cfg config, w *cluster.Cluster, shape shape, executable string, args []string, progress func(string, ...any)) (*result, error) {
	progress("starting %s", executable)
	r := &result{
		Server: filepath.Base(executable), Nodes: shape.nodes, Pods: shape.pods(), Containers: shape.pods() * len(objects.ContainerNames),
		Resolution: cfg.resolution.Seconds(), Rounds: cfg.rounds,
	}
	s, err := w.StartStandalone(executable, cfg.resolution, args...)
	if err != nil {
		return nil, err
	}
	m := &measurement{cfg: cfg, server: s, shape: shape, result: r, progress: progress}
	if err := m.run(ctx); err != nil {
		return nil, err
	}
	if err := s.Stop(); err != nil {
		progress("note: the server did not end with exit status 0: %v", err)
	}
	return r, nil
}
