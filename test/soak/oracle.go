package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

// tolerances are the times by which the oracle judges responses.
type tolerances struct {
	maxAge time.Duration // metrics expire
	settle time.Duration // an object without a disturbance must be served
	hold   time.Duration // metrics of a kubelet that begins to fail must be served for so long
	gone   time.Duration // a deleted object must not be served
	latest time.Duration // maximum age of the latest sample of a healthy kubelet when the server has it
}

// dateError is how early or late a sample may expire because Date headers have whole seconds.
const dateError = 1100 * time.Millisecond

// timestampUnit is the unit of timestamps, which are truncated.
const timestampUnit = time.Second

// newTolerances derives the tolerances from the server's interval between scrapes.
func newTolerances(resolution time.Duration) tolerances {
	const delay = 2 * time.Second // of anything, on a busy machine
	latest := resolution + housekeeping
	maxAge := minContainerAge + 2*latest + 2*delay // so long that the restart of a container costs no metrics
	return tolerances{
		maxAge: maxAge,
		settle: 2*latest + 2*delay,
		hold:   maxAge - latest - delay,
		gone:   2 * delay,
		latest: latest,
	}
}

// oracle knows which objects exist and what has happened to them, and checks responses by that.
type oracle struct {
	tolerances

	mu     sync.Mutex
	nodes  map[string]*node // by name, including deleted ones
	pods   map[string]*pod  // by NAMESPACE/NAME, including deleted ones
	oldest time.Duration    // greatest true age of a sample in any response
}

// life is the state of an object. Times are zero for what has not happened yet.
type life struct {
	undisturbed time.Time // since when it exists and nothing has happened that may cost metrics
	deleting    bool      // it may be served or not
	deleted     time.Time
}

// node is a node with the faults of its kubelet.
type node struct {
	life
	clock       clock
	readings    *readings
	failing     time.Time // since when its kubelet has a fault; zero: it is healthy
	fault       string    // the name of the current or last fault
	startsMove  bool      // the start times of its containers may be wrong
	unjudgeable time.Time // until when its usage is not checked, after samples with wrong times
}

// pod is a pod on its node.
type pod struct {
	life
	node        *node
	restarted   time.Time // of its containers, the last time
	unjudgeable time.Time // until when its usage is not checked: the server cannot know it
}

// Faults that the oracle treats specially. All but unreachable are names of kubelettest.Faults.
const (
	unreachable = "unreachable" // for longer than metrics are served; the load changes meanwhile

	// samplesFromYesterday may cost metrics early: after three older samples, the server starts a
	// new series, whose samples have expired by the node's clock.
	samplesFromYesterday = "time of yesterday"
	samplesFromTomorrow  = "time of tomorrow"
	samplesWithoutTime   = "no time"
	responsesWithoutDate = "no date"
	startsMovedOnce      = "moved start times"
	startsFollowSamples  = "start times that follow the samples"
)

// hasWrongTimes reports whether samples have wrong times, so that rates cannot be computed.
func hasWrongTimes(fault string) bool {
	return fault == samplesFromYesterday || fault == samplesFromTomorrow || fault == samplesWithoutTime
}

// clock is the history of the steps of a node's clock, oldest first. Without a step, the clock
// shows the true time.
type clock []clockStep

type clockStep struct {
	at     time.Time
	offset time.Duration // from the true time, since then
}

// last returns the last step, or the zero value.
func (c clock) last() clockStep {
	if len(c) == 0 {
		return clockStep{}
	}
	return c[len(c)-1]
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func newOracle(t tolerances) *oracle {
	return &oracle{tolerances: t, nodes: map[string]*node{}, pods: map[string]*pod{}}
}

// addNode records a node that is being created. It need not be served until undisturbed is set.
func (o *oracle) addNode(name string) *node {
	o.mu.Lock()
	defer o.mu.Unlock()
	// The oldest valid sample may end a rate over the maximum age.
	n := &node{readings: &readings{keep: 2*o.maxAge + 10*time.Second, series: map[seriesKey]series{}}}
	o.nodes[name] = n
	return n
}

// addPod records a pod that is being created.
func (o *oracle) addPod(p objects.Pod, on *node) *pod {
	o.mu.Lock()
	defer o.mu.Unlock()
	record := &pod{node: on}
	if on.startsMove {
		record.unjudgeable = time.Now().Add(o.wrongStartTime())
	}
	o.pods[p.Namespace+"/"+p.Name] = record
	return record
}

// setServerStart records the start of the server: it knows nothing from before.
func (o *oracle) setServerStart(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.nodes {
		n.undisturbed = now
	}
	for _, p := range o.pods {
		p.undisturbed = now
	}
}

// anyKey returns a random key: Go iterates maps in random order.
func anyKey[V any](o *oracle, all map[string]V) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name := range all {
		return name
	}
	return ""
}

// update changes records.
func (o *oracle) update(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

// restart records that a container of a pod restarts. One restart costs no metrics. Two within a
// short time may, and so may one restart soon after a clock step.
func (o *oracle) restart(p *pod, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	last := later(later(p.undisturbed, p.node.undisturbed), later(p.restarted, p.node.clock.last().at))
	if now.Sub(last) < o.settleOf(p.node) {
		p.undisturbed = now
	}
	if p.node.startsMove {
		p.unjudgeable = now.Add(o.wrongStartTime())
	}
	p.restarted = now
}

// settleOf returns how long a disturbance of a node or one of its pods may cost metrics. If start
// times move, the containers of a new series may look young for longer.
func (o *oracle) settleOf(n *node) time.Duration {
	if n.startsMove {
		return o.settle + minContainerAge
	}
	return o.settle
}

// wrongStartTime returns for how long a rate from a wrong start time may be served: the node may
// then be unreachable for the maximum time, and its first metrics are served until they expire.
func (o *oracle) wrongStartTime() time.Duration { return o.maxAge + maxUnreachable + o.maxAge }

// moveStarts records that the start times of a node's containers may be wrong from now on.
func (o *oracle) moveStarts(n *node, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n.startsMove = true
	for _, p := range o.pods {
		if p.node == n && now.Sub(later(p.undisturbed, p.restarted)) < o.wrongStartTime() {
			p.unjudgeable = now.Add(o.wrongStartTime())
		}
	}
}

// stepClock records that set sets the clock of a node. One step costs no metrics, two within a
// short time may. If start times move, one may cost those of pods: their new series look young.
func (o *oracle) stepClock(n *node, now time.Time, offset time.Duration, set func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Sub(later(n.undisturbed, n.clock.last().at)) < o.settleOf(n) {
		n.undisturbed = now
	}
	for _, p := range o.pods {
		if p.node == n && (n.startsMove || now.Sub(later(p.undisturbed, p.restarted)) < o.settle) {
			p.undisturbed = now
		}
	}
	set()
	n.clock = append(n.clock, clockStep{now, offset})
}

// describe returns the history of a node, for messages.
func (n *node) describe(now time.Time) string {
	text := "its kubelet never failed"
	if !n.failing.IsZero() {
		text = fmt.Sprintf("its kubelet has failed for %s: %s", now.Sub(n.failing).Round(time.Second), n.fault)
	} else if n.fault != "" {
		healthy := now.Sub(n.undisturbed).Round(time.Second)
		text = fmt.Sprintf("its kubelet has been healthy for %s, after: %s", healthy, n.fault)
	}
	for _, step := range n.clock[max(0, len(n.clock)-3):] {
		text += fmt.Sprintf("; its clock was set to be %s ahead %s ago", step.offset, now.Sub(step.at).Round(time.Second))
	}
	if n.startsMove {
		text += "; its start times move"
	}
	return text
}

// describe returns the history of a pod, for messages.
func (p *pod) describe(now time.Time) string {
	text := fmt.Sprintf("it has run for %s, and %s", now.Sub(p.undisturbed).Round(time.Second), p.node.describe(now))
	if !p.restarted.IsZero() {
		text += fmt.Sprintf("; a container restarted %s ago", now.Sub(p.restarted).Round(time.Second))
	}
	return text
}

// mustServe reports whether an object must be served that is undisturbed since a time. If the
// kubelet fails, its metrics must have settled before, also after lastEvent: a restart or a clock
// step.
func (o *oracle) mustServe(n *node, undisturbed, lastEvent, now time.Time) bool {
	settle := o.settleOf(n)
	if n.failing.IsZero() {
		return now.Sub(undisturbed) >= settle
	}
	return n.fault != samplesFromYesterday &&
		n.failing.Sub(later(undisturbed, lastEvent)) >= settle && now.Sub(n.failing) < o.hold
}

// expectedPods returns the pods that must be served at a time.
func (o *oracle) expectedPods(now time.Time) map[string]*pod {
	o.mu.Lock()
	defer o.mu.Unlock()
	expected := make(map[string]*pod, len(o.pods))
	for name, p := range o.pods {
		n := p.node
		if p.undisturbed.IsZero() || n.undisturbed.IsZero() || p.deleting || n.deleting {
			continue
		}
		undisturbed := later(p.undisturbed, n.undisturbed)
		if o.mustServe(n, undisturbed, later(p.restarted, n.clock.last().at), now) {
			expected[name] = p
		}
	}
	return expected
}

// expectedNodes returns the nodes that must be served at a time.
func (o *oracle) expectedNodes(now time.Time) map[string]*node {
	o.mu.Lock()
	defer o.mu.Unlock()
	expected := make(map[string]*node, len(o.nodes))
	for name, n := range o.nodes {
		if !n.undisturbed.IsZero() && !n.deleting && o.mustServe(n, n.undisturbed, n.clock.last().at, now) {
			expected[name] = n
		}
	}
	return expected
}

// oldestServed returns the greatest true age of a sample in any response.
func (o *oracle) oldestServed() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.oldest
}
