package store

import (
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// rated returns a sample with a kubelet-reported rate, in millicores.
func rated(millicores uint64, s usage.Sample) usage.Sample {
	s.Rate, s.Has = millicores*1_000_000, s.Has|usage.HasRate
	return s
}

func TestKubeletRatesServeUntilThereAreTwoSamples(t *testing.T) {
	s := newStore()
	first := scrape(0.4, of("p/a", sample(0.4, 10)), of("p/b", sample(0.3, 20)))
	first.Node = sample(-3.5, 100)
	s.Put("n1", first)

	summary := scrape(0.5, of("p/a", rated(100, sample(0, 10))), of("p/b", rated(7, sample(0, 20))), of("q/new", rated(5, sample(0, 1))))
	summary.Node = rated(300, sample(-4, 100))
	s.PutSummary("n1", summary)
	expect(t, s, "p", 1, "at 0 window 15: a=100m b=7m")
	expect(t, s, "q", 1, "none") // a summary does not say what exists
	if n := s.Node("n1", at(1)); n == nil || n.CPUNanocores != 300_000_000 || n.At != at(-4) || n.Window != usage.KubeletRateWindow {
		t.Errorf("node %+v", n)
	}

	// The first true rate is that of the exact samples, as if there had been no summary.
	s.Put("n1", scrape(10.4, of("p/a", sample(10.4, 12)), of("p/b", sample(10.3, 20.5))))
	expect(t, s, "p", 11, "at 10.3 window 10: a=200m b=50m")
	s.PutSummary("n1", scrape(10.5, of("p/a", rated(900, sample(10, 12)))))
	expect(t, s, "p", 11, "at 10.3 window 10: a=200m b=50m")
}

func TestKubeletRatesApplyToTheSameReadingOnly(t *testing.T) {
	for _, tc := range []struct {
		name             string
		scraped, summary usage.Sample
		want             string
	}{
		{"the same sample, its time cut", sample(0.9, 10), rated(100, sample(0, 10)), "at 0 window 15: a=100m"},
		{"a placeholder", sample(0, 10), rated(0, sample(0, 10)), "none"},
		{"zero is data", sample(0, 0), rated(0, sample(0, 0)), "at 0 window 15: a=0m"},
		{"no rate", sample(0, 10), sample(0, 10), "none"},
		{"another reading: the rate is over we do not know what", sample(0, 10), rated(270, sample(0, 10.01)), "none"},
		{"the counter fell", sample(0, 10), rated(100, sample(1, 0.2)), "none"},
		{"the counter rose", sample(0, 10), rated(100, started(0.5, sample(20, 11))), "none"},
		{"younger than its window", started(-61, sample(0, 10)), rated(100, started(-12, sample(-1, 10))), "at -1 window 11: a=100m"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStore()
			s.Put("n1", scrape(1, of("p/a", tc.scraped)))
			s.PutSummary("n1", scrape(1, of("p/a", tc.summary)))
			expect(t, s, "p", 1, tc.want)
		})
	}
}

func TestAPodThatLacksOneRateIsNotServed(t *testing.T) { // rule 6
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 10)), of("p/b", sample(0, 10))))
	s.PutSummary("n1", scrape(0, of("p/a", rated(100, sample(0, 10))), of("p/b", sample(0, 10))))
	expect(t, s, "p", 0, "none")
}

// A kubelet that knows the rate of one container knows those of all: 0 is one.
func TestZeroOfAKubeletThatKnows(t *testing.T) {
	for _, tc := range []struct {
		name string
		busy usage.Sample
		want string
	}{
		{"knows", rated(100, sample(0, 10)), "at 0 window 15: a=0m"},
		{"says 0 of all", rated(0, sample(0, 10)), "none"},
		{"samples on demand", rated(100, sample(0, 10.1)), "none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStore()
			s.Put("n1", scrape(0, of("idle/a", sample(0, 3)), of("busy/a", sample(0, 10))))
			s.PutSummary("n1", scrape(0, of("idle/a", rated(0, sample(0, 3))), of("busy/a", tc.busy)))
			expect(t, s, "idle", 0, tc.want)
		})
	}
}

func TestMissing(t *testing.T) {
	bare := usage.Sample{StartedAt: at(-1)} // known, but not sampled yet
	for _, tc := range []struct {
		name    string
		sampled usage.Sample
		rates   bool
		wait    time.Duration
	}{
		{"old, sampled on demand or just now", sample(-0.1, 10), true, 1200 * time.Millisecond},
		{"old, sampled 4 s ago: the next sample comes 10 s after the last", sample(-4, 10), true, 6100 * time.Millisecond},
		{"old, its next sample is overdue", sample(-14, 10), true, 2 * time.Second},
		{"3 s old, sampled just now: worth a look when it is 10 s old", started(-3, sample(0, 1)), false, 7100 * time.Millisecond},
		{"8 s old, sampled 5 s ago: the next sample comes 10 s after the last", started(-8, sample(-5, 1)), false, 5100 * time.Millisecond},
		{"20 s old, but it may have run before: as any other", started(-20, sample(-1, 1)), true, 1200 * time.Millisecond},
		{"not sampled yet", bare, false, 2 * time.Second},
		{"a clock that runs ahead", sample(500, 10), true, 1200 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStore()
			if got, want := s.Put("n1", scrape(0, of("p/a", tc.sampled))), (usage.Lack{Rates: tc.rates, Wait: tc.wait}); got.Missing != want {
				t.Errorf("missing %+v, want %+v", got.Missing, want)
			}
		})
	}
}

func TestMissingEnds(t *testing.T) {
	s := newStore()
	first := scrape(0, of("p/a", sample(0, 10)), of("p/idle", sample(-5, 10)))
	if got := s.Put("n1", first); got.Missing != (usage.Lack{Rates: true, Wait: 1200 * time.Millisecond}) {
		t.Errorf("the first scrape lacks %+v", got)
	}
	// A rate that was lent serves until the next regular scrape.
	lent := scrape(0, of("p/a", rated(100, sample(0, 10))))
	if got := s.PutSummary("n1", lent); got.Missing != (usage.Lack{Rates: true, Wait: 5100 * time.Millisecond}) {
		t.Errorf("with one lent rate it lacks %+v", got)
	}
	if got := s.Put("n1", scrape(5.1, of("p/a", sample(5.1, 10.1)), of("p/idle", sample(-5, 10)))); got.Missing != (usage.Lack{Rates: true, Wait: 2 * time.Second}) {
		t.Errorf("when the sample is late it lacks %+v", got)
	}
	if got := s.Put("n1", scrape(31, of("p/a", sample(31, 11)), of("p/idle", sample(-5, 10)))); got.Missing != (usage.Lack{}) {
		t.Errorf("after half a minute it still hopes for a sample: %+v", got)
	}
}
