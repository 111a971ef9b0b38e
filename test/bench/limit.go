package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

const (
	// memoryLimit is that of the chart.
	memoryLimit = 1024 << 20
	// burstSize is how many requests are sent at once.
	burstSize = 390
	// burstTimeout bounds a load. The server ends requests after the same time.
	burstTimeout = time.Minute
	// slowFor is how long slow readers read, at 4 KiB a second.
	slowFor = 30 * time.Second
	// autoscalerTimeout is how long an autoscaler waits for a list, half of its interval.
	autoscalerTimeout = 7500 * time.Millisecond
)

// limited is a server with a memory limit.
type limited struct {
	*bench
	cgroup *cgroup
	script string
	server atomic.Pointer[cluster.Standalone]
	table  *table
}

// burst is what clients do at the same time.
type burst struct {
	name     string
	requests []request // each client has one of them
	slow     bool
	during   func(context.Context) error // what else happens
}

// The ends of the requests of a load, and the titles of their columns.
const (
	complete   = "complete"         // read to the end
	incomplete = "not complete"     // a slow reader has read for some time, or it did not come in time
	rejected   = "429, tried again" // the clients try again
	tooLarge   = "406"              // the list needs too much memory in this format
	failed     = "failed"
	served     = "autoscaler, served" // lists of an autoscaler meanwhile
	missed     = "autoscaler, missed"

	interrupted = "" // by what else happens: the clients try again, and it has no column
)

var ends = []string{complete, incomplete, rejected, tooLarge, failed, served, missed}

// outcome counts how the requests of a load ended.
type outcome struct {
	mu     sync.Mutex
	counts map[string]int
}

// add returns how many there are now.
func (o *outcome) add(end string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts[end]++
	return o.counts[end]
}

// measureLimit runs the server with the memory limit of the chart under the worst loads, and fails if
// it is killed or does not serve metrics of all pods at the end.
func measureLimit(ctx context.Context, b *bench) (err error) {
	l := &limited{bench: b}
	if l.cgroup, err = newCgroup(memoryLimit); err != nil {
		return fmt.Errorf("create a memory cgroup, which needs root and a writable cgroup filesystem: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(l.cgroup.dir)) }() // its processes have ended
	if l.script, err = l.cgroup.launcher(b.server, b.cluster.Dir); err != nil {
		return err
	}
	l.table = newTable(fmt.Sprintf("Memory limit of %d MiB: %d nodes, %d pods, %d requests at once",
		memoryLimit>>20, b.nodes, b.pods(), burstSize), slices.Concat([]string{""}, ends,
		[]string{"time", "peak of the cgroup so far"})...)
	defer func() {
		l.table.print()
		if s := l.server.Load(); s != nil {
			stopServer(s)
		}
	}()
	if err := l.phase("start", func(*outcome) error { return l.start(ctx) }); err != nil {
		return err
	}
	for _, b := range l.bursts() {
		if err := l.phase(b.name, func(o *outcome) error { return l.apply(ctx, b, o) }); err != nil {
			return err
		}
	}
	_, err = watchStart(ctx, l.server.Load(), l.shape)
	return err
}

func (l *limited) start(ctx context.Context) error {
	s, err := l.cluster.StartStandalone(l.script, l.resolution, l.serverArgs...)
	if err != nil {
		return err
	}
	l.server.Store(s)
	_, err = watchStart(ctx, s, l.shape)
	return err
}

func (l *limited) bursts() (list []burst) {
	json, table := l.listPods("JSON", cluster.TypeJSON), l.listPods("table", cluster.TypeTable)
	zipped := l.listPods("protobuf", cluster.TypeProtobuf).zipped()
	yaml := l.listPods("YAML", "application/yaml")
	objectTable, page := table, table
	objectTable.path += "?includeObject=Object"
	page.path += "?limit=500"
	for _, r := range []request{json, zipped, table, yaml} {
		list = append(list, burst{name: r.name, requests: []request{r}})
	}
	all := []request{json, zipped, table, objectTable, yaml}
	return append(list,
		burst{name: "slow readers: JSON", requests: []request{json}, slow: true},
		burst{name: "slow readers: tables", requests: []request{table}, slow: true},
		burst{name: "slow readers: tables, pages of 500", requests: []request{page}, slow: true},
		burst{name: "all formats, and 10 % of the nodes go and come back", requests: all, during: l.churn},
		burst{name: "all formats, and the server restarts", requests: all, during: l.restart},
	)
}

// apply starts the requests of a load at once, and waits for their ends.
func (l *limited) apply(outer context.Context, b burst, o *outcome) error {
	ctx, cancel := context.WithTimeout(outer, burstTimeout)
	defer cancel()
	var clients, autoscaler sync.WaitGroup
	for i := range burstSize {
		clients.Go(func() { o.send(ctx, l, b.requests[i%len(b.requests)], b) })
	}
	busy, done := context.WithCancel(outer)
	autoscaler.Go(func() {
		for program.Sleep(busy, time.Second) == nil {
			o.autoscale(outer, l)
		}
	})
	var err error
	if b.during != nil {
		err = b.during(outer)
	}
	clients.Wait()
	done()
	autoscaler.Wait()
	return errors.Join(err, l.server.Load().Process.Running())
}

// autoscale sends the list of an autoscaler.
func (o *outcome) autoscale(ctx context.Context, l *limited) {
	ctx, cancel := context.WithTimeout(ctx, autoscalerTimeout)
	defer cancel()
	if n, _, err := l.hpaRequest().count(ctx, l.server.Load()); err != nil || n == 0 {
		o.add(missed)
	} else {
		o.add(served)
	}
}

// send sends a request until it is not rejected, as client-go does, and until it succeeds if something
// else happens to the server.
func (o *outcome) send(ctx context.Context, l *limited, r request, b burst) {
	for {
		end, err := b.try(ctx, r, l.server.Load())
		if end == failed && (b.during != nil || ctx.Err() != nil) {
			end = interrupted
		}
		if n := o.add(end); end == failed && n == 1 {
			program.Logf("the first failure: %v", err)
		}
		if end != rejected && end != interrupted {
			return
		}
		if program.Sleep(ctx, time.Second) != nil {
			o.add(incomplete)
			return
		}
	}
}

// try sends a request, and returns how it ended, and its error. Slow readers read 4 KiB a second.
func (b burst) try(ctx context.Context, r request, s *cluster.Standalone) (end string, err error) {
	chunk, pause := int64(1<<30), time.Duration(0)
	if b.slow {
		limited, cancel := context.WithTimeout(ctx, slowFor)
		defer cancel()
		ctx, s = limited, &cluster.Standalone{URL: s.URL, Direct: s.Slow}
		chunk, pause = 4<<10, time.Second
	}
	response, err := r.send(ctx, s)
	var status *cluster.StatusError
	switch {
	case err == nil:
	case errors.As(err, &status) && status.Code == http.StatusNotAcceptable:
		return tooLarge, err
	case status != nil && status.Code == http.StatusTooManyRequests, b.slow && ctx.Err() != nil: // it waited all the time
		return rejected, err
	default:
		return failed, err
	}
	defer response.Body.Close()
	for err == nil {
		if _, err = io.CopyN(io.Discard, response.Body, chunk); err == nil {
			err = program.Sleep(ctx, pause)
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		return complete, err
	case b.slow && ctx.Err() != nil:
		return incomplete, err
	default:
		return failed, err
	}
}

// churn removes a tenth of the kubelets and starts them again.
func (l *limited) churn(ctx context.Context) error {
	some := l.kubelets[:l.nodes/10]
	for i := range some {
		l.fleet.Remove(objects.NodeName(i))
	}
	err := program.Sleep(ctx, 2*l.resolution)
	for i, k := range some {
		if _, addErr := l.fleet.Add(k, kubelettest.Address(i)); addErr != nil {
			return addErr
		}
	}
	return err
}

// restart stops the server during its requests, and sends as many requests to the next one while it
// starts.
func (l *limited) restart(ctx context.Context) error {
	if err := program.Sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	stopServer(l.server.Load())
	return l.start(ctx)
}

// phase runs f and adds a row. It returns an error if the kernel has killed the server.
func (l *limited) phase(name string, f func(*outcome) error) error {
	program.Logf("%s", name)
	begin, o := time.Now(), &outcome{counts: map[string]int{}}
	err := f(o)
	row := []string{name}
	for _, end := range ends {
		row = append(row, fmt.Sprint(o.counts[end]))
	}
	peak, kills, peakErr := l.cgroup.peak()
	if kills > 0 {
		err = errors.Join(err, fmt.Errorf("the server was killed %d times because memory ran out", kills))
	}
	l.table.row(append(row, fmt.Sprintf("%.0f s", time.Since(begin).Seconds()), fmt.Sprintf("%d MiB", peak))...)
	return errors.Join(err, peakErr)
}
