// Package kubelettest is a fake kubelet for tests, demonstrations and benchmarks: it tells what a
// node and its containers use as a real kubelet does, and can misbehave in every way that is known
// of real ones.
//
// A [Kubelet] is an http.Handler with the endpoints /metrics/resource and /stats/summary. Usage is
// set and changed at any time; counters are its exact integral, and samples are taken as cAdvisor
// takes them, at intervals ("housekeeping"), or on demand. A [Fault] makes it misbehave until it is
// cleared. [Kubelet.Start] serves one kubelet for the length of a test, a [Fleet] serves thousands
// in one process, each on a loopback address and with a certificate of its own, and a [CA] issues
// certificates that verify, and certificates that do not:
//
//	ca := kubelettest.NewCA()
//	k := kubelettest.New("node-1", kubelettest.Config{})
//	k.SetNode(kubelettest.Usage{CPU: 1.5, Memory: 4 << 30})
//	k.SetContainer("default", "web-1", "nginx", kubelettest.Usage{CPU: 0.25, Memory: 64 << 20})
//	cert := ca.Issue([]string{"node-1"}, []net.IP{net.IPv4(127, 0, 0, 1)})
//	addr := k.Start(t, &cert)
//	k.SetFaults(kubelettest.Sometimes(0.3, 1, kubelettest.Status(500)))
//
// It imports the standard library only. It lacks on purpose: the answers in protobuf and
// OpenMetrics, filesystem figures in the summary, and every endpoint that is not about usage.
package kubelettest

import (
	"cmp"
	"hash/fnv"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// ResourcePath and SummaryPath are where a real kubelet answers.
const (
	ResourcePath = "/metrics/resource"
	SummaryPath  = "/stats/summary"
)

// Usage is what a node or a container uses from now on.
type Usage struct {
	CPU    float64 // cores; resolved to a nanocore
	Memory uint64  // bytes of the working set
	Swap   uint64  // bytes
}

// Config says how a kubelet behaves. The zero value is a kubelet that samples everything on demand,
// by the wall clock, and answers everybody.
type Config struct {
	// Now returns the true time; time.Now by default. It is read in whole milliseconds, the unit of
	// timestamps, so that rates computed from them are exact. It must not go back; SetClockOffset
	// sets a node's clock that does.
	Now func() time.Time

	// Boot is when the node began to count; by default, the moment of New.
	Boot time.Time

	// Housekeeping is the time between two samples; 0 takes them on demand, at each request. Real
	// kubelets take one every 10 to 20 s. A node is sampled at Boot and every Housekeeping since; a
	// container or pod at its start and every Housekeeping since, each with a small delay of its
	// own.
	Housekeeping time.Duration

	// ContainersOnDemand takes the samples of containers on demand though nodes and pods are
	// sampled by Housekeeping, as kubelets do that ask the container runtime for them. Such a
	// kubelet does not know the containers' usageNanoCores, unless the runtime does.
	ContainersOnDemand bool

	// RateSinceLastAsk has the runtime know them as containerd does where it has no collector of
	// its own: as the mean since anybody asked last, be it milliseconds ago. It means something
	// with ContainersOnDemand only.
	RateSinceLastAsk bool

	// NoSwap leaves swap out of all answers.
	NoSwap bool

	// ResourcePath is where /metrics/resource is answered instead.
	ResourcePath string

	// Authorize says with which status to answer a request: 200 to answer it, 401 or 403 to refuse.
	// Nil answers everybody.
	Authorize func(*http.Request) int
}

// BearerToken returns a Config.Authorize that wants this token: 401 without one, 403 with another.
func BearerToken(want string) func(*http.Request) int {
	return func(r *http.Request) int {
		switch token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); {
		case !ok:
			return http.StatusUnauthorized
		case token != want:
			return http.StatusForbidden
		default:
			return http.StatusOK
		}
	}
}

// Kubelet is one fake kubelet. Its methods may be called at the same time as it answers.
type Kubelet struct {
	name string
	cfg  Config

	mu         sync.Mutex
	ahead      time.Duration // by how much the node's clock is ahead of Config.Now
	node       series
	containers []*container // sorted as they are told: by name, namespace, pod
	pods       []*pod       // sorted as they are told: by namespace, name
	faults     []Fault
	requests   map[string]int // path → how many requests have been received
	textSize   int            // bytes of the last text; the next one will be about as long
}

type container struct {
	namespace, pod, name string
	labels               string // as they stand in the text, with braces
	series
}

type pod struct {
	namespace, name string
	labels          string       // as they stand in the text, with braces
	containers      []*container // sorted by name
	series
}

// New returns the kubelet of a node without containers.
func New(name string, cfg Config) *Kubelet {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.ResourcePath == "" {
		cfg.ResourcePath = ResourcePath
	}
	k := &Kubelet{name: name, cfg: cfg, requests: make(map[string]int)}
	boot := k.now()
	if !cfg.Boot.IsZero() {
		boot = cfg.Boot.UnixNano()
	}
	k.node = newSeries(boot, 0, 0, Usage{})
	return k
}

// Name is the node's name.
func (k *Kubelet) Name() string { return k.name }

// SetNode sets what the node uses from now on; the first time, before any answer, what it has used
// since Boot. It is independent of what its containers use.
func (k *Kubelet) SetNode(u Usage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.node.last.at == 0 {
		k.node = newSeries(k.node.started, time.Duration(k.node.start-k.node.started), 0, u)
	}
	now := k.now()
	k.node.housekeep(now, k.ahead, k.cfg.Housekeeping)
	k.node.set(now, u)
}

// SetContainer sets what a container uses from now on. One that does not run yet starts now.
func (k *Kubelet) SetContainer(namespace, pod, name string, u Usage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	if c := k.container(namespace, pod, name); c != nil {
		k.change(c, now, func() { c.set(now, u) })
		return
	}
	k.run(namespace, pod, name, u, now, now)
}

// Run starts a container, or starts it again, as if it had been running since startedAt with that
// usage. A start in the future must not be.
func (k *Kubelet) Run(namespace, pod, name string, u Usage, startedAt time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.run(namespace, pod, name, u, startedAt.UnixNano(), k.now())
}

// Restart starts a container anew: its counter is 0 and its start time is now; its usage stays. It
// does nothing where there is no such container.
func (k *Kubelet) Restart(namespace, pod, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.container(namespace, pod, name); c != nil {
		now := k.now()
		k.run(namespace, pod, name, c.usage(), now, now)
	}
}

// RemoveContainer ends a container. Its pod stays for as long as it has another one.
func (k *Kubelet) RemoveContainer(namespace, pod, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.container(namespace, pod, name); c != nil {
		k.remove(c, k.now())
	}
}

// RemovePod ends all containers of a pod.
func (k *Kubelet) RemovePod(namespace, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i, ok := k.findPod(namespace, name); ok {
		for _, c := range slices.Clone(k.pods[i].containers) {
			k.remove(c, k.now())
		}
	}
}

// SetClockOffset sets by how much the node's clock is ahead of Config.Now; negative: behind. It is
// a step of the clock: the Date headers, new samples and new containers have times of the new
// clock, and what was sampled or started before keeps the time that it has.
func (k *Kubelet) SetClockOffset(ahead time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cfg.Housekeeping > 0 {
		k.sample() // what was due before the step
	}
	k.ahead = ahead.Truncate(time.Millisecond)
}

// SetFaults makes the kubelet misbehave: the faults are applied to each answer, in their order.
// Without any, it behaves again.
func (k *Kubelet) SetFaults(faults ...Fault) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults = slices.Clone(faults)
}

// Requests says how many requests there have been for a path, refused and failed ones included.
func (k *Kubelet) Requests(path string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.requests[path]
}

// ServeHTTP answers as a kubelet does. A fault that breaks the connection panics with
// http.ErrAbortHandler, which net/http expects of a handler.
func (k *Kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := &Answer{Request: r, Status: http.StatusOK, Header: w.Header()}
	for _, fault := range k.fill(a) {
		fault(a)
	}
	a.send(w)
}

// fill makes the right answer, and returns the faults to apply to it.
func (k *Kubelet) fill(a *Answer) []Fault {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.requests[a.Request.URL.Path]++
	a.Now = time.Unix(0, k.now()).Add(k.ahead)
	a.Header.Set("Date", a.Now.UTC().Format(http.TimeFormat))
	if k.cfg.Authorize != nil {
		if status := k.cfg.Authorize(a.Request); status != http.StatusOK {
			a.plain(status, http.StatusText(status))
			return k.faults
		}
	}
	switch a.Request.URL.Path {
	case k.cfg.ResourcePath:
		a.Header.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores")
		a.Body = k.appendResource(make([]byte, 0, k.textSize+k.textSize/16+1024), k.sample())
		k.textSize, a.text = len(a.Body), true
		a.Gzip = acceptsGzip(a.Request)
	case SummaryPath:
		a.Header.Set("Content-Type", "application/json")
		k.sample()
		a.Body, a.summary = k.appendSummary(), true
	default:
		a.plain(http.StatusNotFound, "404 page not found")
	}
	return k.faults
}

// sample brings all readings up to date, and returns the time.
func (k *Kubelet) sample() (now int64) {
	now = k.now()
	k.node.housekeep(now, k.ahead, k.cfg.Housekeeping)
	for _, p := range k.pods {
		p.housekeep(now, k.ahead, k.cfg.Housekeeping)
	}
	for _, c := range k.containers {
		c.housekeep(now, k.ahead, k.containerHousekeeping())
	}
	return now
}

// containerHousekeeping is the time between two samples of a container; 0: on demand.
func (k *Kubelet) containerHousekeeping() time.Duration {
	if k.cfg.ContainersOnDemand {
		return 0
	}
	return k.cfg.Housekeeping
}

// now is the true time in nanoseconds since the epoch, in whole milliseconds.
func (k *Kubelet) now() int64 {
	return k.cfg.Now().UnixNano() / int64(time.Millisecond) * int64(time.Millisecond)
}

func (k *Kubelet) container(namespace, pod, name string) *container {
	if i, ok := k.findContainer(namespace, pod, name); ok {
		return k.containers[i]
	}
	return nil
}

func (k *Kubelet) findContainer(namespace, pod, name string) (int, bool) {
	return slices.BinarySearchFunc(k.containers, 0, func(c *container, _ int) int {
		return cmp.Or(strings.Compare(c.name, name), strings.Compare(c.namespace, namespace), strings.Compare(c.pod, pod))
	})
}

func (k *Kubelet) findPod(namespace, name string) (int, bool) {
	return slices.BinarySearchFunc(k.pods, 0, func(p *pod, _ int) int {
		return cmp.Or(strings.Compare(p.namespace, namespace), strings.Compare(p.name, name))
	})
}

// run puts a new container in the place of the one with these names, if there is one.
func (k *Kubelet) run(namespace, podName, name string, u Usage, startedAt, now int64) {
	if old := k.container(namespace, podName, name); old != nil {
		k.change(old, now, func() { old.series = newSeries(startedAt, k.ahead, old.delay, u) })
		return
	}
	delay := delayOf(namespace, podName, name)
	c := &container{
		namespace: namespace, pod: podName, name: name,
		labels: labels("container", name, "namespace", namespace, "pod", podName),
		series: newSeries(startedAt, k.ahead, delay, u),
	}
	i, _ := k.findContainer(namespace, podName, name)
	k.containers = slices.Insert(k.containers, i, c)

	i, ok := k.findPod(namespace, podName)
	if !ok {
		k.pods = slices.Insert(k.pods, i, &pod{
			namespace: namespace, name: podName,
			labels: labels("namespace", namespace, "pod", podName),
			series: newSeries(startedAt, k.ahead, delay, Usage{}),
		})
	}
	p := k.pods[i]
	p.containers = append(p.containers, c)
	slices.SortFunc(p.containers, func(a, b *container) int { return strings.Compare(a.name, b.name) })
	p.housekeep(now, k.ahead, k.cfg.Housekeeping)
	p.set(now, p.sum())
	p.base += c.cpuAt(now)
}

// remove takes a container away, and its pod with the last one.
func (k *Kubelet) remove(c *container, now int64) {
	i, _ := k.findContainer(c.namespace, c.pod, c.name)
	k.containers = slices.Delete(k.containers, i, i+1)
	i, _ = k.findPod(c.namespace, c.pod)
	p := k.pods[i]
	if len(p.containers) == 1 {
		k.pods = slices.Delete(k.pods, i, i+1)
		return
	}
	p.housekeep(now, k.ahead, k.cfg.Housekeeping)
	p.containers = slices.DeleteFunc(p.containers, func(other *container) bool { return other == c })
	p.set(now, p.sum())
}

// change alters a container's series, and its pod's accordingly. What was sampled before stays as
// it was.
func (k *Kubelet) change(c *container, now int64, alter func()) {
	i, _ := k.findPod(c.namespace, c.pod)
	p := k.pods[i]
	p.housekeep(now, k.ahead, k.cfg.Housekeeping)
	c.housekeep(now, k.ahead, k.containerHousekeeping())
	alter()
	p.set(now, p.sum())
}

// sum is what the containers of a pod use together.
func (p *pod) sum() (sum Usage) {
	for _, c := range p.containers {
		u := c.usage()
		sum.CPU += u.CPU
		sum.Memory += u.Memory
		sum.Swap += u.Swap
	}
	return sum
}

// delayOf is by how much the samples of one container come later than those of others: below 250
// ms, in whole milliseconds.
func delayOf(names ...string) time.Duration {
	h := fnv.New32a()
	for _, name := range names {
		h.Write([]byte(name))
		h.Write([]byte{0})
	}
	return time.Duration(h.Sum32()%250) * time.Millisecond
}

func nanocores(cores float64) uint64 { return uint64(math.Round(cores * 1e9)) }
