package explain

import (
	"errors"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/store"
)

// newEngineWorld has an engine that was read 5 seconds ago and has series of the node n7.
func newEngineWorld() *world {
	w := newWorld()
	w.maxAge = 150 * time.Second
	w.source.All = health.Overall{
		Attempts: health.Attempts{LastSuccess: before(5 * time.Second)}, Engine: &health.Engine{},
		Window: 112 * time.Second, Startup: 127 * time.Second,
	}
	return w
}

// lose makes the engine have no series of the node since so long ago.
func (w *world) lose(since time.Duration) {
	w.source.List[0].Attempts = health.Attempts{Failures: 9, FailingSince: before(since), Reason: reason.NotInEngine}
}

// failAll makes refreshes fail since so long ago.
func (w *world) failAll(since time.Duration) {
	e := &w.source.All
	e.Failures, e.FailingSince, e.Reason = 9, before(since), reason.TLSAuthority
	e.Err, e.Engine.Warning = errors.New("query nodeCPU at 10.0.0.9:9090: x509: CN=secret"), "store 10.0.0.10 is down"
}

const (
	engineFails = "reading the engine has failed since 12:03:05 UTC (2m10s) with the reason tls-unknown-authority: " +
		"the engine's certificate is signed by an unknown authority " +
		"(set http.tls_config.ca_file in --prometheus-config to the CA that signed the certificate)"
	notInEngine = "the engine has no current series of the node " +
		"(check that the engine scrapes the node's kubelet, and that a label of the series names " +
		"the node (labels.node in --prometheus-config))"
	engineStaleCure = " (let the engine scrape the kubelets every 15 to 30 seconds, check the clocks, " +
		"or raise --max-sample-age)"
	dropCure = " (check that the engine scrapes the node's kubelet, and preset, matchers and queries " +
		"in --prometheus-config)"
)

func TestPodsInEngine(t *testing.T) {
	explainPods(t, newEngineWorld, []explanation{
		{"failing", func(w *world) { w.failAll(130 * time.Second) }, reason.EngineFailing, engineFails},
		{"not read yet", func(w *world) { w.source.List[0].Attempts = health.Attempts{} }, reason.NodeStarting,
			`its node "n7" has not been read yet; metrics are expected within 2m7s`},
		{"node without series", func(w *world) { w.lose(time.Hour) }, reason.NotInEngine,
			`the metrics of its node "n7" cannot be read since 11:05:15 UTC (60m): ` + notInEngine},
		{"unknown node", func(w *world) { delete(w.nodes, "n7") }, reason.NodeNotFound,
			`its node "n7" does not exist (check its name, or delete the pods of the deleted node)`},
		{"no such pod", func(w *world) { delete(w.pods, "shop/web"); w.serve() },
			reason.PodNotFound, `the pod does not exist in namespace "shop" (check its name and namespace)`},
		{"no container runs", func(w *world) { w.pod().Containers = []inventory.ContainerState{{Name: "app"}} },
			reason.NotRunning, "no container of the pod is running (see its events with kubectl describe pod, " +
				"and its log with kubectl logs --previous)"},
		{"pod without series", func(w *world) { clear(w.podFacts) }, reason.NoContainers,
			"the engine responded at 12:05:10 UTC (5s ago), but does not report the pod" + dropCure},
		{"container without series", func(w *world) { w.report(facts("app", time.Hour, 8*time.Second)) },
			reason.ContainerMissing, `the engine does not report container "proxy"` + dropCure},
		{"container without memory", func(w *world) {
			w.report(facts("app", time.Hour, 8*time.Second), never("proxy", time.Hour))
		}, reason.ContainerMissing, `the engine does not report both CPU and memory of container "proxy"` + dropCure},
		{"new pod", func(w *world) {
			clear(w.podFacts)
			w.pod().Containers = []inventory.ContainerState{running("app", 30*time.Second)}
		}, reason.PodStarting, `container "app" started 30s ago; metrics are expected within 1m37s`},
		{"one sample of a new container", func(w *world) {
			w.pod().Containers = nil
			w.report(facts("app", 40*time.Second, 40*time.Second))
		}, reason.PodStarting,
			`the first sample of container "app" arrived 40s ago; metrics need a second one, and are expected within 1m27s`},
		{"samples too far apart", func(w *world) {
			w.report(store.ContainerFacts{Name: "app", Facts: store.Facts{
				Since: atAgo(time.Hour), SampledAt: atAgo(20 * time.Second),
			}}, facts("proxy", time.Hour, 7*time.Second))
		}, reason.StaleSamples, `the engine has one sample of container "app", from 12:04:55 UTC (20s ago), ` +
			`but metrics need two within 1m52s` +
			engineStaleCure},
		{"expired", func(w *world) {
			f := w.podFacts["n7/shop/web"]
			f.AsOf = atAgo(160 * time.Second)
			w.podFacts["n7/shop/web"] = f
		}, reason.StaleSamples, "the engine responds, but its last sample of the pod is from 12:02:35 UTC (2m40s ago)" +
			engineStaleCure},
		{"just arrived", func(*world) {}, reason.PodStarting,
			"metrics are expected when the engine is read again, within 15s"},
	})
}

func TestNodesInEngine(t *testing.T) {
	explainNodes(t, newEngineWorld, []explanation{
		{"failing", func(w *world) { w.failAll(130 * time.Second) }, reason.EngineFailing, engineFails},
		{"without series", func(w *world) { w.lose(time.Hour) }, reason.NotInEngine,
			"the metrics of the node cannot be read since 11:05:15 UTC (60m): " + notInEngine},
		{"only containers", func(w *world) { w.nodeFacts["n7"] = store.Facts{Since: atAgo(time.Hour)} },
			reason.NoSamples, "the engine responds, but does not report the CPU and memory of the node itself (" +
				reason.NoSamples.DescribeEngine().Cure + ")"},
		{"expired", func(w *world) { w.nodeFacts["n7"] = facts("", time.Hour, 160*time.Second).Facts },
			reason.StaleSamples,
			"the engine responds, but its last sample of the node is from 12:02:35 UTC (2m40s ago)" + engineStaleCure},
	})
}

func TestSummariesOfEngine(t *testing.T) {
	for _, test := range []struct {
		name        string
		change      func(*world)
		pods, nodes string
	}{
		{"failing", func(w *world) { w.failAll(time.Minute) },
			"1 because the engine cannot be read (tls-unknown-authority)",
			"1 because the engine cannot be read (tls-unknown-authority)"},
		{"without series", func(w *world) { w.lose(time.Hour) },
			"1 on 1 node that cannot be read (n7: not-in-engine)", "1 that cannot be read (n7: not-in-engine)"},
		{"pod without series", func(w *world) { clear(w.podFacts); clear(w.nodeFacts) },
			"1 that the engine does not report", "1 for other reasons"},
		{"new", func(w *world) {
			w.pod().Containers = []inventory.ContainerState{running("app", time.Second)}
			clear(w.podFacts)
			w.nodeFacts["n7"] = facts("", time.Second, time.Second).Facts
		}, "1 whose metrics are expected soon", "1 without a second sample yet"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newEngineWorld()
			test.change(w)
			c := w.config()
			if got := (&Pods{c}).Summarize([]*inventory.Object{w.pod()}, now); got != test.pods {
				t.Errorf("got pods %q, want %q", got, test.pods)
			}
			if got := (&Nodes{c}).Summarize([]*inventory.Object{w.nodes["n7"]}, now); got != test.nodes {
				t.Errorf("got nodes %q, want %q", got, test.nodes)
			}
		})
	}
}
