package main

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
)

// clock is the history of a node's clock, oldest first. One without settings always shows the true
// time.
type clock []setting

// setting is one step of a clock.
type setting struct {
	at    time.Time
	ahead time.Duration // of the true time, from then on; negative: behind
}

// ahead returns by how much the clock is ahead of the true time now.
func (c clock) ahead() time.Duration {
	if len(c) == 0 {
		return 0
	}
	return c[len(c)-1].ahead
}

// setAt returns when the clock was set last; the zero time: never.
func (c clock) setAt() time.Time {
	if len(c) == 0 {
		return time.Time{}
	}
	return c[len(c)-1].at
}

// meant returns the true times, newest first, that a timestamp may mean.
func (c clock) meant(timestamp time.Time) (times []time.Time) {
	const slack = 100 * time.Millisecond // samples that are taken on demand are some milliseconds old
	for i := len(c) - 1; i >= -1; i-- {
		at := timestamp
		if i >= 0 {
			at = timestamp.Add(-c[i].ahead)
			if at.Add(unit + slack).Before(c[i].at) {
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

// unnoticed is the greatest step that the server may not notice.
const unnoticed = 1300 * time.Millisecond

// stepped returns the sum of the steps between two times that the server may not have noticed.
func (c clock) stepped(from, to time.Time) (sum time.Duration) {
	before := time.Duration(0)
	for _, s := range c {
		if step := (s.ahead - before).Abs(); step <= unnoticed && s.at.After(from) && s.at.Before(to) {
			sum += step
		}
		before = s.ahead
	}
	return sum
}

// history describes the last steps of the clock.
func (c clock) history(now time.Time) (text string) {
	for i := max(0, len(c)-3); i < len(c); i++ {
		before := c[:i].ahead()
		text += fmt.Sprintf("; its clock was set %s ago from %s to %s", now.Sub(c[i].at).Round(time.Millisecond), before, c[i].ahead)
	}
	return text
}

// load is the true usage of a node or container, oldest first. The first one has been there from
// the start.
type load []change

type change struct {
	at    time.Time
	usage kubelettest.Usage // from then on
}

// mean returns the mean CPU usage between two times, in cores.
func (l load) mean(from, to time.Time) float64 {
	sum := 0.0
	for i, c := range l {
		begin, end := later(c.at, from), to
		if i+1 < len(l) && l[i+1].at.Before(to) {
			end = l[i+1].at
		}
		if begin.Before(end) {
			sum += c.usage.CPU * end.Sub(begin).Seconds()
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

// limits is what may be served of something.
type limits struct {
	lowest, highest float64 // cores
	memory          []uint64
}

// limits returns what may be served with a sample that was taken from at on, up to a second or
// reach later, for a rate over window. Kubelets compute their own rates over the time between two
// samples.
func (n *node) limits(l load, at time.Time, window, reach time.Duration) limits {
	const (
		tolerance = 0.02 // a counter is read in milliseconds
		step      = 250 * time.Millisecond
	)
	found := limits{lowest: math.Inf(1)}
	for shift := time.Duration(0); shift <= unit+reach; shift += step {
		end := at.Add(shift)
		for _, width := range []time.Duration{window, housekeeping} {
			mean := l.mean(end.Add(-width), end)
			found.lowest, found.highest = min(found.lowest, mean), max(found.highest, mean)
		}
		found.memory = append(found.memory, l.at(end).Memory)
	}
	share := tolerance + n.clock.stepped(at.Add(-window-unit), at.Add(unit+reach)).Seconds()/window.Seconds()
	found.lowest, found.highest = found.lowest*(1-share)-1e-6, found.highest*(1+share)+1e-6
	return found
}

// exceeded describes how usage is beyond the limits, or returns nothing if it is not.
func (l limits) exceeded(got corev1.ResourceList) string {
	if cpu := got.Cpu().AsApproximateFloat64(); cpu < l.lowest || cpu > l.highest {
		return fmt.Sprintf("uses %.6f cores, and not %.6f to %.6f", cpu, l.lowest, l.highest)
	}
	memory := got.Memory().Value()
	for _, want := range l.memory {
		if memory>>10 == int64(want)>>10 {
			return ""
		}
	}
	return fmt.Sprintf("holds %d bytes, and not %d", memory, l.memory[0])
}
