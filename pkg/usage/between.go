package usage

import (
	"math"
	"time"
)

// MinAgeSinceStart is the age from which on a container's mean rate since its start serves. Younger ones are still in
// their start-up spike, which would mislead autoscalers.
const MinAgeSinceStart = 10 * time.Second

// maxAgeSinceStart is the age up to which it serves: then it says too little about now.
const maxAgeSinceStart = 60 * time.Second

// MinWindow is the shortest time over which a rate is computed. Over less, the granularity of the counter and of its
// timestamp would show as load that is not there.
const MinWindow = time.Second

// Verdict says what a sample is worth, given the one before it.
type Verdict uint8

// The verdicts of Between.
const (
	// Fresh: there is an Amount. The sample takes the place of the previous one.
	Fresh Verdict = iota
	// Unchanged: the kubelet has nothing new, or too little of it, or the container is in its start-up spike. The previous
	// sample and its Amount stand.
	Unchanged
	// Older: the sample was taken before the previous one. It is to be ignored, unless it goes on.
	Older
	// Baseline: the sample is the first of a new series; a rate needs another one. It takes the place of the previous one.
	Baseline
	// Incomplete: the sample lacks CPU or memory. The previous sample and its Amount stand.
	Incomplete
)

// Between derives an Amount from two consecutive samples of the same node or container. A prev without HasCPU stands for
// "there is none". The Amount is meaningful only with the verdict Fresh.
//
// The rate is (core-seconds now − then) ÷ (time now − then), by the node's own clock. After a restart (a start time newer
// than prev, or a counter that fell), and for a container seen for the first time, the rate since the start serves where
// the container is old enough for it to be honest and young enough for it to be current.
func Between(prev, cur Sample) (Amount, Verdict) {
	if cur.Has&HasCPU == 0 || cur.Has&HasMemory == 0 {
		return Amount{}, Incomplete
	}
	if prev.Has&HasCPU == 0 {
		return sinceStart(cur)
	}
	switch window := cur.At.Sub(prev.At); {
	case window == 0:
		return Amount{}, Unchanged
	case window < 0:
		return Amount{}, Older
	case restarted(prev, cur):
		return sinceStart(cur)
	case window < MinWindow, young(cur):
		return Amount{}, Unchanged
	default:
		return amount(cur.CPUSeconds-prev.CPUSeconds, window, cur)
	}
}

// restarted says whether the counter began anew after prev. A start time after the sample itself cannot be, and says
// nothing.
func restarted(prev, cur Sample) bool {
	return cur.StartedAt > prev.At && cur.StartedAt <= cur.At || cur.CPUSeconds < prev.CPUSeconds
}

// young says whether a container is in its start-up spike.
func young(cur Sample) bool {
	age := cur.At.Sub(cur.StartedAt)
	return cur.StartedAt != 0 && age >= 0 && age < MinAgeSinceStart
}

// sinceStart gives the mean since the container started, where its counter began at 0, or a new baseline.
func sinceStart(cur Sample) (Amount, Verdict) {
	age := cur.At.Sub(cur.StartedAt)
	if cur.StartedAt == 0 || age < MinAgeSinceStart || age > maxAgeSinceStart {
		return Amount{}, Baseline
	}
	return amount(cur.CPUSeconds, age, cur)
}

// amount is the quotient. One that no machine can reach (the API carries nanocores in an int64) is not served: the sample
// becomes a baseline.
func amount(coreSeconds float64, window time.Duration, cur Sample) (Amount, Verdict) {
	nanocores := math.Round(coreSeconds * float64(time.Second) / window.Seconds())
	if !(nanocores < math.MaxInt64) {
		return Amount{}, Baseline
	}
	return Amount{
		CPUNanocores: uint64(nanocores),
		Memory:       cur.Memory,
		Swap:         cur.Swap,
		At:           cur.At,
		Window:       window,
		HasSwap:      cur.Has&HasSwap != 0,
	}, Fresh
}

// OwnRateWindow is the time over which a kubelet is taken to reckon its own rates. It does not say: they are the mean between
// its last two readings of the counter, which lie 10 to 15 seconds apart.
const OwnRateWindow = 15 * time.Second

// Borrow gives the Amount that a kubelet's own rate makes, for a node or container that has no other yet. A rate of 0 beside
// a counter that is not 0 is what kubelets say when they do not know; it is believed only of one that is known to know. What
// is younger than 10 seconds has no rate worth serving, whoever reckons it.
func Borrow(cur Sample, knows bool) (Amount, bool) {
	const needs = HasCPU | HasMemory | HasRate
	if cur.Has&needs != needs || cur.Rate == 0 && cur.CPUSeconds != 0 && !knows || cur.Rate > math.MaxInt64 {
		return Amount{}, false
	}
	if young(cur) {
		return Amount{}, false
	}
	window := OwnRateWindow
	if cur.StartedAt != 0 && cur.StartedAt <= cur.At {
		window = min(window, cur.At.Sub(cur.StartedAt))
	}
	return Amount{
		CPUNanocores: cur.Rate,
		Memory:       cur.Memory,
		Swap:         cur.Swap,
		At:           cur.At,
		Window:       window,
		HasSwap:      cur.Has&HasSwap != 0,
	}, true
}
