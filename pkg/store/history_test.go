package store

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// restless returns a sample of a container whose usage changes all the time, so that every window has
// another rate, but never by more than usual.
func restless(seconds float64) usage.Sample {
	return sample(seconds, seconds+0.2*math.Sin(2.4*seconds)+0.08*math.Sin(5.1*seconds))
}

// TestRateWindow checks over which times rates are computed.
func TestRateWindow(t *testing.T) { // rule 1
	for _, tc := range []struct {
		name    string
		window  time.Duration
		samples []float64 // the time of the sample that each scrape returns
		want    []float64 // the window that is served after that; 0: nothing
	}{
		{"every 5 s", rateWindow,
			[]float64{0, 5, 10, 15, 20, 25, 30},
			[]float64{0, 5, 10, 15, 15, 15, 15}},
		{"every 7.5 s", rateWindow,
			[]float64{0, 7.5, 15, 22.5, 30},
			[]float64{0, 7.5, 15, 15, 15}},
		{"every 6 s: of two windows as close, the shorter", rateWindow,
			[]float64{0, 6, 12, 18, 24, 30},
			[]float64{0, 6, 12, 12, 12, 12}},
		{"every 2 s: readings are at least 3.75 s apart", rateWindow,
			[]float64{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24},
			[]float64{0, 2, 4, 6, 8, 10, 12, 14, 16, 14, 16, 14, 16}},
		{"housekeeping every 10 s, scraped every 5 s", rateWindow,
			[]float64{0, 0, 10, 10, 20, 20, 30},
			[]float64{0, 0, 10, 10, 10, 10, 10}},
		{"housekeeping every 10 s, scraped every 15 s", rateWindow,
			[]float64{0, 10, 30, 40, 60, 70},
			[]float64{0, 10, 20, 10, 20, 10}},
		{"60 % of the rate window", rateWindow,
			[]float64{0, 9, 18, 27},
			[]float64{0, 9, 9, 9}},
		{"less than 60 % of the rate window", rateWindow,
			[]float64{0, 8.9, 17.8, 26.7},
			[]float64{0, 8.9, 17.8, 17.8}},
		{"one early scrape", rateWindow,
			[]float64{0, 15, 16.2, 30, 45},
			[]float64{0, 15, 1.2, 13.8, 15}},
		{"one early scrape, and dense ones", rateWindow,
			[]float64{0, 15, 16.2, 20, 25, 30, 35},
			[]float64{0, 15, 1.2, 5, 10, 15, 15}},
		{"repeated samples among others", rateWindow,
			[]float64{0, 5, 5, 10, 10, 15, 20, 20, 25},
			[]float64{0, 5, 5, 10, 10, 15, 15, 15, 15}},
		{"samples within a second", rateWindow,
			[]float64{0, 5, 5.5, 10, 10.9, 15},
			[]float64{0, 5, 5, 10, 10, 15}},
		{"an older sample in between", rateWindow,
			[]float64{0, 5, 10, 7, 15, 20},
			[]float64{0, 5, 10, 10, 15, 15}},
		{"one scrape fails", rateWindow,
			[]float64{0, 5, 10, 15, 25, 30, 35, 40},
			[]float64{0, 5, 10, 15, 10, 15, 10, 15}},
		{"two scrapes fail", rateWindow,
			[]float64{0, 5, 10, 15, 30, 35, 40, 45},
			[]float64{0, 5, 10, 15, 15, 20, 10, 15}},
		{"sparse samples end the history", rateWindow,
			[]float64{0, 5, 10, 15, 30, 45, 50, 55},
			[]float64{0, 5, 10, 15, 15, 15, 5, 10}},
		{"an outage", rateWindow,
			[]float64{0, 5, 10, 15, 75.1, 80.1, 85.1, 90.1, 95.1},
			[]float64{0, 5, 10, 15, 0, 5, 10, 15, 15}},
		{"5 s, as long as the interval", 5 * time.Second,
			[]float64{0, 5, 10, 15},
			[]float64{0, 5, 5, 5}},
		{"5 s, every 2.5 s", 5 * time.Second,
			[]float64{0, 2.5, 5, 7.5, 10},
			[]float64{0, 2.5, 5, 5, 5}},
		{"5 s, every second", 5 * time.Second,
			[]float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
			[]float64{0, 1, 2, 3, 4, 5, 4, 5, 4, 5}},
		{"1 s is always reached", time.Second,
			[]float64{0, 1, 2, 3.5},
			[]float64{0, 1, 1, 1.5}},
		{"0: always the previous sample", 0,
			[]float64{0, 5, 6.2, 10},
			[]float64{0, 5, 1.2, 3.8}},
		{"60 s, the maximum age: no rate covers more", maxAge,
			[]float64{0, 7, 14, 21, 28, 35, 42, 49, 56, 63, 70},
			[]float64{0, 7, 14, 21, 28, 35, 42, 49, 56, 42, 49}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			checkWindows(t, newWideStore(tc.window), tc.samples, tc.want, restless)
		})
	}
}

// TestWindowBeginsWhereLoadChanged checks the windows of loads that change, with a sample every 5 s. The
// usage is that of the 5 s before each sample.
func TestWindowBeginsWhereLoadChanged(t *testing.T) { // rule 1
	const calm, restless = 0.1, 0.2
	for _, tc := range []struct {
		name  string
		noise float64   // the intervals before have a core, more or less by this
		cores []float64 // of each interval
		want  []float64 // the window after each
	}{
		{"nothing changes", calm, []float64{1, 1.1, 0.9, 1}, []float64{15, 15, 15, 15}},
		{"a step up", calm, []float64{3, 3, 3, 3}, []float64{5, 10, 15, 15}},
		{"a step down", calm, []float64{0.2, 0.2, 0.2, 0.2}, []float64{5, 10, 15, 15}},
		{"a step within an interval", calm, []float64{2, 3, 3, 3, 3}, []float64{5, 5, 15, 15, 15}},
		{"a small step", calm, []float64{1.5, 1.5, 1.5, 1.5}, []float64{15, 15, 15, 15}},
		{"a small step of a load without noise", 0, []float64{1.1, 1.1, 1.1, 1.1}, []float64{5, 10, 15, 15}},
		{"less than a share of 3 %", 0, []float64{1.02, 1, 1.02, 1}, []float64{15, 15, 15, 15}},
		{"a step of a load with more noise", restless, []float64{1.6, 1.6, 1.6}, []float64{15, 15, 15}},
		{"a spike", calm, []float64{5, 1, 1, 1, 1}, []float64{5, 5, 10, 15, 15}},
		{"it starts", calm, []float64{0, 4, 4, 4}, []float64{5, 5, 10, 15}},
		{"a ramp", 0, []float64{1.2, 1.4, 1.6, 1.8, 2}, []float64{5, 5, 5, 5, 5}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, used, now := newWideStore(rateWindow), 0.0, 0.0
			put := func(cores float64) usage.Amount {
				used, now = used+5*cores, now+5
				s.Put("n1", scrape(now, of("p/a", sample(now, used))))
				return s.Pod("n1", "n", "p", at(now)).Containers[0].Amount
			}
			s.Put("n1", scrape(0, of("p/a", sample(0, 0))))
			for i := range 10 {
				put(1 + tc.noise*float64(i%2*2-1)/2) // 0.95, 1.05, …: what the next one is expected to be differs by 0.2
			}
			for i, cores := range tc.cores {
				got := put(cores)
				if got.Window != seconds(tc.want[i]) {
					t.Errorf("%d. interval: got a window of %v, want %v s", i+1, got.Window, tc.want[i])
				}
				if got.Window == 5*time.Second && got.CPUNanocores != uint64(math.Round(1e9*cores)) {
					t.Errorf("%d. interval: got %d nanocores, want %v cores", i+1, got.CPUNanocores, cores)
				}
			}
		})
	}
}

// TestTenantChangesOnlyItsOwnUsage checks that a tenant whose load is made to confuse the rule for the
// window changes nothing of another pod or the node, and that what is served for it is the mean over
// the window that it names, which is at most the maximum sample age.
func TestTenantChangesOnlyItsOwnUsage(t *testing.T) { // rule 1
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 3))
		with, without := newWideStore(rateWindow), newWideStore(rateWindow)
		level, used, now := 0.0, 0.0, 0.0
		reported := map[usage.Time]float64{} // core seconds of the tenant
		for range 300 {
			interval := []float64{1, 2, 4.5, 5, 5.5, 7.5, 15}[random.IntN(7)]
			switch random.IntN(4) {
			case 0: // a step, up to a million times as high
				level = math.Pow(10, 6*random.Float64()-5)
			case 1: // a ramp, or a wave whose noise grows
				level *= 0.5 + random.Float64()
			case 2: // a spike
				used += 10 * random.Float64()
			}
			now, used = now+interval, used+interval*level
			reported[at(now)] = used
			others := scrape(now, of("p/a", restless(now)))
			others.Node = sample(now, 2*now)
			all := scrape(now, of("evil/a", sample(now, used)), others.Containers[0])
			all.Node = others.Node
			with.Put("n1", all)
			without.Put("n1", others)
			if got, want := show(with.Pod("n1", "n", "p", at(now))), show(without.Pod("n1", "n", "p", at(now))); got != want {
				t.Fatalf("seed %d, %v s: another pod: got %s, want %s", seed, now, got, want)
			}
			if got, want := with.Node("n1", at(now)), without.Node("n1", at(now)); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, %v s: node: got %v, want %v", seed, now, got, want)
			}
			evil := with.Pod("n1", "n", "evil", at(now))
			if evil == nil {
				continue
			}
			a := evil.Containers[0].Amount
			first, known := reported[a.At.Add(-a.Window)]
			mean := 1e9 * (reported[a.At] - first) / a.Window.Seconds()
			if !known || math.Abs(float64(a.CPUNanocores)-mean) > 1+1e-9*mean {
				t.Fatalf("seed %d, %v s: got %s, want %v nanocores", seed, now, show(evil), mean)
			}
			if a.Window > maxAge {
				t.Fatalf("seed %d, %v s: got a window of %v", seed, now, a.Window)
			}
		}
	}
}

// checkWindows puts a sample of a container for each time, and checks over which time the rate is
// computed that is served after that; 0: there is none.
func checkWindows(t *testing.T, s *Store, times, want []float64, sampleAt func(seconds float64) usage.Sample) {
	t.Helper()
	newest := 0.0
	for i, sampled := range times {
		newest = max(newest, sampled)
		s.Put("n1", scrape(newest, of("p/a", sampleAt(sampled))))
		p := s.Pod("n1", "n", "p", at(newest))
		if p == nil {
			p = &usage.Pod{Containers: make([]usage.Container, 1)}
		}
		got := p.Containers[0].Amount
		if got.Window != seconds(want[i]) || p.At != got.At || p.Window != got.Window {
			t.Errorf("%d. sample, at %v s: got %s with a window of %v, want %v s", i, sampled, show(p), got.Window, want[i])
		}
		if got.Window == 0 {
			continue
		}
		end := got.At.Sub(t0).Seconds()
		used := sampleAt(end).CPUSeconds - sampleAt(end-got.Window.Seconds()).CPUSeconds
		rate := 1e9 * used / got.Window.Seconds()
		if diff := float64(got.CPUNanocores) - rate; diff < -1 || diff > 1 {
			t.Errorf("%d. sample, at %v s: got %d nanocores, want %v", i, sampled, got.CPUNanocores, rate)
		}
	}
}

// TestRateWindowOfNewContainers checks over which times the rates of a container are computed that
// started at 0 s. In its first 10 seconds, it has none.
func TestRateWindowOfNewContainers(t *testing.T) { // rules 1, 4
	for _, tc := range []struct {
		name    string
		window  time.Duration
		samples []float64 // the age at each sample
		want    []float64 // the window that is served after that; 0: nothing
	}{
		{"every 15 s", rateWindow, []float64{2, 17, 32, 47}, []float64{0, 15, 15, 15}},
		{"every 5 s", rateWindow, []float64{2, 7, 12, 17, 22, 27}, []float64{0, 0, 10, 15, 15, 15}},
		{"every 2 s", rateWindow,
			[]float64{1, 3, 5, 7, 9, 11, 13, 15, 17, 19},
			[]float64{0, 0, 0, 0, 0, 10, 12, 14, 16, 14}},
		{"repeated samples among others", rateWindow,
			[]float64{2, 2, 7, 7, 12, 17, 17, 22},
			[]float64{0, 0, 0, 0, 10, 15, 15, 15}},
		{"the first sample at 9 s", rateWindow, []float64{9, 14, 19, 24}, []float64{0, 5, 10, 15}},
		{"two early scrapes", rateWindow, []float64{1, 2.2, 10.1, 16, 31}, []float64{0, 0, 9.1, 15, 15}},
		{"housekeeping every 9.1 s", rateWindow, []float64{0.5, 9.6, 18.7, 27.8}, []float64{0, 0, 18.2, 9.1}},
		{"the second sample is older", rateWindow, []float64{4, 3, 9, 14, 19}, []float64{0, 0, 0, 10, 15}},
		{"the next scrape fails", rateWindow, []float64{2, 7, 22, 27, 32}, []float64{0, 0, 15, 20, 10}},
		{"1 s is always reached", time.Second, []float64{2, 7, 12, 17}, []float64{0, 0, 10, 5}},
		{"0: always the previous sample", 0, []float64{2, 3.2, 12, 17}, []float64{0, 0, 10, 5}},
	} {
		for _, isRestart := range []bool{false, true} {
			t.Run(fmt.Sprint(tc.name, "/", isRestart), func(t *testing.T) {
				s := newWideStore(tc.window)
				before := scrape(-2)
				if isRestart {
					before.Containers = append(before.Containers, of("p/a", sample(-2, 1000)))
				}
				s.Put("n1", before)
				checkWindows(t, s, tc.samples, tc.want, func(age float64) usage.Sample { return started(0, restless(age)) })
			})
		}
	}
}

// TestSteadySamples has samples at every interval below 60 % of the rate window.
func TestSteadySamples(t *testing.T) { // rule 1
	for _, window := range []time.Duration{3 * time.Second, 7 * time.Second, rateWindow, 45 * time.Second} {
		for interval := usage.MinWindow; interval < window*3/5; interval += 37 * time.Millisecond {
			s := newWideStore(window)
			for now := time.Duration(0); now <= 4*window; now += interval {
				s.Put("n1", scrape(now.Seconds(), of("p/a", sample(now.Seconds(), now.Seconds()))))
				p := s.Pod("n1", "n", "p", t0.Add(now))
				if now > 2*window && (p.Window < window*7/10 || p.Window > window*13/10) {
					t.Fatalf("rate window %v, samples every %v: got a window of %v after %v", window, interval, p.Window, now)
				}
			}
		}
	}
}

// TestHistoryEnds has samples every 5 seconds, until something ends the series after 42 s. The
// windows of the rates must begin after that.
func TestHistoryEnds(t *testing.T) { // rules 1, 3, 4, 5, 9
	const event = 42.0
	later := func(change func(*usage.Sample)) func(*usage.Scrape, float64) {
		return func(sc *usage.Scrape, now float64) {
			if now > event {
				change(&sc.Containers[0].Sample)
			}
		}
	}
	clock := func(by time.Duration) func(*usage.Scrape, float64) {
		return func(sc *usage.Scrape, now float64) {
			offset := time.Duration(0)
			if now > event {
				offset = by
			}
			sc.Sent, sc.Date = sc.At, cut(sc.At.Add(offset))
			sc.Containers[0].At = sc.Containers[0].At.Add(offset)
		}
	}
	for _, tc := range []struct {
		name    string
		scrapes func(sc *usage.Scrape, now float64) // changes a scrape; no containers: it fails
		after   float64                             // the first sample of the new series
	}{
		{"the counter falls", later(func(s *usage.Sample) { s.CPUSeconds -= 40 }), 45},
		{"another counter", func(sc *usage.Scrape, now float64) {
			sc.Containers[0].CPUSeconds += 1000
			if s := &sc.Containers[0].Sample; now == 45 {
				s.Base = usage.Reading{At: s.At, CPUSeconds: s.CPUSeconds}
			}
		}, 45},
		{"no more times of samples", later(func(s *usage.Sample) { s.Untimed = true }), 45},
		{"the clock is set forward", clock(10 * time.Minute), 45},
		{"the clock is set forward by little", clock(4 * time.Second), 45},
		{"the clock is set back", clock(-10 * time.Minute), 45},
		{"the clock is set back by little", clock(-4 * time.Second), 50},
		{"the clock is set back, without Date headers", later(func(s *usage.Sample) {
			s.At = s.At.Add(-50 * time.Second)
		}), 55},
		{"an outage", func(sc *usage.Scrape, now float64) {
			if now > event && now < 105 {
				sc.Containers = nil
				sc.Partial = true
			}
		}, 105},
		{"a complete scrape without the container", func(sc *usage.Scrape, now float64) {
			if now == 45 {
				sc.Containers = nil
			}
		}, 50},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStore()
			windows := map[float64]time.Duration{}
			for now := 0.0; now <= tc.after+25; now += 5 {
				sc := scrape(now, of("p/a", sample(now, now)))
				tc.scrapes(sc, now)
				s.Put("n1", sc)
				p := s.Pod("n1", "n", "p", at(now))
				if p == nil {
					continue
				}
				got := p.Containers[0].Amount
				windows[now] = got.Window
				if got.CPUNanocores != 1e9 {
					t.Errorf("after %v s: got %s over %v, want 1 core", now, show(p), got.Window)
				}
				isNew := len(sc.Containers) > 0 && got.At == sc.Containers[0].At && now >= tc.after
				if isNew && got.Window > seconds(now-tc.after) {
					t.Errorf("after %v s: got a window of %v, which began before %v s", now, got.Window, tc.after)
				}
			}
			if windows[40] != rateWindow || windows[tc.after+25] != rateWindow {
				t.Errorf("got windows %v, want %v in the end and before the event", windows, rateWindow)
			}
			if windows[tc.after+5] != 5*time.Second || windows[tc.after+10] != 10*time.Second {
				t.Errorf("got windows %v, want 5s and 10s at the start of the new series", windows)
			}
		})
	}
}

// TestRestartAfterSkippedSamples restarts a container after a sample that had no rate. Afterwards, the
// counter is higher than at the last sample that a rate can start with.
func TestRestartAfterSkippedSamples(t *testing.T) { // rule 4
	type sampled struct{ at, started, coreSeconds float64 }
	for _, tc := range []struct {
		name    string
		window  time.Duration
		samples []sampled // the last one is taken after a restart, with the start that it reports
		want    string
	}{
		{"too soon after the previous one", rateWindow,
			[]sampled{{0, -100, 1}, {0.8, -100, 5}, {12, 2, 2}}, "at 12 window 10: a=200m"},
		{"too soon, repeated", rateWindow,
			[]sampled{{0, -100, 1}, {0.8, -100, 5}, {0.8, -100, 5}, {12, 2, 2}}, "at 12 window 10: a=200m"},
		{"too soon, then an older one", rateWindow,
			[]sampled{{0, -100, 1}, {0.8, -100, 5}, {0.4, -100, 3}, {12, 2, 2}}, "at 12 window 10: a=200m"},
		{"of a container that is starting up", rateWindow,
			[]sampled{{0, 0, 0}, {9.7, 0, 5}, {22, 10, 2.4}}, "at 22 window 12: a=200m"},
		{"of a container that is starting up, without a rate window", 0,
			[]sampled{{0, 0, 0}, {5, 0, 5}, {22, 10, 2.4}}, "at 22 window 12: a=200m"},
		{"no restart", rateWindow, []sampled{{0, -100, 1}, {0.8, -100, 5}, {12, -100, 7}}, "at 12 window 12: a=500m"},
		{"an older sample", rateWindow,
			[]sampled{{0, -100, 1}, {0.8, -100, 5}, {0.6, -100, 4}, {12, -100, 7}}, "at 12 window 12: a=500m"},
		{"the next sample is again before the skipped one", time.Second,
			[]sampled{{0, 0, 0}, {9, 0, 5}, {6, -10, 3}, {12, -10, 9}}, "at 12 window 6: a=1000m"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newWideStore(tc.window)
			s.Put("n1", scrape(-1))
			newest := 0.0
			for _, sampled := range tc.samples {
				newest = max(newest, sampled.at)
				s.Put("n1", scrape(newest, of("p/a", started(sampled.started, sample(sampled.at, sampled.coreSeconds)))))
			}
			expect(t, s, "p", newest, tc.want)
		})
	}
}

// TestHistoryOfRemovedPods replaces a pod by one of the same name, with a higher counter.
func TestHistoryOfRemovedPods(t *testing.T) { // rule 9
	s := newStore()
	for now := 0.0; now <= 40; now += 5 {
		s.Put("n1", scrape(now, of("p/a", sample(now, now))))
	}
	expect(t, s, "p", 40, "at 40 window 15: a=1000m")
	s.RemovePod("n1", "n", "p", at(42))
	for now := 45.0; now <= 70; now += 5 {
		s.Put("n1", scrape(now, of("p/a", started(43, sample(now, 100+now/10)))))
	}
	expect(t, s, "p", 70, "at 70 window 15: a=100m")
}

// TestClockStepsOfDenseSamples sets the clock of a node that is scraped every 5 s. No step of that
// size may change a rate, whichever readings there are.
func TestClockStepsOfDenseSamples(t *testing.T) { // rule 3
	for _, step := range []float64{-3600, -61, -14, -5, -2.5, 2.5, 5, 14, 61, 3600} {
		for _, interval := range []time.Duration{1500 * time.Millisecond, 3 * time.Second, 5 * time.Second} {
			t.Run(fmt.Sprint(step, "/", interval), func(t *testing.T) {
				for after := time.Minute; after < time.Minute+interval; after += interval / 7 {
					n := &simNode{ahead: stepsAt([]time.Duration{after}, seconds(step))}
					s, wide := newStore(), 0
					for real := 200 * time.Millisecond; real < 2*time.Minute; real += interval {
						s.Put("n1", n.scrape(real))
						p := s.Pod("n1", "n", "p", t0.Add(real))
						if p == nil && real > 2*interval {
							t.Fatalf("after %v: no metrics", real)
						}
						if p == nil {
							continue
						}
						if a := p.Containers[0].Amount; a.CPUNanocores < 1e9-10 || a.CPUNanocores > 1e9+10 {
							t.Fatalf("step after %v, after %v: got %d nanocores over %v, want 1 core", after, real, a.CPUNanocores, a.Window)
						}
						if p.Window >= 10*time.Second {
							wide++
						}
					}
					if wide < int(70*time.Second/interval) {
						t.Fatalf("step after %v: got %d windows of at least 10s, want most of them", after, wide)
					}
				}
			})
		}
	}
}

// TestConstantLoad has a constant load: the rate must not depend on the rate window.
func TestConstantLoad(t *testing.T) { // rule 1
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		longest := 1 + random.IntN(160) // eighths of a second: counters are exact
		window := time.Second + time.Duration(random.Int64N(int64(maxAge-time.Second)))
		off, on := newWideStore(0), newWideStore(window)
		now, differ := 0.0, false
		for range 100 {
			now += float64(1+random.IntN(longest)) / 8
			for _, s := range []*Store{off, on} {
				s.Put("n1", scrape(now, of("p/a", sample(now, now/4))))
			}
			a, b := off.Pod("n1", "n", "p", at(now)), on.Pod("n1", "n", "p", at(now))
			if a == nil && b == nil {
				continue
			}
			if a == nil || b == nil || a.Containers[0].CPUNanocores != 250_000_000 ||
				b.Containers[0].CPUNanocores != 250_000_000 || a.At != b.At || b.Window > maxAge {
				t.Fatalf("rate window %v: got %s, want %s with another window", window, show(b), show(a))
			}
			differ = differ || a.Window != b.Window
		}
		if isDense := usage.MinWindow+seconds(float64(longest)/8) < window/2; isDense && !differ {
			t.Errorf("rate window %v, samples up to %v s apart: got the same windows", window, float64(longest)/8)
		}
	}
}

// TestDefaultSampling checks that the rate window changes nothing with the default
// --metric-resolution: scrapes every 15 seconds, of samples that kubelets take every 10 to 20
// seconds or on demand.
func TestDefaultSampling(t *testing.T) { // rule 1
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 2))
		onDemand := random.IntN(2) == 0
		off, on := newWideStore(0), newWideStore(rateWindow)
		samples := make([]usage.Sample, 6)
		for i := range samples {
			samples[i] = sample(-10*random.Float64(), 100*random.Float64())
		}
		clock := time.Duration(0)
		for now := 15.0; now < 1500; now += 15 {
			if random.IntN(40) == 0 {
				clock += time.Duration(random.Int64N(int64(2*time.Hour))) - time.Hour
			}
			real := now + 3*random.Float64()
			sc := scrape(real)
			sc.Sent, sc.Date = sc.At.Add(-10*time.Millisecond), cut(sc.At.Add(clock))
			for i := range samples {
				s := &samples[i]
				for onDemand || s.At < at(real-20) || s.At < at(real-10) && random.IntN(2) == 0 {
					spacing := 10 + 5*random.Float64()
					if onDemand {
						spacing = at(real).Sub(s.At).Seconds()
					}
					s.At = s.At.Add(seconds(spacing))
					s.CPUSeconds += spacing * random.Float64()
					if random.IntN(40) == 0 { // it restarted
						s.CPUSeconds, s.StartedAt = 0, s.At.Add(seconds(-12*random.Float64()))
					}
					if onDemand {
						break
					}
				}
				if random.IntN(40) == 0 {
					sc.Partial = true
					continue
				}
				reported := *s
				reported.At, reported.StartedAt = reported.At.Add(clock), reported.StartedAt.Add(clock)
				sc.Containers = append(sc.Containers, of(fmt.Sprintf("p%d/c%d", i/2, i), reported))
			}
			if random.IntN(20) == 0 {
				continue // it fails
			}
			for _, s := range []*Store{off, on} {
				s.Put("n1", sc)
			}
			for pod := range 3 {
				name := fmt.Sprint("p", pod)
				a, b := off.Pod("n1", "n", name, at(real)), on.Pod("n1", "n", name, at(real))
				if !reflect.DeepEqual(a, b) {
					t.Fatalf("seed %d, after %v s: got %s, want %s", seed, real, show(b), show(a))
				}
			}
			for _, c := range on.nodes["n1"].containers {
				if c.history != nil {
					t.Fatalf("seed %d, after %v s: container %s has a history", seed, real, c.name.Value())
				}
			}
		}
	}
}

// TestHistoryIsDropped checks that there is only a history while samples are dense.
func TestHistoryIsDropped(t *testing.T) { // rule 11
	s := newStore()
	put := func(now float64, want bool) {
		t.Helper()
		s.Put("n1", scrape(now, of("p/a", sample(now, now))))
		if got := s.nodes["n1"].containers[0].history != nil; got != want {
			t.Errorf("after %v s: got a history: %v, want %v", now, got, want)
		}
	}
	put(0, false)
	put(5, true)
	put(10, true)
	put(25, true) // one scrape may have failed
	put(30, true)
	put(45, true)
	put(60, false)
	put(61.2, true)
	put(200, false) // a new series
}

// TestSizeOfContainers checks that a container fits into 128 bytes. Go's next larger allocation has
// 144 bytes, for each container of the cluster.
func TestSizeOfContainers(t *testing.T) {
	if size := unsafe.Sizeof(container{}); size > 128 {
		t.Errorf("got %d bytes, want at most 128", size)
	}
}
