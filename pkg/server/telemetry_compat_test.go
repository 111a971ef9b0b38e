package server

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// newMetricsServerTelemetry returns instruments with metrics-server's names, the store that they
// read, and a function that moves their clock.
func newMetricsServerTelemetry(resolution time.Duration) (*instruments, *store.Store, func(time.Duration)) {
	at := now
	i := newInstruments("v1.2.3", "0123abc", func() time.Time { return at }, usage.NewClock(now))
	metrics := store.New(store.Config{MaxSampleAge: time.Minute, MaxContainers: 10})
	i.registerMetricsServer(resolution, metrics)
	return i, metrics, func(d time.Duration) { at = at.Add(d) }
}

// metricsServerSeries returns the series whose names begin with metrics_server_ and a prefix.
func metricsServerSeries(t *testing.T, i *instruments, prefix string) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(i.registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	var got strings.Builder
	for line := range strings.Lines(w.Body.String()) {
		if rest, ok := strings.CutPrefix(line, "metrics_server_"); ok && strings.HasPrefix(rest, prefix) {
			got.WriteString(rest)
		}
	}
	return got.String()
}

func TestMetricsServerRequests(t *testing.T) {
	i, _, pass := newMetricsServerTelemetry(15 * time.Second)
	i.Scraped(scrape.Result{Node: "a", Took: 20 * time.Millisecond, Late: time.Second})
	pass(2500 * time.Millisecond)
	i.Scraped(scrape.Result{Node: "b", Took: 10 * time.Second, Err: errors.New("timeout"), Reason: reason.Timeout})
	for prefix, want := range map[string]string{
		"kubelet_request_total": `kubelet_request_total{success="false"} 1
kubelet_request_total{success="true"} 1
`,
		"kubelet_last_request_time_seconds": `kubelet_last_request_time_seconds{node="a"} 1.8e+09
kubelet_last_request_time_seconds{node="b"} 1.800000002e+09
`,
		`kubelet_request_duration_seconds_sum`: `kubelet_request_duration_seconds_sum{node="a"} 0.02
kubelet_request_duration_seconds_sum{node="b"} 10
`,
		`kubelet_request_duration_seconds_bucket{node="a",le="0.0`: "" +
			`kubelet_request_duration_seconds_bucket{node="a",le="0.005"} 0
kubelet_request_duration_seconds_bucket{node="a",le="0.01"} 0
kubelet_request_duration_seconds_bucket{node="a",le="0.025"} 1
kubelet_request_duration_seconds_bucket{node="a",le="0.05"} 1
`,
	} {
		if got := metricsServerSeries(t, i, prefix); got != want {
			t.Errorf("%s: got\n%swant\n%s", prefix, got, want)
		}
	}
}

// TestMetricsServerSeriesOfDeletedNodes checks that no series of a deleted node remains.
func TestMetricsServerSeriesOfDeletedNodes(t *testing.T) {
	i, _, _ := newMetricsServerTelemetry(15 * time.Second)
	for _, node := range []string{"a", "b"} {
		i.Scraped(scrape.Result{Node: node, Took: time.Millisecond})
	}
	if got := metricsServerSeries(t, i, "kubelet"); !strings.Contains(got, `node="a"`) {
		t.Fatalf("got no series of a:\n%s", got)
	}
	i.NodeDeleted("a")
	got := metricsServerSeries(t, i, "")
	if strings.Contains(got, `node="a"`) || !strings.Contains(got, `node="b"`) {
		t.Errorf("got\n%swant series of b, not of a", got)
	}
	i.NodeDeleted("b")
	if got := metricsServerSeries(t, i, ""); strings.Contains(got, "node=\"") {
		t.Errorf("got\n%swant no series of nodes", got)
	}
}

// TestMetricsServerTick checks that each interval with scrapes counts once, with its slowest scrape.
func TestMetricsServerTick(t *testing.T) {
	i, _, pass := newMetricsServerTelemetry(15 * time.Second)
	for range 3 { // rounds
		for n := range 5 { // 3 s apart
			i.Scraped(scrape.Result{Node: string(rune('a' + n)), Took: time.Duration(n) * time.Second, Late: time.Second})
			pass(3 * time.Second)
		}
	}
	// The third round is not over until a scrape ends after it.
	want := "manager_tick_duration_seconds_sum 10\nmanager_tick_duration_seconds_count 2\n"
	got := metricsServerSeries(t, i, "manager_tick_duration_seconds_sum") +
		metricsServerSeries(t, i, "manager_tick_duration_seconds_count")
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestTickBuckets compares buckets with those of metrics-server 0.9.
func TestTickBuckets(t *testing.T) {
	upTo5 := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	for resolution, want := range map[time.Duration][]float64{
		5 * time.Second:  {10},
		7 * time.Second:  {7, 10},
		10 * time.Second: {10},
		15 * time.Second: {10, 12.5, 15, 22.5, 30},
		time.Minute:      {10, 35, 60, 90, 120},
	} {
		if got := tickBuckets(resolution); !slices.Equal(got, append(upTo5[:10:10], want...)) {
			t.Errorf("%v: got %v, want %v after %v", resolution, got, want, upTo5)
		}
	}
}

func TestMetricsServerPoints(t *testing.T) {
	i, metrics, pass := newMetricsServerTelemetry(15 * time.Second)
	const empty = "storage_points{type=\"container\"} 0\nstorage_points{type=\"node\"} 0\n"
	if got := metricsServerSeries(t, i, "storage"); got != empty {
		t.Errorf("got\n%swant\n%s", got, empty)
	}
	for n := range 2 {
		at := i.clock.At(i.now())
		sample := usage.Sample{At: at, MemoryAt: at, CPUSeconds: float64(n), Memory: 1, Has: usage.HasCPU | usage.HasMemory}
		container := func(name string) usage.ContainerSample {
			return usage.ContainerSample{Namespace: []byte("n"), Pod: []byte("p"), Name: []byte(name), Sample: sample}
		}
		metrics.Put("a", &usage.Scrape{
			At: at, Sent: at, Node: sample, Containers: []usage.ContainerSample{container("c1"), container("c2")},
		})
		pass(15 * time.Second)
	}
	const full = "storage_points{type=\"container\"} 2\nstorage_points{type=\"node\"} 1\n"
	if got := metricsServerSeries(t, i, "storage"); got != full {
		t.Errorf("got\n%swant\n%s", got, full)
	}
	pass(time.Minute)
	if got := metricsServerSeries(t, i, "storage"); got != empty {
		t.Errorf("got\n%swant\n%s of expired metrics", got, empty)
	}
}

func TestMetricsServerFreshness(t *testing.T) {
	i, _, _ := newMetricsServerTelemetry(15 * time.Second)
	i.observeAge("pods", 7*time.Second)
	i.observeAge("nodes", 20*time.Second)
	const want = "api_metric_freshness_seconds_sum 27\napi_metric_freshness_seconds_count 2\n"
	got := metricsServerSeries(t, i, "api_metric_freshness_seconds_sum") +
		metricsServerSeries(t, i, "api_metric_freshness_seconds_count")
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	// 20 buckets from 1 s to 365 s, and +Inf.
	if n := strings.Count(metricsServerSeries(t, i, "api_metric_freshness_seconds_bucket"), "\n"); n != 21 {
		t.Errorf("got %d buckets, want 21", n)
	}
}

// TestMetricsServerNamesAreOptional checks that there are none of metrics-server's names by default.
func TestMetricsServerNamesAreOptional(t *testing.T) {
	i := newTestInstruments()
	i.NodeDeleted("a")
	if got := metricsServerSeries(t, i, ""); got != "" {
		t.Errorf("got\n%swant none", got)
	}
}

func TestMetricsServerNamesAreValid(t *testing.T) {
	i, _, _ := newMetricsServerTelemetry(15 * time.Second)
	i.Scraped(scrape.Result{Node: "a"})
	problems, err := testutil.GatherAndLint(i.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
