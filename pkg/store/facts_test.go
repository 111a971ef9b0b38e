package store

import (
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestLostFacts checks which loss is known of a pod whose containers have lost samples, and until when.
func TestLostFacts(t *testing.T) {
	s := newStoreWith(&usage.ContainerState{Running: true, Alive: true})
	real := func(now float64) usage.Sample { return sample(now, 20+now/10) }
	for _, tc := range []struct {
		at         float64
		containers []usage.ContainerSample
		lost       usage.Loss
		container  string
		omitted    bool // b
	}{
		{0, two(real(0), unknown(0)), usage.LostZero, "b", false},
		{15, two(real(15), real(15)), usage.NotLost, "", false},
		{30, two(sample(30, 5), unknown(30)), usage.LostZero, "b", false}, // a has metrics, b none
		{45, two(real(45), real(45)), usage.NotLost, "", false},
		{60, two(sample(60, 5), unknown(60)), usage.LostFall, "a", false}, // both have metrics: the first
		{75, two(real(75), real(75))[:1], usage.NotLost, "", true},
		{90, two(real(90), unknown(90)), usage.LostZero, "b", false},
	} {
		sc := scrape(tc.at, tc.containers...)
		sc.DropUnknown()
		s.Put("n1", sc)
		f, ok := s.PodFacts("n1", "n", "p")
		if !ok || f.Lost != tc.lost || f.LostContainer != tc.container || f.Containers[1].Omitted != tc.omitted {
			t.Errorf("at %v s: got %+v, %v, want loss %d of %q", tc.at, f, ok, tc.lost, tc.container)
		}
	}
	sc := scrape(105)
	sc.Node = usage.Sample{Memory: 1, Has: usage.HasMemory, Loss: usage.LostTime}
	s.Put("n1", sc)
	if f, ok := s.NodeFacts("n1"); !ok || f.Lost != usage.LostTime {
		t.Errorf("got %+v of the node", f)
	}
}

// TestOurTime checks that times of a node whose clock is 90 to 89 s behind are converted, and those of a node
// that was never scraped are not.
func TestOurTime(t *testing.T) { // rule 3
	s, sc := newStore(), scrape(100)
	sc.Date = nodeAt(10)
	s.Put("n1", sc)
	if got, want := s.OurTime("n1", nodeAt(5)), at(94); got != want {
		t.Errorf("got %v after t0 by our clock, want %v", got.Sub(t0), want.Sub(t0))
	}
	if got, want := s.OurTime("n2", nodeAt(5)), at(5); got != want {
		t.Errorf("got %v after t0 for an unknown node, want %v", got.Sub(t0), want.Sub(t0))
	}
}
