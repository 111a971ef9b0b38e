package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// A round of one request lasts until both minimums are reached. /proc has CPU times to 10 ms, so
// 1.5 s of requests measure CPU to about 1 %.
const (
	minRoundTime     = 1500 * time.Millisecond
	minRoundRequests = 3
)

// Memory is measured again after this many lists, or this time.
const (
	maxLists     = 100
	maxListsTime = 3 * time.Minute
)

// measureCost measures one or two servers, one after the other, and the download for comparison.
func measureCost(ctx context.Context, b *bench) error {
	var costs []*cost
	for i, executable := range []string{b.server, b.beside} {
		if executable == "" {
			continue
		}
		c := &cost{bench: b, name: filepath.Base(executable)}
		args, err := c.useEngine(ctx, executable, i == 0)
		if err != nil {
			return err
		}
		if i == 0 {
			args = append(args, b.serverArgs...)
		}
		if err := c.measure(ctx, executable, args); err != nil {
			return err
		}
		costs = append(costs, c)
	}
	b.stopEngine()
	d, err := b.measureDownload(ctx)
	if err != nil {
		return err
	}
	for _, c := range costs {
		c.download = d
		c.print(os.Stdout)
	}
	return nil
}

// cost is what one server costs. CPU and latency are in milliseconds, memory in MiB, ages in
// seconds, and all are medians unless they say otherwise.
type cost struct {
	*bench
	name   string
	server *cluster.Standalone
	engine *engine // nil: the server scrapes the kubelets itself

	download             download
	start                startTimes
	cores                float64 // while the server only scrapes
	rss, anon            float64
	rssLists, anonLists  float64 // after the lists
	lists                int
	peakStart, peak      float64 // highest RSS until all metrics were served, and in total
	ageMedian, ageOldest float64 // of node metrics
	requests             []requestCost
}

// requestCost is what one request costs.
type requestCost struct {
	request
	cpu, latency float64
	engineCPU    float64 // of Prometheus, if the server queries it for each request
	size         int64
	items        int
	err          error
}

func (c *cost) measure(ctx context.Context, executable string, args []string) (err error) {
	if c.server, c.start, err = c.startServer(ctx, executable, args...); err != nil {
		return err
	}
	if c.peakStart, err = c.peakMemory(); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		c.measureSource, c.measureAges, c.measureRequests, c.measureLists,
	} {
		if err := step(ctx); err != nil {
			return errors.Join(err, c.server.Process.Running())
		}
	}
	if c.peak, err = c.peakMemory(); err != nil {
		return err
	}
	if e := c.engine; e != nil {
		if e.rssRequests, err = e.memory(); err != nil {
			return err
		}
		if e.refreshes, err = c.refreshes(ctx); err != nil {
			return err
		}
	}
	stopServer(c.server)
	return nil
}

// measureSource measures what it costs to keep the metrics up to date.
func (c *cost) measureSource(ctx context.Context) error {
	logf("waiting for a steady state")
	if err := sleep(ctx, 2*c.resolution); err != nil {
		return err
	}
	if c.engine != nil {
		return c.engine.measure(func() error { return c.measureScraping(ctx) })
	}
	return c.measureScraping(ctx)
}

// measureScraping measures CPU and memory without requests.
func (c *cost) measureScraping(ctx context.Context) error {
	logf("measuring %d intervals without requests", c.rounds)
	var cores, rss, anon []float64
	for range c.rounds {
		cpu, elapsed, err := c.cpuTime(func() error { return sleep(ctx, c.resolution) })
		if err != nil {
			return err
		}
		r, a, err := c.memory()
		if err != nil {
			return err
		}
		cores = append(cores, cpu.Seconds()/elapsed.Seconds())
		rss, anon = append(rss, r), append(anon, a)
	}
	c.cores, c.rss, c.anon = median(cores), median(rss), median(anon)
	return nil
}

// scrapeCPU is the CPU of a scrape: all CPU of an interval, per node.
func (c *cost) scrapeCPU() float64 { return c.cores * milliseconds(c.resolution) / float64(c.nodes) }

func (c *cost) measureAges(ctx context.Context) error {
	list, err := c.server.Nodes(ctx, allNodes, cluster.TypeProtobuf)
	if err != nil {
		return err
	}
	var ages []float64
	for _, node := range list.Items {
		ages = append(ages, time.Since(node.Timestamp.Time).Seconds())
	}
	c.ageMedian, c.ageOldest = median(ages), slices.Max(append(ages, 0))
	return nil
}

// cpuTime returns the CPU time of the server while f runs, and how long f runs.
func (c *cost) cpuTime(f func() error) (cpu, elapsed time.Duration, err error) {
	return cpuTime(c.server.Process, f)
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

// memory returns the resident memory of the server, in total and without what files back.
func (c *cost) memory() (rss, anon float64, err error) {
	total, err := process.Resident(c.server.Process.PID())
	if err != nil {
		return 0, 0, err
	}
	anonymous, err := process.Anonymous(c.server.Process.PID())
	return float64(total) / (1 << 20), float64(anonymous) / (1 << 20), err
}

// peakMemory returns the highest resident memory that the server has had.
func (c *cost) peakMemory() (rss float64, err error) {
	peak, err := process.PeakResident(c.server.Process.PID())
	return float64(peak) / (1 << 20), err
}

// readMetric returns the value of a metric of the server, and 0 if it has none. The name includes
// the labels.
func (c *cost) readMetric(ctx context.Context, name string) (float64, error) {
	text, _, err := c.server.Get(ctx, "/metrics", "text/plain")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, nil
}

func (c *cost) measureRequests(ctx context.Context) error {
	for _, r := range c.typicalRequests() {
		logf("measuring %s", r.name)
		one, err := c.measureRequest(ctx, r)
		if err != nil && (c.engine == nil || !c.engine.onRequest) {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		one.err = err
		c.requests = append(c.requests, one)
	}
	return nil
}

func (c *cost) measureRequest(ctx context.Context, r request) (one requestCost, err error) {
	one.request = r
	if one.items, _, err = r.count(ctx, c.server); err != nil {
		return one, err
	}
	var cpus, engineCPUs, latencies []float64
	for range c.rounds {
		n := 0
		send := func() (err error) {
			for start := time.Now(); n < minRoundRequests || time.Since(start) < minRoundTime; n++ {
				sent := time.Now()
				if one.size, err = r.discard(ctx, c.server); err != nil {
					return err
				}
				latencies = append(latencies, milliseconds(time.Since(sent)))
			}
			return nil
		}
		perRequest := func(cpu, elapsed time.Duration, cores float64) float64 {
			return max(0, cpu.Seconds()-cores*elapsed.Seconds()) * 1e3 / float64(n)
		}
		if e := c.engine; e != nil && e.onRequest {
			inner := send
			send = func() error {
				cpu, elapsed, err := cpuTime(e.process, inner)
				engineCPUs = append(engineCPUs, perRequest(cpu, elapsed, e.cores))
				return err
			}
		}
		cpu, elapsed, err := c.cpuTime(send)
		if err != nil {
			return one, err
		}
		cpus = append(cpus, perRequest(cpu, elapsed, c.cores))
	}
	one.cpu, one.engineCPU, one.latency = median(cpus), median(engineCPUs), median(latencies)
	return one, nil
}

// measureLists measures memory after many lists of all pods, half of them in JSON.
func (c *cost) measureLists(ctx context.Context) (err error) {
	logf("listing all pods %d times", maxLists)
	for end := time.Now().Add(maxListsTime); c.lists < maxLists && time.Now().Before(end); c.lists++ {
		r := request{path: allPods, accept: []string{cluster.TypeJSON, cluster.TypeProtobuf}[c.lists%2]}
		if _, err := r.discard(ctx, c.server); err != nil {
			return err
		}
	}
	c.rssLists, c.anonLists, err = c.memory()
	return err
}

func (c *cost) print(w io.Writer) {
	t := newTable(fmt.Sprintf("%s: %d nodes, %d pods, %d containers, resolution %s, medians of %d rounds",
		c.name, c.nodes, c.pods(), c.pods()*c.perPod, c.resolution, c.rounds),
		"Measure", "measured", "goal", "download only", "ratio")
	row := func(name, goal, format string, args ...any) { t.row(name, fmt.Sprintf(format, args...), goal, "", "") }
	e := c.engine
	if e == nil || !e.onRequest {
		c.addDownload(t)
	}
	row("CPU without requests", "", "%.4f cores", c.cores)
	row("memory without requests: RSS", c.memoryGoal(130), "%.0f MiB", c.rss)
	row("memory without requests: RssAnon", "", "%.0f MiB", c.anon)
	row(fmt.Sprintf("memory after %d LISTs of all pods: RSS", c.lists), c.memoryGoal(160), "%.0f MiB", c.rssLists)
	row(fmt.Sprintf("memory after %d LISTs of all pods: RssAnon", c.lists), "", "%.0f MiB", c.anonLists)
	row("peak memory until all metrics: RSS", "", "%.0f MiB", c.peakStart)
	row("peak memory: RSS", "", "%.0f MiB", c.peak)
	if e != nil {
		row("CPU of Prometheus, without this server", "", "%.4f cores", e.coresAlone)
		row("CPU of Prometheus", "", "%.4f cores", e.cores)
		row("memory of Prometheus: RSS", "", "%.0f MiB", e.rss)
		row("peak memory of Prometheus: RSS", "", "%.0f MiB", e.peak)
		row("memory of Prometheus after the requests: RSS", "", "%.0f MiB", e.rssRequests)
	}
	if e != nil && !e.onRequest {
		row("refreshes, failed refreshes", "", "%g, %g", e.refreshes.number, e.refreshes.failed)
		row("duration of a refresh, mean", "", "%s", ms(e.refreshes.mean()))
		row("CPU of Prometheus for a refresh", "", "%s", ms((e.cores-e.coresAlone)*milliseconds(c.resolution)))
	}
	row("first metrics of nodes and pods, after the caches have synced", "", "%.2f s", c.start.firstAfterSync())
	row("all metrics, after the start of the process", "", "%.2f s", c.start.all())
	row("age of node metrics, median", "", "%.0f s", c.ageMedian)
	row("age of node metrics, maximum", "", "%.0f s", c.ageOldest)
	t.print(w)

	t = newTable("Requests, directly to the server", "Request", "CPU", "goal", "CPU of Prometheus", "latency", "KiB")
	for _, r := range c.requests {
		engineCPU := ""
		if e != nil && e.onRequest {
			engineCPU = ms(r.engineCPU)
		}
		goal := ""
		if r.goal > 0 {
			goal = fmt.Sprintf("≤ %g ms", r.goal)
		}
		t.row(r.name, ms(r.cpu), goal, engineCPU, ms(r.latency), fmt.Sprintf("%.0f", float64(r.size)/1024))
	}
	t.print(w)
	for _, r := range c.requests { // a server that leaves out items has less to do
		switch {
		case r.err != nil:
			fmt.Fprintf(w, "\nFailed: %s: %v.\n", r.name, r.err)
		case r.items != r.want:
			fmt.Fprintf(w, "\nIncomplete: %s returns %d items, want %d.\n", r.name, r.items, r.want)
		}
	}
}

// addDownload adds what the server does in each interval, compared with the download.
func (c *cost) addDownload(t *table) {
	scrape, goal := "CPU per scrape of a node", "≤ 0.3 ms, 1.5 × download"
	if c.engine != nil {
		scrape, goal = "CPU per refresh and node", ""
	}
	for _, d := range []struct {
		name, goal string
		cpu        float64
	}{
		{scrape, goal, c.download.Spread},
		{scrape + "; download with gzip", "", c.download.Gzip},
		{scrape + "; download without pauses", "", c.download.Unspread},
	} {
		t.row(d.name, ms(c.scrapeCPU()), d.goal, ms(d.cpu), fmt.Sprintf("%.2f", c.scrapeCPU()/d.cpu))
	}
	t.row("size of a kubelet response", fmt.Sprintf("%.1f KiB", float64(c.download.Size)/1024), "", "", "")
}

// memoryGoal returns the goal for a number of nodes, given the goal for 1000 nodes.
func (c *cost) memoryGoal(mebibytes float64) string {
	switch {
	case c.nodes == 1:
		return "≤ 40 MiB"
	case c.nodes < 1000:
		return ""
	}
	return fmt.Sprintf("≤ %.0f MiB", mebibytes*float64(c.nodes)/1000)
}
