package prometheus

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// load is a container whose kubelet reads its counter every 10 to 20 s.
type load struct {
	cores   func(second int) float64
	counter float64
	reading point
	next    int // the second of the next reading
	stored  []point
}

// loads returns containers with all kinds of load, by name.
func loads() map[string]*load {
	constant := func(cores float64) func(int) float64 { return func(int) float64 { return cores } }
	return map[string]*load{
		"busy":   {cores: constant(0.27)},
		"idle":   {cores: constant(0)},
		"steps":  {cores: func(second int) float64 { return 0.1 + 0.8*float64(second/stepAfter%2) }},
		"bursts": {cores: func(second int) float64 { return max(0, float64(2-second%40)) }}, // mean: 75m
	}
}

const stepAfter = 300 // seconds

// runLoads runs containers for an hour, with a scrape in each interval, and calls check after each
// refresh with the number of seconds and the pod.
func runLoads(t *testing.T, seed uint64, interval int, honor bool, check func(w *world, second int, p *usage.Pod)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed)
		all := loads()
		for second := range 3600 {
			time.Sleep(time.Second)
			now := usage.At(time.Now())
			for _, name := range []string{"busy", "idle", "steps", "bursts"} {
				l := all[name]
				l.counter += l.cores(second)
				if second >= l.next {
					l.reading = point{At: now.Add(time.Duration(w.IntN(500)) * time.Millisecond), Value: l.counter}
					l.next = second + 10 + w.IntN(11)
				}
				if second%interval != 0 {
					continue
				}
				p := l.reading
				if !honor {
					p.At = now
				}
				if p.At != last(l.stored).At {
					l.stored = append(l.stored, p)
				}
			}
			if second%15 != 7 || second < 120 {
				continue
			}
			w.set(func() {
				for name, l := range all {
					labels := fmt.Sprintf(`{container="%s",namespace="ns",node="n1",pod="web"}`, name)
					w.series["container_cpu_usage_seconds_total"+labels] = l.stored
					w.series["container_memory_working_set_bytes"+labels] = []point{{At: last(l.stored).At, Value: 7}}
				}
			})
			if err := w.refresh(context.Background()).Err; err != nil {
				t.Fatal(err)
			}
			p := w.store.Pod("n1", "ns", "web", w.clock.At(time.Now()))
			if p == nil {
				t.Fatalf("no metrics after %d s", second)
			}
			check(w, second, p)
		}
	})
}

// TestTimesOfScrapes compares the rates of an engine that ignores the kubelets' timestamps with the
// load. docs/prometheus.md has the results.
func TestTimesOfScrapes(t *testing.T) {
	for _, interval := range []int{15, 30} {
		var n, sum, squares, bursts float64
		lowest, highest := math.Inf(1), 0.0
		var delays []int // of steps, in seconds
		for seed := range uint64(4) {
			arrived := true
			runLoads(t, seed, interval, false, func(_ *world, second int, p *usage.Pod) {
				if p.Window != time.Minute {
					t.Errorf("got a window of %v, want 1m", p.Window)
				}
				cores := map[string]float64{}
				for _, c := range p.Containers {
					cores[c.Name] = float64(c.CPUNanocores) / 1e9
				}
				n++
				sum, squares = sum+cores["busy"], squares+cores["busy"]*cores["busy"]
				lowest, highest = min(lowest, cores["busy"]), max(highest, cores["busy"])
				bursts += cores["bursts"]
				if cores["idle"] != 0 {
					t.Errorf("an idle container uses %v", cores["idle"])
				}
				isHigh := second/stepAfter%2 == 1
				if !isHigh {
					arrived = false
				} else if !arrived && cores["steps"] >= 0.9*0.9 {
					arrived, delays = true, append(delays, second%stepAfter)
				}
			})
		}
		mean := sum / n
		deviation := math.Sqrt(squares/n - mean*mean)
		slices.Sort(delays)
		slowest := delays[len(delays)-1]
		t.Logf("every %d s: mean %.3f, deviation %.3f, from %.3f to %.3f, bursts %.4f, steps after %d s, at most %d s",
			interval, mean, deviation, lowest, highest, bursts/n, delays[len(delays)/2], slowest)
		if math.Abs(mean-0.27) > 0.003 || math.Abs(bursts/n-0.075) > 0.0015 {
			t.Errorf("got means of %v and %v, want 0.27 and 0.075", mean, bursts/n)
		}
		if lowest < 0.27*0.65 || highest > 0.27*1.35 || deviation > 0.036 {
			t.Errorf("got %v to %v ± %v, want 0.27 with an error of at most 35 %%", lowest, highest, deviation)
		}
		if slowest > 60+20+interval+2*15 { // window, kubelet, scrape, refresh
			t.Errorf("a step has arrived after %d s", slowest)
		}
	}
}

// TestHonoredTimes checks that times of kubelets are never taken for those of scrapes.
func TestHonoredTimes(t *testing.T) {
	for seed := range uint64(5) {
		runLoads(t, seed, 15, true, func(w *world, second int, p *usage.Pod) {
			if n := w.nodes["n1"]; n.stamped > 0 || n.all[1].ifStamped != nil || p.Window > 35*time.Second {
				t.Errorf("seed %d, after %d s: got %+v, a window of %v", seed, second, n.stamped, p.Window)
			}
		})
	}
}

// TestRatesOfScrapes has other containers that are scraped at the same times.
func TestRatesOfScrapes(t *testing.T) {
	const up = "app 200 1m0s"
	for _, r := range []rounds{
		{"a minute", [][]float64{{-80, 0, -65, 3, -50, 6, -35, 9, -20, 12, -5, 15}}, []string{up}},
		{"two samples may have one reading", [][]float64{{-20, 100, -5, 100}, {-20, 100, -5, 100, 10, 106}},
			[]string{"", "app 200 30s"}},
		{"two samples with a long interval", [][]float64{{-35, 100, -5, 106}}, []string{"app 200 30s"}},
		{"the next sample", [][]float64{{-80, 0, -65, 3, -50, 6, -35, 9, -20, 12}, {-65, 3, -50, 6, -35, 9, -20, 12, -5, 12}},
			[]string{up, "app 150 1m0s"}},
		{"no new sample", [][]float64{{-65, 3, -35, 9, -5, 15}, {-65, 3, -35, 9, -5, 15}}, []string{up, up}},
		{"restart", [][]float64{
			{-95, 0, -65, 6, -35, 12}, {-95, 0, -65, 6, -35, 12, -20, 1}, {-65, 6, -35, 12, -20, 1, -5, 1},
			{-65, 6, -35, 12, -20, 1, -5, 1, 10, 13},
		}, []string{up, up, up, "app 400 30s"}},
		{"restart between two responses", [][]float64{{-95, 0, -65, 6, -35, 12}, {-20, 1, -5, 4, 10, 7}},
			[]string{up, "app 200 30s"}},
		{"engine was away: the last sample counts", [][]float64{{-95, 0, -65, 6, -35, 12}, {10, 21}},
			[]string{up, "app 200 45s"}},
		{"zero is data", [][]float64{{-65, 3, -35, 3, -5, 3}}, []string{"app 0 1m0s"}},
	} {
		r.run(t, 3)
	}
}

// putTogether sets samples of other containers with given times.
func (f *fixture) putTogether(containers int, samples ...float64) {
	f.set(func() {
		for i := range containers {
			labels := fmt.Sprintf(`{container="c%d",namespace="ns",node="n1",pod="other"}`, i)
			f.series["container_cpu_usage_seconds_total"+labels] = f.samples(samples...)
		}
	})
}

// TestNewContainerOfScrapes serves the mean since the start, until there are samples 30 s apart.
func TestNewContainerOfScrapes(t *testing.T) {
	f := newFixture(t, "")
	f.put("app", "", -80, 0, -65, 3, -50, 6, -35, 9, -20, 12)
	f.putTogether(3, -35, 1, -20, 1)
	f.mustRefresh()
	f.set(func() {
		f.series[`container_start_time_seconds{container="new",namespace="ns",node="n1",pod="web"}`] =
			[]point{{At: f.start, Value: float64(f.start.Add(-25*time.Second)) / 1e9}}
	})
	f.putTogether(3, -20, 1, -5, 1)
	for i, want := range []string{"new 150 20s", "new 150 20s", "new 100 30s"} {
		seconds := float64(15*i - 5)
		f.put("app", "", -65+15*float64(i), 3, seconds, 15)
		f.put("new", "", []float64{-5, 3, 10, 3, 25, 6}[:2*i+2]...)
		f.mustRefresh()
		f.wantPod("app 200 1m0s, " + want)
	}
}

// TestRecognition decides whether times are those of scrapes, in responses that are not clear.
func TestRecognition(t *testing.T) {
	f := newFixture(t, "")
	want := func(name string, want bool) {
		t.Helper()
		f.mustRefresh()
		if (f.nodes["n1"].stamped > 0) != want {
			t.Errorf("%s: got %v, want %v", name, !want, want)
		}
	}
	f.putTogether(2, -20, 1, -5, 2)
	want("two containers are too few", false)
	f.putTogether(3, -5, 2)
	want("one sample of each is too few", false)
	f.putTogether(6, -20, 1, -5, 2)
	f.putTogether(3, -20.001, 1, -5, 2)
	want("half of the containers", false)
	f.putTogether(4, -20, 1, -5, 2)
	f.putTogether(1, -20, 1)
	want("the engine has not stored all", true)
	for i := range honoredAfter {
		for c := 6; c > 0; c-- {
			f.putTogether(c, float64(-20+c), 1, float64(-5+c), 2)
		}
		want("different times again", i < honoredAfter-1)
	}
}
