package explain

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/health/healthtest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/reason/reasontest"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// now is the time of all requests.
var now = time.Date(2026, 11, 20, 12, 5, 15, 0, time.UTC)

func before(d time.Duration) time.Time { return now.Add(-d) }
func atAgo(d time.Duration) usage.Time { return usage.At(before(d)) }

// The collections of an API server that have the objects of a world.
const (
	apiPods  = "/api/v1/namespaces/shop/pods"
	apiNodes = "/api/v1/nodes"
)

// world is what the explanations are made of: the pod shop/web on the node n7, which has metrics.
type world struct {
	pods, nodes map[string]*inventory.Object
	podFacts    map[string]store.PodFacts
	nodeFacts   map[string]store.Facts
	source      healthtest.Source
	api         *sim.API // for lookups, which fail before serve is called
	selects     bool
	maxAge      time.Duration // of a sample
	ahead       time.Duration // how far the clocks of the nodes are ahead of ours
}

func (w *world) config() Config {
	return Config{
		View: w, Source: &w.source,
		SelectsNodes: w.selects, Resolution: 15 * time.Second, MaxSampleAge: w.maxAge, Clock: usage.NewClock(now),
		Lookup: NewClient(corev1client.NewForConfigOrDie(w.api.Config()), testenv.Patience),
	}
}

func (w *world) Node(name string) *inventory.Object { return w.nodes[name] }

func (w *world) Pod(namespace, name string) *inventory.Object { return w.pods[namespace+"/"+name] }

func (w *world) NodeFacts(name string) (store.Facts, bool) {
	f, ok := w.nodeFacts[name]
	return f, ok
}

func (w *world) PodFacts(pod *inventory.Object) (store.PodFacts, bool) {
	f, ok := w.podFacts[pod.Node+"/"+pod.Namespace+"/"+pod.Name]
	return f, ok
}

func (w *world) OurTime(_ string, t usage.NodeTime) usage.Time { return usage.Time(t.Add(-w.ahead)) }

// facts are those of a container whose series started, and whose last sample was taken, so long
// ago. It has an Amount if both differ.
func facts(name string, since, sampled time.Duration) store.ContainerFacts {
	return store.ContainerFacts{Name: name, Facts: store.Facts{
		Since: atAgo(since), SampledAt: atAgo(sampled), HasAmount: since != sampled,
	}}
}

// never is a container that the kubelet reports without CPU or memory.
func never(name string, since time.Duration) store.ContainerFacts {
	return store.ContainerFacts{Name: name, Facts: store.Facts{Since: atAgo(since)}}
}

// running is a container that started so long ago.
func running(name string, started time.Duration) inventory.ContainerState {
	return inventory.ContainerState{Name: name, Running: true, StartedAt: usage.NodeAt(before(started))}
}

func newWorld() *world {
	api := sim.NewAPI()
	api.Latency = 0
	api.Forbid("", "")
	return &world{
		api: api, maxAge: time.Minute,
		pods: map[string]*inventory.Object{
			"shop/web": {
				Namespace: "shop", Name: "web", Phase: inventory.PodRunning, Node: "n7", CreatedAt: atAgo(time.Hour),
				Containers: []inventory.ContainerState{running("app", time.Hour), running("proxy", time.Hour)},
			},
		},
		nodes: map[string]*inventory.Object{"n7": {Name: "n7"}},
		podFacts: map[string]store.PodFacts{
			"n7/shop/web": {
				AsOf: atAgo(8 * time.Second), Containers: []store.ContainerFacts{
					facts("app", time.Hour, 8*time.Second), facts("proxy", time.Hour, 7*time.Second),
				},
			},
		},
		nodeFacts: map[string]store.Facts{"n7": facts("", time.Hour, 8*time.Second).Facts},
		source: healthtest.Source{
			All:  health.Overall{Startup: 25 * time.Second},
			List: []health.Node{{Name: "n7", Attempts: health.Attempts{LastSuccess: before(5 * time.Second)}}},
		},
	}
}

func (w *world) pod() *inventory.Object { return w.pods["shop/web"] }

// report makes the kubelet report these containers of the pod.
func (w *world) report(containers ...store.ContainerFacts) {
	f := w.podFacts["n7/shop/web"]
	f.Containers = containers
	w.podFacts["n7/shop/web"] = f
}

// fail makes the scrapes of the node fail since so long ago.
func (w *world) fail(r reason.Reason, since time.Time) {
	w.source.List[0] = health.Node{Name: "n7", Address: "10.0.0.7:10250", Attempts: health.Attempts{
		Failures: 9, FailingSince: since, Reason: r, Err: errors.New("x509: certificate for 10.0.0.7"),
	}}
}

// serve makes lookups find these nodes, and no others.
func (w *world) serve(nodes ...string) {
	w.api.RefuseBy(nil)
	for _, name := range nodes {
		w.api.Put(apiNodes+"/"+name, corev1.Node{})
	}
}

// live makes lookups find the pod with this status.
func (w *world) live(status corev1.PodStatus) {
	w.serve()
	w.api.Put(apiPods+"/web", corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(before(130 * time.Second))},
		Spec:       corev1.PodSpec{NodeName: "n7", Containers: []corev1.Container{{Name: "app"}, {Name: "proxy"}}},
		Status:     status,
	})
}

// lookups returns how many requests the API server got.
func (w *world) lookups() int { return w.api.Requested(apiPods, apiNodes) }

func waitingFor(container, code string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: container, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: code},
	}}
}

func terminated(container, code string, exit int32, at time.Time) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: container, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Reason: code, ExitCode: exit, FinishedAt: metav1.NewTime(at)},
	}}
}

const selfSigned = "the kubelet's certificate is self-signed " +
	"(set serverTLSBootstrap in the kubelet's configuration, then check and approve its certificate request, " +
	"or pin its key with --kubelet-pins, which kubelet.tls=pin of the chart sets)"

const runtimeCure = " (see the kubelet's log, and check the container runtime)"

const staleCure = " (see the kubelet's log, or raise --max-sample-age)"

const needTwo = ", but metrics need two within 1m0s"

const podCure = " (see its events with kubectl describe pod)"

// explanation is that of the pod shop/web or of the node n7 after a change of their world.
type explanation struct {
	name   string
	change func(*world)
	reason reason.Reason
	text   string
}

func explainPods(t *testing.T, make func() *world, tests []explanation) {
	explainEach(t, make, tests, func(w *world) (reason.Reason, string) {
		return (&Pods{w.config()}).Explain(t.Context(), "shop", "web", now)
	})
}

func explainNodes(t *testing.T, make func() *world, tests []explanation) {
	explainEach(t, make, tests, func(w *world) (reason.Reason, string) {
		return (&Nodes{w.config()}).Explain(t.Context(), "", "n7", now)
	})
}

func explainEach(t *testing.T, make func() *world, tests []explanation, explain func(*world) (reason.Reason, string)) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := make()
			test.change(w)
			got, text := explain(w)
			if got != test.reason || text != test.text {
				t.Errorf("got  %s: %s\nwant %s: %s", got, text, test.reason, test.text)
			}
			if got.Describe().Problem == "" {
				t.Errorf("reason %q is not one of package reason", got)
			}
			if strings.Contains(text, "10.0.0") || strings.Contains(text, "x509") || strings.Contains(text, "secret") ||
				w.source.All.Engine != nil && strings.Contains(text, "kubelet of") {
				t.Errorf("the text has an address, an error, or blames a kubelet: %s", text)
			}
		})
	}
}

func TestPods(t *testing.T) {
	explainPods(t, newWorld, []explanation{
		// The API server's view of the pod.
		{"no such pod", func(w *world) { delete(w.pods, "shop/web"); w.serve() },
			reason.PodNotFound, `the pod does not exist in namespace "shop" (check its name and namespace)`},
		{"no such pod, without lookups", func(w *world) { delete(w.pods, "shop/web") },
			reason.PodNotFound, `the pod does not exist in namespace "shop", or has ended (check its name and namespace)`},
		{"deleted while asked", func(w *world) { w.pod().Phase = inventory.PodPending; w.serve() },
			reason.PodNotFound, `the pod does not exist in namespace "shop" (check its name and namespace)`},
		{"pending, without lookups", func(w *world) {
			w.pod().Phase = inventory.PodPending
			w.pod().CreatedAt = atAgo(130 * time.Second)
		}, reason.PodPending, `the pod has been pending since 12:03:05 UTC (2m10s)` + podCure},
		{"pending since an unknown time", func(w *world) { w.pod().Phase, w.pod().CreatedAt = inventory.PodPending, 0 },
			reason.PodPending, `the pod has been pending` + podCure},
		{"pending since yesterday", func(w *world) {
			w.pod().Phase, w.pod().CreatedAt = inventory.PodPending, atAgo(26*time.Hour)
		}, reason.PodPending, `the pod has been pending since 2026-11-19 10:05:15 UTC (26h)` + podCure},
		{"unschedulable", func(w *world) {
			w.pod().Phase = inventory.PodPending
			w.live(corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
			}})
		}, reason.PodPending,
			`the pod has been pending since 12:03:05 UTC (2m10s): it is not scheduled: Unschedulable` + podCure},
		{"image cannot be pulled", func(w *world) {
			delete(w.pods, "shop/web")
			w.live(corev1.PodStatus{
				Phase:                 corev1.PodPending,
				InitContainerStatuses: []corev1.ContainerStatus{terminated("setup", "Completed", 0, now)},
				ContainerStatuses:     []corev1.ContainerStatus{waitingFor("app", "ImagePullBackOff")},
			})
		}, reason.PodPending,
			`the pod has been pending since 12:03:05 UTC (2m10s): container "app" waits: ImagePullBackOff` + podCure},
		{"init container crashes", func(w *world) {
			delete(w.pods, "shop/web")
			w.live(corev1.PodStatus{
				Phase:                 corev1.PodPending,
				InitContainerStatuses: []corev1.ContainerStatus{terminated("setup", "Error", 1, now)},
				ContainerStatuses:     []corev1.ContainerStatus{waitingFor("app", "PodInitializing")},
			})
		}, reason.PodPending,
			`the pod has been pending since 12:03:05 UTC (2m10s): container "setup" ended: Error` + podCure},
		{"a status that is no code is not shown", func(w *world) {
			delete(w.pods, "shop/web")
			w.live(corev1.PodStatus{
				Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{waitingFor("app", "pull from 10.0.0.7\n")},
			})
		}, reason.PodPending,
			`the pod has been pending since 12:03:05 UTC (2m10s): container "app" waits` + podCure},
		{"a name that is not valid is not shown", func(w *world) {
			delete(w.pods, "shop/web")
			w.live(corev1.PodStatus{
				Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{waitingFor("run curl 10.0.0.7", "Error")},
			})
		}, reason.PodPending,
			`the pod has been pending since 12:03:05 UTC (2m10s): a container waits: Error` + podCure},
		{"a reported name that is not valid is not shown", func(w *world) {
			w.report(facts("app", time.Hour, 8*time.Second), facts("proxy", time.Hour, 7*time.Second),
				facts("run curl 10.0.0.7", 40*time.Second, 40*time.Second))
		}, reason.StaleSamples,
			`the kubelet of node "n7" has one sample of a container, from 12:04:35 UTC (40s ago)` + needTwo + staleCure},
		{"succeeded", func(w *world) {
			delete(w.pods, "shop/web")
			w.live(corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{
				terminated("app", "Completed", 0, before(130*time.Second)), terminated("proxy", "Completed", 0, before(time.Hour)),
			}})
		}, reason.PodSucceeded, `the pod succeeded at 12:03:05 UTC (2m10s ago)`},
		{"failed", func(w *world) {
			delete(w.pods, "shop/web")
			w.live(corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{
				terminated("app", "Error", 1, before(130*time.Second)),
			}})
		}, reason.PodFailed, `the pod failed at 12:03:05 UTC (2m10s ago) (see its status with kubectl describe pod)`},
		{"evicted", func(w *world) {
			delete(w.pods, "shop/web")
			w.live(corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"})
		}, reason.PodFailed, `the pod failed: Evicted (see its status with kubectl describe pod)`},
		{"failed, without lookups", func(w *world) { w.pod().Phase = inventory.PodFailed },
			reason.PodFailed, `the pod failed (see its status with kubectl describe pod)`},
		{"unknown phase", func(w *world) { w.pod().Phase = inventory.PhaseUnknown },
			reason.PodUnknown, `the API server does not know the state of the pod (check its node)`},
		{"running, but not yet in the inventory", func(w *world) {
			delete(w.pods, "shop/web")
			delete(w.podFacts, "n7/shop/web")
			w.live(corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
				{Name: "app", State: corev1.ContainerState{
					Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(before(time.Second))},
				}},
			}})
		}, reason.PodStarting, `container "app" started 1s ago; metrics are expected within 24s`},
		{"no container runs", func(w *world) {
			w.pod().Containers = []inventory.ContainerState{{Name: "app"}}
			w.live(corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
				waitingFor("app", "CrashLoopBackOff"),
			}})
		}, reason.NotRunning, `no container of the pod is running: container "app" waits: CrashLoopBackOff ` +
			`(see its events with kubectl describe pod, and its log with kubectl logs --previous)`},
		{"no container runs, lookup fails", func(w *world) {
			w.pod().Containers = []inventory.ContainerState{{Name: "app"}}
		}, reason.NotRunning, `no container of the pod is running ` +
			`(see its events with kubectl describe pod, and its log with kubectl logs --previous)`},

		// The node of the pod.
		{"failing node", func(w *world) { w.fail(reason.TLSSelfSigned, before(130*time.Second)) },
			reason.TLSSelfSigned, `the metrics of its node "n7" cannot be read since 12:03:05 UTC (2m10s): ` + selfSigned},
		{"failing since an unknown time", func(w *world) { w.fail(reason.TLSSelfSigned, time.Time{}) },
			reason.TLSSelfSigned, `the metrics of its node "n7" cannot be read: ` + selfSigned},
		{"node not scraped yet", func(w *world) { w.source.List[0].Attempts = health.Attempts{} },
			reason.NodeStarting, `its node "n7" has not been read yet; metrics are expected within 25s`},
		{"node just added", func(w *world) { w.source.List = nil },
			reason.NodeStarting, `its node "n7" has not been read yet; metrics are expected within 25s`},
		{"unknown node", func(w *world) { delete(w.nodes, "n7") },
			reason.NodeNotFound, `its node "n7" does not exist (check its name, or delete the pods of the deleted node)`},
		{"node outside of the selector", func(w *world) {
			delete(w.nodes, "n7")
			w.selects = true
			w.serve("n7")
		}, reason.NotSelected, `its node "n7" is not selected for scraping (change the node's labels or --node-selector)`},
		{"node outside of the selector or deleted", func(w *world) {
			delete(w.nodes, "n7")
			w.selects = true
			w.serve()
		}, reason.NodeNotFound, `its node "n7" does not exist (check its name, or delete the pods of the deleted node)`},
		{"node outside of the selector, lookup fails", func(w *world) {
			delete(w.nodes, "n7")
			w.selects = true
		}, reason.NotSelected,
			`its node "n7" does not exist or is not selected for scraping (change the node's labels or --node-selector)`},
		{"running without a node", func(w *world) { w.pod().Node = "" },
			reason.PodUnknown, `the pod is not bound to a node (check its node)`},

		// The samples of the pod.
		{"just started", func(w *world) {
			w.pod().Containers[0] = running("app", 6*time.Second)
			w.report(facts("proxy", time.Hour, 7*time.Second))
		}, reason.PodStarting, `container "app" started 6s ago; metrics are expected within 19s`},
		{"just started, not reported at all", func(w *world) {
			w.pod().Containers = []inventory.ContainerState{running("app", 6*time.Second)}
			delete(w.podFacts, "n7/shop/web")
		}, reason.PodStarting, `container "app" started 6s ago; metrics are expected within 19s`},
		{"just started, by a clock that is behind", func(w *world) {
			w.pod().Containers[0] = running("app", 606*time.Second)
			w.report(facts("proxy", time.Hour, 7*time.Second))
			w.ahead = -10 * time.Minute
		}, reason.PodStarting, `container "app" started 6s ago; metrics are expected within 19s`},
		{"just started, by a clock that is a little ahead", func(w *world) {
			w.pod().Containers[0] = running("app", -2*time.Second)
			w.report(facts("proxy", time.Hour, 7*time.Second))
		}, reason.PodStarting, `container "app" started 0s ago; metrics are expected within 25s`},
		{"started before the clock was set back", func(w *world) {
			w.pod().Containers[0] = running("app", -10*time.Minute)
			w.report(facts("app", 4*time.Second, 4*time.Second), facts("proxy", time.Hour, 7*time.Second))
		}, reason.NodeStarting,
			`the first sample of container "app" arrived 4s ago; metrics need a second one, and are expected within 21s`},
		{"a first sample without memory", func(w *world) {
			w.pod().Containers[0] = running("app", -10*time.Minute)
			w.report(never("app", 4*time.Second), facts("proxy", time.Hour, 7*time.Second))
		}, reason.NodeStarting, `container "app" was first reported 4s ago, and has had no sample of both CPU and memory ` +
			`yet; metrics are expected within 21s`},
		{"the clock was set", func(w *world) {
			w.report(facts("app", 4*time.Second, 4*time.Second), facts("proxy", 4*time.Second, 4*time.Second))
		}, reason.NodeStarting,
			`the first sample of container "proxy" arrived 4s ago; metrics need a second one, and are expected within 21s`},
		{"restarted", func(w *world) {
			w.pod().Containers[0] = running("app", 3*time.Second)
			w.pod().Containers[0].Restarted = true
			w.report(facts("app", 2*time.Second, 2*time.Second), facts("proxy", time.Hour, 7*time.Second))
		}, reason.PodStarting, `container "app" started 3s ago; metrics are expected within 22s`},
		{"no container statuses, new", func(w *world) {
			w.pod().Containers, w.pod().CreatedAt = nil, atAgo(6*time.Second)
			delete(w.podFacts, "n7/shop/web")
		}, reason.PodStarting, `the pod was created 6s ago; metrics are expected within 19s`},
		{"no container statuses, old", func(w *world) {
			w.pod().Containers = nil
			delete(w.podFacts, "n7/shop/web")
		}, reason.NoContainers,
			`the kubelet of node "n7" responded at 12:05:10 UTC (5s ago), but does not report the pod` + runtimeCure},
		{"no container statuses, one sample", func(w *world) {
			w.pod().Containers = nil
			w.report(facts("app", 3*time.Second, 3*time.Second))
		}, reason.PodStarting,
			`the first sample of container "app" arrived 3s ago; metrics need a second one, and are expected within 22s`},
		{"not reported", func(w *world) { delete(w.podFacts, "n7/shop/web") },
			reason.NoContainers,
			`the kubelet of node "n7" responded at 12:05:10 UTC (5s ago), but does not report the pod` + runtimeCure},
		{"not reported, one container new", func(w *world) {
			w.pod().Containers[0] = running("app", time.Second)
			delete(w.podFacts, "n7/shop/web")
		}, reason.NoContainers,
			`the kubelet of node "n7" responded at 12:05:10 UTC (5s ago), but does not report the pod` + runtimeCure},
		{"container not reported", func(w *world) { w.report(facts("proxy", time.Hour, 7*time.Second)) },
			reason.ContainerMissing, `the kubelet of node "n7" does not report container "app"` + runtimeCure},
		{"container without memory", func(w *world) {
			w.report(never("app", time.Hour), facts("proxy", time.Hour, 7*time.Second))
		}, reason.ContainerMissing,
			`the kubelet of node "n7" does not report both CPU and memory of container "app"` + runtimeCure},
		{"container that the API server does not know", func(w *world) {
			w.report(facts("app", time.Hour, 7*time.Second), facts("proxy", time.Hour, 7*time.Second), never("setup", time.Hour))
		}, reason.ContainerMissing,
			`the kubelet of node "n7" does not report both CPU and memory of container "setup"` + runtimeCure},
		{"ended container with one sample", func(w *world) {
			w.pod().Containers[0] = inventory.ContainerState{Name: "app"}
			w.report(facts("app", 40*time.Second, 40*time.Second), facts("proxy", time.Hour, 7*time.Second))
		}, reason.StaleSamples,
			`the kubelet of node "n7" has one sample of container "app", from 12:04:35 UTC (40s ago), ` +
				`but metrics need two within 1m0s` + staleCure},
		{"no second sample", func(w *world) {
			w.report(facts("app", 40*time.Second, 40*time.Second), facts("proxy", time.Hour, 7*time.Second))
		}, reason.StaleSamples,
			`the kubelet of node "n7" has one sample of container "app", from 12:04:35 UTC (40s ago), ` +
				`but metrics need two within 1m0s` + staleCure},
		{"all samples too old", func(w *world) {
			f := w.podFacts["n7/shop/web"]
			f.AsOf = atAgo(130 * time.Second)
			w.podFacts["n7/shop/web"] = f
		}, reason.StaleSamples,
			`the kubelet of node "n7" responds, but its last sample of the pod is from 12:03:05 UTC (2m10s ago)` + staleCure},
		{"arrived meanwhile", func(*world) {}, reason.PodStarting,
			`metrics are expected when the kubelet of node "n7" is read again, within 15s`},
	})
}

func TestNodes(t *testing.T) {
	set := func(f store.Facts) func(*world) { return func(w *world) { w.nodeFacts["n7"] = f } }
	explainNodes(t, newWorld, []explanation{
		{"no such node", func(w *world) { delete(w.nodes, "n7"); w.serve() },
			reason.NodeNotFound, `the node does not exist (check its name, or delete the pods of the deleted node)`},
		{"not selected", func(w *world) {
			delete(w.nodes, "n7")
			w.selects = true
			w.serve("n7")
		}, reason.NotSelected, `the node is not selected for scraping (change the node's labels or --node-selector)`},
		{"no such node, others not selected", func(w *world) {
			delete(w.nodes, "n7")
			w.selects = true
			w.serve("n8")
		}, reason.NodeNotFound, `the node does not exist (check its name, or delete the pods of the deleted node)`},
		{"not selected, without lookups", func(w *world) { delete(w.nodes, "n7"); w.selects = true },
			reason.NotSelected,
			`the node does not exist or is not selected for scraping (change the node's labels or --node-selector)`},
		{"failing", func(w *world) { w.fail(reason.ConnectRefused, before(130*time.Second)) },
			reason.ConnectRefused,
			`the metrics of the node cannot be read since 12:03:05 UTC (2m10s): ` + `the kubelet's port refuses connections ` +
				`(check that the kubelet runs, and check --kubelet-port and --kubelet-use-node-status-port)`},
		{"not scraped yet", func(w *world) { w.source.List[0].Attempts = health.Attempts{} },
			reason.NodeStarting, `the node has not been read yet; metrics are expected within 25s`},
		{"scraped once", set(facts("", 4*time.Second, 4*time.Second).Facts), reason.NodeStarting,
			`the first sample of the node arrived 4s ago; metrics need a second one, and are expected within 21s`},
		{"without samples of the node", set(never("", time.Hour).Facts), reason.NoSamples,
			`the kubelet of node "n7" responds, but does not report the CPU and memory of the node itself ` +
				`(check --kubelet-port and the node's annotation metrics.k8s.io/resource-metrics-path)`},
		{"one sample again and again", set(facts("", 40*time.Second, 40*time.Second).Facts), reason.StaleSamples,
			`the kubelet of node "n7" has one sample of the node, from 12:04:35 UTC (40s ago)` + needTwo + staleCure},
		{"too old", set(facts("", time.Hour, 130*time.Second).Facts), reason.StaleSamples,
			`the kubelet of node "n7" responds, but its last sample of the node is from 12:03:05 UTC (2m10s ago)` + staleCure},
		{"arrived meanwhile", func(*world) {}, reason.NodeStarting,
			`metrics are expected when the kubelet of node "n7" is read again, within 15s`},
	})
}

// TestEveryScrapeReason checks that each reason of failing scrapes makes a text of its description.
func TestEveryScrapeReason(t *testing.T) {
	for _, r := range reasontest.Scrapes() {
		w := newWorld()
		w.fail(r, before(time.Minute))
		got, text := (&Pods{w.config()}).Explain(t.Context(), "shop", "web", now)
		want := fmt.Sprintf(`the metrics of its node "n7" cannot be read since 12:04:15 UTC (60s): %s`, r.Describe().Problem)
		if got != r || !strings.HasPrefix(text, want) || !strings.Contains(text, r.Describe().Cure) {
			t.Errorf("%s: got %s: %s", r, got, text)
		}
	}
}

// TestLookups checks that the API server is asked only if the inventory cannot tell.
func TestLookups(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*world)
		want   int
	}{
		"running":         {func(*world) {}, 0},
		"on failing node": {func(w *world) { w.fail(reason.DNS, now) }, 0},
		"unknown node":    {func(w *world) { delete(w.nodes, "n7") }, 0}, // all nodes are selected
		"not selected":    {func(w *world) { delete(w.nodes, "n7"); w.selects = true }, 1},
		"pending":         {func(w *world) { w.pod().Phase = inventory.PodPending }, 1},
		"unknown pod":     {func(w *world) { delete(w.pods, "shop/web") }, 1},
	} {
		w := newWorld()
		w.serve()
		test.change(w)
		(&Pods{w.config()}).Explain(t.Context(), "shop", "web", now)
		if n := w.lookups(); n != test.want {
			t.Errorf("%s: got %d lookups, want %d", name, n, test.want)
		}
	}
}
