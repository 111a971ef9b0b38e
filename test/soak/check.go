package main

import (
	"fmt"
	"slices"
	"time"

	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

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
	oldest, of, what, detail := o.explain(n, all, r, e)
	if what != "" {
		return what, detail
	}
	if what, detail := o.checkAge(oldest.At, e); what != "" {
		return what, detail
	}
	o.oldest = max(o.oldest, e.sent.Sub(oldest.At))
	return o.checkFreshness(n, of, oldest, e, later(undisturbed, n.undisturbed))
}

// explain returns the oldest reading with which the values of a response end, and its series, or a
// violation if the readings do not explain all values.
func (o *oracle) explain(
	n *node, all []series, r response, e exchange,
) (oldest *reading, of series, what, detail string) {
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
			return nil, nil, "is served with wrong usage", fmt.Sprintf(
				"no two samples of container %q give %.9f cores with %d KiB, over %s until %s; they are:%s",
				r.series[i].container, r.values[i].cores, r.values[i].memory, r.window, r.timestamp.UTC().Format(time.TimeOnly),
				s.describe(e.sent))
		}
	}
	// The order of two samples depends on the estimated offset of the node's clock.
	isOldest := func(at time.Time) bool {
		return !slices.ContainsFunc(newest, func(other time.Time) bool { return at.Sub(other) > dateError })
	}
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
		return nil, nil, "is served with another window or time than its usage", detail
	}
	return oldest, of, "", ""
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
