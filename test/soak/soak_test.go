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

func TestGrowth(t *testing.T) {
	before := footprint{goroutines: 100, heap: 10, own: 200, libraries: 1000, descriptors: 50}
	for _, test := range []struct {
		name   string
		grow   func(*footprint)
		margin float64
		want   string // the sentence; empty: none
	}{
		{name: "nothing", grow: func(*footprint) {}, margin: 1.1},
		{name: "it shrinks", grow: func(f *footprint) { *f = footprint{} }, margin: 1.1},
		{name: "up to the margin", grow: func(f *footprint) { f.goroutines = 115; f.own = 230 }, margin: 1.1},
		{
			name: "goroutines", grow: func(f *footprint) { f.goroutines = 116 }, margin: 1.1,
			want: "the server's goroutines grew from 100.0 to 116.0, and 115.0 are allowed: 1.1 times as many, and 5 more",
		},
		{name: "heap", grow: func(f *footprint) { f.heap = 13.1 }, margin: 1.1, want: "MiB of heap grew from 10.0 to 13.1"},
		{name: "own series", grow: func(f *footprint) { f.own = 231 }, margin: 1.1, want: "series of its own grew"},
		{name: "other series", grow: func(f *footprint) { f.libraries = 1151 }, margin: 1.1, want: "series of libraries grew"},
		{name: "connections", grow: func(f *footprint) { f.descriptors = 66 }, margin: 1.1, want: "file descriptors grew"},
		{name: "a margin that nothing can meet", grow: func(*footprint) {}, margin: 0.1, want: "goroutines grew from 100.0 to 100.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			after := before
			test.grow(&after)
			err := judgeGrowth(before, after, test.margin)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestTelemetry(t *testing.T) {
	before, err := parseTelemetry(`# HELP go_goroutines Number of goroutines that currently exist.
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
	if got, want := before.footprint(), (footprint{goroutines: 42, heap: 10, own: 3, libraries: 3, descriptors: 7}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := before.sum("kube_vitals_scrapes_total"); got != 13 {
		t.Errorf("%g scrapes, want 13", got)
	}
	if got := before.sum("kube_vitals_scrapes_total", `result="failure"`); got != 3 {
		t.Errorf("%g failures, want 3", got)
	}
	for _, text := range []string{"nothing", "a_name one"} {
		if _, err := parseTelemetry(text); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}

// t0 is when the pod and the node of the tests below came to be.
var t0 = time.Unix(1_800_000_000, 0)

// testBounds: steady after 20 s, held for 10 s, served up to 20 s, gone after 4 s.
var testBounds = bounds{maxAge: 20 * time.Second, settle: 20 * time.Second, hold: 10 * time.Second, gone: 4 * time.Second, latest: 5 * time.Second}

var testUsage = [...]kubelettest.Usage{{CPU: 0.5, Memory: 64 << 20}, {CPU: 0, Memory: 16 << 20}}

// steadyLedger has one node and one pod since t0.
func steadyLedger() (*ledger, *node, *pod) {
	l := newLedger(testBounds)
	n := l.addNode("n", nodeUsage)
	p := l.addPod(objects.Pod{Namespace: "ns", Name: "p"}, n, testUsage)
	n.steady, p.steady = t0, t0
	return l, n, p
}

// served is what a server should say at a time.
func served(at time.Time) metricsv1beta1.PodMetrics {
	m := metricsv1beta1.PodMetrics{Timestamp: metav1.NewTime(at.Add(-5 * time.Second)), Window: metav1.Duration{Duration: 10 * time.Second}}
	m.Namespace, m.Name = "ns", "p"
	for i, name := range objects.ContainerNames {
		m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: name, Usage: corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(testUsage[i].CPU*1e9), resource.Nano),
			corev1.ResourceMemory: *resource.NewQuantity(int64(testUsage[i].Memory), resource.BinarySI),
		}})
	}
	return m
}

func TestJudgePods(t *testing.T) {
	at := t0.Add(time.Minute)
	for _, test := range []struct {
		name   string
		life   func(*node, *pod)
		answer func(*metricsv1beta1.PodMetrics)
		absent bool
		want   string // in the only mistake; empty: none
	}{
		{name: "all is well"},
		{name: "absent", absent: true, want: "pod ns/p is not served: it has run for 1m0s"},
		{name: "absent, and new", absent: true, life: func(_ *node, p *pod) { p.steady = at.Add(-19 * time.Second) }},
		{name: "absent, and being created", absent: true, life: func(_ *node, p *pod) { p.steady = time.Time{} }},
		{name: "absent, and being deleted", absent: true, life: func(_ *node, p *pod) { p.ending = true }},
		{name: "absent, and its node is being deleted", absent: true, life: func(n *node, _ *pod) { n.ending = true }},
		{name: "absent on a new node", absent: true, life: func(n *node, _ *pod) { n.steady = at.Add(-19 * time.Second) }},
		{
			name: "absent after one failed scrape", absent: true, want: "its kubelet has failed for 9s: hang",
			life: func(n *node, _ *pod) { n.failing, n.ailment = at.Add(-9*time.Second), "hang" },
		},
		{name: "absent with samples of yesterday", absent: true, life: func(n *node, _ *pod) {
			n.failing, n.ailment = at.Add(-9*time.Second), samplesOfYesterday
		}},
		{
			name: "absent after its clock was set back", absent: true, want: "its clock was set 5s ago from 0s to -1m0s",
			life: func(n *node, _ *pod) { n.clock = clock{{at.Add(-5 * time.Second), -time.Minute}} },
		},
		{name: "absent, and ill right after its clock was set", absent: true, life: func(n *node, _ *pod) {
			n.clock, n.failing = clock{{at.Add(-10 * time.Second), time.Minute}}, at.Add(-9*time.Second)
		}},
		{name: "absent after many", absent: true, life: func(n *node, _ *pod) { n.failing = at.Add(-11 * time.Second) }},
		{name: "absent, and ill before it was steady", absent: true, life: func(n *node, p *pod) {
			p.steady, n.failing = at.Add(-25*time.Second), at.Add(-9*time.Second)
		}},
		{name: "absent, and ill right after a restart", absent: true, life: func(n *node, p *pod) {
			n.failing, p.restarted = at.Add(-9*time.Second), at.Add(-28*time.Second)
		}},
		{
			name: "absent after a restart", absent: true, want: "a container was restarted 5s ago",
			life: func(_ *node, p *pod) { p.restarted = at.Add(-5 * time.Second) },
		},
		{name: "no containers", answer: func(m *metricsv1beta1.PodMetrics) { m.Containers = nil }, want: "in part: 0 containers of 2"},
		{name: "a part", answer: func(m *metricsv1beta1.PodMetrics) { m.Containers = m.Containers[1:] }, want: "in part: 1 containers of 2"},
		{
			name: "a part, by an ill kubelet", answer: func(m *metricsv1beta1.PodMetrics) { m.Containers = m.Containers[1:] },
			life: func(n *node, _ *pod) { n.failing = at.Add(-time.Minute) }, want: "in part: 1 containers of 2",
		},
		{name: "another container", answer: func(m *metricsv1beta1.PodMetrics) { m.Containers[0].Name = "x" }, want: `"x" in the place of "app"`},
		{name: "no timestamp", answer: func(m *metricsv1beta1.PodMetrics) { m.Timestamp = metav1.Time{} }, want: "has no timestamp"},
		{name: "the epoch", answer: func(m *metricsv1beta1.PodMetrics) { m.Timestamp = metav1.Unix(0, 0) }, want: "has no timestamp"},
		{name: "old", answer: func(m *metricsv1beta1.PodMetrics) { m.Timestamp = metav1.NewTime(at.Add(-21 * time.Second)) }},
		{
			name: "too old", answer: func(m *metricsv1beta1.PodMetrics) { m.Timestamp = metav1.NewTime(at.Add(-22 * time.Second)) },
			want: "is too old: 22s",
		},
		{
			name: "ahead", answer: func(m *metricsv1beta1.PodMetrics) { m.Timestamp = metav1.NewTime(at.Add(time.Minute)) },
			want: "from ahead: 59.9s",
		},
		{name: "no window", answer: func(m *metricsv1beta1.PodMetrics) { m.Window.Duration = 0 }, want: "has no window: 0s"},
		{
			name: "wrong CPU", answer: func(m *metricsv1beta1.PodMetrics) { m.Containers[0].Usage["cpu"] = resource.MustParse("600m") },
			want: "its container app uses 0.600000 cores, and not 0.489999 to 0.510001",
		},
		{
			name: "wrong memory", answer: func(m *metricsv1beta1.PodMetrics) { m.Containers[1].Usage["memory"] = resource.MustParse("17Mi") },
			want: "its container istio-proxy holds 17825792 bytes",
		},
		{
			name: "wrong CPU after a restart that need not have been noticed", life: func(_ *node, p *pod) { p.doubt = at.Add(time.Second) },
			answer: func(m *metricsv1beta1.PodMetrics) { m.Containers[0].Usage["cpu"] = resource.MustParse("600m") },
		},
		{name: "too long a window", answer: func(m *metricsv1beta1.PodMetrics) { m.Window.Duration = 21 * time.Second }, want: "too long a window: 21s"},
		{name: "deleted just now", life: func(_ *node, p *pod) { p.ending, p.deleted = true, at.Add(-3*time.Second) }},
		{
			name: "deleted", life: func(_ *node, p *pod) { p.ending, p.deleted = true, at.Add(-5*time.Second) },
			want: "though it is gone: it was deleted 5s ago",
		},
		{name: "unknown", answer: func(m *metricsv1beta1.PodMetrics) { m.Name = "q" }, life: func(_ *node, p *pod) { p.ending = true }, want: "ns/q is served, though it never was"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, n, p := steadyLedger()
			if test.life != nil {
				test.life(n, p)
			}
			var list []metricsv1beta1.PodMetrics
			if !test.absent {
				list = append(list, served(at))
				if test.answer != nil {
					test.answer(&list[0])
				}
			}
			expectMistake(t, l.judgePods(list, exchange{at, at.Add(100 * time.Millisecond)}, true), test.want)
		})
	}
	t.Run("twice", func(t *testing.T) {
		l, _, _ := steadyLedger()
		expectMistake(t, l.judgePods([]metricsv1beta1.PodMetrics{served(at), served(at)}, exchange{at, at}, true), "in one answer twice")
	})
	t.Run("a part of all that there is", func(t *testing.T) {
		l, _, _ := steadyLedger()
		expectMistake(t, l.judgePods(nil, exchange{at, at}, false), "")
	})
	t.Run("it ends meanwhile", func(t *testing.T) {
		l, n, _ := steadyLedger()
		n.failing = at.Add(-9 * time.Second)
		expectMistake(t, l.judgePods(nil, exchange{at, at.Add(2 * time.Second)}, true), "")
	})
}

func TestJudgeNodes(t *testing.T) {
	at := t0.Add(time.Minute)
	m := metricsv1beta1.NodeMetrics{Timestamp: metav1.NewTime(at), Window: metav1.Duration{Duration: time.Second}}
	m.Name, m.Usage = "n", corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("8Gi")}
	l, n, _ := steadyLedger()
	e := exchange{at, at}
	expectMistake(t, l.judgeNodes([]metricsv1beta1.NodeMetrics{m}, e, true), "")
	expectMistake(t, l.judgeNodes(nil, e, true), "node n is not served")
	m.Usage["cpu"] = resource.MustParse("3")
	expectMistake(t, l.judgeNodes([]metricsv1beta1.NodeMetrics{m}, e, true), "node n is served with wrong usage: it uses 3.000000 cores")
	m.Usage["cpu"] = resource.MustParse("2")
	n.deleted, n.ending = t0, true
	expectMistake(t, l.judgeNodes([]metricsv1beta1.NodeMetrics{m}, e, true), "node n is served though it is gone: it was deleted 1m0s ago")
	m.Name = "m"
	expectMistake(t, l.judgeNodes([]metricsv1beta1.NodeMetrics{m}, e, true), "node m is served, though it never was")
}

func expectMistake(t *testing.T, wrong []mistake, want string) {
	t.Helper()
	if want == "" {
		if len(wrong) > 0 {
			t.Errorf("mistakes are found: %v", wrong)
		}
		return
	}
	if len(wrong) != 1 || !strings.Contains(wrong[0].String(), want) {
		t.Errorf("found %q, want one mistake: %s", wrong, want)
	}
}

func TestAilmentsAreFaults(t *testing.T) {
	for _, name := range []string{samplesOfYesterday, samplesOfTomorrow, samplesWithoutTime, responsesUndated, startsMoved, startsMove} {
		if !slices.ContainsFunc(kubelettest.Faults(), func(f kubelettest.NamedFault) bool { return f.Name == name }) {
			t.Errorf("there is no fault %q", name)
		}
	}
}

// TestClockSteps has the node's clock set a minute back (or ahead) 10 s ago, and a pod with a
// sample that is 5 s old.
func TestClockSteps(t *testing.T) {
	at := t0.Add(time.Minute)
	for _, test := range []struct {
		name  string
		ahead time.Duration
		shown time.Duration // the sample's time: after at
		cpu   string
		want  string
	}{
		{name: "a sample from after a step back", ahead: -time.Minute, shown: -65 * time.Second},
		{name: "a sample from after a step ahead", ahead: time.Minute, shown: 55 * time.Second},
		{name: "a sample from before a step ahead", ahead: time.Minute, shown: -15 * time.Second},
		{name: "either is possible", ahead: -5 * time.Second, shown: -12 * time.Second},
		{name: "a rate across a step", ahead: -5 * time.Second, shown: -10 * time.Second, cpu: "750m", want: "app uses 0.750000 cores"},
		{name: "1.5 times the load", ahead: -time.Minute, shown: -65 * time.Second, cpu: "750m", want: "app uses 0.750000 cores"},
		{name: "too old by the old clock, ahead by the new one", ahead: -time.Minute, shown: -30 * time.Second, want: "from ahead: 29.9s"},
		{name: "too old, though the clock is ahead", ahead: time.Hour, shown: -24 * time.Second, want: "too old: 24s"},
		{name: "never shown", ahead: time.Minute, shown: 30 * time.Second, want: "never showed"},
		{name: "shown neither before nor after", ahead: time.Hour, shown: 30 * time.Minute, want: "never showed"},
		{name: "a small step", ahead: time.Second, shown: -4 * time.Second, cpu: "450m"},
		{name: "a small step does not explain it", ahead: time.Second, shown: -4 * time.Second, cpu: "430m", want: "app uses 0.430000 cores"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, n, _ := steadyLedger()
			l.step(n, at.Add(-10*time.Second), test.ahead, func() {})
			m := served(at)
			m.Timestamp = metav1.NewTime(at.Add(test.shown))
			if test.cpu != "" {
				m.Containers[0].Usage["cpu"] = resource.MustParse(test.cpu)
			}
			expectMistake(t, l.judgePods([]metricsv1beta1.PodMetrics{m}, exchange{at, at.Add(100 * time.Millisecond)}, true), test.want)
		})
	}
}

// TestStepsInARow has a clock set twice within a short time, which may cost metrics, and a restart
// right after a step.
func TestStepsInARow(t *testing.T) {
	l, n, p := steadyLedger()
	l.step(n, t0.Add(time.Minute), time.Hour, func() {})
	if n.steady != t0 || p.steady != t0 {
		t.Error("one step ends that the node or its pod is steady")
	}
	l.restart(p, t0.Add(70*time.Second))
	if p.steady != t0.Add(70*time.Second) || n.steady != t0 {
		t.Error("a restart after a step does not end that the pod is steady, or it does so for its node")
	}
	l.step(n, t0.Add(79*time.Second), 0, func() {})
	if n.steady != t0.Add(79*time.Second) || p.steady != n.steady {
		t.Error("two steps do not end that the node and its pod are steady")
	}
	if got := n.clock.ahead(); got != 0 {
		t.Errorf("the clock is %s ahead, want 0", got)
	}
}

// TestLoads has a load that changed a minute ago.
func TestLoads(t *testing.T) {
	l, n, p := steadyLedger()
	changed := t0.Add(time.Minute)
	p.load[0] = append(p.load[0], change{changed, kubelettest.Usage{CPU: 1, Memory: 65 << 20}})
	for _, test := range []struct {
		at           time.Duration // after the change
		window       time.Duration
		lowest, most float64
	}{
		{-20 * time.Second, 10 * time.Second, 0.49, 0.51},
		{20 * time.Second, 10 * time.Second, 0.98, 1.02},
		{5 * time.Second, 10 * time.Second, 0.75 * 0.98, 1.02}, // the first half of the window is from before
	} {
		got := n.limits(p.load[0], changed.Add(test.at), test.window, l.latest)
		if math.Abs(got.lowest-test.lowest) > 1e-5 || math.Abs(got.highest-test.most) > 1e-5 {
			t.Errorf("%s after the change: %g to %g cores, want %g to %g", test.at, got.lowest, got.highest, test.lowest, test.most)
		}
	}
	// The mean over the gap of a node that was away for 20 s, as if its load were that now.
	at := changed.Add(6 * time.Second)
	m := served(at.Add(5 * time.Second))
	m.Window.Duration = 20 * time.Second
	m.Containers[0].Usage["cpu"], m.Containers[0].Usage["memory"] = resource.MustParse("650m"), resource.MustParse("65Mi")
	expectMistake(t, l.judgePods([]metricsv1beta1.PodMetrics{m}, exchange{at, at}, false), "")
	m.Window.Duration = 5 * time.Second
	expectMistake(t, l.judgePods([]metricsv1beta1.PodMetrics{m}, exchange{at, at}, false), "app uses 0.650000 cores")
}

func TestMovingStarts(t *testing.T) {
	l, n, p := steadyLedger()
	l.restart(p, t0.Add(time.Hour))
	if !p.doubt.IsZero() {
		t.Error("the usage of a pod after a restart is not judged")
	}
	l.lie(n, t0.Add(time.Hour+time.Second))
	if !p.doubt.After(t0.Add(time.Hour)) {
		t.Error("the usage of a pod is judged though its node sends a wrong start after the restart")
	}
	l, n, p = steadyLedger()
	l.lie(n, t0.Add(time.Hour))
	if !p.doubt.IsZero() {
		t.Error("the usage of a pod is not judged though its start has been long ago when it moves")
	}
}

func TestRestarts(t *testing.T) {
	l, _, p := steadyLedger()
	l.restart(p, t0.Add(time.Minute))
	if p.steady != t0 {
		t.Error("one restart ends that the pod is steady")
	}
	l.restart(p, t0.Add(70*time.Second))
	if p.steady != t0.Add(70*time.Second) {
		t.Error("two restarts do not")
	}
	l.restart(p, t0.Add(89*time.Second))
	if p.steady != t0.Add(89*time.Second) {
		t.Error("a restart of a pod that is not steady does not count")
	}
}

func TestBounds(t *testing.T) {
	want := bounds{maxAge: 30 * time.Second, settle: 20 * time.Second, hold: 20 * time.Second, gone: 4 * time.Second, latest: 8 * time.Second}
	if got := newBounds(5*time.Second, 3*time.Second); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFlags(t *testing.T) {
	executable := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(executable, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg, err := parse([]string{"--server", executable, "--minutes", "0.5", "--", "--v=2"})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.minutes != 0.5 || len(cfg.serverArgs) != 1 {
		t.Errorf("got %+v", cfg)
	}
	_, err = parse([]string{
		"--minutes", "0", "--nodes", "-1", "--pods", "0", "--churn", "0", "--margin", "0", "--memory", "0", "--metric-resolution", "1s", "--bin", t.TempDir(),
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"--server", "etcd", "kube-apiserver", "--minutes", "--nodes", "--pods", "--churn", "--margin", "--memory", "--metric-resolution",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the mistakes do not mention %s:\n%v", want, err)
		}
	}
}
