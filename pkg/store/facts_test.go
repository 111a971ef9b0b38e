package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// showFacts returns facts as text, with times in seconds.
func showFacts(f Facts) string {
	seconds := func(t usage.Time) string {
		if t == 0 {
			return "never"
		}
		return fmt.Sprint(t.Sub(t0).Seconds())
	}
	return fmt.Sprintf("since %s sampled %s amount %t", seconds(f.Since), seconds(f.SampledAt), f.HasAmount)
}

func showPodFacts(s *Store, node, pod string) string {
	facts, ok := s.PodFacts(node, "n", pod)
	if !ok {
		return "not reported"
	}
	var parts []string
	for _, c := range facts.Containers {
		parts = append(parts, c.Name+" "+showFacts(c.Facts))
	}
	asOf := "never"
	if facts.AsOf != 0 {
		asOf = fmt.Sprint(facts.AsOf.Sub(t0).Seconds())
	}
	return fmt.Sprintf("whole %s: %s", asOf, strings.Join(parts, ", "))
}

func TestPodFacts(t *testing.T) {
	s := newStore()
	expect := func(node, pod, want string) {
		t.Helper()
		if got := showPodFacts(s, node, pod); got != want {
			t.Errorf("%s on %s: got %s, want %s", pod, node, got, want)
		}
	}
	expect("n1", "p", "not reported")
	noMemory := sample(0, 1)
	noMemory.Has = usage.HasCPU
	s.Put("n1", scrape(0, of("p/a", sample(0, 1)), of("p/b", noMemory), of("q/a", untimed(sample(0, 1)))))
	expect("n1", "p", "whole never: a since 0 sampled 0 amount false, b since 0 sampled never amount false")
	expect("n1", "q", "whole never: a since 0 sampled 0 amount false")
	expect("n2", "p", "not reported")
	s.Put("n1", scrape(15, of("p/a", sample(14, 2)), of("q/a", sample(15, 2))))
	expect("n1", "p", "whole 14: a since 0 sampled 14 amount true")
	s.Put("n1", scrape(30, of("q/a", sample(30, 3)))) // the index of q changes
	expect("n1", "p", "not reported")
	expect("n1", "q", "whole 30: a since 15 sampled 30 amount true")
	s.RemovePod("n1", "n", "q", at(31))
	expect("n1", "q", "not reported")
	s.Forget("n1")
	expect("n1", "q", "not reported")
}

// TestPodFactsOfAWrongClock checks that times are by our clock.
func TestPodFactsOfAWrongClock(t *testing.T) {
	s := newStore()
	for now := 0.0; now <= 15; now += 15 {
		p := sample(now-600, now)
		containers := []usage.ContainerSample{of("p/a", p)}
		s.Put("n1", &usage.Scrape{At: at(now), Sent: at(now), Date: cut(at(now - 600)), Containers: containers})
		facts, ok := s.PodFacts("n1", "n", "p")
		if age := at(now).Sub(facts.Containers[0].SampledAt); !ok || age < -time.Second || age > time.Second {
			t.Errorf("at %v s: got %+v, want a sample of now", now, facts)
		}
	}
}

func TestNodeFacts(t *testing.T) {
	s := newStore()
	if f, ok := s.NodeFacts("n1"); ok {
		t.Errorf("got %+v of an unknown node", f)
	}
	put := func(now float64, node usage.Sample) {
		sc := scrape(now)
		sc.Node = node
		s.Put("n1", sc)
	}
	for i, test := range []struct {
		sample usage.Sample
		want   string
	}{
		{usage.Sample{}, "since 0 sampled never amount false"},
		{sample(15, 1), "since 15 sampled 15 amount false"},
		{sample(30, 2), "since 15 sampled 30 amount true"},
		{usage.Sample{}, "since 15 sampled 30 amount true"},
	} {
		put(float64(15*i), test.sample)
		if f, ok := s.NodeFacts("n1"); !ok || showFacts(f) != test.want {
			t.Errorf("scrape %d: got %s, want %s", i, showFacts(f), test.want)
		}
	}
}
