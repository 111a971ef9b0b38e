package scrape

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestLogsWrongClocks runs a cluster whose clocks change from step to step, and compares the log of
// each step.
func TestLogsWrongClocks(t *testing.T) {
	const (
		nodeWrong = "The clock of the node is wrong"
		nodeRight = "The clock of the node is right again"
		ourWrong  = "The clocks of most nodes differ from the clock of this machine"
		ourRight  = "The clocks of most nodes agree with the clock of this machine again"
		jumped    = "The clock of the node jumped"
		more      = "The clocks of more nodes jumped"
	)
	type step struct {
		offsets map[int]float64 // of nodes, in seconds; the others keep theirs
		jumps   int             // how many nodes jump, in one scrape each
		want    []string        // the start of each line, in any order
	}
	all := func(seconds float64) map[int]float64 {
		offsets := map[int]float64{}
		for i := range 10 {
			offsets[i] = seconds + float64(i)/10
		}
		return offsets
	}
	for name, steps := range map[string][]step{
		"one node": {
			{offsets: map[int]float64{0: 4.9, 1: -4.9}},
			{offsets: map[int]float64{0: 5.1}, want: []string{nodeWrong}},
			{offsets: map[int]float64{0: 4.1}},
			{offsets: map[int]float64{0: 600}},
			{offsets: map[int]float64{0: -3.9}, want: []string{nodeRight}},
			{offsets: map[int]float64{0: -75}, want: []string{nodeWrong}},
		},
		"several nodes by different amounts": {
			{
				offsets: map[int]float64{0: 10, 1: 20, 2: 30, 3: 40, 4: 50, 5: 60},
				want:    []string{nodeWrong, nodeWrong, nodeWrong, nodeWrong, nodeWrong, nodeWrong},
			},
		},
		"half of the nodes by the same amount": {
			{offsets: map[int]float64{0: 10, 1: 10, 2: 10, 3: 10, 4: 10}, want: []string{nodeWrong, nodeWrong, nodeWrong, nodeWrong, nodeWrong}},
		},
		"our own clock": {
			{offsets: all(-61), want: []string{ourWrong}},
			{offsets: all(-61)},
			{offsets: map[int]float64{0: 0}},
			{offsets: map[int]float64{0: -61}},
			{offsets: map[int]float64{0: 30}, want: nil}, // our clock stays the likely cause
			{offsets: all(0), want: []string{ourRight}},
			{offsets: map[int]float64{3: 7}, want: []string{nodeWrong}},
		},
		"our own clock, and then one node's": {
			{offsets: all(20), want: []string{ourWrong}},
			{
				offsets: map[int]float64{0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 7: 0, 8: 0},
				want:    []string{ourRight, nodeWrong},
			},
		},
		"jumps": {
			{jumps: 1, want: []string{jumped}},
			{jumps: 10, want: []string{jumped, jumped, jumped, jumped, jumped, more}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(nil)
				s := New(Config{Fetcher: fetcher{c}, Sink: sink{c}, Observer: c, Reason: error.Error, Interval: interval})
				logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
				done := make(chan struct{})
				go func() { s.Run(ctx); close(done) }()
				defer func() { cancel(); <-done }()
				for i := range 10 {
					c.reportClock(fmt.Sprint("n", i), usage.Report{ClockKnown: true})
					s.Set(node(fmt.Sprint("n", i)))
				}
				before := 0
				for i, step := range steps {
					time.Sleep(interval - time.Since(c.start)%interval + time.Millisecond)
					for n, seconds := range step.offsets {
						c.reportClock(fmt.Sprint("n", n), usage.Report{ClockKnown: true, ClockOffset: time.Duration(seconds * float64(time.Second))})
					}
					for n := range step.jumps {
						c.reportClock(fmt.Sprint("n", n), usage.Report{ClockKnown: true, ClockJumped: true})
					}
					time.Sleep(interval)
					for n := range step.jumps {
						c.reportClock(fmt.Sprint("n", n), usage.Report{ClockKnown: true})
					}
					time.Sleep(2 * interval)
					synctest.Wait()
					lines := strings.Split(strings.TrimSpace(logger.GetSink().(ktesting.Underlier).GetBuffer().String()), "\n")
					if lines[0] == "" {
						lines = nil
					}
					got := lines[before:]
					before = len(lines)
					for _, want := range step.want {
						for k, line := range got {
							if strings.Contains(line, want) {
								got = append(append([]string(nil), got[:k]...), got[k+1:]...)
								want = ""
								break
							}
						}
						if want != "" {
							t.Errorf("step %d: the log lacks %q", i, want)
						}
					}
					if len(got) > 0 {
						t.Errorf("step %d: the log has also\n%s", i, strings.Join(got, "\n"))
					}
				}
			})
		})
	}
}

// TestTheObserverLearnsTheOffset: a scrape reports how far the node's clock is ahead, if that is
// known.
func TestTheObserverLearnsTheOffset(t *testing.T) {
	run(t, nil, func(t *testing.T, c *cluster, s *Scraper) {
		c.reportClock("n1", usage.Report{ClockKnown: true, ClockOffset: -time.Minute})
		s.Set(node("n1"))
		synctest.Wait()
		if r := c.results[0]; !r.ClockKnown || r.ClockOffset != -time.Minute {
			t.Errorf("the offset is %v, known %v; want -1m", r.ClockOffset, r.ClockKnown)
		}
	})
}

func TestTheClockOfANodeThatIsGoneIsForgotten(t *testing.T) {
	run(t, nil, func(t *testing.T, c *cluster, s *Scraper) {
		c.reportClock("n1", usage.Report{ClockKnown: true, ClockOffset: time.Minute})
		s.Set(node("n1"))
		synctest.Wait()
		if len(s.clocks.skews) != 1 {
			t.Fatalf("%d skews are known, want 1", len(s.clocks.skews))
		}
		s.Delete("n1")
		if len(s.clocks.skews) != 0 {
			t.Errorf("%d skews are known, want none", len(s.clocks.skews))
		}
	})
}
