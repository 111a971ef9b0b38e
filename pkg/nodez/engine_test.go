package nodez

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/health/healthtest"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// newEngineWorld returns a cluster whose engine has a node with metrics, one without, and no series
// of two others.
func newEngineWorld(now time.Time) (Config, *healthtest.Source) {
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	at := func(d time.Duration) usage.Time { return usage.NewClock(now).At(now).Add(-d) }
	nodeAt := func(d time.Duration) usage.NodeTime { return usage.NodeAt(ago(d)) }
	last := health.Attempts{
		LastSuccess: ago(5 * time.Second), Last: ago(5 * time.Second), Next: now.Add(10 * time.Second),
		SucceedingSince: ago(time.Hour),
	}
	node := func(name string, sampledAt usage.NodeTime) health.Node {
		return health.Node{Name: name, Attempts: last, Containers: 3, Newest: sampledAt, Interval: 30 * time.Second}
	}
	gone := last
	gone.LastSuccess, gone.SucceedingSince = ago(time.Minute), time.Time{}
	gone.Failures, gone.FailingSince, gone.Reason = 4, ago(45*time.Second), reason.NotInEngine
	all := last
	all.Took = 12345 * time.Microsecond
	source := &healthtest.Source{
		All: health.Overall{
			Attempts: all, Window: 112 * time.Second,
			Engine: &health.Engine{
				Host: "prometheus:9090", UnknownSeries: 1234, Series: map[string]int{"containerCPU": 6, "nodeCPU": 2},
			},
		},
		List: []health.Node{
			node("ahead", nodeAt(-7*time.Second)), {Name: "gone", Attempts: gone, Newest: nodeAt(70 * time.Second)},
			{Name: "new", Attempts: health.Attempts{Next: last.Next}}, node("ready", nodeAt(20*time.Second)),
		},
	}
	w := &world{
		nodes: map[string]usage.Time{"ready": at(20 * time.Second), "ahead": at(2 * time.Minute)},
		pods:  map[string]int{"ready/default/a": 2},
		known: []*inventory.Object{pod("ready", "a", inventory.PodRunning), pod("ready", "b", inventory.PodRunning)},
	}
	c := w.config(now)
	c.Source = source
	return c, source
}

func TestEngineText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		config, e := newEngineWorld(now)
		config.Memory = func() *Memory { return &Memory{312 << 20, 20 << 30} }
		check := func(want string) {
			t.Helper()
			var b strings.Builder
			if err := writeText(&b, config.Report()); err != nil {
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
		const table = `NAME   STATE     REASON         FAILURES  AGE  LAST-SUCCESS  PODS  SAMPLES  NEXT  NEWEST  INTERVAL
gone   failing   not-in-engine  4(45s)    -    60s           0/0   0        10s   70s     -
ahead  stale     stale-samples  -         -    5s            0/0   3        10s   -7.0s   30s
new    starting  -              -         -    -             0/0   0        10s   -       -
ready  ready     -              -         20s  5s            1/2   3        10s   20s     30s
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

		e.All.Failures, e.All.FailingSince, e.All.Reason = 3, now.Add(-20*time.Second), reason.Timeout
		e.All.Err, e.All.Engine.FileRejected = errors.New("query nodeCPU at prometheus:9090: deadline exceeded"), true
		e.List = e.List[2:]
		check(header + `Nodes: 2; 1 with metrics; 1 failing; 1 ready
Pods: 2 running; 1 with metrics, with 2 containers
Engine: prometheus:9090 is failing, last read 5s ago, took 12.3 ms, 3 failures in 20s
  1,234 series are of other nodes
  the content of --prometheus-config cannot be used: its previous content stays in use, and the log has the error
  series: containerCPU 6, nodeCPU 2
  timeout: the engine does not respond in time: query nodeCPU at prometheus:9090: deadline exceeded ` +
			`(` + reason.Timeout.DescribeEngine().Cure + `)
  see https://github.com/kube-vitals/kube-vitals/blob/main/docs/troubleshooting.md#engine-failing
Memory: 312 MiB resident, limit 20 GiB
Reasons: 1 engine-failing

NAME   STATE    REASON          FAILURES  AGE  LAST-SUCCESS  PODS  SAMPLES  NEXT  NEWEST  INTERVAL
new    failing  engine-failing  -         -    -             0/0   0        10s   -       -
ready  ready    -               -         20s  5s            1/2   3        10s   20s     30s
`)
	})
}
