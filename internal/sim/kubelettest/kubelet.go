// Package kubelettest provides a fake kubelet for tests, demonstrations and benchmarks. It reports
// the usage of a node and its containers like a real kubelet, and can reproduce every known fault.
//
// A [Kubelet] is an http.Handler that serves /metrics/resource, /metrics/cadvisor and
// /stats/summary. Usage can change at any time. Counters are its exact integral, and samples are
// taken as cAdvisor takes them: at intervals ("housekeeping") or on demand. [Kubelet.SetFaults]
// makes it misbehave. [Kubelet.Start] serves one kubelet until a test ends. A [Fleet] serves
// thousands in one process, each with its own loopback address and certificate. A [CA] issues valid
// and invalid certificates:
//
//	ca := kubelettest.NewCA()
//	k := kubelettest.New("node-1", kubelettest.Config{})
//	k.SetNode(kubelettest.Usage{CPU: 1.5, Memory: 4 << 30})
//	k.SetContainer("default", "web-1", "nginx", kubelettest.Usage{CPU: 0.25, Memory: 64 << 20})
//	cert := ca.Issue([]string{"node-1"}, []net.IP{net.IPv4(127, 0, 0, 1)})
//	addr := k.Start(t, &cert)
//	k.SetFaults(kubelettest.Sometimes(0.3, 1, kubelettest.Status(500)))
//
// It imports the standard library only. It does not support protobuf and OpenMetrics, volumes and
// networks in the summary, or endpoints that do not report usage.
package kubelettest

import (
	"cmp"
	"hash/fnv"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// The paths of a real kubelet.
const (
	ResourcePath = "/metrics/resource"
	SummaryPath  = "/stats/summary"
)

// CompleteSummary stands for requests to SummaryPath without a query; see Kubelet.Requests.
const CompleteSummary = SummaryPath + "?"

const textType = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"

// Usage is the usage of a node or a container.
type Usage struct {
	CPU    float64 // cores; rounded to nanocores
	Memory uint64  // bytes of the working set
	Swap   uint64  // bytes
}

// Config configures a Kubelet. The zero value takes all samples on demand, uses the wall clock, and
// authorizes every request.
type Config struct {
	// Now returns the true time; time.Now by default. It is rounded down to milliseconds, the unit
	// of timestamps, so that rates computed from them are exact. It must not go back. To set a
	// node's clock back, use SetClockOffset.
	Now func() time.Time

	// ClockOffset is how far the node's clock is ahead of Now at first; see SetClockOffset.
	ClockOffset time.Duration

	// Boot is when the node's counter was 0; by default, the time of New.
	Boot time.Time

	// Housekeeping is the interval between two samples; 0 takes them on demand, at each request.
	// Real kubelets use 10 to 20 s. A node is sampled at Boot and every Housekeeping since. A
	// container or pod is sampled at its start and every Housekeeping since, with a small delay
	// that differs between containers.
	Housekeeping time.Duration

	// ContainersOnDemand takes the samples of containers on demand while nodes and pods are sampled
	// every Housekeeping. This is how kubelets behave that get container samples from the container
	// runtime. They report no usageNanoCores of containers unless the runtime does.
	ContainersOnDemand bool

	// StartCPU is what a container has used when it starts, in core-seconds: its counter does not begin at
	// 0, even if it then does nothing.
	StartCPU float64

	// NoSwap leaves swap out of all responses.
	NoSwap bool

	// Readings fills Response.Readings, so that a Fault can record what is reported.
	Readings bool

	// SandboxContainer is the label container of sandboxes in /metrics/cadvisor: empty with containerd,
	// POD with other container runtimes.
	SandboxContainer string

	// Authorize returns the status of a request: 200 to serve it, 401 or 403 to reject it. By
	// default, every request is served.
	Authorize func(*http.Request) int
}

// Kubelet is one fake kubelet. Its methods are safe for concurrent use.
type Kubelet struct {
	name string
	cfg  Config

	mu         sync.Mutex
	ahead      time.Duration // how far the node's clock is ahead of Config.Now
	node       series
	storage    uint64       // bytes that are used on the node's disk
	containers []*container // in the order of the text: by name, namespace, pod
	pods       []*pod       // in the order of the text: by namespace, name
	faults     []Fault
	requests   map[string]int // number of requests by path
	textSize   int            // bytes of the last text; the next one will be about as long
}

type container struct {
	namespace, pod, name string
	storage              uint64 // bytes of its writable layer and its logs
	series
}

type pod struct {
	namespace, name string
	uid             string       // of the pod in the API server
	containers      []*container // sorted by name
	storage         uint64       // bytes of its volumes
	series
}

// New returns the kubelet of a node without containers.
func New(name string, cfg Config) *Kubelet {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	k := &Kubelet{name: name, cfg: cfg, requests: make(map[string]int)}
	k.ahead = cfg.ClockOffset.Truncate(time.Millisecond)
	boot := k.now()
	if !cfg.Boot.IsZero() {
		boot = cfg.Boot.UnixNano()
	}
	k.node = newSeries("", boot, k.ahead, 0, Usage{})
	return k
}

// Name returns the node's name.
func (k *Kubelet) Name() string { return k.name }

// SetNode sets the node's usage from now on. The first call, before any response, sets it since
// Boot. It does not depend on the usage of containers.
func (k *Kubelet) SetNode(u Usage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.node.last.at == 0 {
		k.node = newSeries("", k.node.started, time.Duration(k.node.start-k.node.started), 0, u)
	}
	now := k.now()
	k.node.housekeep(now, k.ahead, k.cfg.Housekeeping)
	k.node.set(now, u)
}

// SetContainer sets a container's usage from now on, and starts the container if it does not run.
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

// Run starts or restarts a container as if it had been running with this usage since startedAt,
// which must not be in the future.
func (k *Kubelet) Run(namespace, pod, name string, u Usage, startedAt time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.run(namespace, pod, name, u, startedAt.UnixNano(), k.now())
}

// SetUID sets the UID of a pod in the summary; by default, it is a hash of the pod's names. It does
// nothing if the pod does not exist.
func (k *Kubelet) SetUID(namespace, pod, uid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i, ok := k.findPod(namespace, pod); ok {
		k.pods[i].uid = uid
	}
}

// SetStorage sets the local ephemeral storage in bytes that a container uses; or, if name is empty,
// what the volumes of a pod use; or, if all names are empty, what is used on the disk of the node. It
// does nothing if the container or pod does not exist. A container that restarts has none.
func (k *Kubelet) SetStorage(namespace, pod, name string, bytes uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if pod == "" {
		k.storage = bytes
	} else if i, ok := k.findPod(namespace, pod); ok && name == "" {
		k.pods[i].storage = bytes
	} else if c := k.container(namespace, pod, name); c != nil {
		c.storage = bytes
	}
}

// Restart restarts a container: its counter is 0 and its start time is now, while its usage stays.
// It does nothing if the container does not exist.
func (k *Kubelet) Restart(namespace, pod, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.container(namespace, pod, name); c != nil {
		now := k.now()
		k.run(namespace, pod, name, c.usage(), now, now)
	}
}

// RemoveContainer removes a container, and its pod with the last container.
func (k *Kubelet) RemoveContainer(namespace, pod, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.container(namespace, pod, name); c != nil {
		k.remove(c, k.now())
	}
}

// RemovePod removes a pod with all its containers.
func (k *Kubelet) RemovePod(namespace, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i, ok := k.findPod(namespace, name); ok {
		for _, c := range slices.Clone(k.pods[i].containers) {
			k.remove(c, k.now())
		}
	}
}

// SetClockOffset sets how far the node's clock is ahead of Config.Now; a negative offset is behind.
// The clock steps: Date headers, new samples and new containers get the new time, and older samples
// and start times stay.
func (k *Kubelet) SetClockOffset(ahead time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cfg.Housekeeping > 0 {
		k.sample() // what was due before the step
	}
	k.ahead = ahead.Truncate(time.Millisecond)
}

// SetFaults replaces the faults that are applied to each response, in this order.
func (k *Kubelet) SetFaults(faults ...Fault) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults = slices.Clone(faults)
}

// Requests returns the number of requests for a path, including rejected and failed ones; or, for
// CompleteSummary, the number of requests for summaries with filesystems that were not rejected.
func (k *Kubelet) Requests(path string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.requests[path]
}

// ServeHTTP responds like a kubelet. A fault that breaks the connection panics with
// http.ErrAbortHandler, as net/http expects.
func (k *Kubelet) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	k.respond(request, w.Header()).send(w)
}

// respond returns the response with all faults.
func (k *Kubelet) respond(request *http.Request, header http.Header) *Response {
	r := &Response{Request: request, Status: http.StatusOK, Header: header}
	for _, fault := range k.fill(r) {
		fault(r)
	}
	return r
}

// fill completes the correct response, and returns the faults to apply to it.
func (k *Kubelet) fill(r *Response) []Fault {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.requests[r.Request.URL.Path]++
	r.Now = time.Unix(0, k.now()).Add(k.ahead)
	r.Header.Set("Date", r.Now.UTC().Format(http.TimeFormat))
	if k.cfg.Authorize != nil {
		if status := k.cfg.Authorize(r.Request); status != http.StatusOK {
			r.setStatus(status, http.StatusText(status))
			return k.faults
		}
	}
	switch r.Request.URL.Path {
	case ResourcePath:
		r.Header.Set("Content-Type", textType)
		r.Body = k.appendResource(make([]byte, 0, k.textSize+k.textSize/16+1024), k.sample())
		k.textSize = len(r.Body)
		r.format, r.Gzip = resource, acceptsGzip(r.Request)
	case CadvisorPath:
		r.Header.Set("Content-Type", textType)
		k.sample()
		r.Body, r.Gzip = k.appendCadvisor(nil), acceptsGzip(r.Request)
	case SummaryPath:
		r.Header.Set("Content-Type", "application/json")
		k.sample()
		filesystems := r.Request.URL.Query().Get("only_cpu_and_memory") != "true"
		if filesystems {
			k.requests[CompleteSummary]++
		}
		r.Body, r.format = k.newSummary(filesystems), summary
	default:
		r.setStatus(http.StatusNotFound, "404 page not found")
	}
	if k.cfg.Readings && r.format != other {
		r.Readings = k.readings()
	}
	return k.faults
}

// sample updates all readings, and returns the time.
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

// containerHousekeeping returns the interval between two samples of a container; 0 is on demand.
func (k *Kubelet) containerHousekeeping() time.Duration {
	if k.cfg.ContainersOnDemand {
		return 0
	}
	return k.cfg.Housekeeping
}

// now returns the true time in nanoseconds since the epoch, in whole milliseconds.
func (k *Kubelet) now() int64 {
	return k.cfg.Now().UnixNano() / int64(time.Millisecond) * int64(time.Millisecond)
}

// container returns the container with these names, or nil.
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

// run starts a container, or restarts the one with these names.
func (k *Kubelet) run(namespace, podName, name string, u Usage, startedAt, now int64) {
	started := func(labels string, delay time.Duration) series {
		s := newSeries(labels, startedAt, k.ahead, delay, u)
		s.base = nanocores(k.cfg.StartCPU)
		return s
	}
	if old := k.container(namespace, podName, name); old != nil {
		old.storage = 0
		k.change(old, now, func() { old.series = started(old.labels, old.delay) })
		return
	}
	delay := delayOf(namespace, podName, name)
	c := &container{
		namespace: namespace, pod: podName, name: name,
		series: started(labels("container", name, "namespace", namespace, "pod", podName), delay),
	}
	i, _ := k.findContainer(namespace, podName, name)
	k.containers = slices.Insert(k.containers, i, c)

	i, ok := k.findPod(namespace, podName)
	if !ok {
		k.pods = slices.Insert(k.pods, i, &pod{
			namespace: namespace, name: podName, uid: uid(namespace, podName),
			series: newSeries(labels("namespace", namespace, "pod", podName), startedAt, k.ahead, delay, Usage{}),
		})
	}
	p := k.pods[i]
	p.containers = append(p.containers, c)
	slices.SortFunc(p.containers, func(a, b *container) int { return strings.Compare(a.name, b.name) })
	p.housekeep(now, k.ahead, k.cfg.Housekeeping)
	p.set(now, p.sum())
	p.base += c.cpuAt(now)
}

// remove removes a container, and its pod with the last container.
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

// change alters a container's series, and updates its pod's. Earlier samples stay.
func (k *Kubelet) change(c *container, now int64, alter func()) {
	i, _ := k.findPod(c.namespace, c.pod)
	p := k.pods[i]
	p.housekeep(now, k.ahead, k.cfg.Housekeeping)
	c.housekeep(now, k.ahead, k.containerHousekeeping())
	alter()
	p.set(now, p.sum())
}

// sum returns the usage of all containers of a pod.
func (p *pod) sum() (sum Usage) {
	for _, c := range p.containers {
		u := c.usage()
		sum.CPU += u.CPU
		sum.Memory += u.Memory
		sum.Swap += u.Swap
	}
	return sum
}

// delayOf returns how much later than others a container is sampled: whole milliseconds below 250.
func delayOf(names ...string) time.Duration {
	h := fnv.New32a()
	for _, name := range names {
		h.Write([]byte(name))
		h.Write([]byte{0})
	}
	return time.Duration(h.Sum32()%250) * time.Millisecond
}
