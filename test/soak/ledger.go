package main

import (
	"fmt"
	"math"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/world"
)

// bounds are the times by which answers are judged.
type bounds struct {
	maxAge time.Duration // up to which figures may be served
	settle time.Duration // after which a node or pod that nothing has happened to must be served
	hold   time.Duration // for which figures must stay after their kubelet began to fail
	gone   time.Duration // after which what was deleted must not be served any more
}

// newBounds follows from the server's interval between scrapes and the kubelets' between samples.
func newBounds(resolution, housekeeping time.Duration) bounds {
	const busy = 2 * time.Second             // what a machine that has much to do may take for anything
	const startSpike = 10 * time.Second      // for which a container has no figure after a restart
	latest := resolution + housekeeping      // the age of the latest sample at most
	maxAge := startSpike + 2*latest + 2*busy // so that a restart costs a pod nothing
	return bounds{
		maxAge: maxAge,
		settle: 2*latest + 2*busy,
		hold:   maxAge - latest - busy,
		gone:   2 * busy,
	}
}

// ledger knows what exists and what has happened to it, and so which answers are right.
type ledger struct {
	bounds

	mu    sync.Mutex
	nodes map[string]*node // by name; those that are gone, too
	pods  map[string]*pod  // by namespace/name; those that are gone, too
}

// life is how long something exists. Times are zero for what has not happened yet.
type life struct {
	steady  time.Time // since when it exists, with nothing happening that could cost it its figures
	ending  bool      // it is being deleted, and may be served or not
	deleted time.Time // since when it does not exist
}

// node is a node, and what is the matter with its kubelet.
type node struct {
	life
	failing time.Time // since when; zero: its kubelet is all right
	ailment string    // what the matter is, or was last: the name of one of kubelettest.Faults
}

// history tells what was the matter with a node's kubelet.
func (n *node) history(now time.Time) string {
	switch {
	case n.ailment == "":
		return "its kubelet never failed"
	case !n.failing.IsZero():
		return fmt.Sprintf("its kubelet has failed for %s: %s", now.Sub(n.failing).Round(time.Second), n.ailment)
	default:
		return fmt.Sprintf("its kubelet has been well for %s, after: %s", now.Sub(n.steady).Round(time.Second), n.ailment)
	}
}

// pod is a pod, and when its containers were restarted last.
type pod struct {
	life
	node      *node
	usage     [len(world.ContainerNames)]kubelettest.Usage
	restarted time.Time // zero: never
}

func newLedger(b bounds) *ledger {
	return &ledger{bounds: b, nodes: map[string]*node{}, pods: map[string]*pod{}}
}

// addNode notes a node that will exist. It is not expected to be served before it is said to be steady.
func (l *ledger) addNode(name string) *node {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := &node{}
	l.nodes[name] = n
	return n
}

// addPod notes a pod that will exist.
func (l *ledger) addPod(p world.Pod, on *node, usage [len(world.ContainerNames)]kubelettest.Usage) *pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	record := &pod{node: on, usage: usage}
	l.pods[key(p.Namespace, p.Name)] = record
	return record
}

// history tells what has happened to a pod and its kubelet.
func (p *pod) history(now time.Time) string {
	text := fmt.Sprintf("it has run for %s, and %s", now.Sub(p.steady).Round(time.Second), p.node.history(now))
	if !p.restarted.IsZero() {
		text += fmt.Sprintf("; a container was restarted %s ago", now.Sub(p.restarted).Round(time.Second))
	}
	return text
}

func (l *ledger) podHistory(p *pod, now time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return p.history(now)
}

func (l *ledger) nodeHistory(n *node, now time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return n.history(now)
}

// anyPod picks a pod at random, one that exists or one that is gone.
func (l *ledger) anyPod() (name string, p *pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, p := range l.pods {
		return name, p
	}
	return "", nil
}

// anyNode picks a node at random, one that exists or one that is gone.
func (l *ledger) anyNode() (name string, n *node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, n := range l.nodes {
		return name, n
	}
	return "", nil
}

// note changes a record.
func (l *ledger) note(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// restart notes that a container of a pod was restarted. Once costs the pod nothing; twice in a short time may.
func (l *ledger) restart(p *pod, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(p.steady) < l.settle || now.Sub(p.restarted) < l.settle {
		p.steady = now
	}
	p.restarted = now
}

// steadySince is since when nothing has happened to a pod or its kubelet. There is none while something is.
func (p *pod) steadySince() (since time.Time, ok bool) {
	if p.steady.IsZero() || p.node.steady.IsZero() || p.ending || p.node.ending {
		return time.Time{}, false
	}
	return later(p.steady, p.node.steady), true
}

// clockSetBack is the ailment that may cost figures within the time for which they are held in all others: after three
// scrapes with older timestamps, a clock is taken to have been set back, and all begins anew.
const clockSetBack = "time of yesterday"

// ill is since when a kubelet fails whose figures are to be held; ok is false if they need not be.
func (n *node) ill() (since time.Time, ok bool) {
	return n.failing, n.failing.IsZero() || n.ailment != clockSetBack
}

// mustServe says whether something that has been steady since then must be served. Where its kubelet fails, it must have
// had new figures before, which those of a container that was restarted are not yet.
func (l *ledger) mustServe(since, restarted, failing, now time.Time) bool {
	if !failing.IsZero() {
		return failing.Sub(later(since, restarted)) >= l.settle && now.Sub(failing) < l.hold
	}
	return now.Sub(since) >= l.settle
}

// expectedPods lists the pods that must be served at a time.
func (l *ledger) expectedPods(now time.Time) map[string]*pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	expected := make(map[string]*pod, len(l.pods))
	for name, p := range l.pods {
		since, steady := p.steadySince()
		failing, held := p.node.ill()
		if steady && held && l.mustServe(since, p.restarted, failing, now) {
			expected[name] = p
		}
	}
	return expected
}

// expectedNodes lists the nodes that must be served at a time.
func (l *ledger) expectedNodes(now time.Time) map[string]*node {
	l.mu.Lock()
	defer l.mu.Unlock()
	expected := make(map[string]*node, len(l.nodes))
	for name, n := range l.nodes {
		failing, held := n.ill()
		if !n.steady.IsZero() && !n.ending && held && l.mustServe(n.steady, time.Time{}, failing, now) {
			expected[name] = n
		}
	}
	return expected
}

// An exchange is when a request was sent, and when its answer was there.
type exchange struct{ sent, answered time.Time }

// judgePods says what is wrong with the pods of an answer; all is whether it must have all pods that are expected.
func (l *ledger) judgePods(list []metricsv1beta1.PodMetrics, e exchange, all bool) (wrong []mistake) {
	served := make(map[string]bool, len(list))
	for i := range list {
		name := key(list[i].Namespace, list[i].Name)
		if served[name] {
			wrong = append(wrong, mistake{flaw{"is in one answer twice", ""}, "pod " + name})
		}
		served[name] = true
		wrong = append(wrong, of("pod "+name, l.judgePod(name, &list[i], e))...)
	}
	if !all {
		return wrong
	}
	// What was expected when the answer was asked for and still is when it came was expected all the time.
	still := l.expectedPods(e.answered)
	for name, p := range l.expectedPods(e.sent) {
		if still[name] != nil && !served[name] {
			wrong = append(wrong, mistake{flaw{"is not served", l.podHistory(p, e.sent)}, "pod " + name})
		}
	}
	return wrong
}

func (l *ledger) judgePod(name string, m *metricsv1beta1.PodMetrics, e exchange) (wrong []flaw) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pods[name]
	if p == nil {
		return []flaw{{"is served, though it never was", ""}}
	}
	wrong = append(wrong, l.judgeLife(p.life, e)...)
	wrong = append(wrong, l.judgeTime(m.Timestamp.Time, m.Window.Duration, e)...)
	if len(m.Containers) != len(world.ContainerNames) {
		return append(wrong, flaw{"is served in part", fmt.Sprintf("%d containers of %d", len(m.Containers), len(world.ContainerNames))})
	}
	since, ok := p.steadySince()
	if !ok || !p.node.failing.IsZero() || e.sent.Sub(later(since, p.restarted)) < l.settle {
		return wrong // its figures may be those of an ill kubelet, or of a start
	}
	for i, c := range world.ContainerNames {
		if m.Containers[i].Name != c {
			wrong = append(wrong, flaw{"is served with another container", fmt.Sprintf("%q in the place of %q", m.Containers[i].Name, c)})
			continue
		}
		if what := differs(m.Containers[i].Usage, p.usage[i]); what != "" {
			wrong = append(wrong, flaw{"is served with a wrong figure", fmt.Sprintf("its container %s %s", c, what)})
		}
	}
	return wrong
}

// judgeNodes says what is wrong with the nodes of an answer; all is whether it must have all nodes that are expected.
func (l *ledger) judgeNodes(list []metricsv1beta1.NodeMetrics, e exchange, all bool) (wrong []mistake) {
	served := make(map[string]bool, len(list))
	for i := range list {
		served[list[i].Name] = true
		wrong = append(wrong, of("node "+list[i].Name, l.judgeNode(&list[i], e))...)
	}
	if !all {
		return wrong
	}
	still := l.expectedNodes(e.answered)
	for name, n := range l.expectedNodes(e.sent) {
		if still[name] != nil && !served[name] {
			wrong = append(wrong, mistake{flaw{"is not served", l.nodeHistory(n, e.sent)}, "node " + name})
		}
	}
	return wrong
}

func (l *ledger) judgeNode(m *metricsv1beta1.NodeMetrics, e exchange) []flaw {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes[m.Name]
	if n == nil {
		return []flaw{{"is served, though it never was", ""}}
	}
	return append(l.judgeLife(n.life, e), l.judgeTime(m.Timestamp.Time, m.Window.Duration, e)...)
}

// judgeLife says whether something is served that is gone.
func (l *ledger) judgeLife(life life, e exchange) []flaw {
	if since := e.sent.Sub(life.deleted); !life.deleted.IsZero() && since > l.gone {
		return []flaw{{"is served though it is gone", fmt.Sprintf("it was deleted %s ago", since.Round(time.Millisecond))}}
	}
	return nil
}

// judgeTime says what is wrong with a timestamp and a window.
func (l *ledger) judgeTime(timestamp time.Time, window time.Duration, e exchange) (wrong []flaw) {
	const unit = time.Second // to which timestamps are told, cut off
	switch age := e.sent.Sub(timestamp); {
	case timestamp.Unix() <= 0:
		wrong = append(wrong, flaw{"has no timestamp", ""})
	case age > l.maxAge+unit:
		wrong = append(wrong, flaw{"is served with a figure that is too old", age.Round(time.Millisecond).String()})
	case timestamp.Sub(e.answered) > unit:
		wrong = append(wrong, flaw{"is served with a figure from ahead", timestamp.Sub(e.answered).Round(time.Millisecond).String()})
	}
	if window <= 0 {
		wrong = append(wrong, flaw{"has no window", window.String()})
	}
	return wrong
}

// differs says by how much a figure is not what the kubelet was told to tell.
func differs(got corev1.ResourceList, want kubelettest.Usage) string {
	const tolerance = 0.02 // a counter is read in milliseconds
	if cpu := got.Cpu().AsApproximateFloat64(); math.Abs(cpu-want.CPU) > tolerance*want.CPU+1e-6 {
		return fmt.Sprintf("uses %.6f cores, and not %.6f", cpu, want.CPU)
	}
	if memory := got.Memory().Value(); memory>>10 != int64(want.Memory)>>10 {
		return fmt.Sprintf("holds %d bytes, and not %d", memory, want.Memory)
	}
	return ""
}

// mistake is something wrong in an answer.
type mistake struct {
	flaw
	who string
}

// flaw is what is wrong with something, and how.
type flaw struct{ what, how string }

func (m mistake) String() string {
	if m.how == "" {
		return m.who + " " + m.what
	}
	return m.who + " " + m.what + ": " + m.how
}

func of(who string, flaws []flaw) (wrong []mistake) {
	for _, f := range flaws {
		wrong = append(wrong, mistake{f, who})
	}
	return wrong
}

func key(namespace, name string) string { return namespace + "/" + name }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
