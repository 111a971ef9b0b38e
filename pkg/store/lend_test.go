package store

import (
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// own gives a sample the kubelet's own rate, in millicores.
func own(millicores uint64, s usage.Sample) usage.Sample {
	s.Rate, s.Has = millicores*1_000_000, s.Has|usage.HasRate
	return s
}

func TestOwnRatesServeUntilThereIsATrueOne(t *testing.T) {
	s := newStore()
	first := scrape(0.4, of("p/a", sample(0.4, 10)), of("p/b", sample(0.3, 20)))
	first.Node = sample(-3.5, 100)
	s.Put("n1", first)

	summary := scrape(0.5, of("p/a", own(100, sample(0, 10))), of("p/b", own(7, sample(0, 20))), of("q/new", own(5, sample(0, 1))))
	summary.Node = own(300, sample(-4, 100))
	s.Lend("n1", summary)
	expect(t, s, "p", 1, "at 0 window 15: a=100m b=7m")
	expect(t, s, "q", 1, "none") // a summary does not say what exists
	if n := s.Node("n1", at(1)); n == nil || n.CPUNanocores != 300_000_000 || n.At != at(-4) || n.Window != usage.OwnRateWindow {
		t.Errorf("node %+v", n)
	}

	// The first true rate is that of the exact samples, as if there had been no summary.
	s.Put("n1", scrape(10.4, of("p/a", sample(10.4, 12)), of("p/b", sample(10.3, 20.5))))
	expect(t, s, "p", 11, "at 10.3 window 10: a=200m b=50m")
	s.Lend("n1", scrape(10.5, of("p/a", own(900, sample(10, 12)))))
	expect(t, s, "p", 11, "at 10.3 window 10: a=200m b=50m")
}

func TestOwnRatesAreLentOnlyToTheSameSeries(t *testing.T) {
	for _, tc := range []struct {
		name        string
		known, lent usage.Sample
		want        string
	}{
		{"the same sample, its time cut", sample(0.9, 10), own(100, sample(0, 10)), "at 0 window 15: a=100m"},
		{"a placeholder", sample(0, 10), own(0, sample(0, 10)), "none"},
		{"zero is data", sample(0, 0), own(0, sample(0, 0)), "at 0 window 15: a=0m"},
		{"no rate", sample(0, 10), sample(0, 10), "none"},
		{"another reading: the rate is over we do not know what", sample(0, 10), own(270, sample(0, 10.01)), "none"},
		{"the counter fell", sample(0, 10), own(100, sample(1, 0.2)), "none"},
		{"started since", sample(0, 10), own(100, started(0.5, sample(20, 11))), "none"},
		{"younger than its window", started(-61, sample(0, 10)), own(100, started(-12, sample(-1, 10))), "at -1 window 11: a=100m"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStore()
			s.Put("n1", scrape(1, of("p/a", tc.known)))
			s.Lend("n1", scrape(1, of("p/a", tc.lent)))
			expect(t, s, "p", 1, tc.want)
		})
	}
}

func TestAPodThatLacksOneRateIsNotServed(t *testing.T) { // rule 6
	s := newStore()
	s.Put("n1", scrape(0, of("p/a", sample(0, 10)), of("p/b", sample(0, 10))))
	s.Lend("n1", scrape(0, of("p/a", own(100, sample(0, 10))), of("p/b", sample(0, 10))))
	expect(t, s, "p", 0, "none")
}

// A kubelet that knows the rate of one container knows those of all: 0 is one.
func TestZeroOfAKubeletThatKnows(t *testing.T) {
	for _, tc := range []struct {
		name string
		busy usage.Sample
		want string
	}{
		{"knows", own(100, sample(0, 10)), "at 0 window 15: a=0m"},
		{"says 0 of all", own(0, sample(0, 10)), "none"},
		{"samples on demand", own(100, sample(0, 10.1)), "none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStore()
			s.Put("n1", scrape(0, of("idle/a", sample(0, 3)), of("busy/a", sample(0, 10))))
			s.Lend("n1", scrape(0, of("idle/a", own(0, sample(0, 3))), of("busy/a", tc.busy)))
			expect(t, s, "idle", 0, tc.want)
		})
	}
}

func TestLack(t *testing.T) {
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
		{"20 s old: it has its mean since the start", started(-20, sample(-1, 1)), false, 0},
		{"not sampled yet", bare, false, 2 * time.Second},
		{"a clock that runs ahead", sample(500, 10), true, 1200 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStore()
			if got, want := s.Put("n1", scrape(0, of("p/a", tc.sampled))).Missing, (usage.Lack{Rates: tc.rates, Wait: tc.wait}); got != want {
				t.Errorf("lacks %+v, want %+v", got, want)
			}
		})
	}
}

func TestLackEnds(t *testing.T) {
	s := newStore()
	first := scrape(0, of("p/a", sample(0, 10)), of("p/idle", sample(-5, 10)))
	if got := s.Put("n1", first).Missing; got != (usage.Lack{Rates: true, Wait: 1200 * time.Millisecond}) {
		t.Errorf("the first scrape lacks %+v", got)
	}
	// A rate that was lent serves until the next regular scrape.
	lent := scrape(0, of("p/a", own(100, sample(0, 10))))
	if got := s.Lend("n1", lent); got != (usage.Lack{Rates: true, Wait: 5100 * time.Millisecond}) {
		t.Errorf("with one lent rate it lacks %+v", got)
	}
	if got := s.Put("n1", scrape(5.1, of("p/a", sample(5.1, 10.1)), of("p/idle", sample(-5, 10)))).Missing; got != (usage.Lack{Rates: true, Wait: 2 * time.Second}) {
		t.Errorf("when the sample is late it lacks %+v", got)
	}
	if got := s.Put("n1", scrape(31, of("p/a", sample(31, 11)), of("p/idle", sample(-5, 10)))).Missing; got != (usage.Lack{}) {
		t.Errorf("after half a minute it still hopes for a sample: %+v", got)
	}
}

func TestOnlyTheNodeThatAPodIsBoundToIsBelieved(t *testing.T) {
	bound := map[string]string{}
	s := New(Config{MaxSampleAge: maxAge, MaxContainers: 100, NodeOf: func(namespace, pod string) string { return bound[namespace+"/"+pod] }})
	put := func(node string, seconds float64, millicores float64) {
		s.Put(node, scrape(seconds, of("p/a", started(-1000, sample(seconds, 100+seconds*millicores/1000)))))
	}
	lie := func(seconds float64) {
		s.Put("liar", scrape(seconds, of("p/a", started(-20, sample(seconds, 100+seconds*9))))) // started last
	}
	put("n1", 0, 100)
	put("n1", 10, 100)
	lie(0)
	lie(10)
	expect(t, s, "p", 10, "at 10 window 10: a=9000m") // rule 10: it is not known who lies

	bound["n/p"] = "n1"
	expect(t, s, "p", 11, "none") // what is served comes from another node
	put("n1", 20, 100)
	expect(t, s, "p", 20, "at 20 window 10: a=100m")
	lie(20)
	expect(t, s, "p", 20, "at 20 window 10: a=100m")
	s.Forget("liar")
	expect(t, s, "p", 20, "at 20 window 10: a=100m")
	if n := s.Counts().ContestedClaims; n == 0 {
		t.Error("a claim that is not believed is not counted")
	}

	bound["n/p"] = "n2" // it moved
	expect(t, s, "p", 21, "none")
	put("n2", 20, 300)
	put("n2", 30, 300)
	put("n1", 30, 100)
	expect(t, s, "p", 30, "at 30 window 10: a=300m")
}
