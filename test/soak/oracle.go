package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

// dateError is how early or late a sample may expire because Date headers have whole seconds.
const dateError = 1100 * time.Millisecond

// timestampUnit is the unit of timestamps, which are truncated.
const timestampUnit = time.Second

// oracle knows which objects exist and what has happened to them, and checks responses by that.
type oracle struct {
	maxAge time.Duration // metrics expire
	settle time.Duration // an object without a disturbance must be served
	hold   time.Duration // metrics of a kubelet that begins to fail must be served for so long
	gone   time.Duration // a deleted object must not be served
	latest time.Duration // maximum age of the latest sample of a healthy kubelet when the server has it

	mu      sync.Mutex
	objects map[string]*object // by podName or nodeName, including deleted ones
	oldest  time.Duration      // greatest true age of a sample in any response
}

// The kinds of objects. Their names begin with them. The name of an object is its path in metrics.k8s.io.
const podKind, nodeKind = "/namespaces/", "/nodes/"

func podName(namespace, name string) string { return podKind + namespace + "/pods/" + name }

func nodeName(name string) string { return nodeKind + name }

// object is a pod or a node. Times are zero for what has not happened yet.
type object struct {
	node        *node     // where it is; of a node, itself
	undisturbed time.Time // since when it exists and nothing has happened that may cost metrics
	restarted   time.Time // of a pod: its containers, the last time
	unjudgeable time.Time // until when its usage is not checked: the server cannot know it
	deleting    bool      // it may be served or not
	deleted     time.Time
}

func (o *object) isNode() bool { return o == &o.node.object }

// node is a node with its kubelet. It is unjudgeable after samples with wrong times. The goroutine of
// the churn makes all changes, those of the first fields in oracle.update: others read them.
type node struct {
	object
	offset     time.Duration // of its clock from the true time
	stepped    time.Time     // when its clock was set to that; zero: never
	readings   readings
	failing    time.Time // since when its kubelet has a fault; zero: it is healthy
	fault      string    // the name of the current or last fault
	startsMove bool      // the start times of its containers may be wrong

	index       int
	cores       int // in its status
	kubelet     *kubelettest.Kubelet
	pods        []*pod
	permanent   []kubelettest.Fault // faults that are never cleared
	withoutDate bool                // one of them removes the Date header
	faultyUntil time.Time           // when its other faults are cleared
	nextStep    time.Time           // the clock is not set before
}

// pod is a pod of a node. The churn changes its fields.
type pod struct {
	object
	objects.Pod
	startedAt time.Time // by the node's clock, as the API server shows it
}

// Faults that the oracle treats specially. All but unreachable are names of kubelettest.Faults.
const (
	unreachable = "unreachable" // often for longer than metrics are served; the clock may be set meanwhile

	// samplesFromYesterday may cost metrics early: after three older samples, the server starts a
	// new series, whose samples have expired by the node's clock.
	samplesFromYesterday = "time of yesterday"
	samplesWithoutTime   = "no time" // the same, if the node's clock is ahead
	responsesWithoutDate = "no date"
)

var (
	wrongTimes  = []string{samplesFromYesterday, "time of tomorrow", samplesWithoutTime} // rates cannot be computed
	wrongStarts = []string{"moved start times", "start times that follow the samples"}
)

func later(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// newOracle derives the times from the server's interval between scrapes.
func newOracle(resolution time.Duration) *oracle {
	const delay = 2 * time.Second // of anything, on a busy machine
	latest := resolution + housekeeping
	maxAge := minContainerAge + 2*latest + 2*delay // so long that the restart of a container costs no metrics
	return &oracle{
		// A second sample may follow the first one too closely for a rate.
		maxAge: maxAge, settle: 2*latest + resolution + 2*delay, hold: maxAge - latest - delay, gone: 2 * delay,
		latest:  latest,
		objects: map[string]*object{},
	}
}

// add records an object that is being created. It need not be served until undisturbed is set.
func (o *oracle) add(name string, object *object) { o.update(func() { o.objects[name] = object }) }

// recorder returns a fault that records the readings of each response, and changes nothing. It must
// be the last fault. isReadable is set if no other fault makes a response unreadable. Readings in
// summaries are never certain: no series starts or ends with them.
func (o *oracle) recorder(n *node, isReadable bool) kubelettest.Fault {
	return func(response *kubelettest.Response) {
		if !response.Abort && !response.Hang {
			isCertain := isReadable && response.Request.URL.Path == kubelettest.ResourcePath
			// The oldest valid sample may end a rate over the maximum age.
			keep := 2*o.maxAge + 10*time.Second
			o.update(func() { n.readings.record(response.Readings, time.Now(), isCertain, keep) })
		}
	}
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
	last := later(p.undisturbed, p.node.undisturbed, p.restarted, p.node.stepped)
	if now.Sub(last) < o.settleOf(p.node) {
		p.undisturbed = now
	}
	if p.node.startsMove {
		p.unjudgeable = now.Add(o.wrongStartTime())
	}
	p.restarted = now
}

// settleOf returns how long a disturbance of a node or one of its pods may cost metrics. If start
// times move, the containers of a new series may look young for longer. If the node uses more than the
// capacity in its status, only several samples show that.
func (o *oracle) settleOf(n *node) time.Duration {
	settle := o.settle
	if n.startsMove {
		settle += minContainerAge
	}
	if n.cores != objects.NodeCores {
		settle += 3 * o.latest
	}
	return settle
}

// wrongStartTime returns for how long a rate from a wrong start time may be served: the node may
// then be unreachable for the maximum time, and its first metrics are served until they expire.
func (o *oracle) wrongStartTime() time.Duration { return o.maxAge + maxFault + o.maxAge }

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

// stepClock sets the clock of a node, and records that. One step costs no metrics, two within a
// short time may. If start times move, one may cost those of pods: their new series look young.
func (o *oracle) stepClock(n *node, now time.Time, offset time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Sub(later(n.undisturbed, n.stepped)) < o.settleOf(n) {
		n.undisturbed = now
	}
	for _, p := range o.objects {
		if p.node == n && !p.isNode() && (n.startsMove || now.Sub(later(p.undisturbed, p.restarted)) < o.settle) {
			p.undisturbed = now
		}
	}
	n.kubelet.SetClockOffset(offset)
	n.offset, n.stepped = offset, now
}

// describe returns the history of an object, for messages.
func (o *object) describe(now time.Time) string {
	ago := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return now.Sub(t).Round(time.Second).String() + " ago"
	}
	n := o.node
	return fmt.Sprintf("undisturbed since %s, and its node since %s; a container restarted %s; the last fault, %q, "+
		"began %s; the clock was set to be %s ahead %s; start times move: %t", ago(o.undisturbed), ago(n.undisturbed),
		ago(o.restarted), n.fault, ago(n.failing), n.offset, ago(n.stepped), n.startsMove)
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
	seemsOlder := n.fault == samplesFromYesterday || n.fault == samplesWithoutTime && n.offset > 0
	return !seemsOlder &&
		n.failing.Sub(later(undisturbed, object.restarted, n.stepped)) >= settle && now.Sub(n.failing) < o.hold
}

// isSettled reports whether nothing has happened to an object for so long that its newest metrics must
// be served.
func (o *oracle) isSettled(object *object, now time.Time) bool {
	n := object.node
	last := later(object.undisturbed, object.restarted, n.undisturbed)
	if object.isNode() && n.cores != objects.NodeCores {
		return false // with each change of its load, the last values are served for some samples
	}
	return n.failing.IsZero() && now.Sub(last) >= o.settle+minContainerAge && now.Sub(n.stepped) >= time.Minute
}
