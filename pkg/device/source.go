package device

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/device/status"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Config configures a Source. All fields are required, except AllowLoopback.
type Config struct {
	File     string       // the configuration file
	Client   *rest.Config // of the API server; exporters get none of its credentials
	Sink     Sink
	Observer Observer
	Clock    usage.Clock

	// IsKnown reports whether the API server has a container in a pod that is bound to a node.
	IsKnown func(node, namespace, pod, container string) bool
	// Synced reports whether the pods are known. There are no scrapes before that.
	Synced func() bool

	AllowLoopback bool // whether exporters may have addresses of this machine; for tests
}

// Sink keeps the values. *store.Extra implements it.
type Sink interface {
	Put(node, source string, r store.ExtraReport)
	Remove(node, source string)
}

// Observer is notified of each scrape. Calls may overlap.
type Observer interface {
	DeviceScraped(Result)
}

// Result is the outcome of one scrape.
type Result struct {
	Exporter string
	Reason   reason.Reason  // of the failure; "": success
	Skipped  map[string]int // number of series that were skipped, by reason; reasons without any are missing
}

const (
	// startWindow is the time over which the first scrapes of pods that are found at once are spread.
	// The second ones are spread over the interval.
	startWindow = 2 * time.Second
	// maxPodsPerNode is the number of pods that are scraped for one node and exporter: an update may run
	// two. Who may create pods with the exporter's labels could create any number.
	maxPodsPerNode = 2
	// syncInterval is the time between two calls of Config.Synced.
	syncInterval = 100 * time.Millisecond
)

// Source scrapes the exporters of all nodes.
type Source struct {
	Config
	client  corev1client.PodsGetter
	groups  []*group
	permits permits
}

// New returns a Source. It reads the configuration file once.
func New(c Config) (*Source, error) {
	content, err := os.ReadFile(c.File)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration of device exporters: %w", err)
	}
	file, err := Parse(content, filepath.Dir(c.File))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.File, err)
	}
	client, err := newClient(c.Client)
	if err != nil {
		return nil, err
	}
	s := newSource(c)
	s.client = client
	for i := range file.Exporters {
		e := &file.Exporters[i]
		transport, err := newTransport(e)
		if err != nil {
			return nil, fmt.Errorf("device exporter %q: %w", e.Name, err)
		}
		s.groups = append(s.groups, s.newGroup(e, transport))
	}
	return s, nil
}

func newSource(c Config) *Source {
	return &Source{Config: c, permits: make(permits, max(1, runtime.GOMAXPROCS(0)/2))}
}

func (s *Source) newGroup(e *Exporter, transport http.RoundTripper) *group {
	g := &group{
		Exporter: e, source: s, client: newHTTPClient(transport), series: map[string][]int{},
		pods: map[string][]*corev1.Pod{}, targets: map[types.UID]*target{}, active: map[string]*active{},
		missing: map[string]bool{}, crowded: map[string]bool{},
	}
	for i := range e.Resources {
		g.series[e.Resources[i].Series] = append(g.series[e.Resources[i].Series], i)
	}
	return g
}

// Run scrapes until the context ends.
func (s *Source) Run(ctx context.Context) {
	tick := time.NewTicker(syncInterval)
	defer tick.Stop()
	for !s.Synced() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	var running sync.WaitGroup
	for _, g := range s.groups {
		running.Go(func() { g.run(ctx, s.client) })
	}
	running.Wait()
}

// Statuses returns the states of the exporters, in the order of the configuration.
func (s *Source) Statuses() []status.Exporter {
	now := s.Clock.At(time.Now())
	statuses := make([]status.Exporter, 0, len(s.groups))
	for _, g := range s.groups {
		statuses = append(statuses, g.status(now))
	}
	return statuses
}

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
	stopped bool       // guarded by group.mu
	status  status.Pod // guarded by group.mu
}

// active is the pod whose values are served for a node. An update of a DaemonSet may run two pods on
// a node, which report the same devices.
type active struct {
	target      *target
	at, expires usage.Time
	containers  map[string]int // by resource
}

// run watches the pods and scrapes them until the context ends.
func (g *group) run(ctx context.Context, client corev1client.PodsGetter) {
	informer := newInformer(client, g.Exporter, cache.ResourceEventHandlerFuncs{
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
	var watching sync.WaitGroup
	watching.Go(func() { informer.RunWithContext(ctx) })
	sweep := time.NewTicker(g.MaxAge)
	defer sweep.Stop()
	for done := false; !done; {
		select {
		case <-ctx.Done():
			done = true
		case <-sweep.C:
			g.removeExpired(g.source.Clock.At(time.Now()))
		}
	}
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
	t := &target{pod: pod, status: status.Pod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName}}
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

// scrapeRegularly scrapes a pod once in each interval until the context ends. No pod waits for
// another: a scrape takes little memory.
func (g *group) scrapeRegularly(ctx context.Context, t *target) {
	defer t.stop()
	timer := time.NewTimer(rand.N(startWindow)) //nolint:gosec // to spread load
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		start := time.Now()
		g.scrape(ctx, t)
		if first {
			timer.Reset(rand.N(g.Interval)) //nolint:gosec // to spread load
		} else {
			timer.Reset(g.Interval - time.Since(start))
		}
	}
}

// scrape scrapes a pod once.
func (g *group) scrape(ctx context.Context, t *target) {
	at := g.source.Clock.At(time.Now())
	r, err := g.fetch(ctx, t)
	if ctx.Err() != nil {
		return // the pod has been removed, or the server ends
	}
	result := Result{Exporter: g.Name, Reason: Reason(err)}
	if r != nil {
		result.Skipped = map[string]int{}
		for s, n := range r.skipped {
			if n > 0 {
				result.Skipped[skip(s).String()] = n
			}
		}
	}
	g.finish(t, at, r, err)
	g.source.Observer.DeviceScraped(result)
}

// fetch calls get, and returns a panic as an error: no response may end the server.
func (g *group) fetch(ctx context.Context, t *target) (r *response, err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "Panic in the scrape of a device exporter", "pod", klog.KObj(t.pod), "panic", p,
				"stack", string(debug.Stack()))
			r, err = nil, reason.Errorf(reason.InternalFailure, "panic: %v", p)
		}
	}()
	if t.err != nil {
		return nil, t.err
	}
	ctx, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	if r, err = g.get(ctx, t); err != nil {
		err = reason.Errorf(Reason(err), "%.1000s", err.Error()) // the exporter's text in it may be long
	}
	return r, err
}

// finish stores the result of a scrape: r, if err is nil.
func (g *group) finish(t *target, at usage.Time, r *response, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.stopped {
		return
	}
	g.logChange(t, Reason(err), err)
	s := &t.status
	s.LastScrape, s.Err, s.Reason = time.Now(), err, Reason(err)
	if err != nil {
		return
	}
	s.LastSuccess, s.Devices = s.LastScrape, slices.Max(r.series)
	g.logMissing(t, r)
	node := t.pod.Spec.NodeName
	if a := g.active[node]; a != nil && !g.replaces(t, a, at) {
		return
	}
	a := &active{target: t, at: at.Add(-r.age), expires: at.Add(g.MaxAge - r.age), containers: map[string]int{}}
	for i := range r.containers {
		a.containers[r.containers[i].Name]++
	}
	g.active[node] = a
	g.source.Sink.Put(node, g.sinkName(), store.ExtraReport{At: a.at, Expires: a.expires, Containers: r.containers})
}

// sinkName returns the name of the source in the Sink, which no source but this group has.
func (g *group) sinkName() string { return "device/" + g.Name }

// replaces reports whether the values of a target replace those that are served: the oldest pod that
// can be scraped counts, so that no new pod decides.
func (g *group) replaces(t *target, a *active, now usage.Time) bool {
	return t == a.target || a.target.stopped || a.target.status.Reason != "" || now >= a.expires ||
		byAge(t.pod, a.target.pod) < 0
}

// logChange logs if a pod begins to fail, fails for another reason, or recovers.
func (g *group) logChange(t *target, now reason.Reason, err error) {
	if now == t.status.Reason {
		return
	}
	logger := klog.Background().WithValues("exporter", g.Name, "pod", klog.KObj(t.pod), "node", t.pod.Spec.NodeName)
	if err != nil {
		logger.Error(err, "Cannot scrape the device exporter; its last values stand until they expire", "reason", now)
		return
	}
	logger.Info("The device exporter can be scraped again")
}

// logMissing logs each configured series that a response does not have, once for all pods: some GPUs
// never have it.
func (g *group) logMissing(t *target, r *response) {
	for i, found := range r.found {
		if series := g.Resources[i].Series; !found && !g.missing[series] {
			g.missing[series] = true
			klog.Background().Info("A device exporter does not export a configured series, so the resource is missing "+
				"on its node; this is logged once", "exporter", g.Name, "pod", klog.KObj(t.pod), "node", t.pod.Spec.NodeName,
				"series", series, "resource", g.Resources[i].Resource)
		}
	}
}

func (g *group) status(now usage.Time) status.Exporter {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := status.Exporter{
		Name: g.Name, Namespace: g.Namespace, PodSelector: g.PodSelector,
		Pods: make([]status.Pod, 0, len(g.targets)), Containers: map[string]int{},
	}
	for _, t := range g.targets {
		e.Pods = append(e.Pods, t.status)
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
