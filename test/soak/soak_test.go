package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

func TestCheckGrowth(t *testing.T) {
	before := footprint{goroutines: 100, heap: 10, ownSeries: 200, otherSeries: 1000, descriptors: 50}
	for _, tt := range []struct {
		name   string
		change func(*footprint)
		margin float64
		want   string // in the error; empty: no error
	}{
		{"equal", func(*footprint) {}, 1.1, ""},
		{"smaller", func(f *footprint) { *f = footprint{} }, 1.1, ""},
		{"at the limit", func(f *footprint) { f.goroutines = 115; f.ownSeries = 250 }, 1.1, ""},
		{"goroutines", func(f *footprint) { f.goroutines = 116 }, 1.1,
			"goroutines of the server grew from 100.0 to 116.0, allowed are 115.0 (1.1 times as many and 5)"},
		{"heap", func(f *footprint) { f.heap = 13.1 }, 1.1, "MiB of heap of the server grew from 10.0 to 13.1"},
		{"own series", func(f *footprint) { f.ownSeries = 251 }, 1.1, "series of its own"},
		{"other series", func(f *footprint) { f.otherSeries = 1151 }, 1.1, "series of libraries"},
		{"file descriptors", func(f *footprint) { f.descriptors = 66 }, 1.1, "file descriptors"},
		{"impossible margin", func(*footprint) {}, 0.1, "goroutines of the server grew from 100.0 to 100.0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			after := before
			tt.change(&after)
			err := checkGrowth(before, after, tt.margin)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestTelemetry(t *testing.T) {
	got, err := parseTelemetry(`# HELP go_goroutines Number of goroutines that currently exist.
# TYPE go_goroutines gauge
go_goroutines 42
go_memstats_heap_alloc_bytes 1.048576e+07
process_open_fds 7
kube_vitals_scrapes_total{reason="",result="success"} 10
kube_vitals_scrapes_total{reason="it hangs, long",result="failure"} 3
kube_vitals_scrapes_total_of_another 1000
`)
	if err != nil {
		t.Fatal(err)
	}
	want := footprint{goroutines: 42, heap: 10, ownSeries: 3, otherSeries: 3, descriptors: 7}
	if got := got.footprint(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if sum := got.sum("kube_vitals_scrapes_total"); sum != 13 {
		t.Errorf("got %g scrapes, want 13", sum)
	}
	if sum := got.sum("kube_vitals_scrapes_total", `result="failure"`); sum != 3 {
		t.Errorf("got %g failed scrapes, want 3", sum)
	}
	for _, text := range []string{"nothing", "a_name one"} {
		if _, err := parseTelemetry(text); err == nil {
			t.Errorf("got no error for %q", text)
		}
	}
}

// t0 is when the node and the pod of newTestOracle were created.
var t0 = time.Unix(1_800_000_000, 0)

var testTolerances = tolerances{
	maxAge: 20 * time.Second, settle: 20 * time.Second, hold: 10 * time.Second, gone: 4 * time.Second,
	latest: 5 * time.Second,
}

var testUsage = [...]kubelettest.Usage{{CPU: 0.5, Memory: 64 << 20}, {CPU: 0, Memory: 16 << 20}}

// newTestOracle returns an oracle with one node and one pod, undisturbed since t0. Their kubelet has
// reported a reading each second until a minute after t0.
func newTestOracle() (*oracle, *node, *pod) {
	o := newOracle(testTolerances)
	n := o.addNode("n")
	p := o.addPod(objects.Pod{Namespace: "ns", Name: "p"}, n)
	n.undisturbed, p.undisturbed = t0, t0
	reportEachSecond(n, t0.Add(-time.Minute), t0.Add(time.Minute), 0)
	return o, n, p
}

// reportEachSecond reports a reading each second of a node whose clock is ahead by the given duration,
// and of its pod. All have run for an hour before t0.
func reportEachSecond(n *node, from, to time.Time, ahead time.Duration) {
	started := t0.Add(-time.Hour)
	for at := from; !at.After(to); at = at.Add(time.Second) {
		r := kubelettest.Reading{At: at, Stamp: at.Add(ahead), Started: started, StartStamp: started}
		of := func(u kubelettest.Usage) kubelettest.Reading {
			r := r
			r.CPU, r.Memory = u.CPU*at.Sub(started).Seconds(), u.Memory
			return r
		}
		readings := []kubelettest.Reading{of(nodeUsage)}
		for i, name := range objects.ContainerNames {
			r := of(testUsage[i])
			r.Namespace, r.Pod, r.Container = "ns", "p", name
			readings = append(readings, r)
		}
		n.readings.record(readings, at, true)
	}
}

// podMetrics returns correct metrics at a time.
func podMetrics(at time.Time) metricsv1beta1.PodMetrics {
	m := metricsv1beta1.PodMetrics{
		Timestamp: metav1.NewTime(at.Add(-5 * time.Second)), Window: metav1.Duration{Duration: 10 * time.Second},
	}
	m.Namespace, m.Name = "ns", "p"
	for i, name := range objects.ContainerNames {
		m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: name, Usage: corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(testUsage[i].CPU*1e9), resource.Nano),
			corev1.ResourceMemory: *resource.NewQuantity(int64(testUsage[i].Memory), resource.BinarySI),
		}})
	}
	return m
}

// expectViolation expects one violation that contains a text, or none if that is empty.
func expectViolation(t *testing.T, got []violation, want string) {
	t.Helper()
	switch {
	case want == "" && len(got) > 0:
		t.Errorf("got violations %v, want none", got)
	case want != "" && (len(got) != 1 || !strings.Contains(got[0].String(), want)):
		t.Errorf("got violations %v, want one: %s", got, want)
	}
}

func TestCheckPods(t *testing.T) {
	now := t0.Add(time.Minute)
	ago := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
	type change = func(*node, *pod)
	type response = func(*metricsv1beta1.PodMetrics)
	timestamp := func(at time.Time) response {
		return func(m *metricsv1beta1.PodMetrics) { m.Timestamp = metav1.NewTime(at) }
	}
	cpu := func(m *metricsv1beta1.PodMetrics) { m.Containers[0].Usage["cpu"] = resource.MustParse("600m") }
	memory := func(m *metricsv1beta1.PodMetrics) { m.Containers[1].Usage["memory"] = resource.MustParse("17Mi") }
	part := func(m *metricsv1beta1.PodMetrics) { m.Containers = m.Containers[1:] }
	for _, tt := range []struct {
		name     string
		change   change   // of the true state
		response response // change of the correct metrics
		want     string   // in the only violation; empty: none
	}{
		{"correct", nil, nil, ""},
		{"the newest sample", nil, timestamp(ago(0)), ""},
		{"an old sample", nil, timestamp(ago(7)), ""},
		{"too old a sample", nil, timestamp(ago(8)), "it was taken 8s ago, and the server has got one from 6s ago"},
		{"too old a sample after a restart", func(_ *node, p *pod) { p.restarted = ago(29) }, timestamp(ago(8)), ""},
		{"too old a sample after a step", func(n *node, _ *pod) { n.clock = clock{{ago(59), 0}} }, timestamp(ago(8)), ""},
		{"failing kubelet", func(n *node, _ *pod) { n.failing = ago(15) }, timestamp(ago(21)), ""},
		{"expired", func(n *node, _ *pod) { n.failing = ago(15) }, timestamp(ago(22)), "expired sample: 22s"},
		{"from the future", nil, timestamp(ago(-60)), "has a time that none of its samples has"},
		{"not reported yet", nil, timestamp(ago(-1)), "has a time that none of its samples has"},
		{"before the first sample", nil, timestamp(ago(3600)), "has a time that none of its samples has"},
		{"no timestamp", nil, func(m *metricsv1beta1.PodMetrics) { m.Timestamp = metav1.Time{} }, "has no timestamp"},
		{"the epoch", nil, timestamp(time.Unix(0, 0)), "has no timestamp"},
		{"no window", nil, func(m *metricsv1beta1.PodMetrics) { m.Window.Duration = 0 }, "has no window: 0s"},
		{"long window", nil, func(m *metricsv1beta1.PodMetrics) { m.Window.Duration = 21 * time.Second },
			"too long a window: 21s"},
		{"no containers", nil, func(m *metricsv1beta1.PodMetrics) { m.Containers = nil }, "got 0 containers, want 2"},
		{"one container", nil, part, "in part: got 1 containers, want 2"},
		{"one container, failing kubelet", func(n *node, _ *pod) { n.failing = ago(60) }, part, "got 1 containers, want 2"},
		{"other container", nil, func(m *metricsv1beta1.PodMetrics) { m.Containers[0].Name = "x" }, `got "x", want "app"`},
		{"wrong CPU", nil, cpu, `no two samples of container "app" give 0.600000000 cores with 65536 KiB, ` +
			`over 10s until 08:00:55; they are: 50.000 s ago 1805.000000 core-s in 3610.000 s, 49.000 s`},
		{"more CPU than the node has", nil, func(m *metricsv1beta1.PodMetrics) {
			m.Containers[0].Usage["cpu"] = resource.MustParse("3333")
		}, "with more than its node has: app: 3333.000 cores"},
		{"wrong memory", nil, memory, `no two samples of container "istio-proxy" give 0.000000000 cores with 17408 KiB`},
		{"wrong window", nil, func(m *metricsv1beta1.PodMetrics) { m.Window.Duration = 10500 * time.Millisecond },
			"another window or time than its usage: 10.5s"},
		{"too short a window", nil, func(m *metricsv1beta1.PodMetrics) { m.Window.Duration = 500 * time.Millisecond },
			"another window or time than its usage: 500ms"},
		{"wrong CPU after a restart that may be unnoticed", func(_ *node, p *pod) { p.unjudgeable = ago(-1) }, cpu, ""},
		{"deleted just now", func(_ *node, p *pod) { p.deleting, p.deleted = true, ago(3) }, nil, ""},
		{"deleted", func(_ *node, p *pod) { p.deleting, p.deleted = true, ago(5) }, nil,
			"but deleted: it was deleted 5s ago"},
		{"unknown", func(_ *node, p *pod) { p.deleting = true },
			func(m *metricsv1beta1.PodMetrics) { m.Name = "q" }, "ns/q is served but never existed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, n, p := newTestOracle()
			if tt.change != nil {
				tt.change(n, p)
			}
			m := podMetrics(now)
			if tt.response != nil {
				tt.response(&m)
			}
			e := exchange{now, now.Add(100 * time.Millisecond)}
			expectViolation(t, o.checkPods([]metricsv1beta1.PodMetrics{m}, e, true), tt.want)
		})
	}
	t.Run("twice in one response", func(t *testing.T) {
		o, _, _ := newTestOracle()
		list := []metricsv1beta1.PodMetrics{podMetrics(now), podMetrics(now)}
		expectViolation(t, o.checkPods(list, exchange{now, now}, true), "twice in one response")
	})
	t.Run("list of some pods", func(t *testing.T) {
		o, _, _ := newTestOracle()
		expectViolation(t, o.checkPods(nil, exchange{now, now}, false), "")
	})
}

// TestExpectedPods checks when a response without the pod is a violation.
func TestExpectedPods(t *testing.T) {
	now := t0.Add(time.Minute)
	ago := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
	for _, tt := range []struct {
		name   string
		change func(*node, *pod)
		want   string // in the violation; empty: none
	}{
		{"undisturbed", func(*node, *pod) {}, "pod ns/p is not served: it has run for 1m0s"},
		{"new", func(_ *node, p *pod) { p.undisturbed = ago(19) }, ""},
		{"being created", func(_ *node, p *pod) { p.undisturbed = time.Time{} }, ""},
		{"being deleted", func(_ *node, p *pod) { p.deleting = true }, ""},
		{"node being deleted", func(n *node, _ *pod) { n.deleting = true }, ""},
		{"new node", func(n *node, _ *pod) { n.undisturbed = ago(19) }, ""},
		{"failed for a short time", func(n *node, _ *pod) { n.failing, n.fault = ago(9), "hang" },
			"its kubelet has failed for 9s: hang"},
		{"failed for a long time", func(n *node, _ *pod) { n.failing = ago(11) }, ""},
		{"failed soon after the pod was created", func(n *node, p *pod) { p.undisturbed, n.failing = ago(25), ago(9) }, ""},
		{"failed soon after a restart", func(n *node, p *pod) { p.restarted, n.failing = ago(28), ago(9) }, ""},
		{"failed soon after a clock step", func(n *node, _ *pod) {
			n.clock, n.failing = clock{{ago(10), time.Minute}}, ago(9)
		}, ""},
		{"samples from yesterday", func(n *node, _ *pod) { n.failing, n.fault = ago(9), samplesFromYesterday }, ""},
		{"clock set back", func(n *node, _ *pod) { n.clock = clock{{ago(5), -time.Minute}} },
			"the offset of its clock was set from 0s to -1m0s 5s ago"},
		{"restarted", func(_ *node, p *pod) { p.restarted = ago(5) }, "a container restarted 5s ago"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, n, p := newTestOracle()
			tt.change(n, p)
			expectViolation(t, o.checkPods(nil, exchange{now, now.Add(100 * time.Millisecond)}, true), tt.want)
		})
	}
	t.Run("expected only when the request is sent", func(t *testing.T) {
		o, n, _ := newTestOracle()
		n.failing = ago(9)
		expectViolation(t, o.checkPods(nil, exchange{now, now.Add(2 * time.Second)}, true), "")
	})
}

func TestCheckNodes(t *testing.T) {
	now := t0.Add(time.Minute)
	e := exchange{now, now}
	m := metricsv1beta1.NodeMetrics{Timestamp: metav1.NewTime(now), Window: metav1.Duration{Duration: time.Second}}
	m.Name, m.Usage = "n", corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("8Gi")}
	o, n, _ := newTestOracle()
	check := func() []violation { return o.checkNodes([]metricsv1beta1.NodeMetrics{m}, e, true) }
	expectViolation(t, check(), "")
	expectViolation(t, o.checkNodes(nil, e, true), "node n is not served")
	m.Usage["cpu"] = resource.MustParse("3")
	expectViolation(t, check(), `node n is served with wrong usage: no two samples of container "" give 3.000000000 cores`)
	m.Usage["cpu"] = resource.MustParse("2")
	n.deleted, n.deleting = t0, true
	expectViolation(t, check(), "node n is served but deleted: it was deleted 1m0s ago")
	m.Name = "m"
	expectViolation(t, check(), "node m is served but never existed")
}

// TestClockStep sets the clock of the node 10 s before the response.
func TestClockStep(t *testing.T) {
	now := t0.Add(time.Minute)
	for _, tt := range []struct {
		name      string
		offset    time.Duration // since the step
		timestamp time.Duration // of the metrics, relative to now
		window    time.Duration
		cpu       string // of the container app; empty: correct
		want      string
	}{
		{"sample after a step back", -time.Minute, -65 * time.Second, 4 * time.Second, "", ""},
		{"sample after a step ahead", time.Minute, 55 * time.Second, 4 * time.Second, "", ""},
		{"sample before a step ahead", time.Minute, -15 * time.Second, 10 * time.Second, "", ""},
		{"two possible times", -5 * time.Second, -12 * time.Second, 2 * time.Second, "", ""},
		{"rate across a step", -5 * time.Second, -10 * time.Second, 10 * time.Second, "750m", `"app" give 0.75`},
		{"window across a step", -time.Minute, -65 * time.Second, 10 * time.Second, "", "another window"},
		{"wrong rate", -time.Minute, -65 * time.Second, 4 * time.Second, "750m", `"app" give 0.75`},
		{"expired though the clock is ahead", time.Hour, -24 * time.Second, 10 * time.Second, "", "expired sample: 24s"},
		{"time that was never shown", time.Minute, 30 * time.Second, 5 * time.Second, "", "time that none"},
		{"rate across a small step ahead", time.Second, -4 * time.Second, 10 * time.Second, "450m", ""},
		{"the same in another window", time.Second, -4 * time.Second, 9500 * time.Millisecond, "450m", "another window"},
		{"rate across a small step back", -1300 * time.Millisecond, -6300 * time.Millisecond, 10700 * time.Millisecond,
			"560747664n", ""}, // 0.5 × 12 s ÷ 10.7 s
		{"rate across too large a step back", -1301 * time.Millisecond, -6301 * time.Millisecond, 10699 * time.Millisecond,
			"560800075n", `no two samples of container "app" give`},
		{"error beyond a small step", time.Second, -4 * time.Second, 10 * time.Second, "430m",
			`no two samples of container "app" give`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, n, p := newTestOracle()
			stepped := now.Add(-10 * time.Second)
			n.readings.series = map[seriesKey]series{}
			reportEachSecond(n, t0.Add(-time.Minute), stepped, 0)
			reportEachSecond(n, stepped.Add(time.Second), now, tt.offset)
			o.stepClock(n, stepped.Add(time.Millisecond), tt.offset, func() {})
			m := podMetrics(now)
			m.Timestamp, m.Window.Duration = metav1.NewTime(now.Add(tt.timestamp)), tt.window
			if tt.cpu != "" {
				m.Containers[0].Usage["cpu"] = resource.MustParse(tt.cpu)
			}
			p.undisturbed = now
			e := exchange{now, now.Add(100 * time.Millisecond)}
			expectViolation(t, o.checkPods([]metricsv1beta1.PodMetrics{m}, e, true), tt.want)
		})
	}
}

// TestDisturbances checks which restarts and clock steps may cost metrics: the second of two within
// a short time.
func TestDisturbances(t *testing.T) {
	for _, tt := range []struct {
		name              string
		events            func(*oracle, *node, *pod)
		wantNode, wantPod time.Duration // undisturbed, after t0
	}{
		{"one step", func(o *oracle, n *node, _ *pod) {
			o.stepClock(n, t0.Add(60*time.Second), time.Hour, func() {})
		}, 0, 0},
		{"one step, moving start times", func(o *oracle, n *node, _ *pod) {
			n.startsMove = true
			o.stepClock(n, t0.Add(60*time.Second), time.Hour, func() {})
		}, 0, 60 * time.Second},
		{"restart after the node was unreachable", func(o *oracle, n *node, p *pod) {
			n.undisturbed = t0.Add(60 * time.Second)
			o.restart(p, t0.Add(70*time.Second))
		}, 60 * time.Second, 70 * time.Second},
		{"restart some time after a step, moving start times", func(o *oracle, n *node, p *pod) {
			o.stepClock(n, t0.Add(60*time.Second), time.Hour, func() {})
			n.startsMove = true
			o.restart(p, t0.Add(89*time.Second))
		}, 0, 89 * time.Second},
		{"restart after a step", func(o *oracle, n *node, p *pod) {
			o.stepClock(n, t0.Add(60*time.Second), time.Hour, func() {})
			o.restart(p, t0.Add(70*time.Second))
		}, 0, 70 * time.Second},
		{"two steps", func(o *oracle, n *node, _ *pod) {
			o.stepClock(n, t0.Add(60*time.Second), time.Hour, func() {})
			o.stepClock(n, t0.Add(79*time.Second), 0, func() {})
		}, 79 * time.Second, 0},
		{"step after a restart", func(o *oracle, n *node, p *pod) {
			o.restart(p, t0.Add(60*time.Second))
			o.stepClock(n, t0.Add(79*time.Second), time.Hour, func() {})
		}, 0, 79 * time.Second},
		{"one restart", func(o *oracle, _ *node, p *pod) { o.restart(p, t0.Add(60*time.Second)) }, 0, 0},
		{"two restarts", func(o *oracle, _ *node, p *pod) {
			o.restart(p, t0.Add(60*time.Second))
			o.restart(p, t0.Add(70*time.Second))
		}, 0, 70 * time.Second},
		{"restart of a disturbed pod", func(o *oracle, _ *node, p *pod) {
			p.undisturbed = t0.Add(70 * time.Second)
			o.restart(p, t0.Add(89*time.Second))
		}, 0, 89 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, n, p := newTestOracle()
			tt.events(o, n, p)
			if got := n.undisturbed.Sub(t0); got != tt.wantNode {
				t.Errorf("node: got undisturbed since %s, want %s", got, tt.wantNode)
			}
			if got := p.undisturbed.Sub(t0); got != tt.wantPod {
				t.Errorf("pod: got undisturbed since %s, want %s", got, tt.wantPod)
			}
		})
	}
}

func TestMoveStarts(t *testing.T) {
	o, n, p := newTestOracle()
	o.restart(p, t0.Add(time.Hour))
	if !p.unjudgeable.IsZero() {
		t.Error("usage is not checked after a restart")
	}
	o.moveStarts(n, t0.Add(time.Hour+time.Second))
	if !p.unjudgeable.After(t0.Add(time.Hour)) {
		t.Error("usage is checked after a restart with a wrong start time")
	}
	o, n, p = newTestOracle()
	o.moveStarts(n, t0.Add(time.Hour))
	if !p.unjudgeable.IsZero() {
		t.Error("usage is not checked long after the start")
	}
}

func TestCheckScrapes(t *testing.T) {
	for _, tt := range []struct {
		scrapes     float64 // of 100 nodes, instead of 400 without watched nodes
		least, most float64
		want        string // in the error; empty: no error
	}{
		{800, 1.2, 2, ""},
		{850, 1.2, 2, ""},
		{851, 1.2, 2, "the kubelets counted 851 scrapes, want 1.2 to 2 times 400"},
		{430, 1.2, 2, ""},
		{429, 1.2, 2, "the kubelets counted 429 scrapes"},
		{400, 1, 1, ""},
		{451, 1, 1, "want 1 to 1 times 400"},
	} {
		err := checkScrapes(tt.scrapes, 400, 100, tt.least, tt.most)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%g scrapes: got %v, want %q", tt.scrapes, err, tt.want)
		}
	}
}

// TestSamePod checks that a reader of one pod keeps to it as long as it must be served.
func TestSamePod(t *testing.T) {
	o, n, p := newTestOracle()
	n.undisturbed, p.undisturbed = time.Now().Add(-time.Hour), time.Now().Add(-time.Hour)
	if got := o.samePod(""); got != "ns/p" {
		t.Errorf("got %q, want the only pod", got)
	}
	other := o.addPod(objects.Pod{Namespace: "ns", Name: "q"}, n)
	other.undisturbed = p.undisturbed
	for range 20 {
		if got := o.samePod("ns/p"); got != "ns/p" {
			t.Errorf("got %q, want the same pod", got)
		}
	}
	p.deleting = true
	if got := o.samePod("ns/p"); got != "ns/q" {
		t.Errorf("got %q, want the other pod", got)
	}
	other.deleting = true
	if got := o.samePod("ns/q"); got != "" {
		t.Errorf("got %q, want no pod", got)
	}
}

func TestNewTolerances(t *testing.T) {
	want := tolerances{
		maxAge: 30 * time.Second, settle: 20 * time.Second, hold: 20 * time.Second, gone: 4 * time.Second,
		latest: 8 * time.Second,
	}
	if got := newTolerances(5 * time.Second); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFaultNames(t *testing.T) {
	for _, name := range []string{
		samplesFromYesterday, samplesFromTomorrow, samplesWithoutTime, responsesWithoutDate, startsMovedOnce,
		startsFollowSamples,
	} {
		if !slices.ContainsFunc(kubelettest.Faults(), func(f kubelettest.NamedFault) bool { return f.Name == name }) {
			t.Errorf("kubelettest has no fault %q", name)
		}
	}
}

func TestFlags(t *testing.T) {
	executable := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(executable, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg, err := parse([]string{"-server", executable, "-minutes", "0.5", "--", "--v=2"})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.minutes != 0.5 || !slices.Equal(cfg.serverArgs, []string{"--v=2"}) {
		t.Errorf("got %+v", cfg)
	}
	_, err = parse([]string{
		"-minutes", "0", "-nodes", "-1", "-pods", "0", "-churn", "0", "-margin", "0", "-memory", "0",
		"-metric-resolution", "1s", "-watched-resolution", "5s", "-watched-budget", "0.5",
	})
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{
		"-server", "-minutes", "-nodes", "-pods", "-churn", "-margin", "-memory", "-metric-resolution",
		"-watched-resolution", "-watched-budget",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not mention %s:\n%v", want, err)
		}
	}
}
