package main

import (
	"fmt"
	"sync"
	"time"

	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

// bounds are the times by which answers are judged.
type bounds struct {
	maxAge time.Duration // up to which figures may be served
	settle time.Duration // after which a node or pod that nothing has happened to must be served
	hold   time.Duration // for which figures must stay after their kubelet began to fail
	gone   time.Duration // after which what was deleted must not be served any more
	latest time.Duration // how old the latest sample of a kubelet that behaves is at most when the server has it
}

// startSpike is how long a container has no metrics of its own after its start.
const startSpike = 10 * time.Second

// newBounds follows from the server's interval between scrapes and the kubelets' between samples.
func newBounds(resolution, housekeeping time.Duration) bounds {
	const busy = 2 * time.Second             // what a machine that has much to do may take for anything
	latest := resolution + housekeeping      // the age of the latest sample at most
	maxAge := startSpike + 2*latest + 2*busy // so that a restart costs a pod nothing
	return bounds{
		maxAge: maxAge,
		settle: 2*latest + 2*busy,
		hold:   maxAge - latest - busy,
		gone:   2 * busy,
		latest: latest,
	}
}

// ledger knows what exists and what has happened to it, and so which answers are right.
type ledger struct {
	bounds

	mu    sync.Mutex
	nodes map[string]*node // by name; those that are gone, too
	pods  map[string]*pod  // by namespace/name; those that are gone, too

	oldest time.Duration // the greatest true age in any response
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
	ailment string    // what the matter is, or was last: away, or the name of one of kubelettest.Faults
	clock   clock
	load    load
	lies    bool      // whether the start times of its containers may be wrong
	doubt   time.Time // until when its usage is not judged: the times of its samples were wrong
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

// describe returns the history of a node's kubelet and clock.
func (n *node) describe(now time.Time) string {
	text := n.history(now) + n.clock.history(now)
	if n.lies {
		text += "; its start times move"
	}
	return text
}

// pod is a pod, and when its containers were restarted last.
type pod struct {
	life
	node      *node
	load      [len(objects.ContainerNames)]load
	restarted time.Time // zero: never
	doubt     time.Time // until when its usage is not judged: the server cannot know it for sure
}

func newLedger(b bounds) *ledger {
	return &ledger{bounds: b, nodes: map[string]*node{}, pods: map[string]*pod{}}
}

// addNode notes a node that will exist. It is not expected to be served before it is said to be
// steady.
func (l *ledger) addNode(name string, usage kubelettest.Usage) *node {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := &node{load: load{{usage: usage}}}
	l.nodes[name] = n
	return n
}

// addPod notes a pod that will exist.
func (l *ledger) addPod(p objects.Pod, on *node, usage [len(objects.ContainerNames)]kubelettest.Usage) *pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	record := &pod{node: on}
	for i, u := range usage {
		record.load[i] = load{{usage: u}}
	}
	if on.lies {
		record.doubt = time.Now().Add(l.doubtful())
	}
	l.pods[key(p.Namespace, p.Name)] = record
	return record
}

// begin notes that the server begins: what exists has been there for it since then.
func (l *ledger) begin(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.nodes {
		n.steady = now
	}
	for _, p := range l.pods {
		p.steady = now
	}
}

// history tells what has happened to a pod and its kubelet.
func (p *pod) history(now time.Time) string {
	text := fmt.Sprintf("it has run for %s, and %s", now.Sub(p.steady).Round(time.Second), p.node.describe(now))
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
	return n.describe(now)
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

// restart notes that a container of a pod was restarted. Once costs the pod nothing; twice in a
// short time may, and so may a clock step.
func (l *ledger) restart(p *pod, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(p.steady) < l.settle || now.Sub(p.restarted) < l.settle || now.Sub(p.node.clock.setAt()) < l.settle {
		p.steady = now
	}
	// The counter of a container that had run for a short time only need not have fallen when it is
	// read the next time.
	if p.node.lies || now.Sub(later(p.steady, p.restarted)) < l.maxAge {
		p.doubt = now.Add(l.doubtful())
	}
	p.restarted = now
}

// doubtful returns the time after a restart for which the server may serve a rate that is based on
// a wrong start: a node may be away all the time that is possible, and what it reported first then
// stands until it expires.
func (l *ledger) doubtful() time.Duration { return l.maxAge + maxAway + l.maxAge }

// lie notes that the start times of a node's containers may be wrong from now on.
func (l *ledger) lie(n *node, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n.lies = true
	for _, p := range l.pods {
		if p.node == n && now.Sub(later(p.steady, p.restarted)) < l.doubtful() {
			p.doubt = now.Add(l.doubtful())
		}
	}
}

// step notes that a node's clock is set, while set does so. Once costs nothing; twice in a short
// time may.
func (l *ledger) step(n *node, now time.Time, ahead time.Duration, set func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(n.steady) < l.settle || now.Sub(n.clock.setAt()) < l.settle {
		n.steady = now
	}
	for _, p := range l.pods {
		if p.node == n && now.Sub(later(p.steady, p.restarted)) < l.settle {
			p.steady = now
		}
	}
	set()
	n.clock = append(n.clock, setting{now, ahead})
}

// steadySince is since when nothing has happened to a pod or its kubelet. There is none while
// something is.
func (p *pod) steadySince() (since time.Time, ok bool) {
	if p.steady.IsZero() || p.node.steady.IsZero() || p.ending || p.node.ending {
		return time.Time{}, false
	}
	since = later(p.steady, p.node.steady)
	if p.node.lies {
		since = since.Add(startSpike) // a new series may look as young as its start time
	}
	return since, true
}

// The ailments that the ledger knows, beside away: names of kubelettest.Faults.
const (
	// samplesOfYesterday is the ailment that may cost metrics within the time for which they stand
	// in all others: after three older samples, a new series starts. As the node's clock shows
	// today, the metrics that follow have expired.
	samplesOfYesterday = "time of yesterday"
	samplesOfTomorrow  = "time of tomorrow"
	samplesWithoutTime = "no time"
	responsesUndated   = "no date"
	startsMoved        = "moved start times"
	startsMove         = "start times that follow the samples"
)

// away is the ailment of a node that does not answer for longer than metrics stand, and has another
// load when it is back.
const away = "away"

// isTimeWrong reports whether the times of samples are wrong, so that nobody can compute rates from
// them.
func isTimeWrong(ailment string) bool {
	return ailment == samplesOfYesterday || ailment == samplesOfTomorrow || ailment == samplesWithoutTime
}

// ill is since when a kubelet fails whose figures are to be held; ok is false if they need not be.
func (n *node) ill() (since time.Time, ok bool) {
	return n.failing, n.failing.IsZero() || n.ailment != samplesOfYesterday
}

// mustServe reports whether something that has been steady since then must be served. If its
// kubelet fails, it must have had new metrics before: after a disturbance, which is the restart of
// a container or a clock step, they are not new yet.
func (l *ledger) mustServe(since, disturbed, failing, now time.Time) bool {
	if !failing.IsZero() {
		return failing.Sub(later(since, disturbed)) >= l.settle && now.Sub(failing) < l.hold
	}
	return now.Sub(since) >= l.settle
}

// oldestServed returns the greatest true age in any response.
func (l *ledger) oldestServed() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.oldest
}

// expectedPods lists the pods that must be served at a time.
func (l *ledger) expectedPods(now time.Time) map[string]*pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	expected := make(map[string]*pod, len(l.pods))
	for name, p := range l.pods {
		since, steady := p.steadySince()
		failing, held := p.node.ill()
		if steady && held && l.mustServe(since, later(p.restarted, p.node.clock.setAt()), failing, now) {
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
		if !n.steady.IsZero() && !n.ending && held && l.mustServe(n.steady, n.clock.setAt(), failing, now) {
			expected[name] = n
		}
	}
	return expected
}

// An exchange is when a request was sent, and when its answer was there.
type exchange struct{ sent, answered time.Time }

// judgePods says what is wrong with the pods of an answer; all is whether it must have all pods
// that are expected.
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
	// What was expected when the answer was asked for and still is when it came was expected all
	// the time.
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
	if len(m.Containers) != len(objects.ContainerNames) {
		return append(wrong, flaw{"is served in part", fmt.Sprintf("%d containers of %d", len(m.Containers), len(objects.ContainerNames))})
	}
	for i, c := range objects.ContainerNames {
		if m.Containers[i].Name != c {
			return append(wrong, flaw{"is served with another container", fmt.Sprintf("%q in the place of %q", m.Containers[i].Name, c)})
		}
	}
	return append(wrong, l.judgeMetrics(p.node, m.Timestamp.Time, m.Window.Duration, e, func(at time.Time) (wrong []flaw) {
		if e.sent.Before(p.doubt) {
			return nil
		}
		for i, c := range objects.ContainerNames {
			// The pod's time is that of its oldest container.
			limits := p.node.limits(p.load[i], at, m.Window.Duration, l.latest)
			if what := limits.exceeded(m.Containers[i].Usage); what != "" {
				wrong = append(wrong, flaw{"is served with wrong usage", fmt.Sprintf("its container %s %s, in %s before %s ago; %s",
					c, what, m.Window.Duration, e.sent.Sub(at).Round(time.Millisecond), p.history(e.sent))})
			}
		}
		return wrong
	})...)
}

// judgeNodes says what is wrong with the nodes of an answer; all is whether it must have all nodes
// that are expected.
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
	return append(l.judgeLife(n.life, e), l.judgeMetrics(n, m.Timestamp.Time, m.Window.Duration, e, func(at time.Time) []flaw {
		what := n.limits(n.load, at, m.Window.Duration, 0).exceeded(m.Usage)
		if what == "" {
			return nil
		}
		return []flaw{{"is served with wrong usage", fmt.Sprintf("it %s, in %s before %s ago; %s",
			what, m.Window.Duration, e.sent.Sub(at).Round(time.Millisecond), n.describe(e.sent))}}
	})...)
}

// judgeLife says whether something is served that is gone.
func (l *ledger) judgeLife(life life, e exchange) []flaw {
	if since := e.sent.Sub(life.deleted); !life.deleted.IsZero() && since > l.gone {
		return []flaw{{"is served though it is gone", fmt.Sprintf("it was deleted %s ago", since.Round(time.Millisecond))}}
	}
	return nil
}

// judgeMetrics returns what is wrong with the time, the window and the usage of a node or one of
// its pods; usage judges the latter, given the true time of the sample. A clock that was set back
// shows the same time twice: either may be meant.
func (l *ledger) judgeMetrics(n *node, timestamp time.Time, window time.Duration, e exchange, usage func(at time.Time) []flaw) (wrong []flaw) {
	switch {
	case timestamp.Unix() <= 0:
		return []flaw{{"has no timestamp", ""}}
	case window <= 0:
		return []flaw{{"has no window", window.String()}}
	case window > l.maxAge:
		return []flaw{{"has too long a window", window.String()}}
	}
	doubtful := e.sent.Before(n.doubt)
	meant := n.clock.meant(timestamp)
	if doubtful {
		meant = append(meant, timestamp) // samples without times get that of the scrape
	}
	if len(meant) == 0 {
		return []flaw{{"has a time that its node's clock never showed", timestamp.Format(time.RFC3339) + n.clock.history(e.sent)}}
	}
	for _, at := range meant {
		found := l.judgeAge(n, at, e)
		if found == nil && !doubtful {
			found = usage(at)
		}
		if found == nil {
			l.oldest = max(l.oldest, e.sent.Sub(at))
			return nil
		}
		if wrong == nil {
			wrong = found
		}
	}
	return wrong
}

const (
	// unit is the unit of timestamps, cut off.
	unit = time.Second
	// inexact is by how much a sample may expire late, as Date headers have whole seconds.
	inexact = 1100 * time.Millisecond
)

// judgeAge returns what is wrong with the true time of a sample.
func (l *ledger) judgeAge(n *node, at time.Time, e exchange) []flaw {
	limit := l.maxAge + unit
	if len(n.clock) > 0 {
		limit += inexact
	}
	if age := e.sent.Sub(at); age > limit {
		return []flaw{{"is served with a sample that is too old", age.Round(time.Millisecond).String() + n.clock.history(e.sent)}}
	}
	if ahead := at.Sub(e.answered); ahead > unit {
		return []flaw{{"is served with a sample from ahead", ahead.Round(time.Millisecond).String() + n.clock.history(e.sent)}}
	}
	return nil
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
