package engine

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// rounds are responses with samples of a container, and the usage that is served after each.
type rounds struct {
	name    string
	samples [][]float64 // seconds and core-seconds
	want    []string
}

// run puts the samples of each round, and of a number of other containers at the same times.
func (r *rounds) run(t *testing.T, others int) {
	t.Run(r.name, func(t *testing.T) {
		f := newFixture(t, "")
		for i, samples := range r.samples {
			f.put("app", "", samples...)
			f.putTogether(others, samples...)
			f.mustRefresh()
			f.wantPod(r.want[i])
		}
		if (f.nodes["n1"].stamped > 0) != (others > 0) {
			t.Errorf("the times are those of scrapes: %v", others == 0)
		}
		if counts := f.store.Counts(); counts.OlderSamples != 0 || others > 0 && counts.ClockJumps != 0 {
			t.Errorf("got %+v, want no older samples and no jumps", counts)
		}
	})
}

func TestRates(t *testing.T) {
	const year = 365 * 24 * 3600
	nan, inf := math.NaN(), math.Inf(1)
	for _, r := range []rounds{
		{"two samples give a rate at once", [][]float64{{-20, 100, -5, 103}}, []string{"app 200 15s"}},
		{"one sample gives none", [][]float64{{-5, 100}}, []string{""}},
		{"the next sample continues the last one", [][]float64{{-35, 100, -20, 103}, {-35, 100, -20, 103, -5, 109}},
			[]string{"app 200 15s", "app 400 15s"}},
		{"no new sample", [][]float64{{-35, 100, -20, 103}, {-35, 100, -20, 103}}, []string{"app 200 15s", "app 200 15s"}},
		{"the newest interval counts, not the whole range", [][]float64{{-80, 0, -65, 15, -50, 30, -35, 45, -20, 60, -5, 63}},
			[]string{"app 200 15s"}},
		{"samples of a short interval are combined", [][]float64{{-20, 10, -15, 11, -10, 12, -5, 14}},
			[]string{"app 300 10s"}},
		{"missed responses: the newest interval counts", [][]float64{{-80, 0, -65, 3}, {-50, 6, -35, 20, -20, 34, -5, 37}},
			[]string{"app 200 15s", "app 200 15s"}},
		{"restart, then two samples", [][]float64{{-50, 97, -35, 100}, {-50, 97, -35, 100, -20, 1, -5, 4}},
			[]string{"app 200 15s", "app 200 15s"}},
		{"restart, then one sample: the last rate stands", [][]float64{{-35, 97, -20, 100}, {-35, 97, -20, 100, -5, 1}},
			[]string{"app 200 15s", "app 200 15s"}},
		{"restart between two responses, hidden by a higher counter",
			[][]float64{{-80, 1, -65, 4}, {-50, 2, -35, 100, -20, 200, -5, 203}},
			[]string{"app 200 15s", "app 200 15s"}},
		{"a hidden restart with the newest sample", [][]float64{{-80, 1, -65, 4}, {-50, 500, -35, 600, -20, 3, -5, 300}},
			[]string{"app 200 15s", "app 19800 15s"}},
		{"a restart with the newest sample, above the last one",
			[][]float64{{-50, 1, -35, 4}, {-50, 1, -35, 4, -20, 500, -5, 300}, {-20, 500, -5, 300, -1, 302}},
			[]string{"app 200 15s", "app 200 15s", "app 500 4s"}},
		{"zero after more is unknown", [][]float64{{-65, 100, -50, 103}, {-65, 100, -50, 103, -35, 0}, {-35, 0, -20, 109}},
			[]string{"app 200 15s", "app 200 15s", "app 200 30s"}},
		{"zero after more in one response is unknown", [][]float64{{-50, 103, -35, 106, -20, 0, -5, 112}},
			[]string{"app 200 30s"}},
		{"zero is data", [][]float64{{-20, 0, -5, 0}}, []string{"app 0 15s"}},
		// No rate covers more than the maximum age of a sample.
		{"the engine was away for 2 minutes", [][]float64{{-125, 100}, {-5, 136}, {-5, 136, -1, 140}},
			[]string{"", "app 300 2m0s", "app 1000 4s"}},
		{"the engine was away for 3 minutes", [][]float64{{-185, 100}, {-5, 136}, {-5, 136, -1, 140}},
			[]string{"", "", "app 1000 4s"}},
		{"NaN, which marks the end of a series", [][]float64{{-35, 100, -20, 103, -5, nan}}, []string{"app 200 15s"}},
		{"infinite", [][]float64{{-35, 100, -20, inf, -5, 106}}, []string{"app 200 30s"}},
		{"negative", [][]float64{{-35, 100, -20, -103, -5, 106}}, []string{"app 200 30s"}},
		{"no valid one", [][]float64{{-20, nan, -5, inf}}, []string{""}},
		{"out of order", [][]float64{{-35, 100, -5, 106, -20, 103}}, []string{"app 200 30s"}},
		{"the same time twice", [][]float64{{-20, 100, -5, 103, -5, 900}}, []string{"app 200 15s"}},
		{"one in the future, then right ones",
			[][]float64{{-35, 100, -20, 103}, {-35, 100, -20, 103, year, 109}, {-20, 103, -5, 106}, {-5, 106, -1, 107}},
			[]string{"app 200 15s", "app 200 15s", "app 200 15s", "app 250 4s"}},
	} {
		r.run(t, 0)
	}
}

// TestFallWithoutRestart has a counter that falls once, while the start time shows whether the container was restarted.
func TestFallWithoutRestart(t *testing.T) { // rules 4, 6
	const up = "app 200 15s"
	for _, tc := range []struct {
		others  int // with the same times, so that these are those of scrapes
		started float64
		rounds
	}{
		{0, -3600, rounds{"the newest sample", [][]float64{{-50, 1000, -35, 1003}, {-50, 1000, -35, 1003, -20, 940},
			{-35, 1003, -20, 940, -5, 1009}, {-20, 940, -5, 1009, 10, 1012}}, []string{up, up, "app 200 30s", up}}},
		{0, -3600, rounds{"not the newest sample", [][]float64{{-50, 1000, -35, 1003}, {-35, 1003, -20, 940, -5, 1009},
			{-20, 940, -5, 1009, 10, 1012}}, []string{up, "app 200 30s", up}}},
		{0, -36, rounds{"it started just before", [][]float64{{-35, 1003}, {-35, 1003, -20, 940, -5, 1009}},
			[]string{"", "app 200 30s"}}},
		{0, -34, rounds{"a restart", [][]float64{{-50, 1000, -35, 1003}, {-35, 1003, -20, 940, -5, 943}}, []string{up, up}}},
		{0, -3600, rounds{"it stays low", [][]float64{{-50, 1000, -35, 1003}, {-35, 1003, 100, 940},
			{100, 940, 115, 943}, {115, 943, 130, 946}, {130, 946, 145, 949}}, []string{up, up, up, up, up}}},
		{3, -3600, rounds{"times of scrapes", [][]float64{{-95, 991, -65, 997, -35, 1003}, {-65, 997, -35, 1003, -20, 940},
			{-65, 997, -35, 1003, -20, 940, -5, 1009}, {-35, 1003, -20, 940, -5, 1009, 10, 1012},
			{-35, 1003, -20, 940, -5, 1009, 10, 1012, 25, 1015}},
			[]string{"app 200 1m0s", "app 200 1m0s", "app 200 30s", "app 200 30s", "app 200 30s"}}},
		{3, -60, rounds{"times of scrapes, it may have been restarted", [][]float64{{-95, 991, -65, 997, -35, 1003},
			{-65, 997, -35, 1003, -20, 940, 10, 946}}, []string{"app 200 1m0s", "app 200 30s"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, "")
			f.putStart("app", tc.started)
			for i, samples := range tc.samples {
				f.put("app", "", samples...)
				f.putTogether(tc.others, samples...)
				f.mustRefresh()
				f.wantPod(tc.want[i])
			}
		})
	}
}

// TestSlowEngineScrapes has an engine that scrapes once in a minute, and a shorter interval. The
// rate covers the minute, and stands in the refreshes without a new sample.
func TestSlowEngineScrapes(t *testing.T) {
	f := newFixture(t, "")
	f.Interval = 5 * time.Second
	f.put("app", "", -125, 100, -65, 112)
	for range 3 {
		f.mustRefresh()
		f.wantPod("app 200 1m0s")
	}
	f.put("app", "", -65, 112, -5, 136)
	for range 3 {
		f.mustRefresh()
		f.wantPod("app 400 1m0s")
	}
}

// TestPodMoves has series of a pod of a StatefulSet on two nodes. Only those of the node that it
// is bound count, and those of the other node are not kept.
func TestPodMoves(t *testing.T) {
	f := newFixture(t, "")
	f.Set(newNode("n2", "10.0.0.2"))
	f.put("app", "", -35, 100, -20, 103)
	f.mustRefresh()
	bound := "n2"
	f.State = func(node, _, _, _ string) usage.ContainerState {
		return usage.ContainerState{Accepted: node == bound, Running: true}
	}
	f.putCPU("container", `{container="app",namespace="ns",node="n2",pod="web"}`, f.samples(-18, 1, -3, 7)...)
	f.putCPU("node", `{node="n1"}`, f.samples(-19, 1, -4, 2)...) // scraped again
	f.mustRefresh()
	moved := f.store.Pod("n2", "ns", "web", f.clock.At(time.Now()))
	if moved == nil || moved.Containers[0].CPUNanocores != 400e6 {
		t.Errorf("got %+v on the new node, want 400m", moved)
	}
	if n := len(f.nodes["n1"].containers); n != 0 {
		t.Errorf("keeps %d containers on the old node", n)
	}
}

func TestReplicas(t *testing.T) {
	const a, b = `,replica="a"`, `,replica="b"`
	f := newFixture(t, "")
	// Both replicas stamp the same counter, b 4 s later.
	f.put("app", a, -50, 100, -35, 103)
	f.put("app", b, -46, 100, -31, 103)
	f.mustRefresh()
	f.wantPod("app 200 15s")
	n := f.nodes["n1"]
	chosen := n.all[1].hash
	for range 3 { // b was chosen, as it had the newest sample; a has newer samples now
		f.put("app", a, -35, 103, -20, 106)
		f.mustRefresh()
		f.wantPod("app 200 15s")
		if n.all[1].hash != chosen {
			t.Error("switched to the other replica after one sample")
		}
	}
	f.put("app", a, -35, 103, -20, 106, -5, 112) // b has missed a scrape
	f.mustRefresh()
	f.wantPod("app 400 15s")
	if n.all[1].hash == chosen {
		t.Error("did not switch to the replica that still has samples")
	}
	f.put("app", b, -31, 103, -1, 112) // b is back
	f.mustRefresh()
	f.wantPod("app 400 15s")
}

// TestSeriesOfOneCPU has series of single CPUs, as a standalone cAdvisor may write them, without and with the total.
func TestSeriesOfOneCPU(t *testing.T) {
	f := newFixture(t, "preset: cadvisor")
	const image = `,image="i",name="a"`
	put := func(cpu string, pairs ...float64) {
		labels := containerLabels("web/app", image+`,cpu="`+cpu+`"`)
		f.putSeries("container_cpu_usage_seconds_total"+labels, f.samples(pairs...)...)
	}
	for i := range 4 {
		put(fmt.Sprintf("cpu%02d", i), -20, 1, -5, 4)
	}
	f.putSeries("container_memory_working_set_bytes"+containerLabels("web/app", image), f.samples(-5, 7)...)
	if result := f.mustRefresh(); result.Skipped[usage.Duplicate] != 4 {
		t.Errorf("skipped %v, want 4 duplicates", result.Skipped)
	}
	f.wantPod("")
	put("total", -20, 4, -5, 16)
	f.mustRefresh()
	f.wantPod("app 800 15s")
}

func TestContainersEnd(t *testing.T) {
	f := newFixture(t, "")
	f.put("app", "", -50, 1, -35, 4)
	f.put("side", "", -50, 1, -35, 4)
	f.mustRefresh()
	f.wantPod("app 200 15s, side 200 15s")

	f.put("app", "", -35, 4, -18, 4) // side has no newer sample, but runs
	f.mustRefresh()
	f.wantPod("app 0 17s, side 200 15s")

	f.ended["side"] = true
	f.put("app", "", -35, 4, -18, 4, -3, 7)
	f.mustRefresh()
	f.wantPod("app 200 15s")
	if n := f.nodes["n1"]; len(n.all) != 2 || len(n.containers) != 1 {
		t.Errorf("got %d, %d containers, want 1: the one that ended is kept", len(n.all)-1, len(n.containers))
	}
}

// TestTypeLabels checks that the memory of a container is that of the series whose CPU is used, with the labels that
// Prometheus adds with its feature type-and-unit-labels.
func TestTypeLabels(t *testing.T) {
	const dead, alive = `,id="/a",image="i",name="a"`, `,id="/b",image="i",name="b"`
	f := newFixture(t, "preset: cadvisor")
	put := func(metric, series, kind string, pairs ...float64) {
		labels := containerLabels("web/app", series+`,__type__="`+kind+`",__unit__="`+kind+`"`)
		f.putSeries(metric+labels, f.samples(pairs...)...)
	}
	const cpu, memory = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"
	put(cpu, dead, "counter", -65, 100, -50, 103)
	put(cpu, alive, "counter", -20, 1, -5, 4)
	put(memory, dead, "gauge", -50, 900)
	put(memory, alive, "gauge", -5, 7)
	f.mustRefresh()
	f.wantPod("app 200 15s")
	if p := f.podUsage(); p == nil || p.Containers[0].Memory != 7 {
		t.Errorf("got %+v, want the memory of the container that runs, 7", p)
	}
}

// TestInitContainerEnds checks that the last sample of an init container is not added to the first one of the
// containers that follow it.
func TestInitContainerEnds(t *testing.T) {
	f := newFixture(t, "")
	f.put("setup", "", -35, 100, -20, 115)
	f.mustRefresh()
	f.wantPod("setup 1000 15s")

	f.ended["setup"] = true
	f.put("app", "", -5, 3)
	f.putStart("app", -17)
	f.mustRefresh()
	f.wantPod("app 250 12s")
}

func TestEngineLosesRunningContainer(t *testing.T) {
	f := newFixture(t, "")
	f.put("app", "", -50, 1, -35, 4)
	f.put("side", "", -50, 1, -35, 4)
	f.mustRefresh()
	f.set(func() { clear(f.series) })
	f.put("app", "", -35, 4, -18, 4)
	f.mustRefresh()
	f.wantPod("app 0 17s, side 200 15s") // stands until it expires
}

// TestLongNames limits the memory for names of containers that the API server does not know.
func TestLongNames(t *testing.T) {
	f := newFixture(t, "")
	longest := strings.Repeat("x", usage.MaxNameBytes)
	f.put(longest, "", -20, 1, -5, 4)
	f.put(longest+"x", "", -20, 1, -5, 4)
	if result := f.mustRefresh(); result.Skipped[usage.OverLimit] != 2 { // CPU and memory
		t.Errorf("skipped %v, want 2 series over the limit", result.Skipped)
	}
	f.wantPod(longest + " 200 15s")
}

// TestNamesForTerminals has a name of a container that would control the terminals of those who read it.
func TestNamesForTerminals(t *testing.T) {
	f := newFixture(t, "")
	f.put("app", "", -20, 1, -5, 4)
	f.putCPU("container", "{container=\"\x1b[2J\",namespace=\"ns\",node=\"n1\",pod=\"web\"}", f.samples(-20, 1, -5, 4)...)
	if result := f.mustRefresh(); result.Skipped[usage.Malformed] != 2 { // CPU and memory
		t.Errorf("skipped %v, want 2 malformed series", result.Skipped)
	}
	f.wantPod("app 200 15s")
}

func TestDeletedPodIsNotServedAgain(t *testing.T) { // rule 9
	f := newFixture(t, "")
	f.put("app", "", -35, 100, -20, 103)
	f.mustRefresh()
	f.store.RemovePod("n1", "ns", "web", f.clock.At(time.Now()))
	// A pod of the same name exists, but the engine has only samples of its predecessor.
	f.put("app", "", -35, 100, -20, 103, -5, 106)
	f.mustRefresh()
	f.wantPod("")
}

func TestNodes(t *testing.T) {
	for name, value := range map[string]string{"node": "n1", "instance": "10.0.0.1:10250"} {
		f := newFixture(t, "")
		f.putCPU("node", `{`+name+`="`+value+`"}`, f.samples(-20, 1000, -5, 1030)...)
		f.putCPU("node", `{`+name+`="foreign"}`, f.samples(-20, 1, -5, 2)...)
		result := f.mustRefresh()
		node := f.store.Node("n1", f.clock.At(time.Now()))
		if node == nil || node.CPUNanocores != 2e9 || node.Memory != 5 || node.At != f.at(-5) {
			t.Errorf("%s: got %+v", name, node)
		}
		if result.Missing != 0 || result.Engine.Series["nodeCPU"] != 1 {
			t.Errorf("%s: got %+v", name, result)
		}
	}
}

func TestDeletedNode(t *testing.T) {
	f := newFixture(t, "")
	f.put("app", "", -20, 1, -5, 4)
	f.mustRefresh()
	f.Delete("n1")
	f.wantPod("")
	f.put("app", "", -20, 1, -5, 4, -1, 5)
	f.mustRefresh()
	f.wantPod("")
}

// TestNewContainers serves the mean since the start of a container only if an earlier refresh did
// not have it.
func TestNewContainers(t *testing.T) { // rule 4
	for known, want := range map[bool]string{false: "", true: "app 200 15s, new 150 20s"} {
		f := newFixture(t, "")
		if known { // else the pod is incomplete
			f.put("app", "", -50, 1, -35, 4)
			f.mustRefresh()
		}
		f.put("app", "", -35, 4, -20, 7, -5, 10)
		f.put("new", "", -5, 3)
		f.putStart("new", -25)
		f.mustRefresh()
		f.wantPod(want)
	}
}

// TestStartsOfSimulatedKubelets has a start time that is the seconds since the pod's start, as kwok reports it.
func TestStartsOfSimulatedKubelets(t *testing.T) {
	f := newFixture(t, "")
	f.store = store.New(store.Config{MaxSampleAge: maxAge, MaxContainers: 100,
		State: func(_, _, _, _ string) usage.ContainerState {
			return usage.ContainerState{Running: true, EarliestStart: f.at(-120), PodCreatedAt: usage.Time(f.at(-121))}
		}})
	f.Sink = f.store
	f.put("app", "", -20, 100, -5, 103)
	f.putSeries("container_start_time_seconds"+containerLabels("web/app", ""), point{At: f.start, Value: 120})
	f.mustRefresh()
	f.wantPod("app 200 15s")
}

// TestCadvisorRestart restarts a container: cAdvisor reports it as another series, whose counter may
// be above the previous one.
func TestCadvisorRestart(t *testing.T) {
	const first, second = `,id="/a",image="i",name="a"`, `,id="/b",image="i",name="b"`
	f := newFixture(t, "preset: cadvisor")
	f.put("app", first, -80, 1, -65, 4)
	f.mustRefresh()
	f.wantPod("app 200 15s")
	f.put("app", second, -50, 9)
	f.mustRefresh()
	f.wantPod("app 200 15s") // one sample has no rate; 5 s in 15 s would be wrong
	f.put("app", second, -50, 9, -35, 15)
	f.mustRefresh()
	f.wantPod("app 400 15s")
	if counts := f.store.Counts(); counts.OlderSamples != 0 || counts.ClockJumps != 0 {
		t.Errorf("got %+v, want no older samples and no jumps", counts)
	}
}

// TestClockAhead checks that the samples of a node whose clock is ahead are not delayed by as much,
// and that none is read twice as old as the range.
func TestClockAhead(t *testing.T) {
	f := newFixture(t, "")
	f.set(func() { f.byTime = true })
	f.put("app", "", 225, 10, 240, 13)
	f.mustRefresh()
	f.wantPod("app 200 15s")
	f.put("app", "", 240, 13, 255, 16)
	f.mustRefresh()
	f.wantPod("app 200 15s")
	if p := f.podUsage(); p == nil || p.At != f.at(255) {
		t.Errorf("got %+v, want the sample that is 255 s ahead", p)
	}
}

// TestOldSamplesOfFastClocks has samples that are in the range only because the node's clock is
// ahead. By that clock, they are older than the range: they may be of an earlier pod with the name.
func TestOldSamplesOfFastClocks(t *testing.T) {
	f := newFixture(t, "")
	f.put("app", "", 225, 100, 240, 103)
	f.put("side", "", 100, 100, 115, 103)
	f.mustRefresh()
	f.wantPod("")
	f.put("side", "", 100, 100, 115, 103, 225, 10, 240, 13)
	f.put("app", "", 225, 100, 240, 103, 255, 106)
	f.mustRefresh()
	f.wantPod("app 200 15s, side 200 15s")
}

// TestDuplicateSeries has every series twice, as a faulty engine might.
func TestDuplicateSeries(t *testing.T) {
	f := newFixture(t, "")
	f.put("app", "", -20, 100, -5, 103)
	f.duplicate = true
	f.mustRefresh()
	f.wantPod("app 200 15s")
}
