package store

import (
	"slices"
	"testing"

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
	startedAt := at(-3600) // of sample
	for _, tc := range []struct {
		name    string
		sampled usage.Sample
		want    usage.Missing
	}{
		{"old", sample(-4, 10), usage.Missing{SampledAt: at(-4), StartedAt: startedAt, KubeletRate: true}},
		{"8 s old, sampled 5 s ago", started(-8, sample(-5, 1)), usage.Missing{SampledAt: at(-5), StartedAt: at(-8)}},
		{"20 s old", started(-20, sample(-1, 1)), usage.Missing{SampledAt: at(-1), StartedAt: at(-20), KubeletRate: true}},
		{"start not known", started(1, sample(0, 1)), usage.Missing{SampledAt: at(0), KubeletRate: true}},
		{"not sampled yet", usage.Sample{StartedAt: at(-1)}, usage.Missing{}},
		{"the node's clock is ahead", sample(500, 10), usage.Missing{SampledAt: at(0), StartedAt: startedAt - 500e9, KubeletRate: true}},
		{"samples without times", untimed(started(-1, sample(0, 1))), usage.Missing{SampledAt: at(0), KubeletRate: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.Since = at(0)
			got := newStore().Put("n1", scrape(0, of("p/a", tc.sampled))).Missing
			if !slices.Equal(got, []usage.Missing{tc.want}) {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func untimed(s usage.Sample) usage.Sample { s.Untimed = true; return s }

func TestMissingFollowsTheSeries(t *testing.T) {
	s := newStore()
	one := func(since, sampled float64) usage.Missing {
		return usage.Missing{Since: at(since), SampledAt: at(sampled), StartedAt: at(-3600), KubeletRate: true}
	}
	check := func(when string, got []usage.Missing, want ...usage.Missing) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %+v, want %+v", when, got, want)
		}
	}
	busy, idle := of("p/a", sample(0, 10)), of("p/idle", sample(-5, 10))
	first := scrape(0, busy, idle)
	first.Node = sample(0, 100)
	check("first scrape", s.Put("n1", first).Missing, one(0, 0), one(0, 0), one(0, -5))
	summary := scrape(0, of("p/a", rated(100, sample(0, 10))))
	summary.Node = rated(500, sample(0, 100))
	check("summary", s.PutSummary("n1", summary), one(0, -5))
	check("late sample", s.Put("n1", scrape(5.1, busy, idle)).Missing, one(0, -5))
	check("another node", s.PutSummary("n2", summary))
	check("two samples", s.Put("n1", scrape(15, of("p/a", sample(15, 11)), of("p/idle", sample(10, 10)))).Missing)
	check("restart", s.Put("n1", scrape(30, of("p/a", sample(30, 1)), of("p/idle", sample(10, 10)))).Missing, one(30, 30))
}
