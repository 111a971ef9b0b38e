package main

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

// exchange is when a request was sent and its response received.
type exchange struct{ sent, received time.Time }

// violation is something wrong with an object in a response. What is the same for all violations of
// a kind.
type violation struct{ object, what, detail string }

func (v violation) String() string { return v.object + " " + v.what + ": " + v.detail }

// served is what a response contains of one object.
type served struct {
	name      string // see oracle.objects
	timestamp time.Time
	window    time.Duration
	usages    []containerUsage
}

// containerUsage is the usage of a container, or that of a node, without a name.
type containerUsage struct {
	container string
	cores     float64
	memory    int64 // KiB
}

func usageOf(container string, list corev1.ResourceList) containerUsage {
	return containerUsage{container, list.Cpu().AsApproximateFloat64(), list.Memory().Value() >> 10}
}

func servedPod(m *metricsv1beta1.PodMetrics) []served {
	s := served{name: podName(m.Namespace, m.Name), timestamp: m.Timestamp.Time, window: m.Window.Duration}
	for _, c := range m.Containers {
		s.usages = append(s.usages, usageOf(c.Name, c.Usage))
	}
	return []served{s}
}

func servedPods(list *metricsv1beta1.PodMetricsList) (all []served) {
	for i := range list.Items {
		all = append(all, servedPod(&list.Items[i])...)
	}
	return all
}

func servedNode(m *metricsv1beta1.NodeMetrics) []served {
	return []served{{nodeName(m.Name), m.Timestamp.Time, m.Window.Duration, []containerUsage{usageOf("", m.Usage)}}}
}

func servedNodes(list *metricsv1beta1.NodeMetricsList) (all []served) {
	for i := range list.Items {
		all = append(all, servedNode(&list.Items[i])...)
	}
	return all
}

// check returns the violations in a response. It must have all expected objects whose names begin with the
// prefix, unless that is empty.
func (o *oracle) check(list []served, e exchange, prefix string) (violations []violation) {
	names := make(map[string]bool, len(list))
	for _, s := range list {
		if names[s.name] {
			violations = append(violations, violation{s.name, "is served twice in one response", ""})
		}
		names[s.name] = true
		if what, detail := o.checkObject(s, e); what != "" {
			violations = append(violations, violation{s.name, what, detail})
		}
	}
	if prefix == "" {
		return violations
	}
	for name, object := range o.expected(prefix, e.sent, e.received) {
		if !names[name] {
			o.update(func() {
				violations = append(violations, violation{name, "is not served", object.describe(e.sent)})
			})
		}
	}
	return violations
}

func (o *oracle) checkObject(s served, e exchange) (what, detail string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	object := o.objects[s.name]
	if object == nil {
		return "is served but never existed", ""
	}
	if since := e.sent.Sub(object.deleted); !object.deleted.IsZero() && since > o.gone {
		return "is served but deleted", fmt.Sprintf("it was deleted %s ago", since.Round(time.Millisecond))
	}
	if !object.isNode() {
		var names []string
		for _, u := range s.usages {
			names = append(names, u.container)
		}
		if want := objects.ContainerNames[:]; !slices.Equal(names, want) {
			return "is served in part or with another container", fmt.Sprintf("got %q, want %q", names, want)
		}
	}
	if what, detail = o.checkMetrics(object, s, e); what != "" {
		detail += "; " + object.describe(e.sent)
	}
	return what, detail
}

// checkMetrics checks the timestamp, window and usage of a node or one of its pods. While an object is
// unjudgeable, the server cannot know the usage, and only the age is checked.
//
// The timestamp and window of a pod are those of the container with the oldest sample.
func (o *oracle) checkMetrics(object *object, s served, e exchange) (what, detail string) {
	n := object.node
	if s.timestamp.Unix() <= 0 || s.window <= 0 || s.window > o.maxAge {
		return "has no timestamp, or not such a window", fmt.Sprint(s.timestamp, s.window)
	}
	shortest := s.window // of all containers
	if !object.isNode() {
		shortest = minWindow
	}
	all := make([]series, len(s.usages))
	for i, u := range s.usages {
		all[i] = n.readings[seriesKey(s.name, u.container)]
		// 10 % more than the node has, and what it can use in 2 seconds.
		if u.cores > objects.NodeCores*(1.1+2/shortest.Seconds()) {
			return "is served with more than its node has", fmt.Sprintf("%+v over %s", u, s.window)
		}
	}
	what, detail = o.checkTime(n, all, s.timestamp, e)
	if what != "" || e.sent.Before(object.unjudgeable) || e.sent.Before(n.unjudgeable) {
		return what, detail
	}
	oldest, of, what := o.explain(n, all, s, e)
	if what != "" {
		detail = fmt.Sprintf("%+v over %s until %s; the samples are:", s.usages, s.window,
			s.timestamp.UTC().Format(time.TimeOnly))
		for _, readings := range all {
			detail += readings.describe(e.sent) + ";"
		}
		return what, detail
	}
	if what, detail := o.checkAge(oldest.At, e); what != "" {
		return what, detail
	}
	o.oldest = max(o.oldest, e.sent.Sub(oldest.At))
	return o.checkFreshness(object, of, oldest, e)
}

// explain returns the oldest reading with which the usages of a response end, and its series, or what is wrong if
// the readings do not explain all of them.
func (o *oracle) explain(n *node, all []series, r served, e exchange) (oldest *reading, of series, what string) {
	f := facts{o.maxAge, n.startsMove, n.readings[""]}
	newest := make([]time.Time, len(all)) // the end of the newest explanation of each usage
	for i, s := range all {
		for x := range s.explanations(r.usages[i], f, func(end *reading) bool {
			return !end.reported.After(e.received)
		}) {
			newest[i] = x.end.At
			break
		}
		if newest[i].IsZero() {
			return nil, nil, "is served with wrong usage"
		}
	}
	// The order of two samples depends on the estimated offset of the node's clock.
	isOldest := func(at time.Time) bool {
		return !slices.ContainsFunc(newest, func(other time.Time) bool { return at.Sub(other) > dateError })
	}
	for i, s := range all {
		for x := range s.explanations(r.usages[i], f, func(end *reading) bool {
			return end.Stamp.Unix() == r.timestamp.Unix() && !end.reported.After(e.received) && isOldest(end.At)
		}) {
			if r.window >= x.shortest && r.window <= x.longest && (oldest == nil || oldest.At.Before(x.end.At)) {
				oldest, of = x.end, s
			}
		}
	}
	if oldest == nil {
		return nil, nil, "is served with another window or time than its usage"
	}
	return oldest, of, ""
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
func (o *oracle) checkFreshness(object *object, of series, served *reading, e exchange) (what, detail string) {
	if !o.isSettled(object, e.sent) {
		return "", ""
	}
	newest := of.newestCertain(e.sent.Add(-o.latest))
	if newest == nil || newest.At.Sub(served.At) <= minWindow {
		return "", ""
	}
	return "is served with an old sample", fmt.Sprintf("it was taken %s ago, and the server has got one from %s ago",
		e.sent.Sub(served.At).Round(time.Millisecond), e.sent.Sub(newest.At).Round(time.Millisecond))
}
