package nodez

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/health/healthtest"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
	"github.com/kube-vitals/kube-vitals/pkg/view/viewtest"
)

// world is what the page is made of.
type world struct {
	healthtest.Source
	nodes map[string]usage.Time // when their metrics were sampled
	pods  map[string]int        // containers with metrics, by node/namespace/name
	known []*inventory.Object   // pods
	reads atomic.Int64
}

func (w *world) Nodes() []health.Node {
	w.reads.Add(1)
	return w.Source.Nodes()
}

func (w *world) config(now time.Time) Config {
	clock := usage.NewClock(now)
	return Config{
		Version: "v1.2.3", Resolution: 15 * time.Second, MaxSampleAge: time.Minute,
		Source: w, View: w.view(clock.At(now)), Now: func() time.Time { return now }, Clock: clock,
		Memory: func() *Memory { return nil },
	}
}

func (w *world) view(now usage.Time) *view.View {
	amount := func(asOf usage.Time) usage.Amount {
		return usage.Amount{At: usage.NodeTime(asOf), Window: 15 * time.Second}
	}
	reported, names := map[string][]*usage.Pod{}, map[string]bool{}
	for name := range w.nodes {
		names[name] = true
	}
	for path, containers := range w.pods {
		key := strings.Split(path, "/")
		p := &usage.Pod{Namespace: key[1], Name: key[2]}
		for i := range containers {
			p.Containers = append(p.Containers, usage.Container{Name: fmt.Sprint("c", i), Amount: amount(now)})
		}
		names[key[0]], reported[key[0]] = true, append(reported[key[0]], p)
	}
	s := viewtest.NewStore(1000)
	for name := range names {
		var node *usage.Node
		if asOf := w.nodes[name]; asOf != 0 {
			node = &usage.Node{Amount: amount(asOf), AsOf: asOf}
		}
		viewtest.Put(s, name, node, reported[name]...)
	}
	return &view.View{Pods: viewtest.Index(w.known...), Nodes: inventory.New(), Store: s}
}

func pod(node, name string, phase inventory.Phase) *inventory.Object {
	return &inventory.Object{Namespace: "default", Name: name, Node: node, Phase: phase}
}

// newWorld returns a cluster with a node in each state.
func newWorld(now time.Time) *world {
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	at := func(d time.Duration) usage.Time { return usage.NewClock(now).At(now).Add(-d) }
	ok := func(name string, since, last time.Duration) health.Node {
		return health.Node{
			Name: name, Address: name + ":10250", Containers: 3, Attempts: health.Attempts{
				SucceedingSince: ago(since), LastSuccess: ago(last), Last: ago(last),
				Next: now.Add(15*time.Second - last), Took: 12345 * time.Microsecond,
			},
		}
	}
	ready := ok("ready", time.Hour, 5*time.Second)
	ready.ClockKnown, ready.ClockOffset, ready.Skipped = true, -90*time.Second, 2
	failing := ok("failing", time.Hour, 35*time.Second)
	failing.SucceedingSince, failing.Last, failing.Next = time.Time{}, ago(time.Second), time.Time{}
	failing.Failures, failing.FailingSince, failing.Reason = 3, ago(20*time.Second), reason.ConnectRefused
	failing.Err = errors.New("dial tcp: connection refused")
	return &world{
		Source: healthtest.Source{List: []health.Node{
			failing, {Name: "new", Attempts: health.Attempts{Next: ago(time.Second)}}, ready,
			ok("recovered", 50*time.Second, 5*time.Second), ok("stale", time.Hour, 5*time.Second),
		}},
		nodes: map[string]usage.Time{
			"ready": at(12 * time.Second), "failing": at(40 * time.Second), "stale": at(2 * time.Minute),
		},
		pods: map[string]int{"ready/default/a": 2, "ready/default/d": 2, "other/default/b": 2},
		known: []*inventory.Object{
			pod("ready", "a", inventory.PodRunning), pod("ready", "b", inventory.PodRunning),
			pod("ready", "c", inventory.PodPending), pod("ready", "d", inventory.PodSucceeded),
			pod("stale", "e", inventory.PodRunning), pod("unselected", "f", inventory.PodRunning),
		},
	}
}

func indented(t *testing.T, value any) string {
	t.Helper()
	text, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a fixed time
		now := time.Now()
		config := newWorld(now).config(now)
		config.Memory = func() *Memory { return &Memory{ResidentBytes: 7} }
		got := config.Report()

		utc := func(d time.Duration) *time.Time { return new(now.UTC().Add(d)) }
		described := func(n Node, r reason.Reason) Node {
			d := r.Describe()
			n.Reason, n.Problem, n.Cure, n.URL = r, d.Problem, d.Cure, r.URL()
			return n
		}
		common := Node{
			LastSuccess: utc(-5 * time.Second), LastScrape: utc(-5 * time.Second), NextScrape: utc(10 * time.Second),
			DurationSeconds: 0.012345, Samples: 3,
		}
		ready, recovered, stale := common, common, common
		ready.Name, ready.Address, ready.State = "ready", "ready:10250", Ready
		ready.MetricsAgeSeconds, ready.ClockSkewSeconds, ready.Skipped = new(12.0), new(-90.0), 2
		ready.Pods, ready.RunningPods = 1, 2
		recovered.Name, recovered.Address, recovered.State = "recovered", "recovered:10250", Starting
		stale.Name, stale.Address, stale.State, stale.RunningPods = "stale", "stale:10250", Stale, 1
		failing := described(Node{
			Name: "failing", Address: "failing:10250", State: Failing,
			LastSuccess: utc(-35 * time.Second), LastScrape: utc(-time.Second), FailingSince: utc(-20 * time.Second),
			Failures: 3, DurationSeconds: 0.012345, MetricsAgeSeconds: new(40.0), Samples: 3,
		}, reason.ConnectRefused)
		failing.Error = "dial tcp: connection refused"
		want := &Report{
			Time: now.UTC(), Version: "v1.2.3", MetricResolutionSeconds: 15, MaxSampleAgeSeconds: 60,
			Memory: &Memory{ResidentBytes: 7},
			Totals: Totals{
				Nodes: 5, FailingNodes: 1, NodesWithMetrics: 2, Pods: 4, PodsWithMetrics: 1, Containers: 2,
				Reasons: map[reason.Reason]int{reason.ConnectRefused: 1, reason.StaleSamples: 1},
				States:  map[State]int{Ready: 1, Starting: 2, Failing: 1, Stale: 1},
			},
			Nodes: []Node{
				failing, {Name: "new", State: Starting}, ready, recovered,
				described(stale, reason.StaleSamples),
			},
		}
		if got, want := indented(t, got), indented(t, want); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// TestStates has nodes of sources that can be read as a whole, or cannot.
func TestStates(t *testing.T) {
	now := time.Now()
	clock := usage.NewClock(now)
	w := world{nodes: map[string]usage.Time{"sampled": clock.At(now).Add(-2 * time.Minute)}}
	config := w.config(now)
	config.View.Store.Put("lost", &usage.Scrape{At: clock.At(now), Node: usage.Sample{Loss: usage.LostZero}})
	since := func(d time.Duration) health.Attempts { return health.Attempts{SucceedingSince: now.Add(-d)} }
	failed := health.Attempts{Failures: 1, Reason: reason.DNS}
	for _, test := range []struct {
		name       string
		node       string
		attempts   health.Attempts
		hasMetrics bool
		source     health.Attempts
		state      State
		reason     reason.Reason
	}{
		{"ready", "sampled", since(time.Hour), true, health.Attempts{}, Ready, ""},
		{"before the first scrape", "", health.Attempts{}, false, health.Attempts{}, Starting, ""},
		{"first success", "sampled", since(0), false, health.Attempts{}, Starting, ""},
		{"success for the maximum age", "sampled", since(time.Minute), false, health.Attempts{}, Starting, ""},
		{"success for longer", "sampled", since(time.Minute + 1), false, health.Attempts{}, Stale, reason.StaleSamples},
		{"without samples of the node itself", "", since(time.Hour), false, health.Attempts{}, Stale, reason.NoSamples},
		{"without usable samples", "lost", since(time.Hour), false, health.Attempts{}, Stale, reason.UsageUnknown},
		{"failing", "sampled", failed, false, health.Attempts{}, Failing, reason.DNS},
		{"failing, with metrics", "sampled", failed, true, health.Attempts{}, Failing, reason.DNS},
		{"source fails", "sampled", since(time.Hour), false, failed, Failing, reason.EngineFailing},
		{"source fails, with metrics", "sampled", since(time.Hour), true, failed, Ready, ""},
	} {
		state, why := config.stateOf(
			&health.Overall{Attempts: test.source}, &health.Node{Name: test.node, Attempts: test.attempts}, test.hasMetrics, now)
		if state != test.state || why != test.reason {
			t.Errorf("%s: got %s %s, want %s %s", test.name, state, why, test.state, test.reason)
		}
	}
}

func TestWallTimesFollowTheMonotonicClock(t *testing.T) {
	now := time.Now()
	got, want := wallAt(now.Add(-time.Minute), now), wall(now).Add(-time.Minute)
	if diff := got.Sub(want); diff < -time.Millisecond || diff > time.Millisecond {
		t.Errorf("got %v, want a minute before %v", got, now)
	}
	if wallAt(time.Time{}, now) != nil {
		t.Error("the zero time is not nil")
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                       "plain",
		"two\nlines\tand a tab":       "two lines and a tab",
		"\x1b[31mred\x1b[0m":          "\uFFFD[31mred\uFFFD[0m",
		"right\u202eto left":          "right\uFFFDto left",
		"broken \xff\xfe":             "broken \uFFFD\uFFFD",
		"größer, 大":                   "größer, 大",
		strings.Repeat("x", 21):       strings.Repeat("x", 20) + "…",
		strings.Repeat("x", 19) + "é": strings.Repeat("x", 19) + "…",
	} {
		if got := shorten(text, 20); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := shorten(strings.Repeat("大", 1<<20), maxErrorBytes); len(got) > maxErrorBytes+len("…") {
		t.Errorf("got %d bytes of a huge error", len(got))
	}
}

func TestNegotiate(t *testing.T) {
	for accept, want := range map[string]string{
		"":                             "json",
		"*/*":                          "json", // curl
		"application/json, */*":        "json", // kubectl get --raw
		"application/json":             "json",
		"text/html":                    "html",
		"TEXT/HTML; charset=utf-8":     "html",
		"text/plain":                   "text",
		"text/*":                       "html",
		"text/*, text/html;q=0.1":      "html",
		"text/plain, application/json": "text",
		"text/plain;q=0.9, application/json;q=0.8":                        "text",
		"application/json;q=0.1, */*;q=0.5":                               "json",
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": "html", // browsers
		"image/png":                           "",
		"application/vnd.kubernetes.protobuf": "",
		"application/vnd.kubernetes.protobuf, application/json;q=0.5":   "json",
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json": "json",
		"text/plain;q=2":    "text",
		"text/plain;q=NaN":  "text",
		",, ;;, text/plain": "text",
		"application/json;q=0.5;version=1, text/html;level=1;q=0.4, text/plain;q=0.3": "json",
	} {
		r := httptest.NewRequest(http.MethodGet, Path, nil)
		r.Header.Set("Accept", accept)
		if got, status, problem := formatOf(r); got.name != want || (problem == "") != (want != "") {
			t.Errorf("%q: got %q, %d %q, want %q", accept, got.name, status, problem, want)
		}
	}
}

// get sends a request to a handler of the world.
func get(t *testing.T, method, target, accept string) *http.Response {
	t.Helper()
	now := time.Now()
	r := httptest.NewRequest(method, target, nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	Handler(newWorld(now).config(now)).ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, response *http.Response) string {
	t.Helper()
	var b strings.Builder
	if err := response.Write(&b); err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(b.String(), "\r\n\r\n")
	return text
}

func TestHandler(t *testing.T) {
	for name, test := range map[string]struct {
		method, target, accept string
		status                 int
		contentType            string
		content                []string
	}{
		"JSON": {"GET", Path, "application/json, */*", 200, "application/json", []string{`"reason":"connect-refused"`}},
		"HTML": {"GET", Path, "text/html", 200, "text/html; charset=utf-8", []string{"<!DOCTYPE html>", "connect-refused"}},
		"text": {"GET", Path, "text/plain", 200, "text/plain; charset=utf-8", []string{"NAME", "connect-refused"}},
		"parameter": {"GET", Path + "?format=text", "application/json", 200, "text/plain; charset=utf-8",
			[]string{"NAME", "connect-refused"}},
		"unknown parameter": {"GET", Path + "?format=xml", "", 400, "text/plain; charset=utf-8",
			[]string{"json, html and text"}},
		"not acceptable": {"GET", Path, "image/png", 406, "text/plain; charset=utf-8", []string{"text/html"}},
		"HEAD":           {"HEAD", Path, "text/html", 200, "text/html; charset=utf-8", nil},
		"POST":           {"POST", Path, "", 405, "text/plain; charset=utf-8", []string{"use GET"}},
		"DELETE":         {"DELETE", Path, "", 405, "text/plain; charset=utf-8", []string{"use GET"}},
		"PUT":            {"PUT", Path, "", 405, "text/plain; charset=utf-8", []string{"use GET"}},
	} {
		t.Run(name, func(t *testing.T) {
			response := get(t, test.method, test.target, test.accept)
			text, header := body(t, response), response.Header
			if response.StatusCode != test.status || header.Get("Content-Type") != test.contentType {
				t.Errorf("got %s, %s", response.Status, header.Get("Content-Type"))
			}
			for _, part := range test.content {
				if !strings.Contains(text, part) {
					t.Errorf("the response does not have %q:\n%s", part, text)
				}
			}
			if test.content == nil && text != "" {
				t.Errorf("got a body: %s", text)
			}
			if header.Get("Cache-Control") != "no-store" || header.Get("X-Content-Type-Options") != "nosniff" ||
				header.Get("Vary") != "Accept" {
				t.Errorf("got headers %v", header)
			}
			if test.status == 405 && header.Get("Allow") != "GET, HEAD" {
				t.Errorf("got Allow %q", header.Get("Allow"))
			}
			want := ""
			if strings.HasPrefix(test.contentType, "text/html") {
				want = policy()
			}
			if got := header.Get("Content-Security-Policy"); got != want {
				t.Errorf("got policy %q, want %q", got, want)
			}
		})
	}
}

// TestPolicy checks that browsers load nothing, and run only the script of the page.
func TestPolicy(t *testing.T) {
	const want = "default-src 'none'; style-src HASH; script-src HASH; connect-src 'self'; base-uri 'none'; " +
		"form-action 'none'; frame-ancestors 'none'"
	hash := regexp.MustCompile("'sha256-[A-Za-z0-9+/]{43}='")
	if got := hash.ReplaceAllString(policy(), "HASH"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestJSON checks that clients can decode the JSON with the exported types, without other fields.
func TestJSON(t *testing.T) {
	now := time.Now()
	config := newWorld(now).config(now)
	want := config.Report()
	decoder := json.NewDecoder(get(t, "GET", Path, "application/json").Body)
	decoder.DisallowUnknownFields()
	var got Report
	if err := decoder.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if len(got.Nodes) != len(want.Nodes) || !reflect.DeepEqual(got.Totals, want.Totals) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for i := range got.Nodes {
		if i > 0 && got.Nodes[i-1].Name >= got.Nodes[i].Name {
			t.Errorf("%s comes before %s", got.Nodes[i-1].Name, got.Nodes[i].Name)
		}
	}
}

func TestNoNodes(t *testing.T) {
	config := (&world{}).config(time.Now())
	handler := Handler(config)
	for f, want := range map[string]string{
		"json": `"nodes":[]`, "html": "No nodes are known yet", "text": "Nodes: 0; 0 with metrics\n",
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path+"?format="+f, nil))
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: got %s, want %q", f, w.Body, want)
		}
	}
}

// TestHTMLListsTheFirstNodes checks that the page of a large cluster lists the nodes with problems, and
// has the number of those that it does not list.
func TestHTMLListsTheFirstNodes(t *testing.T) {
	now := time.Now()
	config := largeWorld(now).config(now)
	var b strings.Builder
	if _, err := WriteHTML(&b, config.Report()); err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]int{
		"<tr data-state=": maxRows, `<tr data-state="failing"`: 500, "4,500 more nodes are not listed": 1, "</html>\n": 1,
	} {
		if got := strings.Count(b.String(), part); got != want {
			t.Errorf("%q occurs %d times, want %d", part, got, want)
		}
	}
}

// TestIdleHandler checks that requests without a report read nothing.
func TestIdleHandler(t *testing.T) {
	w := &world{}
	handler := Handler(w.config(time.Now()))
	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodHead, Path, nil), httptest.NewRequest(http.MethodPost, Path, nil),
		httptest.NewRequest(http.MethodGet, Path+"?format=x", nil),
	} {
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	if n := w.reads.Load(); n != 0 {
		t.Errorf("%d reports were made", n)
	}
}

// hostile is a name or an error that a node could choose to attack the reader.
const hostile = `<script>alert(1)</script>"'><img src=x onerror=alert(2)>{{.}}</pre></details></style>` +
	"\x1b]0;title\a\r\n\u202e"

// TestHostileText checks that text of nodes, of an engine and of an exporter cannot control the page.
func TestHostileText(t *testing.T) {
	now := time.Now()
	long := errors.New(hostile + strings.Repeat("x", 1<<20))
	kubelets := newWorld(now)
	failing := &kubelets.List[0]
	failing.Name, failing.Address, failing.Err = hostile, hostile, long
	engine, source := newEngineWorld(now)
	source.All.Failures, source.All.Reason = 1, reason.BadFormat
	source.All.Err, source.All.Engine.Warning, source.List[0].Name = long, long.Error(), hostile
	devices := newWorld(now).config(now)
	devices.Devices = func() []health.Exporter {
		failed := health.Attempts{Failures: 1, Reason: reason.BadFormat, Err: long}
		return []health.Exporter{{
			Name: "dcgm", LeftOut: 1, LeftOutPod: hostile,
			Pods: []health.ExporterPod{{Name: "p", Node: hostile, Attempts: failed}},
		}}
	}
	for name, test := range map[string]struct {
		config Config
		want   []string
	}{
		"node":     {kubelets.config(now), []string{"connect-refused"}},
		"engine":   {engine, []string{"unexpected-format", "prometheus:9090"}},
		"exporter": {devices, []string{"unexpected-format"}},
	} {
		for _, f := range formats() {
			response := httptest.NewRecorder()
			Handler(test.config).ServeHTTP(response, httptest.NewRequest(http.MethodGet, Path+"?format="+f.name, nil))
			text := response.Body.String()
			if len(text) > 64<<10 {
				t.Errorf("%s: got %d bytes of %s", name, len(text), f.name)
			}
			for _, want := range test.want {
				if !strings.Contains(text, want) {
					t.Errorf("%s: %s does not have %q: %s", name, f.name, want, text)
				}
			}
			switch f {
			case formatJSON:
				if err := json.Unmarshal(response.Body.Bytes(), &Report{}); err != nil || strings.Contains(text, "<script>") {
					t.Errorf("%s: error %v, or JSON with an unescaped tag: %s", name, err, text)
				}
			case formatHTML:
				if strings.Contains(text, "<script>alert") || strings.Contains(text, "<img") ||
					strings.Count(text, "<script") != 1 || strings.Count(text, "</style>") != 1 {
					t.Errorf("%s: HTML with an unescaped tag: %s", name, text)
				}
			case formatText:
				if strings.ContainsAny(text, "\x1b\a\r\u202e") {
					t.Errorf("%s: text with control characters: %q", name, text)
				}
			}
		}
	}
}

func TestText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		config := newWorld(now).config(now)
		config.Memory = func() *Memory { return &Memory{312 << 20, 20 << 30} }
		var b strings.Builder
		if err := writeText(&b, config.Report()); err != nil {
			t.Fatal(err)
		}
		const want = `kube-vitals v1.2.3 at 2000-01-01T00:00:00Z: metric resolution 15s, metrics expire after 1m
Nodes: 5; 2 with metrics; 1 failing; 1 stale; 2 starting; 1 ready
Pods: 4 running; 1 with metrics, with 2 containers
Memory: 312 MiB resident, limit 20 GiB
Reasons: 1 connect-refused, 1 stale-samples

NAME       STATE     REASON           FAILURES  AGE  LAST-SUCCESS  PODS  SAMPLES  NEXT  DURATION  SKEW  ADDRESS
failing    failing   connect-refused  3(20s)    40s  35s           0/0   3        now   12.3ms    -     failing:10250
stale      stale     stale-samples    -         -    5s            0/1   3        10s   12.3ms    -     stale:10250
new        starting  -                -         -    -             0/0   0        now   -         -     -
recovered  starting  -                -         -    5s            0/0   3        10s   12.3ms    -     recovered:10250
ready      ready     -                -         12s  5s            1/2   3        10s   12.3ms    -90s  ready:10250

node "failing": the kubelet's port refuses connections: dial tcp: connection refused ` +
			`(check that the kubelet runs, and check --kubelet-port and --kubelet-use-node-status-port)
  see https://github.com/kube-vitals/kube-vitals/blob/main/docs/troubleshooting.md#connect-refused

node "stale": the kubelet responds, but its samples are too old (see the kubelet's log, or raise --max-sample-age)
  see https://github.com/kube-vitals/kube-vitals/blob/main/docs/troubleshooting.md#stale-samples
`
		if b.String() != want {
			t.Errorf("got\n%s\nwant\n%s", b.String(), want)
		}
	})
}

// TestCapacity has nodes whose own counters exceed the capacity in their status. One of them fails.
func TestCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		w := newWorld(now)
		for i := range w.List {
			w.List[i].Capacity = 2e9
			if name := w.List[i].Name; name == "ready" || name == "failing" {
				w.List[i].Exceeded = 6_125_000_000
			}
		}
		config := w.config(now)
		r := config.Report()
		for _, n := range r.Nodes {
			want := map[string]reason.Reason{
				"ready": reason.AboveCapacity, "failing": reason.ConnectRefused, "stale": reason.StaleSamples,
			}[n.Name]
			hasCores := n.CapacityCores == 2 && n.UsedCores == 6.125
			if n.Reason != want || hasCores != (n.Name == "ready" || n.Name == "failing") {
				t.Errorf("%s: got %+v", n.Name, n)
			}
		}
		if got := r.Totals; got.FailingNodes != 1 || got.States[Ready] != 1 || got.Reasons[reason.AboveCapacity] != 1 {
			t.Errorf("got %+v", got)
		}
		d := reason.AboveCapacity.Describe()
		var page, text strings.Builder
		if _, err := WriteHTML(&page, r); err != nil || !strings.Contains(page.String(), "<pre>6.125 of 2 cores</pre>") {
			t.Errorf("got a page without the capacity, error %v", err)
		}
		line := "\nnode \"ready\": " + d.Problem + ": 6.125 of 2 cores (" + d.Cure + ")\n"
		if err := writeText(&text, r); err != nil || !strings.Contains(text.String(), line) ||
			!strings.Contains(text.String(), "ready      ready     above-capacity ") {
			t.Errorf("got a text without the capacity, error %v:\n%s", err, text.String())
		}
	})
}

// TestCures has errors with and without a cure of their own. Each format has the cure once, and apart from the
// error: a kubelet chooses parts of its text.
func TestCures(t *testing.T) {
	const forged = "(do this; the command: kubectl delete namespace kube-system)"
	key := reason.TLSKeyChanged.Describe()
	for name, test := range map[string]struct {
		err           error
		cure, command string
	}{
		"usual": {errors.New(forged), key.Cure, ""},
		"own":   {&reason.Error{Reason: reason.TLSKeyChanged, Err: errors.New(forged), Cure: "unset it"}, "unset it", ""},
		"command": {&reason.Error{Reason: reason.TLSKeyChanged, Err: errors.New(forged), Command: "kubectl patch 'x'"},
			key.Cure, "kubectl patch 'x'"},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			w := newWorld(now)
			for i := range w.List {
				if n := &w.List[i]; n.Failures > 0 {
					n.Reason, n.Err = reason.TLSKeyChanged, test.err
				}
			}
			config := w.config(now)
			r := config.Report()
			n := r.Nodes[0]
			if n.Problem != key.Problem || n.Cure != test.cure || n.Command != test.command || n.Error != forged {
				t.Errorf("got %+v", n.Diagnosis)
			}
			var page, text strings.Builder
			if _, err := WriteHTML(&page, r); err != nil {
				t.Fatal(err)
			}
			if err := writeText(&text, r); err != nil {
				t.Fatal(err)
			}
			wanted := []string{test.cure, forged, n.Problem}
			if test.command != "" {
				wanted = append(wanted, test.command)
			}
			for _, want := range wanted {
				inText, inPage := strings.Count(text.String(), want), strings.Count(html.UnescapeString(page.String()), want)
				if inText != 1 || inPage != 1 {
					t.Errorf("%q is %d times in the text, and %d times in the page", want, inText, inPage)
				}
			}
		})
	}
}

// TestDeadConnections checks that errors of writing end the response.
func TestDeadConnections(t *testing.T) {
	now := time.Now()
	config := newWorld(now).config(now)
	for _, f := range formats() {
		if err := write(failingWriter{}, f, config.Report()); !errors.Is(err, errWrite) {
			t.Errorf("%s: got %v", f.name, err)
		}
	}
}

var errWrite = errors.New("connection closed")

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errWrite }

func TestFormats(t *testing.T) {
	for got, want := range map[string]string{
		took(0.00123): "1.23 ms", took(0.0456): "45.6 ms", took(0.789): "789 ms", took(12): "12.00 s",
		skew(0.02): "0 s", skew(-1.23): "-1.2 s", skew(61.0): "+61 s",
		skew(-7200.0): "-120m", skew(7200.0): "+120m",
		flag(15): "15s", flag(60): "1m", flag(90): "1m30s", flag(3600): "1h", flag(0.5): "500ms",
		count(0): "0", count(999): "999", count(1000): "1,000", count(1234567): "1,234,567",
		bytesOf(5 << 20): "5 MiB", bytesOf(9000 << 20): "9000 MiB", bytesOf(100 << 30): "100 GiB",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// largeWorld is a cluster with 5000 nodes and 150,000 pods.
func largeWorld(now time.Time) *world {
	w := newWorld(now)
	ready := w.List[2]
	w.List = nil
	w.known = nil
	w.nodes, w.pods = map[string]usage.Time{}, nil
	for i := range 5000 {
		s := ready
		s.Name = fmt.Sprintf("node-%04d", i)
		if i%10 == 0 {
			s.Failures, s.Reason = 3, reason.ConnectRefused
			s.Err = errors.New("node \"" + s.Name + "\": " + strings.Repeat("the port refuses connections ", 10))
		}
		w.List = append(w.List, s)
		w.nodes[s.Name] = usage.NewClock(now).At(now)
		for j := range 30 {
			name := fmt.Sprintf("pod-%d-%d", i, j)
			w.known = append(w.known, pod(s.Name, name, inventory.PodRunning))
		}
	}
	return w
}

func BenchmarkReport(b *testing.B) {
	now := time.Now()
	config := largeWorld(now).config(now)
	b.ReportAllocs()
	for b.Loop() {
		config.Report()
	}
}

func BenchmarkFormats(b *testing.B) {
	now := time.Now()
	config := largeWorld(now).config(now)
	report := config.Report()
	for _, f := range formats() {
		b.Run(f.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w := &countingWriter{}
				if err := write(w, f, report); err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(w.n))
			}
		})
	}
}

type countingWriter struct{ n int }

func (w *countingWriter) Write(p []byte) (int, error) {
	w.n += len(p)
	return len(p), nil
}

// TestSlow has nodes whose last request took long. With current metrics, that is not a failure.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		timeout := errors.New("no complete response within 10s")
		for name, tt := range map[string]struct {
			node  string
			err   reason.Reason // of the last request; empty: it succeeded
			state State
			want  reason.Reason
			text  string
		}{
			"success":            {"ready", "", Ready, reason.Slow, "after 12 s"},
			"timeout":            {"ready", reason.Timeout, Ready, reason.Slow, timeout.Error()},
			"no connection":      {"ready", reason.ConnectTimeout, Failing, reason.ConnectTimeout, timeout.Error()},
			"no metrics":         {"recovered", "", Starting, "", ""},
			"no metrics in time": {"recovered", reason.Timeout, Failing, reason.Timeout, timeout.Error()},
		} {
			w := newWorld(now)
			for i := range w.List {
				if n := &w.List[i]; n.Name == tt.node {
					n.Slow, n.Took = true, 12300*time.Millisecond
					if tt.err != "" {
						n.Failures, n.FailingSince, n.Reason, n.Err = 1, now, tt.err, timeout
					}
				}
			}
			config := w.config(now)
			for _, n := range config.Report().Nodes {
				if n.Name == tt.node && (n.State != tt.state || n.Reason != tt.want || !strings.HasPrefix(n.Error, tt.text)) {
					t.Errorf("%s: got %s, %s: %s", name, n.State, n.Reason, n.Error)
				}
			}
		}
	})
}
