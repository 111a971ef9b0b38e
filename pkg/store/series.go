package store

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// maxOlder is the number of consecutive samples older than the one before after which the node's
// clock is taken to have been set back, although the offset did not show it.
const maxOlder = 3

// reading is what is kept of a sample for the next one to be compared with. There are as many of
// them as containers in the cluster.
type reading struct {
	at, startedAt usage.Time
	cpuSeconds    float64
}

// series is the state of one node or container: the reading that the next sample is compared with,
// and the Amount that follows from the samples so far.
type series struct {
	prev  reading // if sampled
	last  usage.Amount
	asOf  usage.Time // when the sample of last was taken, by our clock
	since usage.Time // while there is no Amount: when the wait for one began, by our clock

	sampled bool  // whether prev is set
	untimed bool  // whether prev.at is by our clock
	has     bool  // whether last belongs to this series and may become part of a new snapshot
	isNew   bool  // until the first reading: the container was absent from the scrape before, which was complete
	older   uint8 // consecutive samples that were older than prev
	// suspect is not 0 while prev was taken before a jump of the node's clock (2) or may have been
	// (1), since kubelets repeat samples. The next other sample then starts a new series.
	suspect uint8
}

// arrival is what the samples of one scrape have in common.
type arrival struct {
	at       usage.Time // by our clock
	capacity uint64     // of the node, in nanocores; 0: not known
	maxAge   time.Duration
	clock    *nodeClock
	jumped   bool // whether this scrape showed a jump of the node's clock
}

// isDistorted reports whether the node's clock jumped so recently that a start time, or the window
// of a kubelet-reported rate, may lie before the jump.
func (a *arrival) isDistorted() bool { return a.clock.hasJumpedWithin(usage.MaxAgeSinceStart, a.at) }

// observe takes in the next sample and reports whether there is a new Amount.
func (s *series) observe(cur usage.Sample, a *arrival, counts *counts) bool {
	if s.since == 0 {
		s.since = a.at
	}
	switch {
	case !cur.Complete():
		return false
	case s.suspect > 0:
		if cur.At != s.prev.at || s.suspect > 1 {
			left := s.suspect - 1
			if a.jumped && a.clock.isAfterJump(cur.At, s.prev.at) {
				left = 0
			}
			s.start(cur, a, counts)
			s.suspect = left // samples that go on being ahead of their node's clock are those of another clock
		}
		return false
	case s.sampled && s.untimed != cur.Untimed: // two clocks
		s.start(cur, a, counts)
		return false
	case !s.sampled:
		isNew := s.isNew
		s.start(cur, a, counts)
		return isNew && s.serveMeanSinceStart(cur, a)
	}

	amount, verdict := usage.Rate(s.previous(), cur, a.maxAge)
	if verdict == usage.Fresh && s.isYoung(cur, a) {
		verdict = usage.Unchanged
	}
	switch verdict {
	case usage.Fresh:
		s.keep(cur)
		s.serve(amount, cur, a)
		return true
	case usage.Unchanged:
		s.older = 0
	case usage.Older:
		counts.older.Add(1)
		if s.older++; s.older >= maxOlder {
			counts.stepsBack.Add(1)
			s.start(cur, a, counts)
		}
	case usage.Gap:
		s.start(cur, a, counts)
	case usage.Reset:
		s.start(cur, a, counts)
		return s.serveMeanSinceStart(cur, a)
	}
	return false
}

// start begins a new series with a sample.
func (s *series) start(cur usage.Sample, a *arrival, counts *counts) {
	counts.baselines.Add(1)
	s.keep(cur)
	s.has, s.isNew, s.suspect, s.since = false, false, 0, a.at
	if a.clock.isAhead(&cur, a.at) {
		s.suspect = 1
	}
}

func (s *series) keep(cur usage.Sample) {
	s.prev, s.sampled, s.untimed, s.older = reading{cur.At, cur.StartedAt, cur.CPUSeconds}, true, cur.Untimed, 0
}

// distrust notes that the node's clock jumped after prev was taken.
func (s *series) distrust() {
	if s.sampled {
		s.suspect = 2
	}
}

// previous returns the sample that the next one is compared with, as far as usage.Rate looks at it.
func (s *series) previous() usage.Sample {
	return usage.Sample{At: s.prev.at, CPUSeconds: s.prev.cpuSeconds, Has: usage.HasCPU}
}

// isYoung reports whether the container is in its start-up. A container that has been seen for
// longer is not, whatever its start time says.
func (s *series) isYoung(cur usage.Sample, a *arrival) bool {
	return !s.has && cur.Young() && a.at.Sub(s.since) < usage.MinAgeSinceStart
}

// serveMeanSinceStart sets the Amount of a container that is known to have started recently, and
// reports whether it did. A start time from before a jump of the clock is of no use, nor is one by
// another clock than the sample's time, and no window is longer than the maximum age.
func (s *series) serveMeanSinceStart(cur usage.Sample, a *arrival) bool {
	if cur.Untimed || s.suspect > 0 || a.isDistorted() || cur.At.Sub(cur.StartedAt) > a.maxAge {
		return false
	}
	amount, ok := usage.MeanSinceStart(cur, a.capacity)
	if ok {
		s.serve(amount, cur, a)
	}
	return ok
}

// applyKubeletRate sets the Amount from the kubelet's own CPU rate if the series has none yet, and
// reports whether it did.
//
// The summary must repeat the reading in prev; only then does the rate end at a known point. If the
// counter has moved, the runtime samples on demand: its rate covers only the time since the last
// request, possibly milliseconds, and the next scrape will give a real one. For zeroIsReal, see
// usage.FromKubeletRate.
func (s *series) applyKubeletRate(cur usage.Sample, zeroIsReal bool, a *arrival) bool {
	if s.has || s.suspect > 0 || !s.repeats(cur) || a.isDistorted() {
		return false
	}
	amount, ok := usage.FromKubeletRate(cur, zeroIsReal)
	if ok {
		s.serve(amount, cur, a)
	}
	return ok
}

// repeats reports whether a summary's sample is of the reading in prev.
func (s *series) repeats(cur usage.Sample) bool {
	return s.sampled && cur.CPUSeconds == s.prev.cpuSeconds
}

func (s *series) serve(amount usage.Amount, cur usage.Sample, a *arrival) {
	s.last, s.asOf, s.has = amount, a.clock.ours(&cur, a.at), true
}

// missing describes a series that has no Amount.
func (s *series) missing(a *arrival) usage.Missing {
	missing := usage.Missing{Since: s.since}
	if !s.sampled {
		return missing
	}
	prev := usage.Sample{At: s.prev.at, StartedAt: s.prev.startedAt, Untimed: s.untimed}
	missing.SampledAt = a.clock.ours(&prev, a.at)
	if age, ok := prev.Age(); ok {
		missing.StartedAt = missing.SampledAt.Add(-age)
	}
	missing.KubeletRate = !prev.Young() && !a.isDistorted()
	return missing
}
