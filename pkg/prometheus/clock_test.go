package prometheus

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestReplacedPod has a pod that was replaced by one of the same name on the same node, before
// kube-vitals started or while its container was not yet shown as running. No rate spans both pods.
func TestReplacedPod(t *testing.T) {
	second := func(f *fixture, seconds float64) usage.Time {
		return f.start.Add(time.Duration(seconds * float64(time.Second)))
	}
	for _, tc := range []struct {
		name      string
		ahead     float64 // seconds of the node's clock
		byScrape  bool
		startedAt float64 // seconds, by the node's clock
		rounds    [][]float64
		want      []string
	}{
		{"started after the replacement", 0, false, -30,
			[][]float64{{-65, 1, -50, 4, -5, 12}, {-65, 1, -50, 4, -5, 12, 10, 18}}, []string{"", "app 400 15s"}},
		{"the node's clock is ahead", 60, false, 35,
			[][]float64{{10, 1, 25, 4, 55, 12}, {10, 1, 25, 4, 55, 12, 70, 18}}, []string{"", "app 400 15s"}},
		{"only samples of the other pod", 0, false, -10, [][]float64{{-65, 1, -50, 4, -35, 7}}, []string{""}},
		{"two samples since the start", 0, false, -30, [][]float64{{-50, 4, -20, 9, -5, 12}}, []string{"app 200 15s"}},
		{"a sample in the second of the start", 0, false, -20, [][]float64{{-20, 4, -5, 12}}, []string{""}},
		{"times of scrapes", 0, true, -50, [][]float64{{-95, 0, -65, 3, -35, 9, -5, 18}, {-65, 3, -35, 9, -5, 18, 25, 24}},
			[]string{"", "app 200 30s"}},
		{"times of scrapes, the node's clock is behind", -60, true, -110,
			[][]float64{{-95, 0, -65, 3, -35, 9, -5, 18}}, []string{""}},
		{"times of scrapes, a start by a clock that was ahead", 4000, true, 3600,
			[][]float64{{-95, 0, -65, 6, -35, 12, -5, 18}, {-65, 6, -35, 12, -5, 18, 25, 24}},
			[]string{"app 200 1m0s", "app 200 1m0s"}},
		{"a start that shows nothing, because the clock was set back", 0, false, 3600, [][]float64{{-20, 100, -5, 103}},
			[]string{"app 200 15s"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, "")
			f.started.At = usage.At(second(f, tc.startedAt).Time().Truncate(time.Second))
			f.started.PodCreatedAt = second(f, tc.startedAt-tc.ahead)
			for i, samples := range tc.rounds {
				f.put("app", "", samples...)
				if tc.byScrape {
					f.putTogether(3, samples...)
				}
				f.mustRefresh()
				f.wantPod(tc.want[i])
			}
		})
	}
}

// TestPodIsReplacedWhileItIsKnown replaces a pod between two refreshes, after the first one was stored.
func TestPodIsReplacedWhileItIsKnown(t *testing.T) {
	f := newFixture(t, "")
	f.started.At = f.start.Add(-time.Hour)
	f.put("app", "", 25, 1, 40, 4) // the node's clock is ahead
	f.mustRefresh()
	f.wantPod("app 200 15s")
	f.store.RemovePod("n1", "ns", "web", f.clock.At(time.Now().Add(-time.Second)))
	f.started.At = f.start.Add(45 * time.Second)
	f.put("app", "", 25, 1, 40, 4, 55, 9)
	f.put("side", "", 40, 4, 55, 9) // needs a base
	f.mustRefresh()
	f.wantPod("")
	f.put("app", "", 40, 4, 55, 9, 70, 12)
	f.put("side", "", 55, 9, 70, 12)
	f.mustRefresh()
	f.wantPod("app 200 15s, side 200 15s")
}

// TestSampleOfTheFuture has one sample that is 4 minutes ahead of all others of its node.
func TestSampleOfTheFuture(t *testing.T) {
	for containers := range 3 {
		t.Run(fmt.Sprint(containers, " other containers"), func(t *testing.T) {
			f := newFixture(t, "")
			refresh := func(second float64, future float64) {
				f.put("app", "", second-15, 97+second/5, second, 100+second/5)
				f.set(func() {
					for i := range containers {
						labels := fmt.Sprintf(`{container="c%d",namespace="ns",node="n1",pod="other"}`, i)
						f.series["container_cpu_usage_seconds_total"+labels] = f.samples(second-16-float64(i), 1, second-1-float64(i), 2)
					}
					const labels = `{container="future",namespace="ns",node="n1",pod="future"}`
					f.series["container_cpu_usage_seconds_total"+labels] = f.samples(second-15, 100, future, 103)
					f.series["container_memory_working_set_bytes"+labels] = f.samples(future, 5)
				})
				f.mustRefresh()
				f.wantPod("app 200 15s")
				if p := f.store.Pod("n1", "ns", "web", f.clock.At(time.Now())); p == nil || p.At != f.samples(second, 0)[0].At {
					t.Errorf("got %+v, want the sample at %v s", p, second)
				}
			}
			refresh(-20, -20)
			for second := -5.0; second < 40; second += 15 {
				refresh(second, 240)
			}
			if counts := f.store.Counts(); counts.ClockJumps != 0 {
				t.Errorf("got %+v, want no jumps", counts)
			}
		})
	}
}

// TestClockSetBack sets the clock of a node back while the engine scrapes it, and compares all rates
// with the load. The engine rejects the samples whose times it has already.
func TestClockSetBack(t *testing.T) {
	for _, tc := range []struct {
		interval, back, containers int // seconds
		isCached                   bool
		keepsOld                   bool // the engine stores samples that are older than others
	}{
		{15, 10, 4, false, false}, {30, 10, 4, false, false}, {60, 10, 4, false, false}, {15, 5, 1, false, false},
		{15, 10, 20, true, false}, {30, 10, 20, true, false}, {15, 40, 4, false, false}, {15, 60, 20, true, false},
		{15, 10, 4, false, true}, {30, 25, 4, false, true},
	} {
		t.Run(fmt.Sprintf("%+v", tc), func(t *testing.T) {
			for phase := 1; phase < 15; phase += 6 {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, 1)
					w.ahead = 0
					stored := make([][]point, tc.containers)
					reading := make([]point, tc.containers)
					served := 0
					for i := range 1500 {
						time.Sleep(time.Second)
						if i == 907 {
							w.ahead -= time.Duration(tc.back) * time.Second
						}
						for c := range stored {
							if !tc.isCached || (i+c*7)%13 == 0 {
								reading[c] = point{At: usage.At(time.Now()).Add(w.ahead), Value: float64(i) * 0.1}
							}
							if i%tc.interval == 0 && i > 20 {
								stored[c] = ingest(stored[c], reading[c], tc.keepsOld)
							}
						}
						if i%15 != phase || i < 100 {
							continue
						}
						w.setContainers(stored)
						if err := w.refresh(context.Background()).Err; err != nil {
							t.Fatal(err)
						}
						if w.checkLoad(fmt.Sprintf("phase %d, after %d s", phase, i), 0.1) {
							served++
						}
					}
					if served < 90 {
						t.Errorf("phase %d: got metrics after %d of 94 refreshes", phase, served)
					}
				})
			}
		})
	}
}

// setContainers sets what the engine has of the containers of a pod.
func (w *world) setContainers(stored [][]point) {
	w.set(func() {
		for c, points := range stored {
			labels := fmt.Sprintf(`{container="c%d",namespace="ns",node="n1",pod="web"}`, c)
			w.series["container_cpu_usage_seconds_total"+labels] = points
			w.series["container_memory_working_set_bytes"+labels] = points
		}
	})
}

// checkLoad checks the usage of the containers, and reports whether they have any.
func (w *world) checkLoad(name string, want float64) bool {
	w.Helper()
	p := w.store.Pod("n1", "ns", "web", w.clock.At(time.Now()))
	if p == nil {
		return false
	}
	for _, c := range p.Containers {
		if cores := float64(c.CPUNanocores) / 1e9; math.Abs(cores-want) > 0.04*want {
			w.Errorf("%s: got %.3f cores in %v at %v, want %v", name, cores, c.Window, c.At.Sub(w.start), want)
		}
	}
	return true
}

// ingest adds a sample as an engine does.
func ingest(points []point, p point, keepsOld bool) []point {
	i := len(points)
	for i > 0 && points[i-1].At >= p.At {
		i--
	}
	if i == len(points) {
		return append(points, p)
	}
	if !keepsOld || points[i].At == p.At {
		return points
	}
	return append(points[:i:i], append([]point{p}, points[i:]...)...)
}

// TestJitter has kubelets that sample at irregular times, and refreshes that fail and then come at
// another phase. A delay that is longer by chance looks like a clock that was set back: metrics may be
// older for one refresh, but none is missing or wrong.
func TestJitter(t *testing.T) {
	for _, interval := range []int{15, 30} {
		for containers := 1; containers < 4; containers++ {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, uint64(containers))
				w.ahead = 0
				stored := make([][]point, containers)
				current := make([]point, containers)
				phase, down, steps, setAt := 1, 0, 0, usage.Time(0)
				for i := range 4000 {
					time.Sleep(time.Second)
					for c := range stored {
						if now := usage.At(time.Now()); i == 0 || w.IntN(5) == 0 && now.Sub(current[c].At) >= 10*time.Second {
							current[c] = point{At: now, Value: float64(i) * 0.1}
						}
						if i%interval == 0 {
							stored[c] = ingest(stored[c], current[c], false)
						}
					}
					if down = max(0, down-1); w.IntN(200) == 0 {
						phase, down = w.IntN(15), w.IntN(30)
					}
					if i%15 != phase || i < 100 || down > 0 {
						continue
					}
					w.setContainers(stored)
					if err := w.refresh(context.Background()).Err; err != nil {
						t.Fatal(err)
					}
					if at := w.nodes["n1"].clock.setAt; at != setAt {
						setAt, steps = at, steps+1
					}
					name := fmt.Sprintf("%d containers, every %d s, after %d s", containers, interval, i)
					if !w.checkLoad(name, 0.1) {
						t.Error(name + ": got no metrics")
					}
				}
				if steps == 0 {
					t.Error("no delay was longer by chance, so the test shows nothing")
				}
			})
		}
	}
}

// TestEngineClockIsSet sets the engine's clock, which decides which samples are in the range of a query,
// and, without the times of kubelets, the times of samples. No rate is wrong.
func TestEngineClockIsSet(t *testing.T) {
	const containers, second = 4, 900 // of the step
	for _, by := range []int{-10, -60, -400, 60} {
		for _, honor := range []bool{true, false} {
			for _, keepsOld := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, 1)
					w.ahead = 0
					stored, served := make([][]point, containers), 0
					for i := range 1500 {
						time.Sleep(time.Second)
						if i == second {
							w.behind = -time.Duration(by) * time.Second
						}
						for c := range stored {
							p := point{At: usage.At(time.Now()).Add(-time.Duration(c) * time.Second), Value: float64(i-c) * 0.1}
							if !honor {
								p.At = usage.At(time.Now()).Add(-w.behind)
							}
							if i%15 == 0 {
								stored[c] = ingest(stored[c], p, keepsOld)
							}
						}
						if i%15 != 8 || i < 100 {
							continue
						}
						w.setContainers(stored)
						if r := w.refresh(context.Background()); r.Err != nil && reason.Of(r.Err) != reason.NoSamples {
							t.Fatal(r.Err)
						}
						if w.checkLoad(fmt.Sprintf("%d s, honored %v, keeps old %v, after %d s", by, honor, keepsOld, i), 0.1) {
							served++
						}
					}
					if served < 70 {
						t.Errorf("%d s, honored %v, keeps old %v: got metrics %d times", by, honor, keepsOld, served)
					}
				})
			}
		}
	}
}

// TestDifferentIntervals has containers and a node that are scraped at different intervals. The samples
// of one are always older than those of the other.
func TestDifferentIntervals(t *testing.T) {
	for _, intervals := range [][2]int{{15, 60}, {60, 15}, {30, 50}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			w.ahead = 0
			stored := make([][]point, 3)
			var node []point
			for i := range 1500 {
				time.Sleep(time.Second)
				p := point{At: usage.At(time.Now()), Value: float64(i) * 0.1}
				if i%intervals[0] == 0 {
					for c := range stored {
						stored[c] = append(stored[c], p)
						stored[c][len(stored[c])-1].At += usage.Time(c) * usage.Time(time.Second)
					}
				}
				if i%intervals[1] == 0 {
					node = append(node, p)
				}
				if i%15 != 7 || i < 150 {
					continue
				}
				w.setContainers(stored)
				w.set(func() {
					w.series[`node_cpu_usage_seconds_total{node="n1"}`] = node
					w.series[`node_memory_working_set_bytes{node="n1"}`] = node
				})
				if err := w.refresh(context.Background()).Err; err != nil {
					t.Fatal(err)
				}
				if !w.checkLoad(fmt.Sprint(intervals), 0.1) {
					t.Errorf("%v, after %d s: the pod has no metrics", intervals, i)
				}
				if w.store.Node("n1", w.clock.At(time.Now())) == nil {
					t.Errorf("%v, after %d s: the node has no metrics", intervals, i)
				}
			}
		})
	}
}
