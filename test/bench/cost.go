package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

// A round of one request lasts until both minimums are reached. /proc has CPU times to 10 ms, so
// 1.5 s of requests measure CPU to about 1 %.
const (
	minRoundTime     = 1500 * time.Millisecond
	minRoundRequests = 3
)

// maxListsTime bounds the lists after which memory is measured again.
const maxListsTime = 3 * time.Minute

// measureCost measures the cost of all typical requests.
func measureCost(ctx context.Context, b *bench) error {
	_, err := b.measureServers(ctx, b.typicalRequests(), 100)
	return err
}

// measureServers measures one or two servers, one after the other, and prints them side by side.
func (b *bench) measureServers(ctx context.Context, requests []request, lists int) (costs []*cost, err error) {
	for _, executable := range []string{b.server, b.beside} {
		if executable == "" {
			continue
		}
		args := b.serverArgs
		if len(costs) > 0 {
			args = nil
		}
		c := &cost{bench: b, row: newRow(filepath.Base(executable), b)}
		var start map[string]float64
		if c.server, start, err = c.startServer(ctx, executable, args...); err != nil {
			return nil, err
		}
		maps.Copy(c.values, start)
		err = c.measure(ctx, requests, lists)
		stopServer(c.server)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", executable, err)
		}
		costs = append(costs, c)
	}
	printCosts(os.Stdout, costs)
	return costs, nil
}

// cost is what one server costs. All values are medians unless they say otherwise.
type cost struct {
	*bench
	row
	server   *cluster.Standalone
	lists    int
	requests []requestCost
}

// requestCost is what one request costs, in milliseconds.
type requestCost struct {
	request
	cpu, latency float64
	items        int
}

func (c *cost) measure(ctx context.Context, requests []request, lists int) error {
	program.Logf("waiting for a steady state")
	if err := program.Sleep(ctx, 2*c.resolution); err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return c.measureScraping(ctx) },
		func() error { return c.measureState(ctx) },
		func() error { return c.measureRequests(ctx, requests) },
		func() error { return c.measureLists(ctx, lists) },
	} {
		if err := step(); err != nil {
			return errors.Join(err, c.server.Process.Running())
		}
	}
	return nil
}

// measureScraping measures CPU and memory without requests.
func (c *cost) measureScraping(ctx context.Context) error {
	program.Logf("measuring %d intervals without requests", c.rounds)
	pid := c.server.Process.PID()
	var cores, rss, received []float64
	for range c.rounds {
		before, err := process.ReadBytes(pid)
		if err != nil {
			return err
		}
		cpu, elapsed, err := cpuTime(c.server.Process, func() error { return program.Sleep(ctx, c.resolution) })
		if err != nil {
			return err
		}
		after, err := process.ReadBytes(pid)
		if err != nil {
			return err
		}
		resident, err := mebibytes(process.Resident(pid))
		if err != nil {
			return err
		}
		cores, rss = append(cores, cpu.Seconds()/elapsed.Seconds()), append(rss, resident)
		received = append(received, float64(after-before)/1e6/elapsed.Seconds())
	}
	c.values[cpuCores], c.values["rss_mib"] = median(cores), median(rss)
	c.values["received_mb_per_second"] = median(received)
	return nil
}

// measureState measures what the server has open.
func (c *cost) measureState(ctx context.Context) error {
	descriptors, err := process.Descriptors(c.server.Process.PID())
	if err != nil {
		return err
	}
	telemetry, err := c.server.Telemetry(ctx)
	c.values["file_descriptors"], c.values["goroutines"] = float64(descriptors), telemetry["go_goroutines"]
	return err
}

// cpuTime returns the CPU time of a process while f runs, and how long f runs.
func cpuTime(p *process.Process, f func() error) (cpu, elapsed time.Duration, err error) {
	before, err := process.CPUTime(p.PID())
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	if err := f(); err != nil {
		return 0, 0, err
	}
	elapsed = time.Since(start)
	after, err := process.CPUTime(p.PID())
	return after - before, elapsed, err
}

func mebibytes(bytes uint64, err error) (float64, error) { return float64(bytes) / (1 << 20), err }

func (c *cost) measureRequests(ctx context.Context, requests []request) error {
	for _, r := range requests {
		program.Logf("measuring %s", r.name)
		one, err := c.measureRequest(ctx, r)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		c.requests = append(c.requests, one)
	}
	return nil
}

// measureRequest measures CPU beyond that of scraping, and latency.
func (c *cost) measureRequest(ctx context.Context, r request) (one requestCost, err error) {
	one.request = r
	if one.items, _, err = r.count(ctx, c.server); err != nil {
		return one, err
	}
	var cpus, latencies []float64
	for range c.rounds {
		n := 0
		send := func() (err error) {
			for start := time.Now(); n < minRoundRequests || time.Since(start) < minRoundTime; n++ {
				sent := time.Now()
				if err := r.discard(ctx, c.server); err != nil {
					return err
				}
				latencies = append(latencies, 1e3*time.Since(sent).Seconds())
			}
			return nil
		}
		cpu, elapsed, err := cpuTime(c.server.Process, send)
		if err != nil {
			return one, err
		}
		cpus = append(cpus, max(0, cpu.Seconds()-c.values[cpuCores]*elapsed.Seconds())*1e3/float64(n))
	}
	one.cpu, one.latency = median(cpus), median(latencies)
	return one, nil
}

// measureLists measures memory after many lists of all pods, half of them in JSON, and its peak.
func (c *cost) measureLists(ctx context.Context, lists int) (err error) {
	program.Logf("listing all pods %d times", lists)
	for end := time.Now().Add(maxListsTime); c.lists < lists && time.Now().Before(end); c.lists++ {
		r := request{path: allPods, accept: []string{cluster.TypeJSON, cluster.TypeProtobuf}[c.lists%2]}
		if err := r.discard(ctx, c.server); err != nil {
			return err
		}
	}
	pid := c.server.Process.PID()
	if c.values["rss_after_lists_mib"], err = mebibytes(process.Resident(pid)); err != nil {
		return err
	}
	c.values["peak_mib"], err = mebibytes(process.PeakResident(pid))
	return err
}

// measured is one row of the table.
type measured struct {
	name   string
	value  float64
	format string
}

// rows returns the same rows for all servers of a run.
func (c *cost) rows() []measured {
	const ms = "%.3f ms"
	perScrape := 1e3 * c.values[cpuCores] * c.resolution.Seconds() / float64(c.nodes)
	list := []measured{{"CPU per scrape of a node", perScrape, ms}}
	for _, q := range quantities {
		if v, ok := c.values[q.column]; ok {
			list = append(list, measured{q.title, v, q.format})
		}
	}
	for _, r := range c.requests {
		list = append(list, measured{r.name + ": CPU", r.cpu, ms}, measured{r.name + ": latency", r.latency, ms})
	}
	return list
}

// printCosts prints a column for each server, and the ratio of two.
func printCosts(w io.Writer, costs []*cost) {
	first := costs[0]
	columns := []string{"Measure"}
	for _, c := range costs {
		columns = append(columns, c.row.server)
	}
	if len(costs) == 2 {
		columns = append(columns, "ratio")
	}
	t := newTable(fmt.Sprintf("%d nodes, %d pods, %d containers, resolution %s, medians of %d rounds, %d LISTs",
		first.nodes, first.pods(), first.pods()*containersPerPod, first.resolution, first.rounds, first.lists), columns...)
	for i, m := range first.rows() {
		row := []string{m.name}
		for _, c := range costs {
			row = append(row, fmt.Sprintf(m.format, c.rows()[i].value))
		}
		if len(costs) == 2 {
			row = append(row, fmt.Sprintf("%.2f ×", costs[1].rows()[i].value/m.value))
		}
		t.row(row...)
	}
	t.print(w)
	for _, c := range costs {
		for _, r := range c.requests { // a server that leaves out items has less to do
			if r.items != r.want {
				fmt.Fprintf(w, "\n%s is incomplete: %s returns %d items, want %d.\n", c.row.server, r.name, r.items, r.want)
			}
		}
	}
}
