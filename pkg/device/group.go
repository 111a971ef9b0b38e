package device

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/internal/failure"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// group scrapes the exporters of one kind.
type group struct {
	*Exporter
	source *Source
	client *http.Client
	series map[string][]int // indexes of resources, by name of the series

	mu      sync.Mutex
	pods    cache.Indexer        // of the informer
	targets map[string][]*target // by node, of its oldest pods
	active  map[string]*active   // by node
	missing map[string]bool      // series whose absence has been logged
	work    sync.WaitGroup       // the watch and the loops of targets
}

// target is a pod that is scraped.
type target struct {
	pod   *corev1.Pod
	stop  func()
	count int // of the series in the last response that was decoded; only the loop of the target uses it
	// These fields are guarded by group.mu.
	health health.ExporterPod
	log    failure.Log
}

// active is the pod whose values are served for a node. An update of a DaemonSet may run two pods on
// a node, which report the same devices.
type active struct {
	target *target
	usage.ResourceReport
}

// run watches the pods and scrapes them until the context ends.
func (g *group) run(ctx context.Context) {
	informer := newInformer(g.source.Client, g.Exporter, func(node string) { g.sync(ctx, node) })
	g.pods = informer.GetIndexer()
	g.work.Go(func() { informer.RunWithContext(ctx) })
	wait.UntilWithContext(ctx, func(context.Context) { g.removeExpired(g.source.Clock.At(time.Now())) }, g.MaxAge)
	g.work.Wait()
	g.client.CloseIdleConnections()
}

// sync scrapes the oldest pods of a node, and no others. It must be called when the pods of the node have
// changed. The values of a pod that is not scraped any more are served until they expire, or until
// another pod of the node has values.
func (g *group) sync(ctx context.Context, node string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.targets[node]
	delete(g.targets, node)
	oldest, _ := g.podsOf(node)
	for _, pod := range oldest {
		known := slices.IndexFunc(before, func(t *target) bool {
			return t.pod.UID == pod.UID && t.pod.Status.PodIP == pod.Status.PodIP
		})
		if known >= 0 {
			g.targets[node] = append(g.targets[node], before[known])
		} else {
			g.targets[node] = append(g.targets[node], g.start(ctx, pod))
		}
	}
	for _, t := range before {
		if !g.isScraped(t) {
			t.stop()
		}
	}
}

// start scrapes a pod until its target is stopped.
func (g *group) start(ctx context.Context, pod *corev1.Pod) *target {
	t := &target{
		pod:    pod,
		health: health.ExporterPod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName},
		log: failure.Log{
			Failing:   "Cannot scrape the device exporter; its last values are served until they expire",
			Recovered: "The device exporter can be scraped again",
		},
	}
	ctx, t.stop = context.WithCancel(ctx)
	g.work.Go(func() { g.scrapeRegularly(ctx, t) })
	return t
}

// isScraped reports whether a target has not been stopped.
func (g *group) isScraped(t *target) bool { return slices.Contains(g.targets[t.pod.Spec.NodeName], t) }

// podsOf returns the pods of a node that can be scraped: the oldest ones, which are scraped, and the
// others.
func (g *group) podsOf(node string) (oldest, others []*corev1.Pod) {
	objects, _ := g.pods.ByIndex(indexOfNodes, node) // it has this index
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, obj := range objects {
		pods = append(pods, obj.(*corev1.Pod))
	}
	slices.SortFunc(pods, byAge)
	n := min(len(pods), maxPodsPerNode)
	return pods[:n], pods[n:]
}

// byAge sorts pods by age, the oldest one first. The API server sets both fields, so no new pod can
// take the place of another one.
func byAge(a, b *corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
}

// removeExpired drops values that are not served anymore, and frees their memory.
func (g *group) removeExpired(now usage.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for node, a := range g.active {
		if a.IsExpired(now) {
			g.source.Sink.Remove(node, g.sinkName())
			delete(g.active, node)
		}
	}
}

func (g *group) exporter(now usage.Time) health.Exporter {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := health.Exporter{
		Name: g.Name, Namespace: g.Namespace, PodSelector: g.PodSelector,
		Pods: make([]health.ExporterPod, 0, len(g.targets)), Containers: map[string]int{},
	}
	for node, targets := range g.targets {
		for _, t := range targets {
			e.Pods = append(e.Pods, t.health)
		}
		if _, others := g.podsOf(node); len(others) > 0 {
			e.LeftOut += len(others)
			e.LeftOutPod = min(cmp.Or(e.LeftOutPod, "~"), node+" "+others[0].Name)
		}
	}
	for i := range g.Resources {
		e.Containers[g.Resources[i].Resource] = 0
	}
	for _, a := range g.active {
		if a.IsExpired(now) {
			continue
		}
		e.Oldest = max(e.Oldest, now.Sub(a.At))
		for i := range a.Containers {
			e.Containers[a.Containers[i].Name]++
		}
	}
	return e
}
