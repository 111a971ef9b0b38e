package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
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

// steadyState is how long a server runs before its memory is measured. Go's TLS servers send records of 16 KB once a
// connection has carried 128 KiB, from the fourth or fifth scrape on, and the buffers of connections grow with them.
const steadyState = 2 * time.Minute

// maxListsTime bounds the lists before memory is measured again.
const maxListsTime = 3 * time.Minute

// measureCost measures the cost of all typical requests.
func measureCost(ctx context.Context, b *bench) error {
	_, err := b.measureServers(ctx, b.typicalRequests(), 100)
	return err
}

// measureServers measures one or two servers, one after the other, and prints them side by side.
func (b *bench) measureServers(ctx context.Context, requests []request, lists int) (costs []*cost, err error) {
	args := b.serverArgs // of the first server
	for _, executable := range []string{b.server, b.beside} {
		if executable == "" {
			continue
		}
		c := &cost{bench: b, row: newRow(filepath.Base(executable), b)}
		var start map[string]float64
		if c.server, start, err = c.startServer(ctx, executable, args...); err != nil {
			return nil, err
		}
		maps.Copy(c.values, start)
		err = errors.Join(c.measure(ctx, requests, lists), c.server.Process.Running())
		stopServer(c.server)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", executable, err)
		}
		costs, args = append(costs, c), nil
	}
	printCosts(costs, requests)
	return costs, nil
}

// cost is what one server costs. All values are medians unless they say otherwise.
type cost struct {
	*bench
	row
	server     *cluster.Standalone
	lists      int
	incomplete []string // responses that are not complete
}

// columnsOf returns the columns of the CPU and the latency of a request, in milliseconds. They are titles, too.
func columnsOf(r request) (cpu, latency string) { return r.name + ": CPU", r.name + ": latency" }

func (c *cost) measure(ctx context.Context, requests []request, lists int) error {
	program.Logf("waiting for a steady state")
	if err := program.Sleep(ctx, max(steadyState, 2*c.resolution)); err != nil {
		return err
	}
	if err := c.measureScraping(ctx); err != nil {
		return err
	}
	for _, r := range requests {
		program.Logf("measuring %s", r.name)
		if err := c.measureRequest(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return c.measureLists(ctx, lists)
}

// measureScraping measures CPU, memory and what the server has open, without requests.
func (c *cost) measureScraping(ctx context.Context) error {
	program.Logf("measuring %d intervals without requests", c.rounds)
	var cores, resident, received []float64
	for range c.rounds {
		u, elapsed, err := usageDuring(c.server.Process, func() error { return program.Sleep(ctx, c.resolution) })
		if err != nil {
			return err
		}
		cores = append(cores, u.CPU.Seconds()/elapsed.Seconds())
		resident = append(resident, mebibytes(u.Resident))
		received = append(received, float64(u.Received)/1e6/elapsed.Seconds())
		c.values["file_descriptors"] = float64(u.Descriptors)
	}
	c.values[cpuCores], c.values["rss_mib"] = median(cores), median(resident)
	c.values["received_mb_per_second"] = median(received)
	c.values[perScrape] = 1e3 * c.values[cpuCores] * c.resolution.Seconds() / float64(c.nodes)
	telemetry, err := c.server.Telemetry(ctx)
	c.values["goroutines"] = telemetry["go_goroutines"]
	return err
}

// usageDuring returns what a process uses at the end of f, with the CPU time and the bytes received while f
// runs, and how long f runs.
func usageDuring(p *process.Process, f func() error) (u process.Usage, elapsed time.Duration, err error) {
	before, err := p.Usage()
	if err != nil {
		return u, 0, err
	}
	start := time.Now()
	if err := f(); err != nil {
		return u, 0, err
	}
	elapsed = time.Since(start)
	u, err = p.Usage()
	u.CPU, u.Received = u.CPU-before.CPU, u.Received-before.Received
	return u, elapsed, err
}

func mebibytes(bytes uint64) float64 { return float64(bytes) / (1 << 20) }

// measureRequest measures CPU beyond that of scraping, and latency.
func (c *cost) measureRequest(ctx context.Context, r request) error {
	items, _, err := r.count(ctx, c.server)
	if err != nil {
		return err
	}
	var cpus, latencies []float64
	for range c.rounds {
		n := 0
		u, elapsed, err := usageDuring(c.server.Process, func() error {
			for start := time.Now(); n < minRoundRequests || time.Since(start) < minRoundTime; n++ {
				sent := time.Now()
				if err := r.discard(ctx, c.server); err != nil {
					return err
				}
				latencies = append(latencies, 1e3*time.Since(sent).Seconds())
			}
			return nil
		})
		if err != nil {
			return err
		}
		cpus = append(cpus, max(0, u.CPU.Seconds()-c.values[cpuCores]*elapsed.Seconds())*1e3/float64(n))
	}
	cpu, latency := columnsOf(r)
	c.values[cpu], c.values[latency] = median(cpus), median(latencies)
	if items != r.want { // the server has less to do, so its cost does not count
		c.incomplete = append(c.incomplete, fmt.Sprintf("%s returns %d items, want %d", r.name, items, r.want))
	} else if r.column != "" {
		c.values[r.column] = c.values[cpu]
	}
	return nil
}

// measureLists measures memory after many lists of all pods, half of them in JSON, and its peak.
func (c *cost) measureLists(ctx context.Context, lists int) error {
	program.Logf("listing all pods %d times", lists)
	for end := time.Now().Add(maxListsTime); c.lists < lists && time.Now().Before(end); c.lists++ {
		r := request{path: allPods, accept: []string{cluster.TypeJSON, cluster.TypeProtobuf}[c.lists%2]}
		if err := r.discard(ctx, c.server); err != nil {
			return err
		}
	}
	u, err := c.server.Process.Usage()
	c.values["rss_after_lists_mib"], c.values["peak_mib"] = mebibytes(u.Resident), mebibytes(u.Peak)
	return err
}

// printCosts prints a column for each server, and the ratio of two.
func printCosts(costs []*cost, requests []request) {
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
	printed := slices.Concat(printedOnly, quantities)
	for _, r := range requests {
		cpu, latency := columnsOf(r)
		printed = append(printed, quantity{cpu, cpu, "%.3f ms", false}, quantity{latency, latency, "%.3f ms", false})
	}
	for _, q := range printed {
		v, isMeasured := first.values[q.column]
		if !isMeasured {
			continue
		}
		row := []string{q.title}
		for _, c := range costs {
			row = append(row, fmt.Sprintf(q.format, c.values[q.column]))
		}
		if len(costs) == 2 {
			row = append(row, fmt.Sprintf("%.2f ×", costs[1].values[q.column]/v))
		}
		t.row(row...)
	}
	t.print()
	for _, c := range costs {
		for _, text := range c.incomplete {
			fmt.Printf("\n%s is incomplete: %s.\n", c.row.server, text)
		}
	}
}
