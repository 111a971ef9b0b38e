package main

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
)

// clock is the history of the steps of a node's clock, oldest first. Without a step, the clock
// shows the true time.
type clock []clockStep

type clockStep struct {
	at     time.Time
	offset time.Duration // from the true time, since then
}

// offset returns the offset of the clock now.
func (c clock) offset() time.Duration {
	if len(c) == 0 {
		return 0
	}
	return c[len(c)-1].offset
}

// lastStep returns the time of the last step, or the zero time.
func (c clock) lastStep() time.Time {
	if len(c) == 0 {
		return time.Time{}
	}
	return c[len(c)-1].at
}

// trueTimes returns the true times at which the clock showed a timestamp, newest first. A clock
// that was set back shows the same time twice.
func (c clock) trueTimes(timestamp time.Time) (times []time.Time) {
	const slack = 100 * time.Millisecond // on-demand samples are some milliseconds old
	for i := len(c) - 1; i >= -1; i-- {
		at := timestamp
		if i >= 0 {
			at = timestamp.Add(-c[i].offset)
			if at.Add(timestampUnit + slack).Before(c[i].at) {
				continue
			}
		}
		if i+1 < len(c) && at.Add(-slack).After(c[i+1].at) {
			continue
		}
		times = append(times, at)
	}
	return times
}

// maxUnnoticedStep is the largest step that the server may not notice.
const maxUnnoticedStep = 1300 * time.Millisecond

// unnoticed returns the sum of the steps between two times that the server may not have noticed.
func (c clock) unnoticed(from, to time.Time) (sum time.Duration) {
	before := time.Duration(0)
	for _, s := range c {
		if step := (s.offset - before).Abs(); step <= maxUnnoticedStep && s.at.After(from) && s.at.Before(to) {
			sum += step
		}
		before = s.offset
	}
	return sum
}

// describe returns the last steps, for messages.
func (c clock) describe(now time.Time) (text string) {
	for i := max(0, len(c)-3); i < len(c); i++ {
		text += fmt.Sprintf("; the offset of its clock was set from %s to %s %s ago",
			c[:i].offset(), c[i].offset, now.Sub(c[i].at).Round(time.Millisecond))
	}
	return text
}

// load is the history of the true usage of a node or container, oldest first. The first usage holds
// for all time before the second.
type load []loadChange

type loadChange struct {
	at    time.Time
	usage kubelettest.Usage // since then
}

// mean returns the mean CPU usage between two times, in cores.
func (l load) mean(from, to time.Time) float64 {
	sum := 0.0
	for i, c := range l {
		start, end := later(c.at, from), to
		if i+1 < len(l) && l[i+1].at.Before(to) {
			end = l[i+1].at
		}
		if start.Before(end) {
			sum += c.usage.CPU * end.Sub(start).Seconds()
		}
	}
	return sum / to.Sub(from).Seconds()
}

// at returns the usage at a time.
func (l load) at(t time.Time) (usage kubelettest.Usage) {
	for i, c := range l {
		if i == 0 || !c.at.After(t) {
			usage = c.usage
		}
	}
	return usage
}

// limits are the CPU and memory that a response may have.
type limits struct {
	minCPU, maxCPU float64 // cores
	memory         []uint64
}

// limits returns the limits for a rate over one of the windows, of which the first is that of the
// response, or a shorter one that a container may have. It ends at a sample that was taken up to
// timestampUnit and extra after at. Steps of the clock after earliest that the server may not have
// noticed make the windows shorter or longer.
func (n *node) limits(l load, at time.Time, windows []time.Duration, earliest time.Time, extra time.Duration) limits {
	const (
		tolerance = 0.02 // counters have milliseconds
		increment = 250 * time.Millisecond
	)
	found := limits{minCPU: math.Inf(1)}
	for shift := time.Duration(0); shift <= timestampUnit+extra; shift += increment {
		end := at.Add(shift)
		for _, width := range windows {
			mean := l.mean(end.Add(-width), end)
			found.minCPU, found.maxCPU = min(found.minCPU, mean), max(found.maxCPU, mean)
		}
		found.memory = append(found.memory, l.at(end).Memory)
	}
	steps := n.clock.unnoticed(earliest, at.Add(timestampUnit+extra))
	shortest := max(windows[0]-steps, minWindow) // the first window, by the other clock
	share := tolerance + steps.Seconds()/shortest.Seconds()
	found.minCPU, found.maxCPU = found.minCPU*(1-share)-1e-6, found.maxCPU*(1+share)+1e-6
	return found
}

// check describes how usage is outside the limits. It returns "" if it is not.
func (l limits) check(usage corev1.ResourceList) string {
	if cpu := usage.Cpu().AsApproximateFloat64(); cpu < l.minCPU || cpu > l.maxCPU {
		return fmt.Sprintf("got %.6f cores, want %.6f to %.6f", cpu, l.minCPU, l.maxCPU)
	}
	memory := usage.Memory().Value()
	for _, want := range l.memory {
		if memory>>10 == int64(want)>>10 {
			return ""
		}
	}
	return fmt.Sprintf("got %d bytes, want %d", memory, l.memory[0])
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
