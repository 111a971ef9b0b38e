package scrape

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
			{
				offsets: map[int]float64{0: 10, 1: 10, 2: 10, 3: 10, 4: 10},
				want:    []string{nodeWrong, nodeWrong, nodeWrong, nodeWrong, nodeWrong},
			},
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
			run(t, nil, func(t *testing.T, c *cluster, s *Scraper) {
				report := func(n int, r usage.Report) {
					r.ClockKnown = true
					c.set(func() { c.clocks[fmt.Sprint("n", n)] = r })
				}
				for i := range 10 {
					report(i, usage.Report{})
					s.Set(node(fmt.Sprint("n", i)))
				}
				before := 0
				for i, step := range steps {
					time.Sleep(interval - time.Since(c.start)%interval + time.Millisecond)
					for n, seconds := range step.offsets {
						report(n, usage.Report{ClockOffset: time.Duration(seconds * float64(time.Second))})
					}
					for n := range step.jumps {
						report(n, usage.Report{ClockJumped: true})
					}
					time.Sleep(interval)
					for n := range step.jumps {
						report(n, usage.Report{})
					}
					pass(2 * interval)
					lines := c.lines()
					got := lines[before:]
					before = len(lines)
					for _, want := range step.want {
						k := slices.IndexFunc(got, func(line string) bool { return strings.Contains(line, want) })
						if k < 0 {
							t.Errorf("step %d: got no log line with %q", i, want)
							continue
						}
						got = slices.Delete(slices.Clone(got), k, k+1)
					}
					if len(got) > 0 {
						t.Errorf("step %d: got unexpected log lines %q", i, got)
					}
				}
			})
		})
	}
}

func TestObserverReceivesTheClockOffset(t *testing.T) {
	run(t, nil, func(t *testing.T, c *cluster, s *Scraper) {
		c.set(func() { c.clocks["n1"] = usage.Report{ClockKnown: true, ClockOffset: -time.Minute} })
		s.Set(node("n1"))
		synctest.Wait()
		if r := c.results[0]; !r.ClockKnown || r.ClockOffset != -time.Minute {
			t.Errorf("got offset %v, known %v, want -1m", r.ClockOffset, r.ClockKnown)
		}
	})
}

func TestClockOfADeletedNodeIsForgotten(t *testing.T) {
	run(t, nil, func(t *testing.T, c *cluster, s *Scraper) {
		c.set(func() { c.clocks["n1"] = usage.Report{ClockKnown: true, ClockOffset: time.Minute} })
		s.Set(node("n1"))
		synctest.Wait()
		if n := len(s.clocks.skews); n != 1 {
			t.Fatalf("got %d skews, want 1", n)
		}
		s.Delete("n1")
		if n := len(s.clocks.skews); n != 0 {
			t.Errorf("got %d skews after the deletion, want none", n)
		}
	})
}
