package usage

import (
	"math"
	"time"
)

const (
	// MinAgeSinceStart is the minimum age of a container for a rate to be served. Earlier, its CPU
	// usage is that of its start-up, which would mislead autoscalers.
	MinAgeSinceStart = 10 * time.Second
	// MaxAgeSinceStart is the maximum age of a container for the mean since its start to be served.
	// Later, the mean is too far from the current usage.
	MaxAgeSinceStart = 60 * time.Second
	// MinWindow is the shortest window of a rate. In a shorter one, the granularity of the counter
	// and of its timestamp would distort the rate.
	MinWindow = time.Second
	// minCoarseWindow is the shortest window between two times in whole seconds. Kubelets truncate them,
	// so the window may be wrong by one second: by a tenth of it, unless rates should cover even less.
	minCoarseWindow = 10 * time.Second
	// StartMargin is how far the start times of one container may differ. A runtime creates a
	// container some seconds before it starts it, and the API server shows whole seconds.
	StartMargin = 10 * time.Second
	// MaxLead is how far a start time may be ahead of the clock or the sample that it is compared with.
	// A start that is further ahead shows that the node's clock was set back in between, and proves
	// nothing.
	MaxLead = time.Minute
)

// A rate may exceed the node's capacity by a tenth, which is more than the fastest slew of a clock
// (chrony: 8.3 %), and by what the capacity allows in capacitySlack. That is more than a step of a
// clock that goes unnoticed (1.3 s) and the time between the reading of a counter and its
// timestamp.
const (
	capacityFactor = 1.1
	capacitySlack  = 2 * time.Second
)

// exceeds reports whether a rate is above what a node of the capacity in nanocores can have used
// (0: not known).
func exceeds(nanocores uint64, window time.Duration, capacity uint64) bool {
	limit := float64(capacity) * (capacityFactor + capacitySlack.Seconds()/window.Seconds())
	return capacity != 0 && float64(nanocores) > limit
}

// IsWithin reports whether a rate in nanocores is within the capacity (0: not known), without the margin
// for short windows.
func IsWithin(nanocores, capacity uint64) bool {
	return capacity == 0 || float64(nanocores) <= capacityFactor*float64(capacity)
}

// Verdict is the outcome of Rate.
type Verdict uint8

// The verdicts of Rate.
const (
	// Fresh: there is a new Amount. The sample replaces the previous one.
	Fresh Verdict = iota
	// Unchanged: the sample is the previous one again, or follows it too closely, with a counter that is
	// possible. The previous sample and its Amount are kept.
	Unchanged
	// Older: the sample was taken before the previous one. The previous sample and its Amount are
	// kept.
	Older
	// Fell: the counter fell. If the container was restarted, the sample starts a new series.
	Fell
	// Gap: the previous sample is older than the longest window. The sample starts a new series.
	Gap
	// Excess: the rate, which is in the Amount, is above the node's capacity. The previous sample and
	// its Amount are kept.
	Excess
)

// Rate derives an Amount from a complete sample of a node or container and an earlier reading of it.
// The Amount is meaningful only with the verdicts Fresh and Excess.
//
// The rate is (core-seconds now − then) ÷ (time now − then), over at most maxWindow. It is not above
// the node's capacity in nanocores (0: not known), with a margin: the samples would be of two
// containers. Start times are ignored, because those from cAdvisor can change while a container runs
// (google/cadvisor#2905).
func Rate(prev Reading, cur *Sample, maxWindow time.Duration, capacity uint64) (Amount, Verdict) {
	switch window := cur.At.Sub(prev.At); {
	case window == 0:
		return Amount{}, Unchanged
	case window < 0:
		return Amount{}, Older
	case cur.CPUSeconds < prev.CPUSeconds:
		return Amount{}, Fell
	case window > maxWindow:
		return Amount{}, Gap
	default:
		a, ok := amount(cur.CPUSeconds-prev.CPUSeconds, window, cur)
		switch {
		case !ok || exceeds(a.CPUNanocores, window, capacity):
			return a, Excess
		case window < MinWindow:
			return Amount{}, Unchanged
		}
		return a, Fresh
	}
}

// ShortestWindow returns the shortest window of a rate that is served, given the time that a rate should
// cover. In less than a quarter of it, random requests look like a change of the load.
func ShortestWindow(rateWindow time.Duration) time.Duration { return max(rateWindow/4, MinWindow) }

// IsShort reports whether the window is too short for a rate to be served.
func (a Amount) IsShort(rateWindow time.Duration) bool {
	isCoarse := a.At%NodeTime(time.Second) == 0 && a.Window%time.Second == 0
	return a.Window < ShortestWindow(rateWindow) || isCoarse && a.Window < min(minCoarseWindow, rateWindow*2/3)
}

// MeanSinceStart derives an Amount from the first sample of a container that is known to be new, so
// that its counter was 0 when it started. It reports false if the container is younger than
// MinAgeSinceStart or older than MaxAgeSinceStart, or if its start time is unknown. It also reports
// false if the rate exceeds the node's capacity in nanocores (0: not known): the start time must be
// wrong then.
func MeanSinceStart(cur *Sample, capacity uint64) (Amount, bool) {
	age, ok := cur.Age()
	if !cur.Complete() || !ok || age < MinAgeSinceStart || age > MaxAgeSinceStart {
		return Amount{}, false
	}
	a, ok := amount(cur.CPUSeconds, age, cur)
	if !ok || capacity != 0 && a.CPUNanocores > capacity {
		return Amount{}, false
	}
	return a, true
}

// Young reports whether the container was younger than MinAgeSinceStart when the sample was taken.
func (s Sample) Young() bool {
	age, ok := s.Age()
	return ok && age < MinAgeSinceStart
}

// Age returns the container's age when the sample was taken. It reports false if the age is not
// known: there is no start time, it is after the sample, or the sample's time is by another clock.
func (s Sample) Age() (time.Duration, bool) {
	age := s.At.Sub(s.StartedAt)
	return age, s.StartedAt != 0 && !s.Untimed && age >= 0
}

// Complete reports whether the sample has both CPU and memory.
func (s Sample) Complete() bool {
	const both = HasCPU | HasMemory
	return s.Has&both == both
}

// amount returns the Amount of a rate. It reports false if the rate exceeds an int64 of nanocores,
// which is the limit of the API.
func amount(coreSeconds float64, window time.Duration, cur *Sample) (Amount, bool) {
	nanocores := math.Round(coreSeconds * float64(time.Second) / window.Seconds())
	if !(nanocores < math.MaxInt64) {
		return newAmount(math.MaxInt64, window, cur), false
	}
	return newAmount(uint64(nanocores), window, cur), true
}

func newAmount(nanocores uint64, window time.Duration, cur *Sample) Amount {
	return Amount{
		CPUNanocores: nanocores,
		Memory:       cur.Memory,
		Swap:         cur.Swap,
		At:           cur.At,
		Window:       window,
		HasSwap:      cur.Has&HasSwap != 0,
	}
}

// kubeletRateWindow is the assumed window of kubelet-reported rates. Kubelets do not report it: the
// rates are means between the last two samples of the counter, which are 10 to 20 seconds apart.
const kubeletRateWindow = 15 * time.Second

// FromKubeletRate returns the Amount of a kubelet-reported rate. It reports false if there is no
// such rate, if the container is young, or if the rate is above the node's capacity in nanocores
// (0: not known), with a margin. Kubelets report 0 for a rate or memory that they do not know, also
// beside known ones of other containers (containerd#9531), so neither may be 0.
func FromKubeletRate(cur *Sample, capacity uint64) (Amount, bool) {
	isKnown := cur.Complete() && cur.Has&HasRate != 0 && cur.Rate != 0 && cur.Memory != 0
	if !isKnown || cur.Rate > math.MaxInt64 || cur.Young() {
		return Amount{}, false
	}
	window := kubeletRateWindow
	if age, ok := cur.Age(); ok {
		window = min(window, age)
	}
	if exceeds(cur.Rate, window, capacity) {
		return Amount{}, false
	}
	return newAmount(cur.Rate, window, cur), true
}
