package main

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
)

// The oracle accepts a CPU usage only if two readings explain it that the kubelet has reported:
//
//	usage = (C₁ − C₀) ÷ (τ₁ − τ₀)
//
// C is the CPU counter and τ the time by the node's clock. Both are known exactly, because the
// kubelets are simulated, so the only tolerance is the rounding to nanocores. How far may such a
// usage be from the true one? Let the readings be taken at the true times t₀ and t₁, and let the
// clock be set by d in between. Then τ₁ − τ₀ = t₁ − t₀ + d. The counter is the exact integral of the
// true usage, whose mean from t₀ to t₁ be u. With the window W = τ₁ − τ₀:
//
//	usage = u × (t₁ − t₀) ÷ W = u × (1 − d ÷ W)
//
// So the relative error is exactly |d| ÷ W. The server must notice steps above maxUnnoticedStep, and
// readings on both sides of such a step explain nothing. Of a smaller step, the error is bounded by
// the window of the container, which a response does not contain: the window of a pod is that of
// its oldest value. Containers of a pod that did not start together are sampled at different times,
// and then their windows differ permanently, with dense samples between 70 and 130 % of the rate
// window. So no bound follows from the response and the true usage alone. It follows from what the
// kubelet has reported, which also makes the judgement independent of when the server scraped.
//
// Neither the interval between two samples of the kubelet (housekeeping) nor its jitter are part of
// the formula: they decide when readings are taken, and not what they are.
const (
	// maxUnnoticedStep is the largest step of a clock that the server may not notice.
	maxUnnoticedStep = 1300 * time.Millisecond
	// minWindow is the shortest window of a rate.
	minWindow = time.Second
	// minContainerAge and maxMeanSinceStart are the ages of a container between which its mean since
	// the start may be served. Younger containers have no metrics.
	minContainerAge, maxMeanSinceStart = 10 * time.Second, time.Minute
	// kubeletRateWindow is the window of kubelet-reported rates, unless the container is younger.
	kubeletRateWindow = 15 * time.Second
)

// seriesKey identifies a container of a node. The zero key is that of the node itself.
type seriesKey struct{ namespace, pod, container string }

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

// readings has what one kubelet has reported.
type readings map[seriesKey]series

// record adds readings, and drops those that are older than keep.
func (r readings) record(reported []kubelettest.Reading, now time.Time, isCertain bool, keep time.Duration) {
	for _, one := range reported {
		key := seriesKey{one.Namespace, one.Pod, one.Container}
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
		expired := 0
		for expired < len(s) && now.Sub(s[expired].At) > keep {
			expired++
		}
		r[key] = slices.Delete(s, 0, expired)
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

// value is the usage in a response.
type value struct {
	cores  float64
	memory int64 // KiB
}

func valueOf(usage corev1.ResourceList) value {
	return value{usage.Cpu().AsApproximateFloat64(), usage.Memory().Value() >> 10}
}

// explanation is a way in which the server may have got a value.
type explanation struct {
	end               *reading
	shortest, longest time.Duration // its possible windows
}

// hasWindow reports whether a response may have this window.
func (e explanation) hasWindow(window time.Duration) bool {
	return window >= e.shortest && window <= e.longest
}

// facts are what the oracle knows of a node when it looks for explanations.
type facts struct {
	maxAge     time.Duration
	startsMove bool   // the start times of containers may be wrong
	node       series // the readings of the node itself
}

// isByOneClock reports whether the start time of a container and the time of its reading are by the same
// clock, as far as the server knows. It cannot notice that the clock is set and set back while the node
// is unreachable.
func (f facts) isByOneClock(end *reading) bool {
	differs := func(offset time.Duration) bool { return (offset - end.offset()).Abs() > maxUnnoticedStep }
	if !differs(end.StartStamp.Sub(end.Started)) {
		return true
	}
	for i := range slices.Backward(f.node) {
		switch r := &f.node[i]; {
		case r.certain.IsZero() || r.certain.After(end.reported):
		case differs(r.offset()):
			return false
		case r.certain.Before(end.Started):
			return true
		}
	}
	return true
}

// explanations returns all ways to get a value, those that end with the newest reading first. ends
// selects the readings with which they may end.
func (s series) explanations(v value, f facts, ends func(*reading) bool) iter.Seq[explanation] {
	const rounding = 1.5e-9 // the API has nanocores
	return func(yield func(explanation) bool) {
		for i := range slices.Backward(s) {
			end := &s[i]
			if int64(end.Memory>>10) != v.memory || !ends(end) {
				continue
			}
			// Start times are floating-point numbers of seconds, which have a resolution of 0.24 µs.
			age := end.Stamp.Sub(end.StartStamp)
			isMean := math.Abs(end.CPU/age.Seconds()-v.cores) <= rounding+1e-6*v.cores
			if isMean && age >= minContainerAge && age <= min(f.maxAge, maxMeanSinceStart) && f.isByOneClock(end) &&
				!yield(explanation{end, age - time.Microsecond, age + time.Microsecond}) {
				return
			}
			if end.HasRate && math.Abs(float64(end.Rate)/1e9-v.cores) <= rounding &&
				!yield(end.kubeletReported(age, f.startsMove)) {
				return
			}
			for start := range s[:i+1].starts() {
				window := end.Stamp.Sub(start.Stamp)
				if window < minWindow || window > f.maxAge {
					continue
				}
				cores := (end.CPU - start.CPU) / window.Seconds()
				if math.Abs(cores-v.cores) <= rounding && !yield(explanation{end, window, window}) {
					return
				}
			}
		}
	}
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

// starts returns the readings with which a rate may start that ends with the last one, newest first:
// those from which on the counter did not fall and the clock was not set, as far as the server
// knows. It knows the readings of certain responses, and may not have received the others. The
// counter of a container that restarts between two readings may be higher at the second one; then the
// server cannot notice the restart.
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

// describe returns the readings, for messages: when they were taken, the counter since its start, and
// by how much the clock was ahead.
func (s series) describe(now time.Time) string {
	var b strings.Builder
	for i := range s {
		r := &s[i]
		fmt.Fprintf(&b, " %.3f s ago %.6f core-s in %.3f s", now.Sub(r.At).Seconds(), r.CPU, r.At.Sub(r.Started).Seconds())
		if ahead := r.offset(); ahead != 0 {
			fmt.Fprintf(&b, " (%+.3f s)", ahead.Seconds())
		}
		if r.certain.IsZero() {
			b.WriteString(" (perhaps unreadable)")
		}
		b.WriteByte(',')
	}
	return strings.TrimSuffix(b.String(), ",")
}
