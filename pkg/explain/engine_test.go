package explain

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/prometheus/status"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/store"
)

// engine is an engine with its nodes.
type engine struct {
	status.Engine
	nodes map[string]status.Node
}

func (e *engine) Status() status.Engine { return e.Engine }

func (e *engine) NodeStatus(node string) (status.Node, bool) {
	s, known := e.nodes[node]
	return s, known
}

// newEngine returns an engine that was read 5 seconds ago and has series of the node n7.
func newEngine() *engine {
	return &engine{
		Engine: status.Engine{
			Host: "10.0.0.9:9090", Window: 112 * time.Second,
			LastSuccess: before(5 * time.Second), LastRefresh: before(5 * time.Second),
		},
		nodes: map[string]status.Node{"n7": {
			Name: "n7", CreatedAt: before(time.Hour), LastSeen: before(5 * time.Second), Seen: true, SeenItself: true,
		}},
	}
}

// lose makes the engine have no series of the node, which was created so long ago.
func (e *engine) lose(age time.Duration) {
	e.nodes["n7"] = status.Node{Name: "n7", CreatedAt: before(age)}
}

// fail makes refreshes fail since so long ago.
func (e *engine) fail(since time.Duration) {
	e.Failures, e.FailingSince, e.Reason = 9, before(since), reason.TLSAuthority
	e.Err, e.Warning = errors.New("query nodeCPU at 10.0.0.9:9090: x509: CN=secret"), "store 10.0.0.10 is down"
}

func engineConfig(w *world, e *engine) Config {
	c := w.config()
	c.Scrapes, c.Refreshes, c.MaxSampleAge = nil, e, 150*time.Second
	return c
}

const (
	engineFails = "reading the engine has failed since 12:03:05 UTC (2m10s) with the reason tls-unknown-authority: " +
		"the engine's certificate is signed by an unknown authority " +
		"(set http.tls_config.ca_file in --prometheus-config to the CA that signed the certificate)"
	notInEngineCure = " (check that the engine scrapes the node's kubelet, and that a label of the series names " +
		"the node (labels.node in --prometheus-config))"
	engineStaleCure = " (let the engine scrape the kubelets every 15 to 30 seconds, check the clocks, " +
		"or raise --max-sample-age)"
	dropCure = " (check that the engine scrapes the node's kubelet, and preset, matchers and queries " +
		"in --prometheus-config)"
)

func TestPodsInEngine(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*world, *engine)
		reason reason.Reason
		text   string
	}{
		{"failing", func(_ *world, e *engine) { e.fail(130 * time.Second) }, reason.EngineFailing, engineFails},
		{"not read yet", func(_ *world, e *engine) { e.LastSuccess = time.Time{} }, reason.NodeStarting,
			"the engine has not been read yet; metrics are expected within 2m7s"},
		{"node without series", func(_ *world, e *engine) { e.lose(time.Hour) }, reason.NotInEngine,
			`the engine has no current series of its node "n7"` + notInEngineCure},
		{"node without series in a partial response", func(_ *world, e *engine) {
			e.lose(time.Hour)
			e.Partial, e.Warning = true, "store 10.0.0.10 is down"
		}, reason.NotInEngine, `the engine has no current series of its node "n7", but says that its response is ` +
			`incomplete` + notInEngineCure},
		{"new node", func(_ *world, e *engine) { e.lose(20 * time.Second) }, reason.NodeStarting,
			`its node "n7" was created 20s ago; metrics are expected within 1m47s`},
		{"node that is not known to the source yet", func(_ *world, e *engine) { clear(e.nodes) }, reason.NotInEngine,
			`the engine has no current series of its node "n7"` + notInEngineCure},
		{"unknown node", func(w *world, _ *engine) { delete(w.nodes, "n7") }, reason.NodeNotFound,
			`its node "n7" does not exist (check its name)`},
		{"no such pod", func(w *world, _ *engine) { delete(w.pods, "shop/web"); w.lookup = &fakeLookup{} },
			reason.PodNotFound, `the pod does not exist in namespace "shop" (check its name and namespace)`},
		{"no container runs", func(w *world, _ *engine) { w.pod().Containers = []inventory.ContainerState{{Name: "app"}} },
			reason.NotRunning, "no container of the pod is running (see its events with kubectl describe pod, " +
				"and its log with kubectl logs --previous)"},
		{"pod without series", func(w *world, _ *engine) { clear(w.podFacts) }, reason.NoContainers,
			"the engine responded at 12:05:10 UTC (5s ago), but does not report the pod" + dropCure},
		{"container without series", func(w *world, _ *engine) { w.report(facts("app", time.Hour, 8*time.Second)) },
			reason.ContainerMissing, `the engine does not report container "proxy"` + dropCure},
		{"container without memory", func(w *world, _ *engine) {
			w.report(facts("app", time.Hour, 8*time.Second), never("proxy", time.Hour))
		}, reason.ContainerMissing, `the engine does not report both CPU and memory of container "proxy"` + dropCure},
		{"new pod", func(w *world, _ *engine) {
			clear(w.podFacts)
			w.pod().Containers = []inventory.ContainerState{running("app", 30*time.Second)}
		}, reason.PodStarting, `container "app" started 30s ago; metrics are expected within 1m37s`},
		{"one sample of a new container", func(w *world, _ *engine) {
			w.pod().Containers = nil
			w.report(facts("app", 40*time.Second, 40*time.Second))
		}, reason.PodStarting,
			`the first sample of container "app" arrived 40s ago; metrics need a second one, and are expected within 1m27s`},
		{"samples too far apart", func(w *world, _ *engine) {
			w.report(store.ContainerFacts{Name: "app", Facts: store.Facts{
				Since: atAgo(time.Hour), SampledAt: atAgo(20 * time.Second),
			}}, facts("proxy", time.Hour, 7*time.Second))
		}, reason.StaleSamples, `the engine has one sample of container "app", but metrics need two within 1m52s` +
			engineStaleCure},
		{"expired", func(w *world, _ *engine) {
			f := w.podFacts["n7/shop/web"]
			f.AsOf = atAgo(160 * time.Second)
			w.podFacts["n7/shop/web"] = f
		}, reason.StaleSamples, "the engine responds, but its last sample of the pod is from 12:02:35 UTC (2m40s ago)" +
			engineStaleCure},
		{"just arrived", func(*world, *engine) {}, reason.PodStarting,
			"metrics are expected when the engine is read again, within 15s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, e := newWorld(), newEngine()
			test.change(w, e)
			r, text := NewPods(engineConfig(w, e)).Explain(t.Context(), "shop", "web", now)
			if r != test.reason || text != test.text {
				t.Errorf("got %s: %s\nwant %s: %s", r, text, test.reason, test.text)
			}
			if strings.Contains(text, "10.0.0") || strings.Contains(text, "secret") || strings.Contains(text, "kubelet of") {
				t.Errorf("the text has an address, an error, or blames a kubelet: %s", text)
			}
		})
	}
}

func TestNodesInEngine(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*world, *engine)
		reason reason.Reason
		text   string
	}{
		{"failing", func(_ *world, e *engine) { e.fail(130 * time.Second) }, reason.EngineFailing, engineFails},
		{"without series", func(_ *world, e *engine) { e.lose(time.Hour) }, reason.NotInEngine,
			"the engine has no current series of the node" + notInEngineCure},
		{"created after the clock of the API server was set back", func(_ *world, e *engine) { e.lose(-time.Hour) },
			reason.NotInEngine, "the engine has no current series of the node" + notInEngineCure},
		{"only containers", func(w *world, _ *engine) { w.nodeFacts["n7"] = store.Facts{Since: atAgo(time.Hour)} },
			reason.NotInEngine, "the engine has no CPU and memory of the node itself" + notInEngineCure},
		{"expired", func(w *world, _ *engine) { w.nodeFacts["n7"] = facts("", time.Hour, 160*time.Second).Facts },
			reason.StaleSamples,
			"the engine responds, but its last sample of the node is from 12:02:35 UTC (2m40s ago)" + engineStaleCure},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, e := newWorld(), newEngine()
			test.change(w, e)
			r, text := NewNodes(engineConfig(w, e)).Explain(t.Context(), "", "n7", now)
			if r != test.reason || text != test.text {
				t.Errorf("got %s: %s\nwant %s: %s", r, text, test.reason, test.text)
			}
		})
	}
}

func TestSummariesOfEngine(t *testing.T) {
	for _, test := range []struct {
		name        string
		change      func(*world, *engine)
		pods, nodes string
	}{
		{"failing", func(_ *world, e *engine) { e.fail(time.Minute) },
			"1 because the engine cannot be read (tls-unknown-authority)",
			"1 because the engine cannot be read (tls-unknown-authority)"},
		{"without series", func(_ *world, e *engine) { e.lose(time.Hour) },
			"1 on 1 node that the engine does not have", "1 of which the engine has no series"},
		{"pod without series", func(w *world, _ *engine) { clear(w.podFacts); clear(w.nodeFacts) },
			"1 that the engine does not report", "1 of which the engine has no series"},
		{"new", func(w *world, _ *engine) {
			w.pod().Containers = []inventory.ContainerState{running("app", time.Second)}
			clear(w.podFacts)
			w.nodeFacts["n7"] = facts("", time.Second, time.Second).Facts
		}, "1 that started less than 2m7s ago", "1 without a second sample yet"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, e := newWorld(), newEngine()
			test.change(w, e)
			c := engineConfig(w, e)
			if got := NewPods(c).Summarize([]*inventory.Object{w.pod()}, now); got != test.pods {
				t.Errorf("got pods %q, want %q", got, test.pods)
			}
			if got := NewNodes(c).Summarize([]*inventory.Object{w.nodes["n7"]}, now); got != test.nodes {
				t.Errorf("got nodes %q, want %q", got, test.nodes)
			}
		})
	}
}
