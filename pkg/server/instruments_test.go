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
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/health/healthtest"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

var now = time.Unix(1_800_000_000, 0)

// newTestInstruments returns instruments with at least one series of each metric.
func newTestInstruments() *instruments {
	i := newInstruments("v1.2.3", "0123abc", usage.NewClock(now))
	metrics := store.New(store.Config{MaxSampleAge: time.Minute, MaxContainers: 10})
	i.registerState(metrics, inventory.New(), inventory.New())
	i.registerConfig(15*time.Second, time.Minute)
	i.registerMemory()
	ok := scrape.Result{Node: "a", Took: time.Millisecond}
	ok.Skipped[usage.BadValue] = 2
	i.Scraped(ok)
	failed := health.Attempts{Last: now, Failures: 1, Err: errors.New("timeout"), Reason: reason.Timeout}
	flaky := failed
	flaky.LastSuccess = now
	i.registerNodes(&healthtest.Source{List: []health.Node{
		{Name: "down", Attempts: failed},
		{Name: "flaky", Attempts: flaky, ClockKnown: true, ClockOffset: -75 * time.Second},
		{Name: "new"},
		{Name: "ok", Attempts: health.Attempts{Last: now, LastSuccess: now}, ClockKnown: true, ClockOffset: 3 * time.Second},
	}})
	i.registerActive(func() scrape.ActiveStats {
		return scrape.ActiveStats{Nodes: 3, Resolution: 7500 * time.Millisecond, Refused: 1.5}
	})
	i.Scraped(scrape.Result{Node: "a", Late: -time.Second})
	i.Scraped(scrape.Result{Node: "b"})
	i.Scraped(scrape.Result{Node: "b", Err: errors.New("timeout"), Reason: reason.Timeout})
	i.observeAge("pods", 7*time.Second)
	i.registerAPIServices(func() map[string]servingcert.APIServiceState {
		return map[string]servingcert.APIServiceState{
			"v1.metrics.k8s.io":      {InsecureSkipTLSVerify: true},
			"v1beta1.metrics.k8s.io": {Misdirected: true},
		}
	})
	return i
}

// expect compares the named metrics with an exposition, of which help and type are ignored.
func expect(t *testing.T, i *instruments, want string, names ...string) {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(i.registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	var got []string
	for line := range strings.Lines(w.Body.String()) {
		if slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(line, "kube_vitals_"+name) }) {
			got = append(got, strings.TrimPrefix(line, "kube_vitals_"))
		}
	}
	if got := strings.Join(got, ""); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestScrapesAreCounted(t *testing.T) {
	i := newTestInstruments()
	expect(t, i, `scrapes_total{reason="",result="success"} 3
scrapes_total{reason="timeout",result="failure"} 1
`, "scrapes_total")
	expect(t, i, "samples_skipped_total{reason=\"bad_value\"} 2\n", `samples_skipped_total{reason="bad_value"}`)
}

func TestActiveNodesAreCounted(t *testing.T) {
	i := newTestInstruments()
	for kind, n := range map[scrape.Kind]int{scrape.Early: 1, scrape.OfActive: 2, scrape.Regular: 3} {
		for range n {
			i.Scraped(scrape.Result{Node: "a", Kind: kind})
		}
	}
	expect(t, i, `active_nodes 3
active_resolution_seconds 7.5
active_scrapes_refused_total 1.5
active_scrapes_total 2
early_scrapes_total 1
`, "early_", "active_")
}

func TestNodesOfScrapes(t *testing.T) {
	expect(t, newTestInstruments(), `max_clock_skew_seconds 75
node_clock_skew_seconds{node="flaky"} -75
node_failing{node="down",reason="timeout"} 1
node_failing{node="flaky",reason="timeout"} 1
node_last_success_timestamp_seconds{node="down"} 0
node_last_success_timestamp_seconds{node="flaky"} 1.8e+09
node_last_success_timestamp_seconds{node="ok"} 1.8e+09
`, "max_clock_skew", "node_")
}

func TestAPIServiceStates(t *testing.T) {
	expect(t, newTestInstruments(), `apiservice_insecure_skip_tls_verify{apiservice="v1.metrics.k8s.io"} 1
apiservice_insecure_skip_tls_verify{apiservice="v1beta1.metrics.k8s.io"} 0
apiservice_misdirected{apiservice="v1.metrics.k8s.io"} 0
apiservice_misdirected{apiservice="v1beta1.metrics.k8s.io"} 1
`, "apiservice_")
}

func TestMetricConventions(t *testing.T) {
	problems, err := testutil.GatherAndLint(newTestInstruments().registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestExposition checks that /metrics is a valid exposition with each metric once, including the
// library's.
func TestExposition(t *testing.T) {
	w := httptest.NewRecorder()
	newTestInstruments().handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := w.Body.String()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if _, err := parser.TextToMetricFamilies(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"kube_vitals_scrapes_total", "kube_vitals_scrape_duration_seconds", "kube_vitals_scrape_lateness_seconds",
		"kube_vitals_samples_skipped_total", "kube_vitals_node_last_success_timestamp_seconds",
		"kube_vitals_answer_age_seconds", "kube_vitals_known_objects", "kube_vitals_metric_resolution_seconds",
		"kube_vitals_max_sample_age_seconds", "kube_vitals_points", "kube_vitals_oldest_point_age_seconds",
		"kube_vitals_build_info", "kube_vitals_memory_limit_bytes",
		"go_goroutines", "process_start_time_seconds", "process_max_fds", "process_open_fds",
	} {
		if n := strings.Count(text, "# TYPE "+name+" "); n != 1 {
			t.Errorf("got %s %d times, want once", name, n)
		}
	}
}
