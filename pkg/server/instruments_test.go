package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/health/healthtest"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
)

// newTestInstruments returns instruments with at least one series of each metric.
func newTestInstruments() *instruments {
	now := time.Unix(1_800_000_000, 0)
	clock := usage.NewClock(now)
	i := newInstruments(Config{
		Version: "v1.2.3", Commit: "0123abc", Resolution: 15 * time.Second, MaxSampleAge: time.Minute,
	}, clock)
	i.registerState(view.New(store.Config{MaxSampleAge: time.Minute, MaxContainers: 10}, clock))
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
		return scrape.ActiveStats{Nodes: 3, Resolution: 7500 * time.Millisecond}
	})
	skipped := scrape.Result{Node: "a", Timing: usage.Timing{Took: time.Millisecond}, Kind: scrape.Early}
	skipped.Skipped[usage.BadValue] = 2
	for _, r := range []scrape.Result{
		skipped, {Node: "a", Late: -time.Second, Kind: scrape.OfActive}, {Node: "b", Kind: scrape.OfActive},
		{Node: "b", Err: context.DeadlineExceeded, Skipped: skipped.Skipped},
	} {
		i.Scraped(r)
	}
	i.observeAnswerAge("pods", 7*time.Second)
	i.registerAPIServices(func() map[string]servingcert.APIServiceState {
		return map[string]servingcert.APIServiceState{
			"v1.metrics.k8s.io":      {InsecureSkipTLSVerify: true},
			"v1beta1.metrics.k8s.io": {Misdirected: true},
		}
	})
	return i
}

// TestInstruments checks the metrics of scrapes, nodes and APIServices.
func TestInstruments(t *testing.T) {
	h := promhttp.HandlerFor(newTestInstruments().registry, promhttp.HandlerOpts{})
	const names = `scrapes_total|samples_skipped_total{reason="bad_value"|early_|active_|max_clock_skew|node_|apiservice_`
	lines := regexp.MustCompile(`(?m)^kube_vitals_((`+names+`).*)\n`).FindAllStringSubmatch(
		get(h, "/metrics", "").Body.String(), -1)
	const want = `
active_nodes 3
active_resolution_seconds 7.5
active_scrapes_total 2
apiservice_insecure_skip_tls_verify{apiservice="v1.metrics.k8s.io"} 1
apiservice_insecure_skip_tls_verify{apiservice="v1beta1.metrics.k8s.io"} 0
apiservice_misdirected{apiservice="v1.metrics.k8s.io"} 0
apiservice_misdirected{apiservice="v1beta1.metrics.k8s.io"} 1
early_scrapes_total 1
max_clock_skew_seconds 75
node_clock_skew_seconds{node="flaky"} -75
node_failing{node="down",reason="timeout"} 1
node_failing{node="flaky",reason="timeout"} 1
node_last_success_timestamp_seconds{node="down"} 0
node_last_success_timestamp_seconds{node="flaky"} 1.8e+09
node_last_success_timestamp_seconds{node="ok"} 1.8e+09
samples_skipped_total{reason="bad_value"} 2
scrapes_total{reason="",result="success"} 3
scrapes_total{reason="timeout",result="failure"} 1`
	got := ""
	for _, line := range lines {
		got += "\n" + line[1]
	}
	if got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}

// TestExposition checks that the metrics follow the conventions, and that /metrics is a valid exposition
// with each metric once, including the library's.
func TestExposition(t *testing.T) {
	i := newTestInstruments()
	if problems, err := testutil.GatherAndLint(i.registry); err != nil || len(problems) > 0 {
		t.Errorf("got %+v, %v", problems, err)
	}
	text := get(i.handler(), "/metrics", "").Body.String()
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

// stalledResponse is a response whose client does not read.
type stalledResponse struct {
	*httptest.ResponseRecorder
	started chan int // its status, at the first byte
	end     chan struct{}
}

func (w *stalledResponse) Write(p []byte) (int, error) {
	select {
	case w.started <- w.Code:
	default:
	}
	<-w.end
	return len(p), nil
}

// TestClientsShareMetrics checks that clients which do not read /metrics leave responses for others: one gets half of
// them, the next one half of the rest. Without credentials, an address is a client, and they leave others alone.
func TestClientsShareMetrics(t *testing.T) {
	h, end := newTestInstruments().handler(), make(chan struct{})
	var responses sync.WaitGroup
	defer responses.Wait()
	defer close(end)
	from := func(address, name string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.RemoteAddr = address + ":80"
		return r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: name}))
	}
	const namespace = "system:serviceaccount:tenant:"
	for _, tt := range []struct {
		address, user string
		served        int
	}{
		{"10.0.0.1", user.Anonymous, 4}, {"10.0.0.2", user.Anonymous, 2}, {"10.0.0.3", user.Anonymous, 1},
		{"10.0.0.4", user.Anonymous, 1}, {"10.0.0.5", user.Anonymous, 0},
		{"10.0.0.1", namespace + "a", 4}, {"10.0.0.9", namespace + "b", 0},
	} {
		for n := range tt.served + 1 {
			w := &stalledResponse{httptest.NewRecorder(), make(chan int, 1), end}
			responses.Go(func() { h.ServeHTTP(w, from(tt.address, tt.user)) })
			want, retry := http.StatusOK, ""
			if n == tt.served {
				want, retry = http.StatusTooManyRequests, "1"
			}
			if got := <-w.started; got != want || w.Header().Get("Retry-After") != retry {
				t.Errorf("response %d of %s at %s: got status %d with %v, want %d", n, tt.user, tt.address, got, w.Header(), want)
			}
		}
	}
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, from("10.0.0.3", "prometheus")); w.Code != http.StatusOK {
		t.Errorf("another client: got status %d", w.Code)
	}
}
