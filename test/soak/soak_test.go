package main

import (
	"math"
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

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
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

// newTestOracle returns an oracle with one node and one pod, undisturbed since t0.
func newTestOracle() (*oracle, *node, *pod) {
	o := newOracle(testTolerances)
	n := o.addNode("n", nodeUsage)
	p := o.addPod(objects.Pod{Namespace: "ns", Name: "p"}, n, testUsage)
	n.undisturbed, p.undisturbed = t0, t0
	return o, n, p
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
		{"expired within the rounding", nil, timestamp(ago(21)), ""},
		{"expired", nil, timestamp(ago(22)), "expired sample: 22s"},
		{"from the future", nil, timestamp(ago(-60)), "from the future: 59.9s"},
		{"no timestamp", nil, func(m *metricsv1beta1.PodMetrics) { m.Timestamp = metav1.Time{} }, "has no timestamp"},
		{"the epoch", nil, timestamp(time.Unix(0, 0)), "has no timestamp"},
		{"no window", nil, func(m *metricsv1beta1.PodMetrics) { m.Window.Duration = 0 }, "has no window: 0s"},
		{"long window", nil, func(m *metricsv1beta1.PodMetrics) { m.Window.Duration = 21 * time.Second },
			"too long a window: 21s"},
		{"no containers", nil, func(m *metricsv1beta1.PodMetrics) { m.Containers = nil }, "got 0 containers, want 2"},
		{"one container", nil, part, "in part: got 1 containers, want 2"},
		{"one container, failing kubelet", func(n *node, _ *pod) { n.failing = ago(60) }, part, "got 1 containers, want 2"},
		{"other container", nil, func(m *metricsv1beta1.PodMetrics) { m.Containers[0].Name = "x" }, `got "x", want "app"`},
		{"wrong CPU", nil, cpu, "container app: got 0.600000 cores, want 0.489999 to 0.510001"},
		{"wrong memory", nil, memory, "container istio-proxy: got 17825792 bytes"},
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
	expectViolation(t, check(), "node n is served with wrong usage: got 3.000000 cores")
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
		timestamp time.Duration // of the metrics, relative to now; the sample is 5 s old
		cpu       string        // of the container app; empty: correct
		want      string
	}{
		{"sample after a step back", -time.Minute, -65 * time.Second, "", ""},
		{"sample after a step ahead", time.Minute, 55 * time.Second, "", ""},
		{"sample before a step ahead", time.Minute, -15 * time.Second, "", ""},
		{"two possible times", -5 * time.Second, -12 * time.Second, "", ""},
		{"rate across a step", -5 * time.Second, -10 * time.Second, "750m", "app: got 0.750000 cores"},
		{"wrong rate", -time.Minute, -65 * time.Second, "750m", "app: got 0.750000 cores"},
		{"expired by the old clock, future by the new one", -time.Minute, -30 * time.Second, "", "from the future: 29.9s"},
		{"expired though the clock is ahead", time.Hour, -24 * time.Second, "", "expired sample: 24s"},
		{"time that was never shown", time.Minute, 30 * time.Second, "", "never showed"},
		{"time between the old and the new clock", time.Hour, 30 * time.Minute, "", "never showed"},
		{"small step", time.Second, -4 * time.Second, "450m", ""},
		{"error beyond a small step", time.Second, -4 * time.Second, "430m", "app: got 0.430000 cores"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, n, _ := newTestOracle()
			o.stepClock(n, now.Add(-10*time.Second), tt.offset, func() {})
			m := podMetrics(now)
			m.Timestamp = metav1.NewTime(now.Add(tt.timestamp))
			if tt.cpu != "" {
				m.Containers[0].Usage["cpu"] = resource.MustParse(tt.cpu)
			}
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

// TestLoadChange changes the load of a container a minute after t0.
func TestLoadChange(t *testing.T) {
	o, n, p := newTestOracle()
	changed := t0.Add(time.Minute)
	p.load[0] = append(p.load[0], loadChange{changed, kubelettest.Usage{CPU: 1, Memory: 65 << 20}})
	for _, tt := range []struct {
		at               time.Duration // after the change
		wantMin, wantMax float64
	}{
		{-20 * time.Second, 0.49, 0.51},
		{20 * time.Second, 0.98, 1.02},
		{5 * time.Second, 0.75 * 0.98, 1.02}, // half of the window is before the change
	} {
		end := changed.Add(tt.at)
		got := n.limits(p.load[0], end, []time.Duration{10 * time.Second}, end, o.latest)
		if math.Abs(got.minCPU-tt.wantMin) > 1e-5 || math.Abs(got.maxCPU-tt.wantMax) > 1e-5 {
			t.Errorf("%s after the change: got %g to %g cores, want %g to %g",
				tt.at, got.minCPU, got.maxCPU, tt.wantMin, tt.wantMax)
		}
	}
	// The mean over 20 s, most of them before the change, is wrong for a window of 5 s.
	at := changed.Add(6 * time.Second)
	m := podMetrics(at.Add(5 * time.Second))
	m.Containers[0].Usage["cpu"], m.Containers[0].Usage["memory"] = resource.MustParse("650m"), resource.MustParse("65Mi")
	for window, want := range map[time.Duration]string{20 * time.Second: "", 5 * time.Second: "app: got 0.650000 cores"} {
		m.Window.Duration = window
		expectViolation(t, o.checkPods([]metricsv1beta1.PodMetrics{m}, exchange{at, at}, false), want)
	}
}

// TestWindowsOfContainers checks the usage of a container whose window is not the pod's, 3 s: it
// restarted 13 s ago, and its node's clock was set 9 s ago, by too little to be noticed.
func TestWindowsOfContainers(t *testing.T) {
	o, n, p := newTestOracle()
	now := t0.Add(time.Hour)
	o.restart(p, now.Add(-13*time.Second))
	p.unjudgeable = time.Time{}
	o.stepClock(n, now.Add(-9*time.Second), 600*time.Millisecond, func() {})
	m := podMetrics(now.Add(600 * time.Millisecond))
	m.Window.Duration = 3 * time.Second
	for cpu, want := range map[string]string{
		"500m": "",
		"478m": "", // 0.5 × 13 s ÷ 13.6 s
		"150m": "app: got 0.150000 cores",
	} {
		m.Containers[0].Usage["cpu"] = resource.MustParse(cpu)
		expectViolation(t, o.checkPods([]metricsv1beta1.PodMetrics{m}, exchange{now, now}, false), want)
	}
}

// TestWindowsAfterRestart checks the usage of a container whose window is shorter than the pod's,
// because it has fewer samples than the other container. A clock step that is not noticed then has
// more effect.
func TestWindowsAfterRestart(t *testing.T) {
	for restarted, want := range map[time.Duration]string{
		19 * time.Second: "",
		5 * time.Minute:  "app: got 0.535700 cores",
	} {
		o, n, p := newTestOracle()
		now := t0.Add(time.Hour)
		o.restart(p, now.Add(-restarted))
		p.unjudgeable = time.Time{}
		p.undisturbed = t0
		o.stepClock(n, now.Add(-6*time.Second), -400*time.Millisecond, func() {})
		m := podMetrics(now.Add(-400 * time.Millisecond))
		m.Window.Duration = 17600 * time.Millisecond
		m.Containers[0].Usage["cpu"] = resource.MustParse("535700u") // 0.5 × 6 s ÷ 5.6 s
		expectViolation(t, o.checkPods([]metricsv1beta1.PodMetrics{m}, exchange{now, now}, false), want)
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
	other := o.addPod(objects.Pod{Namespace: "ns", Name: "q"}, n, testUsage)
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
