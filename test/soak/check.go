package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

// exchange is when a request was sent and its response received.
type exchange struct{ sent, received time.Time }

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
func (o *oracle) check(list []served, e exchange, prefix string) (violations []error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	names := make(map[string]bool, len(list))
	for _, s := range list {
		if names[s.name] {
			violations = append(violations, fmt.Errorf("%s is served twice in one response", s.name))
		}
		names[s.name] = true
		if err := o.checkObject(s, e); err != nil {
			violations = append(violations, fmt.Errorf("%s is served %w", s.name, err))
		}
	}
	for name, object := range o.objects {
		isExpected := prefix != "" && strings.HasPrefix(name, prefix) &&
			o.mustServe(object, e.sent) && o.mustServe(object, e.received)
		if isExpected && !names[name] {
			violations = append(violations, fmt.Errorf("%s is not served: %s", name, object.describe(e.sent)))
		}
	}
	return violations
}

// checkObject returns how an object is served wrongly.
func (o *oracle) checkObject(s served, e exchange) error {
	object := o.objects[s.name]
	if object == nil {
		return errors.New("but never existed")
	}
	if since := e.sent.Sub(object.deleted); !object.deleted.IsZero() && since > o.gone {
		return fmt.Errorf("but was deleted %s ago", since.Round(time.Millisecond))
	}
	if !object.isNode() {
		var names []string
		for _, u := range s.usages {
			names = append(names, u.container)
		}
		if want := objects.ContainerNames[:]; !slices.Equal(names, want) {
			return fmt.Errorf("with containers %q, want %q", names, want)
		}
	}
	if err := o.checkMetrics(object, s, e); err != nil {
		return fmt.Errorf("%w; %s", err, object.describe(e.sent))
	}
	return nil
}

// checkMetrics checks the timestamp, window and usage of a node or one of its pods. While an object is
// unjudgeable, the server cannot know the usage, and only the age is checked.
//
// The timestamp of a pod is that of the container with the oldest sample, and its window is the longest one.
func (o *oracle) checkMetrics(object *object, s served, e exchange) error {
	n := object.node
	if s.timestamp.Unix() <= 0 || s.window <= 0 || s.window > o.maxAge {
		return fmt.Errorf("with timestamp %s and window %s", s.timestamp, s.window)
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
			return fmt.Errorf("with more than its node has: %+v over %s", u, s.window)
		}
	}
	err := o.checkTime(n, all, s.timestamp, e)
	if err != nil || e.sent.Before(object.unjudgeable) || e.sent.Before(n.unjudgeable) {
		return err
	}
	oldest, of, err := o.explain(n, all, s, e)
	if err != nil {
		samples := ""
		for _, readings := range all {
			samples += readings.describe(e.sent) + ";"
		}
		return fmt.Errorf("%w: %+v over %s until %s; the samples are:%s", err, s.usages, s.window,
			s.timestamp.UTC().Format(time.TimeOnly), samples)
	}
	if err := o.checkAge(oldest.At, e); err != nil {
		return err
	}
	o.oldest = max(o.oldest, e.sent.Sub(oldest.At))
	return o.checkFreshness(object, of, oldest, e)
}

// explain returns the oldest reading that a usage of a response ends with, and its series, or an error if the
// readings do not explain all usages.
func (o *oracle) explain(n *node, all []series, r served, e exchange) (oldest *reading, of series, err error) {
	explanations := make([][]explanation, len(all))
	for i, s := range all {
		explanations[i] = s.explanations(r.usages[i], r.timestamp, e.received, n, o.maxAge)
		if explanations[i] == nil {
			return nil, nil, errors.New("with wrong usage")
		}
	}
	// The order of two samples depends on the estimated offset of the node's clock.
	isOldest := func(at time.Time) bool {
		return !slices.ContainsFunc(explanations, func(of []explanation) bool { return at.Sub(of[0].end.At) > dateError })
	}
	for i, s := range all {
		for _, x := range explanations[i] {
			isServed := x.end.Stamp.Unix() == r.timestamp.Unix() && x.shortest <= r.window
			if isServed && isOldest(x.end.At) && (oldest == nil || oldest.At.Before(x.end.At)) {
				oldest, of = x.end, s
			}
		}
	}
	if oldest == nil || !isLongest(r.window, explanations) {
		return nil, nil, errors.New("with another window or time than its usage")
	}
	return oldest, of, nil
}

// isLongest reports whether a window can be the longest one of the containers with these explanations.
func isLongest(window time.Duration, all [][]explanation) bool {
	isOne := false
	for _, of := range all {
		if !slices.ContainsFunc(of, func(x explanation) bool { return x.shortest <= window }) {
			return false
		}
		isOne = isOne || slices.ContainsFunc(of, func(x explanation) bool {
			return x.shortest <= window && window <= x.longest
		})
	}
	return isOne
}

// checkTime checks a timestamp: it must be the time of a sample that has not expired. If it may be of
// several samples, because the clock was set back, one of them must be valid.
func (o *oracle) checkTime(n *node, all []series, timestamp time.Time, e exchange) error {
	if e.sent.Before(n.unjudgeable) && o.checkAge(timestamp, e) == nil {
		return nil // samples without a time have that of the scrape
	}
	err := fmt.Errorf("with a time that none of its samples has: %s", timestamp.Format(time.RFC3339))
	for _, s := range all {
		for i := range s {
			if s[i].Stamp.Unix() != timestamp.Unix() || s[i].reported.After(e.received) {
				continue
			}
			if err = o.checkAge(s[i].At, e); err == nil {
				return nil
			}
		}
	}
	return err
}

// checkAge checks the true time of a sample.
func (o *oracle) checkAge(at time.Time, e exchange) error {
	if age := e.sent.Sub(at); age > o.maxAge+dateError {
		return fmt.Errorf("with an expired sample: it is %s old", age.Round(time.Millisecond))
	}
	if ahead := at.Sub(e.received); ahead > timestampUnit {
		return fmt.Errorf("with a sample from the future: it is %s ahead", ahead.Round(time.Millisecond))
	}
	return nil
}

// checkFreshness checks that a sample is the newest one of a series that the server must know. Samples
// less than minServedWindow apart may give no rate, nor those less than minCoarseWindow apart whose times are in whole
// seconds, here by chance. After a disturbance, the last values are served for a
// while; a small step of the clock may be noticed some scrapes later.
func (o *oracle) checkFreshness(object *object, of series, served *reading, e exchange) error {
	newest := of.newestCertain(e.sent.Add(-o.latest))
	if !o.isSettled(object, e.sent) || newest == nil {
		return nil
	}
	shortest := minServedWindow
	if newest.Stamp.Nanosecond() == 0 {
		shortest = minCoarseWindow
	}
	if newest.At.Sub(served.At) <= shortest {
		return nil
	}
	return fmt.Errorf("with an old sample: it was taken %s ago, and the server has got one from %s ago",
		e.sent.Sub(served.At).Round(time.Millisecond), e.sent.Sub(newest.At).Round(time.Millisecond))
}
