package nodez

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/prometheus/status"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// fakeEngine is an engine with what it has of nodes.
type fakeEngine struct {
	engine status.Engine
	nodes  []status.Node
}

func (e *fakeEngine) Status() status.Engine       { return e.engine }
func (e *fakeEngine) NodeStatuses() []status.Node { return e.nodes }

// newEngineWorld returns a cluster whose engine has a node with metrics, one without, and no series
// of two others.
func newEngineWorld(now time.Time) (Config, *fakeEngine) {
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	at := func(d time.Duration) usage.Time { return usage.NewClock(now).At(now).Add(-d) }
	node := func(name string) status.Node {
		return status.Node{
			Name: name, CreatedAt: ago(time.Hour), LastSeen: ago(5 * time.Second), SeenSince: ago(time.Hour), Seen: true,
			SeenItself: true, Containers: 3, SampledAt: at(20 * time.Second), Interval: 30 * time.Second,
		}
	}
	ahead := node("ahead")
	ahead.SampledAt = at(-7 * time.Second)
	e := &fakeEngine{
		engine: status.Engine{
			Host: "prometheus:9090", Window: 112 * time.Second, LastSuccess: ago(5 * time.Second),
			LastRefresh: ago(5 * time.Second), NextRefresh: now.Add(10 * time.Second),
			Took: 12345 * time.Microsecond, UnknownSeries: 1234,
			Series: map[string]int{"containerCPU": 6, "nodeCPU": 2},
		},
		nodes: []status.Node{
			ahead, {Name: "gone", CreatedAt: ago(time.Hour), LastSeen: ago(time.Minute), SampledAt: at(70 * time.Second)},
			{Name: "new", CreatedAt: ago(10 * time.Second)}, node("ready"),
		},
	}
	w := &world{
		nodes: map[string]usage.Time{"ready": at(20 * time.Second)},
		pods:  map[string]int{"ready/default/a": 2},
		known: []*inventory.Object{pod("ready", "a", inventory.PodRunning), pod("ready", "b", inventory.PodRunning)},
	}
	c := w.config(now)
	c.Scrapes, c.Refreshes = nil, e
	return c, e
}

func TestEngineText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		config, e := newEngineWorld(now)
		config.Memory = func() *Memory { return &Memory{312 << 20, 20 << 30} }
		check := func(want string) {
			t.Helper()
			var b strings.Builder
			if err := WriteText(&b, config.Report()); err != nil {
				t.Fatal(err)
			}
			if b.String() != want {
				t.Errorf("got\n%s\nwant\n%s", b.String(), want)
			}
		}
		const header = "kube-vitals v1.2.3 at 2000-01-01T00:00:00Z: metric resolution 15s, metrics expire after 1m\n"
		problem := func(r reason.Reason) string {
			d := r.DescribeEngine()
			return d.Problem + " (" + d.Cure + ")"
		}
		const table = `NAME   STATE     REASON         AGE  LAST-SEEN  NEWEST  INTERVAL  PODS  SAMPLES
gone   failing   not-in-engine  -    60s        70s     -         0/0   0
ahead  stale     stale-samples  -    5s         -7.0s   30s       0/0   3
new    starting  -              -    -          -       -         0/0   0
ready  ready     -              20s  5s         20s     30s       1/2   3
`
		check(header + `Nodes: 4; 1 with metrics; 1 failing; 1 stale; 1 starting; 1 ready
Pods: 2 running; 1 with metrics, with 2 containers
Engine: prometheus:9090 is ready, last read 5s ago, took 12.3 ms
  1,234 series are of other nodes
  series: containerCPU 6, nodeCPU 2
Memory: 312 MiB resident, limit 20 GiB
Reasons: 1 not-in-engine, 1 stale-samples

` + table + `
node "gone": ` + problem(reason.NotInEngine) + `
  see https://github.com/kube-vitals/kube-vitals/blob/main/docs/troubleshooting.md#not-in-engine

node "ahead": ` + problem(reason.StaleSamples) + `
  see https://github.com/kube-vitals/kube-vitals/blob/main/docs/troubleshooting.md#stale-samples
`)

		e.engine.Failures, e.engine.FailingSince, e.engine.Reason = 3, now.Add(-20*time.Second), reason.Timeout
		e.engine.Err, e.engine.FileRejected = errors.New("query nodeCPU at prometheus:9090: deadline exceeded"), true
		e.nodes = e.nodes[2:]
		check(header + `Nodes: 2; 1 with metrics; 1 failing; 1 ready
Pods: 2 running; 1 with metrics, with 2 containers
Engine: prometheus:9090 is failing, last read 5s ago, took 12.3 ms, 3 failures in 20s
  1,234 series are of other nodes
  the content of --prometheus-config cannot be used: its previous content stays in use, and the log has the error
  series: containerCPU 6, nodeCPU 2
  timeout: query nodeCPU at prometheus:9090: deadline exceeded
  see https://github.com/kube-vitals/kube-vitals/blob/main/docs/troubleshooting.md#engine-failing
Memory: 312 MiB resident, limit 20 GiB
Reasons: 1 engine-failing

NAME   STATE    REASON          AGE  LAST-SEEN  NEWEST  INTERVAL  PODS  SAMPLES
new    failing  engine-failing  -    -          -       -         0/0   0
ready  ready    -               20s  5s         20s     30s       1/2   3
`)
	})
}

func TestEngineStates(t *testing.T) {
	now := time.Now()
	config, e := newEngineWorld(now)
	seen := func(since time.Duration) status.Node {
		return status.Node{CreatedAt: now.Add(-time.Hour), Seen: true, SeenItself: true, SeenSince: now.Add(-since)}
	}
	onlyContainers := seen(time.Hour)
	onlyContainers.SeenItself = false
	for _, test := range []struct {
		name       string
		node       status.Node
		hasMetrics bool
		state      State
		reason     reason.Reason
	}{
		{"ready", seen(time.Hour), true, Ready, ""},
		{"first sample", seen(50 * time.Second), false, Starting, ""},
		{"samples without metrics", seen(time.Hour), false, Stale, reason.StaleSamples},
		{"only containers", onlyContainers, false, Failing, reason.NotInEngine},
		{"created", status.Node{CreatedAt: now.Add(-50 * time.Second)}, false, Starting, ""},
		{"without series, not expired", status.Node{CreatedAt: now.Add(-time.Hour)}, true, Failing, reason.NotInEngine},
	} {
		state, r := config.stateInEngine(&e.engine, &test.node, test.hasMetrics, now)
		if state != test.state || r != test.reason {
			t.Errorf("%s: got %s %s, want %s %s", test.name, state, r, test.state, test.reason)
		}
	}
	e.engine.LastSuccess = time.Time{}
	if state, r := config.stateInEngine(&e.engine, &status.Node{}, false, now); state != Starting || r != "" {
		t.Errorf("before the first refresh: got %s %s", state, r)
	}
	if got := config.Report().Engine; got.State != Starting || got.LastSuccess != nil {
		t.Errorf("before the first refresh: got %+v", got)
	}
}

// TestHostileEngine checks that text of the engine cannot control the page.
func TestHostileEngine(t *testing.T) {
	config, e := newEngineWorld(time.Now())
	e.engine.Failures, e.engine.Reason, e.engine.Partial = 1, reason.BadFormat, true
	e.engine.Err, e.engine.Warning = errors.New(hostile+strings.Repeat("x", 1<<20)), hostile+strings.Repeat("x", 1<<20)
	e.nodes[0].Name = hostile
	handler := Handler(config)
	for _, f := range formats() {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path+"?format="+f.name, nil))
		text := w.Body.String()
		if len(text) > 64<<10 {
			t.Errorf("%s: got %d bytes", f.name, len(text))
		}
		if f == formatText && strings.ContainsAny(text, "\x1b\a\r\u202e") {
			t.Errorf("text with control characters: %q", text)
		}
		if f != formatText && (strings.Contains(text, "<script>alert") || strings.Contains(text, "<img")) {
			t.Errorf("%s with an unescaped tag: %s", f.name, text)
		}
		if !strings.Contains(text, "unexpected-format") || !strings.Contains(text, "prometheus:9090") {
			t.Errorf("%s does not have the engine: %s", f.name, text)
		}
	}
}
