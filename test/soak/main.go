// Command soak wears a server out: it lets a simulated cluster live for some minutes, in which
// nodes and pods come and go, containers restart, clocks of nodes are set, nodes are away and have
// another load when they are back, and kubelets misbehave in every way that is known, while clients
// ask for metrics all the time.
//
// It judges every answer by the true times and loads: no request may fail, no pod may be served in
// part, without a timestamp or with usage that is too old or wrong, nothing may be served that is
// gone, and what nothing has happened to must be served, whatever the clocks show. A clock that is
// set costs nothing, unless it is set again soon. Once calm has returned, it compares what the
// server holds with what it held before at the same number of nodes: goroutines, heap, series on
// /metrics and file descriptors must not have grown by more than a margin. Whatever kubelets send,
// it must never have held more than a bound of memory. It fails with what was wrong.
//
// As in ../load, etcd, kube-apiserver and the server under test are real, and the kubelets are
// simulated. Everything listens on loopback and lives in a temporary folder; all of it ends with
// this program.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, err := parse(os.Args[1:])
	if err == nil {
		err = run(ctx, cfg)
	}
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "soak:", err)
		}
		stop()
		os.Exit(1)
	}
}

// config is what the flags say.
type config struct {
	server     string   // the executable under test
	serverArgs []string // more arguments for it
	bin        string   // folder with etcd and kube-apiserver
	minutes    float64  // of churn, after the warm-up
	nodes      int
	pods       int           // on each node
	churn      float64       // events a second
	seed       uint64        // of what happens
	margin     float64       // by what multiple a footprint may grow
	memory     uint64        // MiB that the server may hold at most, at any time
	resolution time.Duration // the server's --metric-resolution
	keep       bool          // do not remove the temporary folder
}

func parse(args []string) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.StringVar(&cfg.server, "server", "", "the `executable` to wear out: kube-vitals")
	flags.StringVar(&cfg.bin, "bin", "", "the `folder` with the executables etcd and kube-apiserver; without it they are built, once")
	flags.Float64Var(&cfg.minutes, "minutes", 3, "for how many `minutes` things happen; warm-up and calm come on top, some 3 minutes")
	flags.IntVar(&cfg.nodes, "nodes", 100, "how many nodes there are at any time")
	flags.IntVar(&cfg.pods, "pods", 10, "how many pods there are on each node, of two containers")
	flags.Float64Var(&cfg.churn, "churn", 10, "how many things happen a second")
	flags.Uint64Var(&cfg.seed, "seed", uint64(time.Now().UnixNano()), "makes the same things happen again, if not at the same moments")
	flags.Float64Var(&cfg.margin, "margin", 1.05, "up to what `multiple` goroutines, heap, series and file descriptors may grow")
	flags.Uint64Var(&cfg.memory, "memory", 300, "how many `MiB` of physical memory the server may ever hold, whatever kubelets send")
	flags.DurationVar(&cfg.resolution, "metric-resolution", 5*time.Second, "the interval between two scrapes of a node")
	flags.BoolVar(&cfg.keep, "keep", false, "keep the temporary folder with logs and certificates")
	flags.Usage = func() {
		_, _ = fmt.Fprint(flags.Output(), "usage: soak --server=EXECUTABLE [flags] [-- more arguments for the server]\n\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	cfg.serverArgs = flags.Args()
	return cfg, cfg.validate()
}

func (cfg config) validate() error {
	var errs []error
	executable := func(flag, path string) { errs = append(errs, process.CheckExecutable(flag, path)) }
	executable("--server", cfg.server)
	if cfg.bin != "" {
		executable("--bin", filepath.Join(cfg.bin, binaries.Etcd))
		executable("--bin", filepath.Join(cfg.bin, binaries.APIServer))
	}
	positive := func(flag string, value float64) {
		if value <= 0 {
			errs = append(errs, fmt.Errorf("%s: %g is not positive", flag, value))
		}
	}
	positive("--minutes", cfg.minutes)
	positive("--nodes", float64(cfg.nodes))
	positive("--pods", float64(cfg.pods))
	positive("--churn", cfg.churn)
	positive("--margin", cfg.margin)
	positive("--memory", float64(cfg.memory))
	if cfg.resolution < 5*time.Second {
		errs = append(errs, fmt.Errorf("--metric-resolution: %s is less than 5s, the least that the server takes", cfg.resolution))
	}
	return errors.Join(errs...)
}
