package main

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// The oracle accepts a CPU usage only if two readings explain it that the kubelet has reported:
//
//	usage = (C₁ − C₀) ÷ (τ₁ − τ₀)
//
// C is the CPU counter and τ the time by the node's clock. Both are known exactly, because the
// kubelets are simulated, so the only tolerance is the rounding to nanocores. If the clock was set by d
// in between, the relative error of such a usage is |d| ÷ (τ₁ − τ₀). The server must notice steps above
// maxUnnoticedStep, and readings on both sides of such a step explain nothing. For a smaller step, no
// bound follows from the response and the true usage alone: the window of a pod is the longest one of its
// containers, and the others are not in the response. It follows from what the kubelet has
// reported, which also makes the judgement independent of when the server scraped, and of housekeeping
// and its jitter.
const (
	// maxUnnoticedStep is the largest step of a clock that the server may not notice.
	maxUnnoticedStep = 1300 * time.Millisecond
	// minWindow is the shortest window of a rate.
	minWindow = time.Second
	// minServedWindow is a quarter of the server's --rate-window. A first rate has at least this window.
	minServedWindow = rateWindow / 4
	// minCoarseWindow is the shortest window between two times in whole seconds.
	minCoarseWindow = 10 * time.Second
	// minContainerAge and maxMeanSinceStart are the ages of a container between which its mean since
	// the start may be served. Younger containers have no metrics.
	minContainerAge, maxMeanSinceStart = usage.MinAgeSinceStart, usage.MaxAgeSinceStart
	// kubeletRateWindow is the window of kubelet-reported rates, unless the container is younger.
	kubeletRateWindow = 15 * time.Second
	rateWindow        = 15 * time.Second // --rate-window
)

// reading is a reading that a kubelet has reported.
type reading struct {
	kubelettest.Reading
	reported time.Time // first
	certain  time.Time // first, in a response without a fault; zero: only in others, which may be unreadable
}

// offset returns how far the node's clock was ahead.
func (r *reading) offset() time.Duration { return r.Stamp.Sub(r.At) }

// series has the readings of a node or container, oldest first.
type series []reading

// readings has what one kubelet has reported, by seriesKey.
type readings map[string]series

// seriesKey identifies a container of an object. That of a node itself is "".
func seriesKey(object, container string) string {
	if container == "" {
		return ""
	}
	return object + "/" + container
}

// record adds readings, and drops those that are older than keep.
func (r readings) record(reported []kubelettest.Reading, now time.Time, isCertain bool, keep time.Duration) {
	for _, one := range reported {
		key := seriesKey(podName(one.Namespace, one.Pod), one.Container)
		s := r[key]
		i := len(s)
		for i > 0 && s[i-1].At.After(one.At) { // responses may overtake each other
			i--
		}
		if i == 0 || !s[i-1].At.Equal(one.At) || !s[i-1].Started.Equal(one.Started) {
			s = slices.Insert(s, i, reading{Reading: one, reported: now})
			i++
		}
		if last := &s[i-1]; isCertain && last.certain.IsZero() {
			last.certain = now
		}
		r[key] = slices.DeleteFunc(s, func(old reading) bool { return now.Sub(old.At) > keep })
	}
}

// newestCertain returns the newest reading that the server must have had for some time.
func (s series) newestCertain(before time.Time) *reading {
	for i := range slices.Backward(s) {
		if r := &s[i]; !r.certain.IsZero() && r.certain.Before(before) {
			return r
		}
	}
	return nil
}

// explanation is a way how the server may have got a usage.
type explanation struct {
	end               *reading
	shortest, longest time.Duration // its possible windows
}

// isByOneClock reports whether the start time of a container and the time of its reading are by the same
// clock, as far as the server knows. It cannot notice that the clock is set and set back while the node
// is unreachable.
func (n *node) isByOneClock(end *reading) bool {
	differs := func(offset time.Duration) bool { return (offset - end.offset()).Abs() > maxUnnoticedStep }
	if !differs(end.StartStamp.Sub(end.Started)) {
		return true
	}
	s := n.readings[""]
	for i := range slices.Backward(s) {
		switch r := &s[i]; {
		case r.certain.IsZero() || r.certain.After(end.reported):
		case differs(r.offset()):
			return false
		case r.certain.Before(end.Started):
			return true
		}
	}
	return true
}

// explanations returns the ways to get a usage from the readings that the kubelet had reported when a response
// was received: those that end with the newest possible reading, and those that end at the timestamp or later.
func (s series) explanations(
	u containerUsage, timestamp, received time.Time, n *node, maxAge time.Duration,
) (all []explanation) {
	const rounding = 1.5e-9 // the API has nanocores
	for i := range slices.Backward(s) {
		end := &s[i]
		isOld := all != nil && end.Stamp.Before(timestamp.Add(-dateError)) // older than the oldest one
		if isOld || int64(end.Memory>>10) != u.memory || end.reported.After(received) {
			continue
		}
		// Start times are floating-point numbers of seconds, which have a resolution of 0.24 µs.
		age := end.Stamp.Sub(end.StartStamp)
		isMean := math.Abs(end.CPU/age.Seconds()-u.cores) <= rounding+1e-6*u.cores
		if isMean && age >= minContainerAge && age <= min(maxAge, maxMeanSinceStart) && n.isByOneClock(end) {
			all = append(all, explanation{end, age - time.Microsecond, age + time.Microsecond})
		}
		if end.HasRate && math.Abs(float64(end.Rate)/1e9-u.cores) <= rounding {
			all = append(all, end.kubeletReported(age, n.startsMove))
		}
		for start := range s[:i+1].starts() {
			window := end.Stamp.Sub(start.Stamp)
			isRate := math.Abs((end.CPU-start.CPU)/window.Seconds()-u.cores) <= rounding
			if isRate && window >= minServedWindow && window <= maxAge {
				all = append(all, explanation{end, window, window})
			}
		}
	}
	return all
}

// kubeletReported returns the explanation of a kubelet-reported rate, of a container whose age is that
// by the node's clock. Summaries have times in whole seconds.
func (r *reading) kubeletReported(age time.Duration, startsMove bool) explanation {
	e := explanation{r, kubeletRateWindow, kubeletRateWindow}
	switch {
	case startsMove: // the server may know another age
		e.shortest = 0
	case age >= 0: // else the server does not know the age
		e.shortest = min(e.shortest, age-timestampUnit)
		e.longest = min(e.longest, age+timestampUnit)
	}
	return e
}

// starts returns the readings that may start a rate that ends with the last one, newest first: since
// then, the counter did not fall and the clock was not set, as far as the server knows. It knows
// the readings of certain responses, and may not have received the others. The counter of a container
// that restarts between two readings may be higher at the second one; then the server cannot notice
// the restart.
func (s series) starts() iter.Seq[*reading] {
	return func(yield func(*reading) bool) {
		next := &s[len(s)-1] // the last one considered that the server knows
		for i := range slices.Backward(s[:len(s)-1]) {
			r := &s[i]
			isContinuous := r.CPU <= next.CPU && (r.offset()-next.offset()).Abs() <= maxUnnoticedStep
			isKnown := !r.certain.IsZero()
			if isContinuous && !yield(r) || !isContinuous && isKnown {
				return
			}
			if isKnown {
				next = r
			}
		}
	}
}

// describe returns the readings, for messages: when they were taken, the counter since its start, by how much the
// clock was ahead, and whether the server must have read them.
func (s series) describe(now time.Time) (text string) {
	for i := range s {
		r := &s[i]
		text += fmt.Sprintf(" %.3f s ago %.6f core-s in %.3f s (%+.3f s, %t),", now.Sub(r.At).Seconds(), r.CPU,
			r.At.Sub(r.Started).Seconds(), r.offset().Seconds(), !r.certain.IsZero())
	}
	return text
}
