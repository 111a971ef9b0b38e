package store

import (
	"math"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// unknown returns what a kubelet reports of a container without statistics.
func unknown(seconds float64) usage.Sample {
	s := sample(seconds, 0)
	s.Memory = 0
	return s
}

func two(a, b usage.Sample) []usage.ContainerSample {
	return []usage.ContainerSample{of("p/a", a), of("p/b", b)}
}

// TestLowCapacityOfDenseSamples checks that a status which is too low is found although the margin of short
// windows hides it now and then.
func TestLowCapacityOfDenseSamples(t *testing.T) { // rule 10
	for _, interval := range []float64{1, 2, 2.5, 3, 4, 5, 7} {
		for _, cores := range []float64{1.2, 1.3, 1.4, 1.6, 1.8, 2, 3} {
			s := newStore()
			for i := range 60 {
				now := interval * float64(i)
				sampled := math.Floor(now/3) * 3
				sc := scrape(now)
				sc.Node, sc.Capacity = sample(sampled, 1000+cores*sampled), 1_000_000_000
				s.Put("n1", sc)
				if n := s.Node("n1", at(now)); n == nil && now >= 8*max(interval, 3) {
					t.Errorf("%v cores, every %v s: not served after %v s", cores, interval, now)
				}
			}
		}
	}
}

// TestTimesInWholeSeconds checks that there are metrics with any --rate-window if the times of samples are
// truncated.
func TestTimesInWholeSeconds(t *testing.T) { // rule 1
	for rateWindow := 1; rateWindow <= 15; rateWindow++ {
		for interval := 1.0; interval <= 5; interval++ {
			s := newWideStore(time.Duration(rateWindow) * time.Second)
			for i := range 30 {
				now := interval * float64(i)
				truncated := sample(now, now)
				truncated.At -= truncated.At % 1e9
				s.Put("n1", scrape(now, of("p/a", truncated)))
				if now >= 20 && s.Pod("n1", "n", "p", at(now)) == nil {
					t.Fatalf("--rate-window=%ds, every %v s: no metrics after %v s", rateWindow, interval, now)
				}
			}
		}
	}
}
