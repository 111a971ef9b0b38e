package scrape

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestStartup checks within what time the first metrics of a container are expected. docs/troubleshooting.md and
// docs/why-no-metrics.md have it.
func TestStartup(t *testing.T) { // rule 4
	for interval, want := range map[time.Duration]time.Duration{
		15 * time.Second: 25 * time.Second,
		5 * time.Second:  20100 * time.Millisecond, // the kubelet samples every 10 s
	} {
		if got := (&Scraper{Config: Config{Interval: interval}}).Overall().Startup; got != want {
			t.Errorf("scrapes every %v: got %v, want %v", interval, got, want)
		}
	}
}

func TestHealth(t *testing.T) {
	unreachable := errors.New("unreachable")
	fetch := func(_ context.Context, node string) error {
		if node == "n2" {
			return unreachable
		}
		return nil
	}
	run(t, Config{}, fetch, func(t *testing.T, c *cluster, s *Scraper) {
		if _, ok := s.Node("n1"); ok {
			t.Error("got a status of an unknown node")
		}
		c.set(func() { c.clocks["n1"] = usage.Report{ClockKnown: true, ClockOffset: time.Minute} })
		start := time.Now()
		s.Set(node("n2"))
		s.Set(node("n1"))
		pass(interval + time.Second)
		synctest.Wait()

		n1, _ := s.Node("n1")
		if n1.Name != "n1" || n1.Address != "n1:10250" || n1.Err != nil || n1.Failures != 0 || !n1.FailingSince.IsZero() ||
			n1.LastSuccess != n1.Last ||
			n1.SucceedingSince != start || n1.Last.Before(start) || n1.Last.After(time.Now()) ||
			!n1.Next.After(time.Now()) || !n1.ClockKnown || n1.ClockOffset != time.Minute {
			t.Errorf("got %+v of a node whose scrapes succeed", n1)
		}
		n2, ok := s.Node("n2")
		if !ok || n2.Failures < 2 || n2.FailingSince != start || n2.Reason != reason.Reason("unreachable") ||
			!errors.Is(n2.Err, unreachable) || !n2.LastSuccess.IsZero() ||
			!n2.SucceedingSince.IsZero() || !n2.Last.After(start) {
			t.Errorf("got %+v of a node whose scrapes fail", n2)
		}
		c.set(func() { c.fetch = nil })
		pass(interval + time.Second)
		if n2, _ = s.Node("n2"); n2.Err != nil || n2.Reason != "" || n2.Failures != 0 || n2.LastSuccess.IsZero() ||
			n2.SucceedingSince.IsZero() || n2.SucceedingSince.After(n2.LastSuccess) {
			t.Errorf("got %+v of a node that has recovered", n2)
		}
		if all := s.Nodes(); len(all) != 2 || all[0].Name != "n1" || all[1].Name != "n2" {
			t.Errorf("got statuses %+v, want those of n1 and n2", all)
		}
		s.Delete("n2")
		if _, ok := s.Node("n2"); ok || len(s.Nodes()) != 1 {
			t.Error("a deleted node still has a status")
		}
	})
}
