package store

import (
	"slices"
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestKubeletRatesServeUntilThereAreTwoSamples(t *testing.T) {
	s := newStore()
	first := scrape(0.4, of("p/a", sample(0.4, 10)), of("p/b", sample(0.3, 20)))
	first.Node = sample(-3.5, 100)
	s.Put("n1", first)

	summary := scrape(0.5,
		of("p/a", rated(100, sample(0, 10))), of("p/b", rated(7, sample(0, 20))), of("q/new", rated(5, sample(0, 1))))
	summary.Node = rated(300, sample(-4, 100))
	s.PutSummary("n1", summary)
	expect(t, s, "p", 1, "at 0 window 15: a=100m b=7m")
	expect(t, s, "q", 1, "none") // a summary starts no series
	n := s.Node("n1", at(1))
	if n == nil || n.CPUNanocores != 300_000_000 || n.At != at(-4) || n.Window != kubeletRateWindow {
		t.Errorf("got node %+v, want 300m at -4 s", n)
	}

	// The first rate of two samples is as if there had been no summary.
	s.Put("n1", scrape(10.4, of("p/a", sample(10.4, 12)), of("p/b", sample(10.3, 20.5))))
	expect(t, s, "p", 11, "at 10.3 window 10: a=200m b=50m")
	s.PutSummary("n1", scrape(10.5, of("p/a", rated(900, sample(10, 12)))))
	expect(t, s, "p", 11, "at 10.3 window 10: a=200m b=50m")
}

func TestKubeletRates(t *testing.T) {
	other := func(s usage.Sample) *usage.ContainerSample { return new(of("p/b", s)) }
	for _, tc := range []struct {
		name             string
		scraped, summary usage.Sample
		busy             *usage.ContainerSample // another container, with 10 core-seconds
		want             string
	}{
		{"the same sample, with a truncated time", sample(0.9, 10), rated(100, sample(0, 10)), nil, "at 0 window 15: a=100m"},
		{"a placeholder", sample(0, 10), rated(0, sample(0, 10)), nil, "none"},
		{"zero is data", sample(0, 0), rated(0, sample(0, 0)), nil, "at 0 window 15: a=0m"},
		{"no rate", sample(0, 10), sample(0, 10), nil, "none"},
		{"another sample: the window is unknown", sample(0, 10), rated(270, sample(0, 10.01)), nil, "none"},
		{"the counter fell", sample(0, 10), rated(100, sample(1, 0.2)), nil, "none"},
		{"the counter rose", sample(0, 10), rated(100, started(0.5, sample(20, 11))), nil, "none"},
		{
			"younger than the window", started(-61, sample(0, 10)), rated(100, started(-12, sample(-1, 10))), nil,
			"at -1 window 11: a=100m",
		},
		{
			"rule 6: another container has no rate", sample(0, 10), rated(100, sample(0, 10)), other(sample(0, 10)), "none",
		},
		// A kubelet that knows the rate of one container knows all: 0 is real.
		{
			"zero, and another rate is known", sample(0, 3), rated(0, sample(0, 3)), other(rated(100, sample(0, 10))),
			"at 0 window 15: a=0m b=100m",
		},
		{
			"zero, and another rate is 0", sample(0, 3), rated(0, sample(0, 3)), other(rated(0, sample(0, 10))), "none",
		},
		{
			"zero, and another is sampled on demand", sample(0, 3), rated(0, sample(0, 3)), other(rated(100, sample(0, 10.1))),
			"none",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStore()
			first, summary := scrape(1, of("p/a", tc.scraped)), scrape(1, of("p/a", tc.summary))
			if tc.busy != nil {
				first.Containers = append(first.Containers, of("p/b", sample(0, 10)))
				summary.Containers = append(summary.Containers, *tc.busy)
			}
			s.Put("n1", first)
			s.PutSummary("n1", summary)
			expect(t, s, "p", 1, tc.want)
		})
	}
}

// missing describes a container that started long ago.
func missing(since, sampled float64) usage.Missing {
	return usage.Missing{Since: at(since), SampledAt: at(sampled), StartedAt: at(-3600), KubeletRate: true}
}

func TestMissing(t *testing.T) {
	for _, tc := range []struct {
		name    string
		sampled usage.Sample
		want    usage.Missing
	}{
		{"old", sample(-4, 10), missing(0, -4)},
		{"8 s old, sampled 5 s ago", started(-8, sample(-5, 1)), usage.Missing{SampledAt: at(-5), StartedAt: at(-8)}},
		{
			"20 s old", started(-20, sample(-1, 1)),
			usage.Missing{SampledAt: at(-1), StartedAt: at(-20), KubeletRate: true},
		},
		{"start not known", started(1, sample(0, 1)), usage.Missing{SampledAt: at(0), KubeletRate: true}},
		{"not sampled yet", usage.Sample{StartedAt: at(-1)}, usage.Missing{}},
		{
			"the node's clock is ahead", sample(500, 10),
			usage.Missing{SampledAt: at(0), StartedAt: at(-4100), KubeletRate: true},
		},
		{
			"samples without times", untimed(started(-1, sample(0, 1))),
			usage.Missing{SampledAt: at(0), KubeletRate: true},
		},
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

func TestMissingFollowsTheSeries(t *testing.T) {
	s := newStore()
	check := func(when string, got []usage.Missing, want ...usage.Missing) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %+v, want %+v", when, got, want)
		}
	}
	a := func(seconds, coreSeconds float64) usage.ContainerSample {
		return of("p/a", sample(seconds, coreSeconds))
	}
	idle := func(seconds float64) usage.ContainerSample { return of("p/idle", sample(seconds, 10)) }
	first := scrape(0, a(0, 10), idle(-5))
	first.Node = sample(0, 100)
	check("first scrape", s.Put("n1", first).Missing, missing(0, 0), missing(0, 0), missing(0, -5))
	summary := scrape(0, of("p/a", rated(100, sample(0, 10))))
	summary.Node = rated(500, sample(0, 100))
	check("summary", s.PutSummary("n1", summary), missing(0, -5))
	check("late sample", s.Put("n1", scrape(5.1, a(0, 10), idle(-5))).Missing, missing(0, -5))
	check("another node", s.PutSummary("n2", summary))
	check("two samples", s.Put("n1", scrape(15, a(15, 11), idle(10))).Missing)
	check("restart", s.Put("n1", scrape(30, a(30, 1), idle(10))).Missing, missing(30, 30))
}
