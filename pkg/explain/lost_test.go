package explain

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// lie is what a kubelet reports of the container app, so long before now. The container started an hour ago.
type lie struct {
	cpu, memory string        // empty: the container is omitted
	started     time.Duration // ago; 0: as the API server has it
	stamp       string        // of the CPU counter; empty: its time
}

// play stores the responses of a kubelet of a node of 2 CPUs, in intervals of 15 s until now, and makes them the
// facts of the world. The node uses as many cores as given. In the last ones, the kubelet lies.
func (w *world) play(t *testing.T, nodeCores float64, truths int, lies ...func(age float64) lie) {
	t.Helper()
	w.pod().Containers = w.pod().Containers[:1]
	s := store.New(store.Config{
		MaxSampleAge: w.maxAge, RateWindow: 15 * time.Second, MaxContainers: 10,
		State: func(_, _, _, container string) usage.ContainerState {
			return usage.ContainerState{
				Running: container == "app", Alive: container == "app",
				EarliestStart: usage.NodeAt(before(time.Hour)), PodCreatedAt: atAgo(time.Hour),
			}
		},
	})
	truth := func(age float64) lie { return lie{cpu: fmt.Sprint(100 - age/10), memory: "1000"} }
	lies = append(repeat(truths, truth), lies...)
	for i, of := range lies {
		age := time.Duration(len(lies)-1-i) * 15 * time.Second
		at, l := before(age), of(age.Seconds())
		if l.started == 0 {
			l.started = time.Hour
		}
		if l.stamp == "" {
			l.stamp = fmt.Sprint(at.UnixMilli())
		}
		const labels = `{container="app",namespace="shop",pod="web"}`
		text := fmt.Sprintf("node_cpu_usage_seconds_total %v %d\nnode_memory_working_set_bytes 5000 %[2]d\n",
			10000-nodeCores*age.Seconds(), at.UnixMilli())
		if l.cpu == "" {
			text += "resource_scrape_error 0\n"
		} else {
			text += fmt.Sprintf("container_start_time_seconds%s %d\n", labels, before(l.started).Unix())
			text += fmt.Sprintf("container_cpu_usage_seconds_total%s %s %s\n", labels, l.cpu, l.stamp)
			text += fmt.Sprintf("container_memory_working_set_bytes%s %s %d\n", labels, l.memory, at.UnixMilli())
		}
		scrape := usage.Scrape{At: usage.At(at), Sent: usage.At(at), Date: usage.NodeAt(at.Truncate(time.Second))}
		if err := (&decode.Text{MaxContainers: 1000}).Decode(&scrape, []byte(text)); err != nil {
			t.Fatal(err)
		}
		scrape.Capacity = 2e9
		s.Put("n7", &scrape)
		w.source.List[0].Capacity = scrape.Capacity
	}
	w.podFacts, w.nodeFacts = map[string]store.PodFacts{}, map[string]store.Facts{}
	if f, ok := s.PodFacts("n7", "shop", "web"); ok {
		w.podFacts["n7/shop/web"] = f
	}
	if f, ok := s.NodeFacts("n7"); ok {
		w.nodeFacts["n7"] = f
	}
}

// repeat returns the same lie n times.
func repeat(n int, l func(float64) lie) (lies []func(float64) lie) {
	for range n {
		lies = append(lies, l)
	}
	return lies
}

// TestLostSamples explains pods whose samples cannot be used. In the end, their metrics have expired, or there
// were none.
func TestLostSamples(t *testing.T) {
	const (
		kubelet = `the kubelet of node "n7" reports `
		twoCPUs = `more CPU usage of container "app" than the capacity in the node's status, which is 2; ` +
			`it counts if that of the node itself is above the status in three samples in a row`
	)
	zero := func(float64) lie { return lie{cpu: "0", memory: "0"} }
	steep := func(age float64) lie { return lie{cpu: fmt.Sprint(1000 - 8*age), memory: "1000"} }
	old := func(l lie, started time.Duration) func(float64) lie {
		return func(float64) lie { l.started = started; return l }
	}
	for _, test := range []struct {
		name   string
		truths int
		lies   []func(float64) lie
		reason reason.Reason
		text   string // without the cure
	}{
		{"zeros", 2, repeat(6, zero), reason.UsageUnknown,
			kubelet + `0 for the CPU or memory of container "app", as kubelets do for what they do not know`},
		{"always zeros", 0, repeat(3, zero), reason.UsageUnknown,
			kubelet + `0 for the CPU or memory of container "app", as kubelets do for what they do not know`},
		{"no memory in a cgroup", 0, repeat(3, func(age float64) lie {
			return lie{cpu: fmt.Sprint(100 - age/10), memory: "0"}
		}), reason.UsageUnknown,
			kubelet + `0 for the CPU or memory of container "app", as kubelets do for what they do not know`},
		{"invalid time", 0, repeat(3, old(lie{cpu: "5", memory: "1000", stamp: "-5"}, 0)), reason.BadTime,
			kubelet + `the usage of container "app" with an impossible time`},
		{"invalid value", 0, repeat(3, old(lie{cpu: "NaN", memory: "1000"}, 0)), reason.BadValue,
			kubelet + `an impossible value for the CPU or memory of container "app"`},
		{"the counter fell", 1, repeat(3, func(age float64) lie { return lie{cpu: fmt.Sprint(50 - age), memory: "1000"} }),
			reason.CounterFell, kubelet + `a lower CPU counter of container "app" than before, but no restart`},
		{"above the capacity", 0, repeat(3, steep), reason.AboveCapacity, kubelet + twoCPUs},
		{"above the capacity since the start of the pod", 0, repeat(1, func(float64) lie {
			return lie{cpu: "20000", memory: "1000"}
		}), reason.OtherPod,
			kubelet + `usage of container "app" that is of an earlier pod or container of the same name, or may be`},
		{"start before the pod", 0, repeat(3, old(lie{cpu: "5", memory: "1000"}, 3*time.Hour)), reason.OtherPod,
			kubelet + `usage of container "app" that is of an earlier pod or container of the same name, or may be`},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld()
			w.play(t, 1, test.truths, test.lies...)
			r, text := (&Pods{w.config()}).Explain(t.Context(), "shop", "web", now)
			if want := test.text + " (" + test.reason.Describe().Cure + ")"; r != test.reason || text != want {
				t.Errorf("got  %s: %s\nwant %s: %s", r, text, test.reason, want)
			}
			want := "1 with samples that cannot be used (" + string(test.reason) + ")"
			if got := (&Pods{w.config()}).Summarize([]*inventory.Object{w.pod()}, now); got != want {
				t.Errorf("got summary %q, want %q", got, want)
			}
		})
	}
}

// TestOmittedContainers has containers that responses omit, although they run.
func TestOmittedContainers(t *testing.T) {
	omit := repeat(6, func(float64) lie { return lie{} })
	omitApp := func(w *world) {
		f := w.podFacts["n7/shop/web"]
		f.AsOf = atAgo(130 * time.Second)
		f.Containers[0] = facts("app", time.Hour, 130*time.Second)
		f.Containers[0].Omitted = true
		w.podFacts["n7/shop/web"] = f
	}
	explainPods(t, newWorld, []explanation{
		{"the whole pod", func(w *world) { w.play(t, 1, 3, omit...) }, reason.NoContainers,
			`the kubelet of node "n7" responded at 12:05:10 UTC (5s ago), but does not report the pod` + runtimeCure},
		{"one container", omitApp, reason.ContainerMissing,
			`the kubelet of node "n7" does not report container "app"; the last sample is from 12:03:05 UTC (2m10s ago)` +
				runtimeCure},
		{"one container without a rate", func(w *world) {
			omitApp(w)
			w.podFacts["n7/shop/web"].Containers[0].HasAmount = false
		}, reason.ContainerMissing, `the kubelet of node "n7" does not report container "app"` + runtimeCure},
	})
}

// TestLostSamplesOfNodes explains a node of 2 CPUs that uses 6, before the third sample shows that.
func TestLostSamplesOfNodes(t *testing.T) {
	w := newWorld()
	w.play(t, 6, 3)
	const want = `the kubelet of node "n7" reports more CPU usage of the node than the capacity in the node's status, ` +
		`which is 2; it counts if that of the node itself is above the status in three samples in a row`
	r, text := (&Nodes{w.config()}).Explain(t.Context(), "", "n7", now)
	if r != reason.AboveCapacity || !strings.HasPrefix(text, want) {
		t.Errorf("got  %s: %s\nwant %s: %s", r, text, reason.AboveCapacity, want)
	}
	w.play(t, 6, 4)
	if !w.nodeFacts["n7"].HasAmount {
		t.Errorf("got %+v after the third sample above the capacity, want metrics", w.nodeFacts["n7"])
	}
}

// TestLossesPromiseNothing has pods that have lost a sample, and pods that would have metrics nevertheless.
func TestLossesPromiseNothing(t *testing.T) {
	lose := func(l usage.Loss, container string) func(*world) {
		return func(w *world) {
			w.source.List[0].Capacity = 2e9
			f := w.podFacts["n7/shop/web"]
			f.Lost, f.LostContainer = l, container
			w.podFacts["n7/shop/web"] = f
		}
	}
	starting := func(l usage.Loss) func(*world) {
		return func(w *world) {
			w.pod().Containers[0] = running("app", 6*time.Second)
			w.report(never("app", 6*time.Second), facts("proxy", time.Hour, 7*time.Second))
			lose(l, "app")(w)
		}
	}
	explainPods(t, newWorld, []explanation{
		{"a container that starts has zeros", starting(usage.LostZero), reason.PodStarting,
			`container "app" started 6s ago, and the kubelet of node "n7" does not know its usage yet`},
		{"a container that starts has another loss", starting(usage.LostOwner), reason.OtherPod,
			`the kubelet of node "n7" reports usage of container "app" that is of an earlier pod or container of the same ` +
				`name, or may be (` + reason.OtherPod.Describe().Cure + `)`},
		{"another container has lost one sample", func(w *world) {
			w.pod().Containers[0] = running("app", 6*time.Second)
			w.report(facts("app", 4*time.Second, 4*time.Second), facts("proxy", time.Hour, 7*time.Second))
			lose(usage.LostZero, "proxy")(w)
		}, reason.PodStarting, `container "app" started 6s ago; metrics are expected within 19s`},
		{"all have metrics, and one has lost a sample", lose(usage.LostFall, "app"), reason.PodStarting,
			`metrics are expected when the kubelet of node "n7" is read again, within 15s`},
		{"a name that is not valid is not shown", func(w *world) {
			w.report(never("run curl 10.0.0.7", time.Hour))
			lose(usage.LostTime, "run curl 10.0.0.7")(w)
		}, reason.BadTime, `the kubelet of node "n7" reports the usage of a container with an impossible time (` +
			reason.BadTime.Describe().Cure + `)`},
		{"a rate above any, of a node without a capacity", func(w *world) {
			w.report(never("app", time.Hour))
			lose(usage.LostExcess, "app")(w)
			w.source.List[0].Capacity = 0
		}, reason.BadValue,
			`the kubelet of node "n7" reports an impossible value for the CPU or memory of container "app" (` +
				reason.BadValue.Describe().Cure + `)`},
	})
	explainPods(t, newEngineWorld, []explanation{
		{"engine", func(w *world) { w.report(never("app", time.Hour)); lose(usage.LostZero, "app")(w) }, reason.UsageUnknown,
			`the engine reports 0 for the CPU or memory of container "app", as kubelets do for what they do not know (` +
				reason.UsageUnknown.Describe().Cure + `)`},
	})
	explainNodes(t, newWorld, []explanation{
		{"young", func(w *world) {
			w.nodeFacts["n7"] = store.Facts{Since: atAgo(4 * time.Second), Lost: usage.LostZero}
		}, reason.UsageUnknown, `the kubelet of node "n7" reports 0 for the CPU or memory of the node, ` +
			`as kubelets do for what they do not know (` + reason.UsageUnknown.Describe().Cure + `)`},
		{"expired", func(w *world) {
			f := facts("", time.Hour, 130*time.Second).Facts
			f.Lost = usage.LostValue
			w.nodeFacts["n7"] = f
		}, reason.BadValue, `the kubelet of node "n7" reports an impossible value for the CPU or memory of the node (` +
			reason.BadValue.Describe().Cure + `)`},
		{"the last sample is lost, but there are metrics", func(w *world) {
			f := w.nodeFacts["n7"]
			f.Lost = usage.LostZero
			w.nodeFacts["n7"] = f
		}, reason.NodeStarting, `metrics are expected when the kubelet of node "n7" is read again, within 15s`},
	})
}
