package server

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

var now = time.Unix(1_800_000_000, 0)

// filled gives instruments that have seen something of everything.
func filled() *instruments {
	i := newInstruments("v1.2.3", "0123abc", func() time.Time { return now }, usage.NewClock(now))
	i.watchOver(store.New(store.Config{MaxSampleAge: time.Minute, MaxContainers: 10}), inventory.New(), inventory.New())
	i.tell(15*time.Second, time.Minute)
	ok := scrape.Result{Node: "a", Took: time.Millisecond}
	ok.Skipped[usage.BadValue] = 2
	i.Scraped(ok)
	i.Scraped(scrape.Result{Node: "a", Late: -time.Second})
	i.Scraped(scrape.Result{Node: "b", ClockKnown: true, ClockOffset: -75 * time.Second})
	i.Scraped(scrape.Result{Node: "b", Err: errors.New("it hangs")})
	i.answered("pods", 7*time.Second)
	i.apiServices(func() map[string]servingcert.APIServiceState {
		return map[string]servingcert.APIServiceState{"v1.metrics.k8s.io": {}, "v1beta1.metrics.k8s.io": {Misdirected: true}}
	})
	return i
}

func TestScrapesAreCounted(t *testing.T) {
	i := filled()
	if n := testutil.ToFloat64(i.scrapes.WithLabelValues("success", "")); n != 3 {
		t.Errorf("%v successes, want 3", n)
	}
	if n := testutil.CollectAndCount(i.scrapes); n != 2 {
		t.Errorf("%v series of results, want 2", n)
	}
	if n := testutil.ToFloat64(i.skipped.WithLabelValues("bad_value")); n != 2 {
		t.Errorf("%v samples skipped, want 2", n)
	}
	if at := testutil.ToFloat64(i.lastSuccess.WithLabelValues("a")); at != float64(now.Unix()) {
		t.Errorf("the last success of a was at %v, want %v", at, now.Unix())
	}
	i.Scraped(scrape.Result{Node: "c", Err: errors.New("it hangs")})
	if at := testutil.ToFloat64(i.lastSuccess.WithLabelValues("c")); at != 0 {
		t.Errorf("the last success of c was at %v, want 0 for never", at)
	}
}

func TestWhyANodeFails(t *testing.T) {
	i := filled()
	show := func() string {
		var all []string
		families, err := i.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() == "kube_vitals_node_failing" {
				for _, series := range family.GetMetric() {
					all = append(all, series.GetLabel()[0].GetValue()+" "+series.GetLabel()[1].GetValue())
				}
			}
		}
		return strings.Join(all, ", ")
	}
	if got := show(); got != "b other" {
		t.Errorf("failing are %q, want b", got)
	}
	i.Scraped(scrape.Result{Node: "a", Err: errors.New("no")})
	i.Scraped(scrape.Result{Node: "b"})
	if got := show(); got != "a other" {
		t.Errorf("failing are %q, want a only", got)
	}
}

func TestClockSkews(t *testing.T) {
	i := newInstruments("v1.2.3", "0123abc", func() time.Time { return now }, usage.NewClock(now))
	skew := func(node string, offset time.Duration) {
		i.Scraped(scrape.Result{Node: node, ClockKnown: true, ClockOffset: offset})
	}
	compare := func(want string) {
		t.Helper()
		want = "# HELP kube_vitals_max_clock_skew_seconds The largest difference between the clock of a node and the clock of this server, in either direction.\n" +
			"# TYPE kube_vitals_max_clock_skew_seconds gauge\n" + want
		if strings.Contains(want, "_node_") {
			want = "# HELP kube_vitals_node_clock_skew_seconds How far the clock of the node is ahead of the clock of this server (below 0: behind), for nodes with more than 5 seconds.\n" +
				"# TYPE kube_vitals_node_clock_skew_seconds gauge\n" + want
		}
		if err := testutil.CollectAndCompare(i.clockSkews, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	}
	compare("kube_vitals_max_clock_skew_seconds 0\n")
	skew("right", 0)
	skew("behind", -3*time.Second)
	compare("kube_vitals_max_clock_skew_seconds 3\n")
	skew("behind", -75*time.Second)
	skew("ahead", 6*time.Second)
	i.Scraped(scrape.Result{Node: "ahead", Err: errors.New("it hangs")}) // what is known stands
	i.Scraped(scrape.Result{Node: "behind"})                             // the offset is not known
	const both = `kube_vitals_max_clock_skew_seconds 75
kube_vitals_node_clock_skew_seconds{node="ahead"} 6
kube_vitals_node_clock_skew_seconds{node="behind"} -75
`
	compare(both)
	i.NodeDeleted("behind")
	compare("kube_vitals_max_clock_skew_seconds 6\nkube_vitals_node_clock_skew_seconds{node=\"ahead\"} 6\n")
	skew("ahead", 4*time.Second)
	compare("kube_vitals_max_clock_skew_seconds 4\n")
}

func TestSeriesGoWithTheirNode(t *testing.T) {
	i := filled()
	i.NodeDeleted("a")
	i.NodeDeleted("b")
	families, err := i.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, series := range family.GetMetric() {
			for _, label := range series.GetLabel() {
				if label.GetName() == "node" {
					t.Errorf("%s still has the node %q", family.GetName(), label.GetValue())
				}
			}
		}
	}
}

func TestAPIServicesAreShown(t *testing.T) {
	i := newInstruments("v1.2.3", "0123abc", time.Now, usage.NewClock(time.Now()))
	states := map[string]servingcert.APIServiceState{}
	i.apiServices(func() map[string]servingcert.APIServiceState { return states })
	for name, c := range map[string]struct {
		states map[string]servingcert.APIServiceState
		want   string
	}{
		"unknown": {},
		"one is elsewhere, one unverified": {
			map[string]servingcert.APIServiceState{"a": {Misdirected: true}, "b": {InsecureSkipTLSVerify: true}}, `
# HELP kube_vitals_apiservice_insecure_skip_tls_verify 1 if the API server does not verify the server that the APIService leads to, else 0.
# TYPE kube_vitals_apiservice_insecure_skip_tls_verify gauge
kube_vitals_apiservice_insecure_skip_tls_verify{apiservice="a"} 0
kube_vitals_apiservice_insecure_skip_tls_verify{apiservice="b"} 1
# HELP kube_vitals_apiservice_misdirected 1 if the APIService does not lead to the Service of this server, else 0.
# TYPE kube_vitals_apiservice_misdirected gauge
kube_vitals_apiservice_misdirected{apiservice="a"} 1
kube_vitals_apiservice_misdirected{apiservice="b"} 0
`},
	} {
		states = c.states
		err := testutil.GatherAndCompare(i.registry, strings.NewReader(c.want),
			"kube_vitals_apiservice_misdirected", "kube_vitals_apiservice_insecure_skip_tls_verify")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTelemetryFollowsTheConventions(t *testing.T) {
	problems, err := testutil.GatherAndLint(filled().registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// What is served is one valid exposition: every family once, ours and the library's.
func TestExposition(t *testing.T) {
	w := httptest.NewRecorder()
	filled().handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := w.Body.String()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"kube_vitals_scrapes_total", "kube_vitals_scrape_duration_seconds", "kube_vitals_scrape_lateness_seconds",
		"kube_vitals_samples_skipped_total", "kube_vitals_node_last_success_timestamp_seconds", "kube_vitals_answer_age_seconds",
		"kube_vitals_known_objects", "kube_vitals_metric_resolution_seconds", "kube_vitals_max_sample_age_seconds", "kube_vitals_points", "kube_vitals_oldest_point_age_seconds", "kube_vitals_build_info",
		"go_goroutines", "process_start_time_seconds",
	} {
		if families[name] == nil {
			t.Errorf("%s is not there", name)
		}
		if n := strings.Count(text, "# TYPE "+name+" "); n != 1 {
			t.Errorf("%s is there %d times", name, n)
		}
	}
}
