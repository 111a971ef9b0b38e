package prometheus

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// putCPU sets the samples of one mode of one CPU, as node-exporter has them.
func (f *fixture) putCPU(cpu int, mode string, pairs ...float64) {
	f.set(func() {
		f.series[fmt.Sprintf(`node_cpu_seconds_total{cpu="%d",instance="10.0.0.1:9100",job="node-exporter",mode="%s"}`,
			cpu, mode)] = f.samples(pairs...)
	})
}

// node returns the millicores and the window of the node, such as "250 15s", or "".
func (f *fixture) node() string {
	n := f.store.Node("n1", f.clock.At(time.Now()))
	if n == nil {
		return ""
	}
	return fmt.Sprint(n.CPUNanocores/1e6, " ", n.Window)
}

func newNodeExporterFixture(t *testing.T) *fixture {
	f := newFixture(t, "nodes: node-exporter")
	f.set(func() {
		for metric, value := range map[string]float64{
			"MemTotal": 1000, "MemAvailable": 400, "SwapTotal": 50, "SwapFree": 20,
		} {
			f.series["node_memory_"+metric+`_bytes{instance="10.0.0.1:9100",job="node-exporter"}`] = f.samples(-5, value)
		}
	})
	return f
}

func TestNodeExporter(t *testing.T) {
	f := newNodeExporterFixture(t)
	f.putCPU(0, "user", -20, 1000, -5, 1003)
	f.putCPU(0, "idle", -20, 5000, -5, 5010)
	f.putCPU(0, "iowait", -20, 70, -5, 72)
	f.putCPU(1, "user", -20, 2000, -5, 2006)
	f.putCPU(1, "system", -20, 30, -5, 36)
	f.putCPU(1, "steal", -20, 0, -5, 0)
	f.set(func() { // of a machine that is not a node of the cluster
		f.series[`node_cpu_seconds_total{cpu="0",instance="10.9.9.9:9100",mode="user"}`] = f.samples(-20, 1, -5, 2)
	})
	result := f.mustRefresh()
	n := f.store.Node("n1", f.clock.At(time.Now()))
	if n == nil || n.CPUNanocores != 1e9 || n.Memory != 600 || n.Swap != 30 || n.Window != 15*time.Second {
		t.Errorf("got %+v, want 1 core, memory 600, swap 30, 15 s", n)
	}
	if result.Nodes != 1 || result.Series["nodeCPU"] != 4 {
		t.Errorf("got %+v, want 1 node with 4 series", result)
	}
}

// TestSums adds the counters of two CPUs, and changes what the engine has of them.
func TestSums(t *testing.T) {
	type round [2][]float64 // the samples of each CPU
	for _, tc := range []struct {
		name   string
		rounds []round
		want   []string
	}{
		{"steady", []round{{{-35, 100, -20, 103}, {-35, 500, -20, 503}}, {{-20, 103, -5, 109}, {-20, 503, -5, 509}}},
			[]string{"400 15s", "800 15s"}},
		{"one CPU was reset: no rate across that", []round{
			{{-65, 100, -50, 103}, {-65, 500, -50, 503}},
			{{-65, 100, -50, 103, -35, 106}, {-65, 500, -50, 503, -35, 2}},
			{{-50, 103, -35, 106, -20, 109}, {-50, 503, -35, 2, -20, 5}},
		}, []string{"400 15s", "400 15s", "400 15s"}},
		{"one CPU was reset, hidden by the other", []round{
			{{-65, 100, -50, 103}, {-65, 5, -50, 8}},
			{{-50, 103, -35, 118}, {-50, 8, -35, 1}},
		}, []string{"400 15s", "400 15s"}},
		{"all were reset: the node has booted", []round{
			{{-80, 100, -65, 103}, {-80, 500, -65, 503}},
			{{-80, 100, -65, 103, -20, 30, -5, 33}, {-80, 500, -65, 503, -20, 40, -5, 46}},
		}, []string{"400 15s", "600 15s"}},
		{"a CPU was added, with the counter of its last time", []round{
			{{-50, 100, -35, 103}, nil},
			{{-50, 100, -35, 103, -20, 106}, {-20, 9000}},
			{{-35, 103, -20, 106, -5, 109}, {-20, 9000, -5, 9006}},
		}, []string{"200 15s", "200 15s", "600 15s"}},
		{"a CPU was removed", []round{
			{{-50, 100, -35, 103}, {-50, 9000, -35, 9003}},
			{{-50, 100, -35, 103, -20, 106}, {-50, 9000, -35, 9003}},
			{{-50, 100, -35, 103, -20, 106, -5, 109}, {-50, 9000, -35, 9003}},
		}, []string{"400 15s", "400 15s", "200 15s"}},
		{"a CPU was added while the engine had no samples", []round{
			{{-95, 100, -80, 103}, nil},
			{{-5, 118}, {-5, 9000}},
		}, []string{"200 15s", "200 15s"}},
		{"the engine has stored a scrape in part", []round{
			{{-50, 100, -35, 103}, {-50, 500, -35, 503}},
			{{-50, 100, -35, 103, -20, 106}, {-50, 500, -35, 503}},
			{{-50, 100, -35, 103, -20, 106}, {-50, 500, -35, 503, -20, 509}},
		}, []string{"400 15s", "400 15s", "600 15s"}},
		{"a part of the only sample, then all of it", []round{
			{{-35, 100}, nil},
			{{-35, 100, -20, 103}, {-35, 500, -20, 503}},
			{{-20, 103, -5, 106}, {-20, 503, -5, 506}},
		}, []string{"", "400 15s", "400 15s"}},
		{"never two samples of the same CPUs", []round{{{-20, 100}, {-5, 500}}, {{-20, 100}, {-5, 500}}}, []string{"", ""}},
		{"a sample in the middle is missing", []round{
			{{-50, 100, -35, 103, -20, 106}, {-50, 500, -20, 506}},
			{{-35, 103, -20, 106, -5, 109}, {-20, 506, -5, 509}},
		}, []string{"", "400 15s"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newNodeExporterFixture(t)
			for i, round := range tc.rounds {
				for cpu, samples := range round {
					if samples != nil {
						f.putCPU(cpu, "user", samples...)
					}
				}
				f.mustRefresh()
				if got := f.node(); got != tc.want[i] {
					t.Errorf("refresh %d: got %q, want %q", i, got, tc.want[i])
				}
			}
		})
	}
}

// TestSumsOfReplicas has two scrapers of one node-exporter. Their samples must not be added.
func TestSumsOfReplicas(t *testing.T) {
	f := newNodeExporterFixture(t)
	f.set(func() {
		for i, replica := range []string{"a", "b"} {
			shift := float64(i)
			for cpu := range 2 {
				f.series[fmt.Sprintf(`node_cpu_seconds_total{cpu="%d",instance="10.0.0.1:9100",mode="user",replica="%s"}`, cpu,
					replica)] = f.samples(-21+shift, 100, -6+shift, 103)
			}
			for metric, value := range map[string]float64{"MemTotal": 1000, "MemAvailable": 400} {
				f.series["node_memory_"+metric+`_bytes{instance="10.0.0.1:9100",replica="`+replica+`"}`] = f.samples(-5, value)
			}
		}
	})
	f.mustRefresh()
	if got := f.node(); got != "400 15s" {
		t.Errorf("got %q, want 400 15s", got)
	}
}

// TestHostileSums limits what an engine can make kube-vitals keep of one node.
func TestHostileSums(t *testing.T) {
	f := newNodeExporterFixture(t)
	f.set(func() {
		for job := range 2 * maxSums {
			f.series[`node_cpu_seconds_total{cpu="0",instance="10.0.0.1:9100",job="`+strconv.Itoa(job)+`",mode="user"}`] =
				f.samples(-20, 100, -5, 103)
		}
		for cpu := range 20 { // each with other times
			var samples []float64
			for i := range maxSumPoints / 10 {
				samples = append(samples, -100+float64(i)/2+float64(cpu)/100, 1)
			}
			f.series[`node_cpu_seconds_total{cpu="`+strconv.Itoa(cpu)+`",instance="10.0.0.1:9100",job="0",mode="x"}`] =
				f.samples(samples...)
		}
	})
	if result := f.mustRefresh(); result.Skipped[usage.OverLimit] < maxSums {
		t.Errorf("skipped %v, want at least %d because of the limits", result.Skipped, maxSums)
	}
	if n := f.nodes["n1"]; n.sums != nil {
		t.Errorf("keeps %d sums after the refresh", len(n.sums))
	}
}

// TestSumOfManySeries limits the series of one sum, which are told apart by a map.
func TestSumOfManySeries(t *testing.T) {
	f := newNodeExporterFixture(t)
	n, result := f.nodes["n1"], &Result{}
	for cpu := range maxSumMembers + 10 {
		series := &series{points: f.samples(-5, 1)}
		series.labels = []label{{series.add([]byte("cpu")), series.add([]byte(strconv.Itoa(cpu)))}}
		f.addToSum(n, series, result)
	}
	if got := len(n.sums[0].members); got != maxSumMembers || result.Skipped[usage.OverLimit] != 10 {
		t.Errorf("keeps %d series and skipped %v, want %d and 10", got, result.Skipped, maxSumMembers)
	}
}

// TestDuplicateSeries has every series twice, as a faulty engine might.
func TestDuplicateSeries(t *testing.T) {
	f := newNodeExporterFixture(t)
	f.putCPU(0, "user", -20, 100, -5, 103)
	f.put("app", "", -20, 100, -5, 103)
	f.duplicate = true
	result := f.mustRefresh()
	f.wantPod("app 200 15s")
	if got := f.node(); got != "200 15s" || result.Skipped[usage.Duplicate] != 1 {
		t.Errorf("got %q, skipped %v, want 200 15s and 1 duplicate", got, result.Skipped)
	}
}
