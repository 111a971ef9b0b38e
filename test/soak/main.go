// Command soak runs a metrics server in a simulated cluster under churn for some minutes, and fails
// if a response was wrong or if the server has grown.
//
// Nodes and pods are replaced, containers restart, node clocks are set, nodes become unreachable
// and return with another load, and kubelets misbehave in every way that package kubelettest knows,
// while clients send requests all the time.
//
// An oracle knows the true time and everything that the kubelets have reported, and checks every
// response. No request may fail. No pod may be served in part, without a timestamp, with expired or
// old metrics, or with a usage or window that no two samples of its kubelet give (readings.go).
// Deleted objects must not be served, and undisturbed ones must be, whatever the clocks show.
// Setting a clock once must not cost metrics. Some clients read as autoscalers do, so that nodes are
// active. After the churn, the server is compared with itself before the churn: goroutines, heap,
// series on /metrics and file descriptors must not have grown by more than a margin. Its memory must
// never have exceeded a limit.
//
// TestSimulation runs the same churn and the same oracle in virtual time, with the scraper and the store
// of the server but without a network. An hour of six nodes takes seconds:
//
//	go test -run TestSimulation ./soak -args -seeds=1000
//
// etcd, kube-apiserver and the metrics server are real, the kubelets are simulated, as in ../bench.
// Everything listens on loopback addresses, uses a temporary folder, and ends with this program.
package main

import (
	"errors"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

const (
	resolution       = 5 * time.Second // --metric-resolution
	activeResolution = 2 * time.Second
	maxGrowth        = 1.05
	maxMemory        = 300 // MiB
)

func main() { program.Main("soak", run) }

// config are the flags.
type config struct {
	server     string
	serverArgs []string
	duration   time.Duration
	nodes      int
	pods       int // per node
	churn      float64
	seed       uint64
}

func parse(args []string) (cfg config, err error) {
	flags := program.Flags("soak")
	flags.StringVar(&cfg.server, "server", "", "the `executable` of kube-vitals")
	minutes := flags.Float64("minutes", 3, "`minutes` of churn, after a warm-up of one minute")
	flags.IntVar(&cfg.nodes, "nodes", 100, "number of nodes")
	flags.IntVar(&cfg.pods, "pods", 10, "number of pods per node, with two containers each")
	flags.Float64Var(&cfg.churn, "churn", 10, "events per second")
	flags.Uint64Var(&cfg.seed, "seed", uint64(time.Now().UnixNano()), "the seed of the random events")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	cfg.serverArgs, cfg.duration = flags.Args(), time.Duration(*minutes*float64(time.Minute))
	if cfg.nodes < 1 || cfg.pods < 1 || cfg.churn <= 0 || cfg.duration <= 0 {
		err = errors.New("-nodes, -pods, -churn and -minutes must be positive")
	}
	return cfg, errors.Join(err, process.CheckExecutable("-server", cfg.server))
}
