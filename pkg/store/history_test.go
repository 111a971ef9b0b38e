package store

import (
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

// TestRateWindow checks over which times rates are computed at the start of series. The cases young-*.txt do so for
// new containers, and TestSequences has other orders of samples.
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
		{"every 6 s: of two windows as close, the longer", rateWindow,
			[]float64{0, 6, 12, 18, 24, 30},
			[]float64{0, 6, 12, 18, 18, 18}},
		{"every 2 s: readings are at least 3.75 s apart", rateWindow,
			[]float64{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24},
			[]float64{0, 0, 4, 6, 8, 10, 12, 14, 16, 14, 16, 14, 16}},
		{"housekeeping every 10 s, scraped every 5 s", rateWindow,
			[]float64{0, 0, 10, 10, 20, 20, 30},
			[]float64{0, 0, 10, 10, 10, 10, 10}},
		{"housekeeping every 10 s, scraped every 15 s", rateWindow,
			[]float64{0, 10, 30, 40, 60, 70},
			[]float64{0, 10, 20, 10, 20, 10}},
		{"less than 60 % of the rate window", rateWindow,
			[]float64{0, 8.9, 17.8, 26.7},
			[]float64{0, 8.9, 17.8, 17.8}},
		{"less than 70 %: a wider window once the noise is known", rateWindow,
			[]float64{0, 10.4, 20.8, 31.2, 41.6, 52, 62.4, 72.8, 83.2},
			[]float64{0, 10.4, 10.4, 10.4, 10.4, 10.4, 20.8, 20.8, 20.8}},
		{"70 %", rateWindow,
			[]float64{0, 10.5, 21, 31.5, 42, 52.5, 63, 73.5, 84},
			[]float64{0, 10.5, 10.5, 10.5, 10.5, 10.5, 10.5, 10.5, 10.5}},
		{"housekeeping every 10 s, scraped every 4 s, and one scrape fails", rateWindow,
			[]float64{0, 10, 20, 30, 40, 50, 60, 60, 70, 90, 100, 110, 110},
			[]float64{0, 10, 10, 10, 10, 10, 20, 20, 20, 20, 10, 20, 20}},
		{"one early scrape, and dense ones", rateWindow,
			[]float64{0, 15, 16.2, 20, 25, 30, 35},
			[]float64{0, 15, 15, 5, 10, 15, 15}},
		{"an early scrape after an absence of a node whose samples are dense", rateWindow,
			[]float64{0, 5, 10, 15, 20, 50, 51.2, 55},
			[]float64{0, 5, 10, 15, 15, 30, 30, 5}},
		{"60 s, less than a quarter is too short", maxAge,
			[]float64{0, 45, 90, 104.9, 106},
			[]float64{0, 45, 45, 45, 16}},
		{"early scrapes that are not followed by dense ones", rateWindow,
			[]float64{0, 15, 30, 31.2, 33, 45, 60},
			[]float64{0, 15, 15, 15, 15, 12, 15}},
		{"an older sample in between, and some within a second", rateWindow,
			[]float64{0, 5, 5.5, 10, 10.9, 7, 15, 20},
			[]float64{0, 5, 5, 10, 10, 10, 15, 15}},
		{"one scrape fails", rateWindow,
			[]float64{0, 5, 10, 15, 25, 30, 35, 40},
			[]float64{0, 5, 10, 15, 10, 15, 20, 15}},
		{"sparse samples end the history", rateWindow,
			[]float64{0, 5, 10, 15, 30, 45, 50, 55},
			[]float64{0, 5, 10, 15, 15, 15, 5, 10}},
		{"an outage", rateWindow,
			[]float64{0, 5, 10, 15, 75.1, 80.1, 85.1, 90.1, 95.1},
			[]float64{0, 5, 10, 15, 0, 5, 10, 15, 15}},
		{"1 s is always reached", time.Second,
			[]float64{0, 1, 2, 3.5},
			[]float64{0, 1, 1, 1.5}},
		{"0: always the previous sample", 0,
			[]float64{0, 5, 6.2, 10},
			[]float64{0, 5, 1.2, 3.8}},
		{"60 s, the maximum age: no rate covers more", maxAge,
			[]float64{0, 7, 14, 21, 28, 35, 42, 49, 56, 63, 70},
			[]float64{0, 0, 0, 21, 28, 35, 42, 49, 56, 42, 49}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, newest := newWideStore(tc.window), 0.0
			s.Put("n1", scrape(-2))
			for i, sampled := range tc.samples {
				newest = max(newest, sampled)
				s.Put("n1", scrape(newest, of("p/a", restless(sampled))))
				p := s.Pod("n1", "n", "p", at(newest))
				if p == nil {
					p = &usage.Pod{Containers: make([]usage.Container, 1)}
				}
				if got := p.Containers[0].Window; got != seconds(tc.want[i]) {
					t.Errorf("%d. sample, at %v s: got %s with a window of %v, want %v s", i, sampled, show(p), got, tc.want[i])
				}
			}
		})
	}
}

// TestWindowBeginsWhereLoadChanged checks the windows of loads that change, with samples at intervals. The
// usage is that of the interval before each sample.
func TestWindowBeginsWhereLoadChanged(t *testing.T) { // rule 1
	const calm, restless = 0.1, 0.2
	for _, tc := range []struct {
		name  string
		every float64   // seconds
		noise float64   // the intervals before have a core, more or less by this
		cores []float64 // of each interval
		want  []float64 // the window after each
	}{
		{"nothing changes", 5, calm, []float64{1, 1.1, 0.9, 1}, []float64{15, 15, 15, 15}},
		{"a step up", 5, calm, []float64{3, 3, 3, 3}, []float64{5, 10, 15, 15}},
		{"a step within an interval", 5, calm, []float64{2, 3, 3, 3, 3}, []float64{5, 5, 10, 15, 15}},
		{"a small step of a load without noise", 5, 0, []float64{1.1, 1.1, 1.1, 1.1}, []float64{5, 10, 15, 15}},
		{"less than a share of 3 %", 5, 0, []float64{1.02, 1, 1.02, 1}, []float64{15, 15, 15, 15}},
		{"a step of a load with more noise", 5, restless, []float64{1.6, 1.6, 1.6}, []float64{15, 15, 15}},
		{"a spike", 5, calm, []float64{5, 1, 1, 1, 1}, []float64{5, 5, 10, 15, 15}},
		{"a ramp", 5, 0, []float64{1.2, 1.4, 1.6, 1.8, 2}, []float64{5, 5, 5, 5, 5}},
		{"every 10 s: nothing changes", 10, calm, []float64{1, 1.1, 0.9, 1}, []float64{20, 20, 20, 20}},
		{"every 10 s: a step up", 10, calm, []float64{3, 3, 3}, []float64{10, 20, 20}},
		{"every 10 s: a step within an interval", 10, calm, []float64{2, 3, 3, 3}, []float64{10, 10, 20, 20}},
		{"every 10 s: a step down", 10, calm, []float64{0.3, 0.3, 0.3}, []float64{10, 20, 20}},
		{"every 10 s: less than the noise", 10, restless, []float64{1.6, 1.6, 1}, []float64{20, 20, 20}},
		{"every 10 s: a ramp", 10, 0, []float64{1.2, 1.4, 1.6, 1.8}, []float64{10, 10, 10, 10}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, used, now := newWideStore(rateWindow), 0.0, 0.0
			put := func(cores float64) usage.Amount {
				used, now = used+tc.every*cores, now+tc.every
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
				if got.Window == seconds(tc.every) && got.CPUNanocores != uint64(math.Round(1e9*cores)) {
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
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 3))
		with, without := newWideStore(rateWindow), newWideStore(rateWindow)
		level, used, now := 0.0, 0.0, 0.0
		reported := map[usage.NodeTime]float64{} // core seconds of the tenant
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
			reported[nodeAt(now)] = used
			others := scrape(now, of("p/a", restless(now)))
			others.Node = sample(now, 2*now)
			all := scrape(now, of("evil/a", sample(now, used)), others.Containers[0])
			all.Node = others.Node
			with.Put("n1", all)
			without.Put("n1", others)
			got, want := with.Pod("n1", "n", "p", at(now)), without.Pod("n1", "n", "p", at(now))
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, %v s: another pod: got %s, want %s", seed, now, show(got), show(want))
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

// TestHistoryIsDropped checks that there is only a history while samples are close to each other.
func TestHistoryIsDropped(t *testing.T) { // rule 12
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
	put(200, false)  // a new series
	put(215, false)  // as at the default resolution
	put(215.5, true) // too soon after the previous one
	put(230, false)
	put(240, false) // housekeeping every 10 s, scraped every 15 s
	put(260, false)
	put(270, false)
	put(290, false)
	put(300, false)
	put(310, true) // scraped more often
}

// TestSizeOfContainers checks that a container fits into 128 bytes. Go's next larger allocation has
// 144 bytes, for each container of the cluster.
func TestSizeOfContainers(t *testing.T) {
	if size := unsafe.Sizeof(container{}); size > 128 {
		t.Errorf("got %d bytes, want at most 128", size)
	}
}
