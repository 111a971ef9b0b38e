package device

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// group scrapes the exporters of one kind.
type group struct {
	*Exporter
	source *Source
	client *http.Client
	series map[string][]int // indexes of resources, by name of the series

	mu      sync.Mutex
	pods    map[string][]*corev1.Pod // that can be scraped, by node, sorted by age
	targets map[types.UID]*target    // the first maxPodsPerNode of each node
	active  map[string]*active       // by node
	missing map[string]bool          // series whose absence has been logged
	crowded map[string]bool          // nodes with more pods than are scraped, if that has been logged
	work    sync.WaitGroup           // the loops of targets
}

// target is a pod that is scraped.
type target struct {
	pod     *corev1.Pod
	url     string
	err     error // why there is no URL
	stop    func()
	stopped bool               // guarded by group.mu
	health  health.ExporterPod // guarded by group.mu
}

// active is the pod whose values are served for a node. An update of a DaemonSet may run two pods on
// a node, which report the same devices.
type active struct {
	target      *target
	at, expires usage.Time
	containers  map[string]int // by resource
}

// run watches the pods and scrapes them until the context ends.
func (g *group) run(ctx context.Context, client kubernetes.Interface) {
	informer, err := newInformer(client, g.Exporter, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { g.set(ctx, obj.(*corev1.Pod)) },
		UpdateFunc: func(old, obj any) { g.update(ctx, old.(*corev1.Pod), obj.(*corev1.Pod)) },
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				g.remove(ctx, pod)
			}
		},
	})
	utilruntime.Must(err) // the informer has not been started
	var watching sync.WaitGroup
	watching.Go(func() { informer.RunWithContext(ctx) })
	wait.UntilWithContext(ctx, func(context.Context) { g.removeExpired(g.source.Clock.At(time.Now())) }, g.MaxAge)
	watching.Wait()
	g.work.Wait()
	g.client.CloseIdleConnections()
}

// update calls set for a pod that has changed. If another pod of the same name has replaced it, the
// old one is removed first.
func (g *group) update(ctx context.Context, old, pod *corev1.Pod) {
	if old.UID != pod.UID || old.Spec.NodeName != pod.Spec.NodeName {
		g.remove(ctx, old)
	}
	g.set(ctx, pod)
}

// set adds or updates a pod, or removes it if it has ended.
func (g *group) set(ctx context.Context, pod *corev1.Pod) {
	if !isScrapeable(pod) {
		g.remove(ctx, pod)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	pods := slices.DeleteFunc(g.pods[pod.Spec.NodeName], func(p *corev1.Pod) bool { return p.UID == pod.UID })
	i, _ := slices.BinarySearchFunc(pods, pod, byAge)
	g.pods[pod.Spec.NodeName] = slices.Insert(pods, i, pod)
	g.choose(ctx, pod.Spec.NodeName)
}

// remove stops scraping a pod. Its values are served until they expire, or until another pod of the
// node has values.
func (g *group) remove(ctx context.Context, pod *corev1.Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t := g.targets[pod.UID]; t != nil {
		pod = t.pod // with its node
		g.drop(t)
	}
	node := pod.Spec.NodeName
	g.pods[node] = slices.DeleteFunc(g.pods[node], func(p *corev1.Pod) bool { return p.UID == pod.UID })
	if len(g.pods[node]) == 0 {
		delete(g.pods, node)
	}
	g.choose(ctx, node)
}

// byAge sorts pods by age, the oldest one first. The API server sets both fields, so no new pod can
// take the place of another one.
func byAge(a, b *corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
}

// choose scrapes the oldest pods of a node and no others. The caller holds mu.
func (g *group) choose(ctx context.Context, node string) {
	for i, pod := range g.pods[node] {
		known := g.targets[pod.UID]
		switch {
		case i < maxPodsPerNode:
			g.scrapePod(ctx, pod, known)
		case known != nil:
			g.drop(known)
		}
	}
	leftOut := len(g.pods[node]) > maxPodsPerNode
	if leftOut && !g.crowded[node] {
		klog.Background().Info("More pods of a device exporter run on a node than are scraped; this is logged once until "+
			"there are fewer", "exporter", g.Name, "node", node, "pod", klog.KObj(g.pods[node][maxPodsPerNode]),
			"scraped", maxPodsPerNode)
		g.crowded[node] = true
	} else if !leftOut {
		delete(g.crowded, node)
	}
}

// scrapePod starts to scrape a pod if it is new or its URL has changed. known is its target, or nil.
// The caller holds mu.
func (g *group) scrapePod(ctx context.Context, pod *corev1.Pod, known *target) {
	t := &target{pod: pod, health: health.ExporterPod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName}}
	t.url, t.err = g.endpoint(pod, g.source.AllowLoopback)
	if t.err != nil {
		t.err = &reason.Error{Reason: reason.BadEndpoint, Err: t.err}
	}
	if known != nil {
		if known.url == t.url {
			return
		}
		g.drop(known)
	}
	ctx, t.stop = context.WithCancel(ctx)
	g.targets[pod.UID] = t
	g.work.Go(func() { g.scrapeRegularly(ctx, t) })
}

// drop stops a target. The caller holds mu.
func (g *group) drop(t *target) {
	t.stop()
	t.stopped = true
	delete(g.targets, t.pod.UID)
}

// removeExpired drops values that are not served anymore, and frees their memory.
func (g *group) removeExpired(now usage.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for node, a := range g.active {
		if now >= a.expires {
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
	for _, t := range g.targets {
		e.Pods = append(e.Pods, t.health)
	}
	for node, pods := range g.pods {
		if n := len(pods) - maxPodsPerNode; n > 0 {
			e.LeftOut += n
			e.LeftOutPod = min(cmp.Or(e.LeftOutPod, "~"), node+" "+pods[maxPodsPerNode].Name)
		}
	}
	for i := range g.Resources {
		e.Containers[g.Resources[i].Resource] = 0
	}
	for _, a := range g.active {
		if now >= a.expires {
			continue
		}
		e.Oldest = max(e.Oldest, now.Sub(a.at))
		for name, n := range a.containers {
			e.Containers[name] += n
		}
	}
	return e
}
