package engine

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// simulation is a pod in a bubble of synctest, whose containers have known loads, with its kubelet and an engine.
type simulation struct {
	*fixture
	*rand.Rand
	name     string         // for errors
	now      usage.NodeTime // by the engine's clock
	ahead    time.Duration  // of the node's clock
	setAt    usage.NodeTime // when the clock of the samples was set, by that clock
	setBy    time.Duration  // by how much; 0: it was not
	readings []point        // what the kubelet has of each container
	stored   [][]point      // what the engine has of them
}

// simulate calls tick for each second. If it returns true, the Source is refreshed, and check is called with what is
// served of the pod, or nil. Without check, the containers must have the usual load. It returns after how many
// refreshes the pod had metrics, and after how many it had none.
func simulate(t *testing.T, name string, seed uint64, containers, seconds int,
	tick func(s *simulation, second int) bool, check func(s *simulation, second int, p *usage.Pod),
) (served, missing int) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{series: map[string][]point{}, byTime: true}
		s := &simulation{fixture: e.newFixture(t, ""), Rand: rand.New(rand.NewPCG(seed, 1)), name: name,
			readings: make([]point, containers), stored: make([][]point, containers)}
		s.client.settings.Queries = map[kind]string{containerSwap: noQuery, nodeSwap: noQuery, containerStartTime: noQuery}
		for second := range seconds {
			time.Sleep(time.Second)
			s.now = usage.NodeAt(time.Now()).Add(-e.behind)
			if !tick(s, second) {
				continue
			}
			for c, points := range s.stored {
				s.putCPU("container", containerLabels(fmt.Sprint("web/c", c), ""), points...)
			}
			if err := s.refresh(context.Background()).Err; err != nil && reason.Of(err) != reason.NoSamples {
				t.Fatalf("%s: %v", name, err)
			}
			switch p := s.podUsage(); {
			case check != nil:
				check(s, second, p)
			case p == nil:
				missing++
			default:
				served++
				s.checkLoad(second, p)
			}
		}
	})
	return served, missing
}

// read makes the kubelet read the counter of a container.
func (s *simulation) read(container int, counter float64) {
	s.readings[container] = point{At: usage.NodeAt(time.Now()).Add(s.ahead), Value: counter}
}

// scrape makes the engine store the kubelet's readings.
func (s *simulation) scrape(keepsOld bool) {
	for c, p := range s.readings {
		s.stored[c] = ingest(s.stored[c], p, keepsOld)
	}
}

// ingest adds a sample as an engine does. Some keep samples that are older than others.
func ingest(points []point, p point, keepsOld bool) []point {
	i := len(points)
	for i > 0 && points[i-1].At >= p.At {
		i--
	}
	if i < len(points) && (!keepsOld || points[i].At == p.At) {
		return points
	}
	return slices.Insert(points, i, p)
}

// load is what each container uses, in cores, unless a test has others.
const load = 0.1

// checkLoad checks the usage of containers with that load. A rate across a step of the clock is wrong by the step.
func (s *simulation) checkLoad(second int, p *usage.Pod) {
	s.Helper()
	for _, c := range p.Containers {
		margin, step := 0.04*load, max(s.setBy, -s.setBy)
		if s.setAt.Add(-step) <= c.At && c.At.Add(-c.Window) <= s.setAt.Add(step) {
			margin += load * float64(step) / float64(c.Window)
		}
		if cores := float64(c.CPUNanocores) / 1e9; math.Abs(cores-load) > margin {
			s.Errorf("%s, after %d s: got %.3f cores in %v at %v, want %v",
				s.name, second, cores, c.Window, c.At.Sub(s.start), load)
		}
	}
}

// TestClockSetBack sets the clock of a node back while the engine scrapes it, and compares all rates
// with the load: only those across the step are wrong. The engine rejects the samples whose times it has already.
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
		setBack := 20*tc.interval + 7
		for phase := 1; phase < 15; phase += 8 {
			name := fmt.Sprintf("%+v, phase %d", tc, phase)
			tick := func(s *simulation, second int) bool {
				if second == setBack {
					s.setAt, s.setBy = s.now, -time.Duration(tc.back)*time.Second
					s.ahead = s.setBy
				}
				for c := range s.readings {
					if !tc.isCached || (second+c*7)%13 == 0 {
						s.read(c, float64(second)*load)
					}
				}
				if second%tc.interval == 0 && second > 20 {
					s.scrape(tc.keepsOld)
				}
				return second%15 == phase && second > 100
			}
			served, _ := simulate(t, name, 1, tc.containers, setBack+10*tc.interval+100, tick, nil)
			if want := 2*tc.interval - 4; served < want {
				t.Errorf("%s: got metrics after %d refreshes, want %d", name, served, want)
			}
		}
	}
}

// TestJitter has kubelets that sample at irregular times, and refreshes that fail and then come at
// another phase. No metrics are missing or wrong.
func TestJitter(t *testing.T) {
	for _, interval := range []int{15, 30} {
		for containers := 1; containers < 4; containers++ {
			phase, down := 1, 0
			name := fmt.Sprintf("%d containers, every %d s", containers, interval)
			_, missing := simulate(t, name, uint64(containers), containers, 2500, func(s *simulation, second int) bool {
				for c, r := range s.readings {
					if second == 0 || s.IntN(5) == 0 && s.now.Sub(r.At) >= 10*time.Second {
						s.read(c, float64(second)*load)
					}
				}
				if second%interval == 0 {
					s.scrape(false)
				}
				if down = max(0, down-1); s.IntN(200) == 0 {
					phase, down = s.IntN(15), s.IntN(30)
				}
				return second%15 == phase && second >= 100 && down == 0
			}, nil)
			if missing > 0 {
				t.Errorf("%s: %d times without metrics", name, missing)
			}
		}
	}
}

// TestEngineClockIsSet sets the engine's clock, which decides which samples are in the range of a query,
// and, without the times of kubelets, the times of samples: then, rates across the step are wrong by it.
func TestEngineClockIsSet(t *testing.T) {
	for _, by := range []int{-10, -60, -400, 60} {
		for i := range 4 {
			honor, keepsOld := i&1 == 0, i&2 == 0
			name := fmt.Sprintf("%d s, honored %v, keeps old %v", by, honor, keepsOld)
			served, _ := simulate(t, name, 1, 4, 1100, func(s *simulation, second int) bool {
				if second == 500 {
					s.behind = -time.Duration(by) * time.Second
					if !honor {
						s.setAt, s.setBy = s.now, time.Duration(by)*time.Second
					}
				}
				for c := range s.readings {
					if s.read(c, float64(second-c)*load); honor {
						s.readings[c].At = s.readings[c].At.Add(-time.Duration(c) * time.Second)
					} else {
						s.readings[c].At = s.now
					}
				}
				if second%15 == 0 {
					s.scrape(keepsOld)
				}
				return second%15 == 8 && second >= 100
			}, nil)
			if served < 44 {
				t.Errorf("%s: got metrics %d times", name, served)
			}
		}
	}
}

// TestDifferentIntervals has containers and a node that are scraped at different intervals. The samples
// of one are always older than those of the other.
func TestDifferentIntervals(t *testing.T) {
	for _, intervals := range [][2]int{{15, 60}, {60, 15}, {30, 50}} {
		var node []point
		_, missing := simulate(t, fmt.Sprint(intervals), 1, 3, 900, func(s *simulation, second int) bool {
			p := point{At: s.now, Value: float64(second) * load}
			if second%intervals[0] == 0 {
				for c := range s.readings {
					s.readings[c] = point{At: p.At.Add(time.Duration(c) * time.Second), Value: p.Value}
				}
				s.scrape(false)
			}
			if second%intervals[1] == 0 {
				node = append(node, p)
			}
			s.putCPU("node", `{node="n1"}`, node...)
			if second > 160 && s.store.Node("n1", s.clock.At(time.Now())) == nil {
				t.Errorf("%v, after %d s: the node has no metrics", intervals, second)
			}
			return second%15 == 7 && second >= 150
		}, nil)
		if missing > 0 {
			t.Errorf("%v: %d times without metrics", intervals, missing)
		}
	}
}

// The containers of simulateLoads.
const (
	busy = iota
	idle
	steps
	bursts // 75m
)

const stepAfter = 300 // seconds

// cores returns what a container of simulateLoads uses in a second.
func cores(container, second int) float64 {
	return []float64{0.27, 0, 0.1 + 0.8*float64(second/stepAfter%2), max(0, float64(2-second%40))}[container]
}

// simulateLoads has containers whose counters the kubelet reads every 10 to 20 s. The engine stores the times of
// scrapes.
func simulateLoads(t *testing.T, seed uint64, interval int, check func(s *simulation, second int, p *usage.Pod)) {
	counters, next := make([]float64, 4), make([]int, 4)
	simulate(t, fmt.Sprintf("seed %d, every %d s", seed, interval), seed, 4, 3600, func(s *simulation, second int) bool {
		for c := range s.readings {
			if counters[c] += cores(c, second); second >= next[c] {
				s.readings[c].Value = counters[c]
				next[c] = second + 10 + s.IntN(11)
			}
			s.readings[c].At = s.now
		}
		if second%interval == 0 {
			s.scrape(false)
		}
		return second%15 == 7 && second >= 120
	}, check)
}

// TestTimesOfScrapes compares the rates of an engine that ignores the kubelets' timestamps with the
// load. docs/prometheus.md has the results.
func TestTimesOfScrapes(t *testing.T) {
	for _, interval := range []int{15, 30} {
		var n, sum, squares, sumOfBursts float64
		lowest, highest := math.Inf(1), 0.0
		var delays []int // of steps, in seconds
		for seed := range uint64(2) {
			arrived := true
			simulateLoads(t, seed, interval, func(_ *simulation, second int, p *usage.Pod) {
				if p == nil || p.Window != time.Minute {
					t.Fatalf("got %+v, want a window of 1m", p)
				}
				served := func(container int) float64 { return float64(p.Containers[container].CPUNanocores) / 1e9 }
				n++
				sum, squares = sum+served(busy), squares+served(busy)*served(busy)
				lowest, highest = min(lowest, served(busy)), max(highest, served(busy))
				sumOfBursts += served(bursts)
				if served(idle) != 0 {
					t.Errorf("an idle container uses %v", served(idle))
				}
				if second/stepAfter%2 == 0 {
					arrived = false
				} else if !arrived && served(steps) >= 0.9*0.9 {
					arrived, delays = true, append(delays, second%stepAfter)
				}
			})
		}
		mean := sum / n
		deviation := math.Sqrt(squares/n - mean*mean)
		slices.Sort(delays)
		slowest := delays[len(delays)-1]
		t.Logf("every %d s: mean %.3f, deviation %.3f, from %.3f to %.3f, bursts %.4f, steps after %d s, at most %d s",
			interval, mean, deviation, lowest, highest, sumOfBursts/n, delays[len(delays)/2], slowest)
		if math.Abs(mean-0.27) > 0.003 || math.Abs(sumOfBursts/n-0.075) > 0.0015 {
			t.Errorf("got means of %v and %v, want 0.27 and 0.075", mean, sumOfBursts/n)
		}
		if lowest < 0.27*0.65 || highest > 0.27*1.35 || deviation > 0.036 {
			t.Errorf("got %v to %v ± %v, want 0.27 with an error of at most 35 %%", lowest, highest, deviation)
		}
		if slowest > 60+20+interval+2*15 { // window, kubelet, scrape, refresh
			t.Errorf("a step has arrived after %d s", slowest)
		}
	}
}
