package main

import (
	"fmt"
	"strings"
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

	mu      sync.Mutex
	objects map[string]*object // by podName or nodeName, including deleted ones
	oldest  time.Duration      // greatest true age of a sample in any response
}

// The kinds of objects, with which their names begin.
const podKind, nodeKind = "pod ", "node "

func podName(namespace, name string) string { return podKind + namespace + "/" + name }

func nodeName(name string) string { return nodeKind + name }

// object is a pod or a node. Times are zero for what has not happened yet.
type object struct {
	node        *node     // on which it is; of a node, itself
	undisturbed time.Time // since when it exists and nothing has happened that may cost metrics
	restarted   time.Time // of a pod: its containers, the last time
	unjudgeable time.Time // until when its usage is not checked: the server cannot know it
	deleting    bool      // it may be served or not
	deleted     time.Time
}

func (o *object) isNode() bool { return o == &o.node.object }

// node is a node with the faults of its kubelet. It is unjudgeable after samples with wrong times.
type node struct {
	object
	clock      clock
	readings   *readings
	failing    time.Time // since when its kubelet has a fault; zero: it is healthy
	fault      string    // the name of the current or last fault
	startsMove bool      // the start times of its containers may be wrong
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

func newOracle(t tolerances) *oracle { return &oracle{tolerances: t, objects: map[string]*object{}} }

// addNode records a node that is being created. It need not be served until undisturbed is set.
func (o *oracle) addNode(name string) *node {
	o.mu.Lock()
	defer o.mu.Unlock()
	// The oldest valid sample may end a rate over the maximum age.
	n := &node{readings: &readings{keep: 2*o.maxAge + 10*time.Second, series: map[seriesKey]series{}}}
	n.node = n
	o.objects[nodeName(name)] = &n.object
	return n
}

// addPod records a pod that is being created.
func (o *oracle) addPod(p objects.Pod, on *node) *object {
	o.mu.Lock()
	defer o.mu.Unlock()
	record := &object{node: on}
	if on.startsMove {
		record.unjudgeable = time.Now().Add(o.wrongStartTime())
	}
	o.objects[podName(p.Namespace, p.Name)] = record
	return record
}

// setServerStart records the start of the server: it knows nothing from before.
func (o *oracle) setServerStart(now time.Time) {
	o.update(func() {
		for _, object := range o.objects {
			object.undisturbed = now
		}
	})
}

// anyName returns the name of a random object: Go iterates maps in random order.
func (o *oracle) anyName(kind string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name := range o.objects {
		if strings.HasPrefix(name, kind) {
			return name
		}
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
func (o *oracle) restart(p *object, now time.Time) {
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
	for _, p := range o.objects {
		if p.node == n && !p.isNode() && now.Sub(later(p.undisturbed, p.restarted)) < o.wrongStartTime() {
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
	for _, p := range o.objects {
		if p.node == n && !p.isNode() && (n.startsMove || now.Sub(later(p.undisturbed, p.restarted)) < o.settle) {
			p.undisturbed = now
		}
	}
	set()
	n.clock = append(n.clock, clockStep{now, offset})
}

// describe returns the history of an object, for messages.
func (o *object) describe(now time.Time) string {
	n := o.node
	text := fmt.Sprintf("it has run for %s, and its kubelet ", now.Sub(o.undisturbed).Round(time.Second))
	switch {
	case !n.failing.IsZero():
		text += fmt.Sprintf("has failed for %s: %s", now.Sub(n.failing).Round(time.Second), n.fault)
	case n.fault != "":
		text += fmt.Sprintf("has been healthy for %s, after: %s", now.Sub(n.undisturbed).Round(time.Second), n.fault)
	default:
		text += "never failed"
	}
	for _, step := range n.clock[max(0, len(n.clock)-3):] {
		text += fmt.Sprintf("; its clock was set to be %s ahead %s ago", step.offset, now.Sub(step.at).Round(time.Second))
	}
	if n.startsMove {
		text += "; its start times move"
	}
	if !o.restarted.IsZero() {
		text += fmt.Sprintf("; a container restarted %s ago", now.Sub(o.restarted).Round(time.Second))
	}
	return text
}

// mustServe reports whether an object must be served. If the kubelet fails, its metrics must have
// settled before, also after the last restart or clock step.
func (o *oracle) mustServe(object *object, now time.Time) bool {
	n := object.node
	if object.undisturbed.IsZero() || n.undisturbed.IsZero() || object.deleting || n.deleting {
		return false
	}
	settle, undisturbed := o.settleOf(n), later(object.undisturbed, n.undisturbed)
	if n.failing.IsZero() {
		return now.Sub(undisturbed) >= settle
	}
	lastEvent := later(object.restarted, n.clock.last().at)
	return n.fault != samplesFromYesterday &&
		n.failing.Sub(later(undisturbed, lastEvent)) >= settle && now.Sub(n.failing) < o.hold
}

// isSettled reports whether nothing has happened to an object for so long that its newest metrics must
// be served.
func (o *oracle) isSettled(object *object, now time.Time) bool {
	n := object.node
	last := later(later(object.undisturbed, object.restarted), n.undisturbed)
	return n.failing.IsZero() && now.Sub(last) >= o.settle+minContainerAge && now.Sub(n.clock.last().at) >= time.Minute
}

// expected returns the objects whose names begin so, and that must be served at a time.
func (o *oracle) expected(prefix string, now time.Time) map[string]*object {
	o.mu.Lock()
	defer o.mu.Unlock()
	expected := make(map[string]*object, len(o.objects))
	for name, object := range o.objects {
		if strings.HasPrefix(name, prefix) && o.mustServe(object, now) {
			expected[name] = object
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
