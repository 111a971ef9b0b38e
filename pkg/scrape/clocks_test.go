package scrape

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestLogsCapacity checks that a capacity that is too low is logged once, and is known of the node.
func TestLogsCapacity(t *testing.T) {
	run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
		const line = "The CPU usage of the node is above the capacity in its status"
		for i, step := range []struct {
			exceeded uint64
			want     int // lines so far
		}{{0, 0}, {6e9, 1}, {6.5e9, 1}, {0, 1}, {6e9, 2}} {
			c.set(func() { c.clocks["n1"] = usage.Report{Exceeded: step.exceeded} })
			n1 := node("n1")
			n1.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
			s.Set(n1)
			pass(3 * interval)
			lines := slices.DeleteFunc(c.lines(), func(l string) bool { return !strings.Contains(l, line) })
			if len(lines) != step.want || step.want > 0 && !strings.Contains(lines[0], "capacity=2 usage=6") {
				t.Errorf("step %d: got %q, want %d lines", i, lines, step.want)
			}
			if n, _ := s.Node("n1"); n.Capacity != 2e9 || n.Exceeded != step.exceeded {
				t.Errorf("step %d: got capacity %d, exceeded %d", i, n.Capacity, n.Exceeded)
			}
		}
	})
}

// TestLogsWrongClocks runs a cluster whose clocks change from step to step, and compares the log of
// each step.
func TestLogsWrongClocks(t *testing.T) {
	const (
		differs = "The clock of the node differs from ours"
		jumped  = "The clock of the node jumped against ours"
	)
	type step struct {
		offsets map[int]float64 // of nodes, in seconds; the others keep theirs
		jumps   int             // how many nodes jump, in one scrape each
		want    []string        // the start of each line, in any order
	}
	all := func(seconds float64) map[int]float64 {
		offsets := map[int]float64{}
		for i := range 10 {
			offsets[i] = seconds
		}
		return offsets
	}
	for name, steps := range map[string][]step{
		"wrong when first known": {
			{offsets: map[int]float64{0: 4.9, 1: -4.9, 2: 5.1, 3: -75}, want: []string{differs, differs}},
			{offsets: map[int]float64{2: 4.9, 3: -61}},
			{offsets: map[int]float64{0: 600}}, // drifted: the metrics show it
		},
		"all nodes": {
			{offsets: all(-61), want: []string{differs, differs, differs, differs, differs}},
			{offsets: all(0)},
		},
		"jumps": {
			{}, // the first scrapes
			{jumps: 1, want: []string{jumped}},
			{jumps: 10, want: []string{jumped, jumped, jumped, jumped, jumped}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, Config{}, nil, func(t *testing.T, c *cluster, s *Scraper) {
				report := func(n int, r usage.Report) {
					r.ClockKnown = true
					c.set(func() { c.clocks[fmt.Sprint("n", n)] = r })
				}
				for i := range 10 {
					report(i, usage.Report{})
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
					for n := range 10 {
						s.Set(node(fmt.Sprint("n", n))) // the first time, with the offsets of the first step
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
