package engine

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// BenchmarkRefresh refreshes nodes with 30 pods of 2 containers each. The engine is another process,
// which creates the responses while it sends them.
func BenchmarkRefresh(b *testing.B) {
	for _, nodes := range []int{1000, 5000} {
		b.Run(strconv.Itoa(nodes), func(b *testing.B) { benchmarkRefresh(b, nodes) })
	}
}

func benchmarkRefresh(b *testing.B, nodes int) {
	url := startBenchEngine(b, nodes)
	samples := store.New(store.Config{MaxSampleAge: maxAge, MaxContainers: 1000,
		State: func(_, _, _, _ string) usage.ContainerState { return stateOf(true) }})
	before := heap()
	source, err := New(Config{
		URL: url, Interval: interval, MaxSampleAge: 10 * time.Minute, MaxContainers: 1000, Sink: samples,
		Clock: usage.NewClock(time.Now()), Synced: func() bool { return true },
		State: func(_, _, _, _ string) usage.ContainerState {
			return usage.ContainerState{Accepted: true, Running: true, StartedAt: 1, PodCreatedAt: 1}
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	source.client.settings.Timeout, source.maxDuration = time.Hour, time.Hour
	defer source.client.http.CloseIdleConnections()
	for i := range nodes {
		source.Set(newNode("node-"+strconv.Itoa(i), fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)))
	}
	peak, stop := watchHeap()
	var cpu time.Duration
	rounds := 0
	for b.Loop() {
		rounds++
		start := testenv.CPUTime(b)
		result := source.refresh(context.Background())
		cpu += testenv.CPUTime(b) - start
		if result.Err != nil || result.Missing != 0 {
			b.Fatal(result.Missing, result.Err)
		}
	}
	stop()
	b.ReportMetric(float64(heap()-before)/float64(nodes*benchPods*2), "B/container") // with the store
	b.ReportMetric(float64(*peak-before)/(1<<20), "peak-heap-MB")
	b.ReportMetric(cpu.Seconds()/float64(rounds), "cpu-s/refresh")
	var bytes countingWriter
	for k := range presets()["resource"] {
		writeCluster(&bytes, source.client.settings.query(k, source.client.window), nodes, time.Now())
	}
	b.ReportMetric(float64(bytes)/(1<<20), "MB/refresh")
	runtime.KeepAlive(samples)
	runtime.KeepAlive(source)
}

const benchPods = 30 // of a node

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// watchHeap measures the largest heap until stop is called, garbage included.
func watchHeap() (peak *int64, stop func()) {
	peak, done := new(int64), make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for {
			metrics.Read(sample)
			*peak = max(*peak, int64(sample[0].Value.Uint64()))
			select {
			case <-done:
				return
			case <-ticker.C:
			}
		}
	})
	return peak, func() { close(done); watcher.Wait() }
}

// countingWriter counts the bytes that it discards.
type countingWriter int

func (c *countingWriter) Write(p []byte) (int, error) {
	*c += countingWriter(len(p))
	return len(p), nil
}

const benchEngineNodes = "BENCH_ENGINE_NODES" // makes this program an engine

// startBenchEngine starts this program again, as an engine, and returns its URL.
func startBenchEngine(b *testing.B, nodes int) string {
	b.Helper()
	command := exec.CommandContext(b.Context(), os.Args[0])
	command.Env = append(os.Environ(), benchEngineNodes+"="+strconv.Itoa(nodes))
	command.Stderr = os.Stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	url, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(url)
}

// runBenchEngine is an engine until the process is killed. Its time advances by a scrape with each refresh, which
// begins with the query for the CPU of containers.
func runBenchEngine(nodes int) {
	var now atomic.Int64
	now.Store(time.Now().Add(-time.Hour).Unix())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		if strings.HasPrefix(query, "container_cpu") {
			now.Add(15)
		}
		w.Header().Set("Content-Type", "application/json")
		writeCluster(w, query, nodes, time.Unix(now.Load(), 0))
	}))
	fmt.Println(server.URL)
	select {}
}

// writeCluster writes the response to a query at a time. The counters come with 7 samples.
func writeCluster(w io.Writer, query string, nodes int, now time.Time) {
	name, _, _ := strings.Cut(strings.TrimPrefix(query, "last_over_time("), "{")
	counters := strings.Contains(name, "_cpu_")
	b := bufio.NewWriterSize(w, 64<<10)
	defer b.Flush()
	_, _ = b.WriteString(`{"status":"success","data":{"resultType":"x","result":[`)
	// Kubelets read each counter at a time of its own: the rows differ in the milliseconds.
	values := func(row int) string {
		if !counters {
			return fmt.Sprintf(`"value":[%d.5,"%d"]`, now.Unix(), 1<<30)
		}
		var all []string
		for at := now.Unix() - 90; at <= now.Unix(); at += 15 {
			all = append(all, fmt.Sprintf(`[%d.%d,"%d.25"]`, at, row+1, at-1_700_000_000))
		}
		return `"values":[` + strings.Join(all, ",") + `]`
	}
	var rows [8]string
	for i := range rows {
		rows[i] = values(i)
	}
	count := 0
	series := func(labels string) {
		if count++; count > 1 {
			_ = b.WriteByte(',')
		}
		fmt.Fprintf(b, `{"metric":{"__name__":"%s","endpoint":"https-metrics",%s},%s}`, name, labels, rows[count%len(rows)])
	}
	switch {
	case strings.Contains(name, "swap"):
	case strings.HasPrefix(name, "node"):
		for n := range nodes {
			series(fmt.Sprintf(`"instance":"10.%d.%d.%d:10250","job":"kubelet"`, n>>16, n>>8&255, n&255))
		}
	default:
		for n := range nodes {
			for p := range benchPods {
				pod := fmt.Sprintf("web-7d4b9c6f5-%d-%d", n, p)
				for c := range 2 {
					series(fmt.Sprintf(`"container":"app-%d","instance":"10.0.0.1:10250","job":"kubelet",`+
						`"metrics_path":"/metrics/resource","namespace":"shop-%d","node":"node-%d","pod":"%s"`, c, p%10, n, pod))
				}
			}
		}
	}
	_, _ = b.WriteString(`]}}`)
}
