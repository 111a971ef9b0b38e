package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

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
		text += fmt.Sprintf("; its clock was set to be %s ahead %s ago", step.offset, now.Sub(step.at).Round(time.Millisecond))
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

// exchange is when a request was sent and its response received.
type exchange struct{ sent, received time.Time }

// violation is something wrong with an object in a response. What is the same for all violations of
// a kind.
type violation struct{ object, what, detail string }

func (v violation) String() string {
	if v.detail == "" {
		return v.object + " " + v.what
	}
	return v.object + " " + v.what + ": " + v.detail
}

// checkPods returns the violations in a response. If all is set, it must have all expected pods.
func (o *oracle) checkPods(list []metricsv1beta1.PodMetrics, e exchange, all bool) (violations []violation) {
	served := make(map[string]bool, len(list))
	for i := range list {
		name := list[i].Namespace + "/" + list[i].Name
		if served[name] {
			violations = append(violations, violation{"pod " + name, "is served twice in one response", ""})
		}
		served[name] = true
		if what, detail := o.checkPod(name, &list[i], e); what != "" {
			violations = append(violations, violation{"pod " + name, what, detail})
		}
	}
	if all {
		violations = append(violations, missing(o, "pod ", o.expectedPods, served, e)...)
	}
	return violations
}

// missing returns a violation for each object that was not served, but was expected when the request was
// sent and when the response was received.
func missing[T interface{ describe(time.Time) string }](
	o *oracle, kind string, expected func(time.Time) map[string]T, served map[string]bool, e exchange,
) (violations []violation) {
	still := expected(e.received)
	for name, object := range expected(e.sent) {
		if _, ok := still[name]; ok && !served[name] {
			o.update(func() {
				violations = append(violations, violation{kind + name, "is not served", object.describe(e.sent)})
			})
		}
	}
	return violations
}

func (o *oracle) checkPod(name string, m *metricsv1beta1.PodMetrics, e exchange) (what, detail string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.pods[name]
	if p == nil {
		return "is served but never existed", ""
	}
	if what, detail := o.checkLife(p.life, e); what != "" {
		return what, detail
	}
	if len(m.Containers) != len(objects.ContainerNames) {
		return "is served in part", fmt.Sprintf("got %d containers, want %d", len(m.Containers), len(objects.ContainerNames))
	}
	for i, want := range objects.ContainerNames {
		if got := m.Containers[i].Name; got != want {
			return "is served with another container", fmt.Sprintf("got %q, want %q", got, want)
		}
	}
	r := response{timestamp: m.Timestamp.Time, window: m.Window.Duration}
	for i, container := range objects.ContainerNames {
		r.series = append(r.series, seriesKey{m.Namespace, m.Name, container})
		r.values = append(r.values, valueOf(m.Containers[i].Usage))
	}
	isKnown := !e.sent.Before(p.unjudgeable)
	what, detail = o.checkMetrics(p.node, r, e, isKnown, later(p.undisturbed, p.restarted))
	if detail != "" {
		detail += "; " + p.describe(e.sent)
	}
	return what, detail
}

// checkNodes returns the violations in a response. If all is set, it must have all expected nodes.
func (o *oracle) checkNodes(list []metricsv1beta1.NodeMetrics, e exchange, all bool) (violations []violation) {
	served := make(map[string]bool, len(list))
	for i := range list {
		name := list[i].Name
		served[name] = true
		if what, detail := o.checkNode(&list[i], e); what != "" {
			violations = append(violations, violation{"node " + name, what, detail})
		}
	}
	if all {
		violations = append(violations, missing(o, "node ", o.expectedNodes, served, e)...)
	}
	return violations
}

func (o *oracle) checkNode(m *metricsv1beta1.NodeMetrics, e exchange) (what, detail string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.nodes[m.Name]
	if n == nil {
		return "is served but never existed", ""
	}
	if what, detail := o.checkLife(n.life, e); what != "" {
		return what, detail
	}
	r := response{m.Timestamp.Time, m.Window.Duration, []seriesKey{{}}, []value{valueOf(m.Usage)}}
	what, detail = o.checkMetrics(n, r, e, true, n.undisturbed)
	if detail != "" {
		detail += "; " + n.describe(e.sent)
	}
	return what, detail
}

func (o *oracle) checkLife(l life, e exchange) (what, detail string) {
	if since := e.sent.Sub(l.deleted); !l.deleted.IsZero() && since > o.gone {
		return "is served but deleted", fmt.Sprintf("it was deleted %s ago", since.Round(time.Millisecond))
	}
	return "", ""
}

// response is what a response contains of one object: the usage of its series.
type response struct {
	timestamp time.Time
	window    time.Duration
	series    []seriesKey
	values    []value // of each series
}

// maxCores returns the largest CPU usage that may be served: 10 % more than the node has, and what
// it can use in 2 seconds. The windows of a pod's containers differ, and any of them may be the
// shortest.
func (r response) maxCores() float64 {
	window := r.window
	if len(r.series) > 1 {
		window = minWindow
	}
	return objects.NodeCores * (1.1 + 2/window.Seconds())
}

// checkMetrics checks the timestamp, window and usage of a node or one of its pods, which is
// undisturbed since a time. Unless isKnown is set, or after samples with wrong times, the server
// cannot know the usage, and only the age is checked.
//
// The timestamp and window of a pod are those of the container with the oldest sample.
func (o *oracle) checkMetrics(
	n *node, r response, e exchange, isKnown bool, undisturbed time.Time,
) (what, detail string) {
	switch {
	case r.timestamp.Unix() <= 0:
		return "has no timestamp", ""
	case r.window <= 0:
		return "has no window", r.window.String()
	case r.window > o.maxAge:
		return "has too long a window", r.window.String()
	}
	for i, v := range r.values {
		if v.cores > r.maxCores() {
			return "is served with more than its node has", fmt.Sprintf("%s: %.3f cores over %s",
				r.series[i].container, v.cores, r.window)
		}
	}
	n.readings.mu.Lock()
	defer n.readings.mu.Unlock()
	all := make([]series, len(r.series))
	for i, key := range r.series {
		all[i] = n.readings.series[key]
	}
	if what, detail := o.checkTime(n, all, r.timestamp, e); what != "" || !isKnown || e.sent.Before(n.unjudgeable) {
		return what, detail
	}
	f := facts{o.maxAge, n.startsMove, n.readings.series[seriesKey{}]}
	newest := make([]time.Time, len(all)) // the end of the newest explanation of each value
	for i, s := range all {
		for x := range s.explanations(r.values[i], f, func(end *reading) bool {
			return !end.reported.After(e.received)
		}) {
			newest[i] = x.end.At
			break
		}
		if newest[i].IsZero() {
			return "is served with wrong usage", fmt.Sprintf(
				"no two samples of container %q give %.9f cores with %d KiB, over %s until %s; they are:%s",
				r.series[i].container, r.values[i].cores, r.values[i].memory, r.window, r.timestamp.UTC().Format(time.TimeOnly),
				s.describe(e.sent))
		}
	}
	// The order of two samples depends on the estimated offset of the node's clock.
	isOldest := func(at time.Time) bool {
		return !slices.ContainsFunc(newest, func(other time.Time) bool { return at.Sub(other) > dateError })
	}
	var oldest *reading
	var of series
	for i, s := range all {
		for x := range s.explanations(r.values[i], f, func(end *reading) bool {
			return end.Stamp.Unix() == r.timestamp.Unix() && !end.reported.After(e.received) && isOldest(end.At)
		}) {
			if x.hasWindow(r.window) && (oldest == nil || oldest.At.Before(x.end.At)) {
				oldest, of = x.end, s
			}
		}
	}
	if oldest == nil {
		detail = fmt.Sprintf("%s until %s", r.window, r.timestamp.UTC().Format(time.TimeOnly))
		for i, s := range all {
			detail += fmt.Sprintf("; the samples of container %q are:%s", r.series[i].container, s.describe(e.sent))
		}
		return "is served with another window or time than its usage", detail
	}
	if what, detail := o.checkAge(oldest.At, e); what != "" {
		return what, detail
	}
	o.oldest = max(o.oldest, e.sent.Sub(oldest.At))
	return o.checkFreshness(n, of, oldest, e, later(undisturbed, n.undisturbed))
}

// checkTime checks a timestamp: it must be the time of a sample that has not expired. If it may be of
// several samples, because the clock was set back, one of them must be valid.
func (o *oracle) checkTime(n *node, all []series, timestamp time.Time, e exchange) (what, detail string) {
	var times []time.Time
	if e.sent.Before(n.unjudgeable) {
		times = append(times, timestamp) // samples without a time have that of the scrape
	}
	for _, s := range all {
		for i := range s {
			if s[i].Stamp.Unix() == timestamp.Unix() && !s[i].reported.After(e.received) {
				times = append(times, s[i].At)
			}
		}
	}
	what, detail = "has a time that none of its samples has", timestamp.Format(time.RFC3339)
	for _, at := range times {
		if what, detail = o.checkAge(at, e); what == "" {
			return "", ""
		}
	}
	return what, detail
}

// checkAge checks the true time of a sample.
func (o *oracle) checkAge(at time.Time, e exchange) (what, detail string) {
	if age := e.sent.Sub(at); age > o.maxAge+dateError {
		return "is served with an expired sample", age.Round(time.Millisecond).String()
	}
	if ahead := at.Sub(e.received); ahead > timestampUnit {
		return "is served with a sample from the future", ahead.Round(time.Millisecond).String()
	}
	return "", ""
}

// checkFreshness checks that a sample is the newest one of a series that the server must know. Samples
// less than minWindow apart give no rate. After a disturbance, the last values are served for a while;
// a small step of the clock may be noticed some scrapes later.
func (o *oracle) checkFreshness(
	n *node, of series, served *reading, e exchange, undisturbed time.Time,
) (what, detail string) {
	if !n.failing.IsZero() || e.sent.Sub(undisturbed) < o.settle+minContainerAge ||
		e.sent.Sub(n.clock.last().at) < time.Minute {
		return "", ""
	}
	newest := of.newestCertain(e.sent.Add(-o.latest))
	if newest == nil || newest.At.Sub(served.At) <= minWindow {
		return "", ""
	}
	return "is served with an old sample", fmt.Sprintf("it was taken %s ago, and the server has got one from %s ago",
		e.sent.Sub(served.At).Round(time.Millisecond), e.sent.Sub(newest.At).Round(time.Millisecond))
}
