package store

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// maxOlder is the number of consecutive older samples after which the node's clock is assumed to
// have been set back, although the offset did not show it.
const maxOlder = 3

// reading is the part of a sample that the next sample is compared with. The store keeps one for
// each container of the cluster.
type reading struct {
	at, startedAt usage.Time
	cpuSeconds    float64
}

// series is the state of one node or container: the reading that the next sample is compared with,
// and the Amount derived from the samples so far. "A series" is also a run of samples from which
// rates can be computed: a counter reset, a gap or a jump of the node's clock ends it, and the same
// struct then holds the next one (restart).
type series struct {
	prev   reading      // meaningful if sampled
	amount usage.Amount // the last one; of an earlier series unless hasAmount is set
	asOf   usage.Time   // when amount was sampled, by our clock
	since  usage.Time   // when the series started, by our clock

	history *history // nil: the samples are not dense

	sampled    bool  // whether prev is set
	untimed    bool  // whether prev.at is by our clock
	hasAmount  bool  // whether amount belongs to this series
	isNew      bool  // whether the scrape before was complete and did not mention the container; false once sampled
	startFell  bool  // whether the series started because the start time fell
	isProven   bool  // whether the start time shows that prev is of the pod in the API server, see ownership.prove
	olderCount uint8 // consecutive samples that were older than prev
	// suspect is the number of readings, prev included, that may be from before a jump of the
	// node's clock, because kubelets repeat samples. At 2, the clock jumped after prev, and any
	// sample restarts the series. At 1, prev itself may be from before the jump, and a sample with
	// another time restarts the series. At 0, prev is reliable.
	suspect uint8
}

// arrival is what all samples of one response have in common.
type arrival struct {
	at         usage.Time // when the response arrived, by our clock
	capacity   uint64     // of the node, in nanocores; 0: not known
	maxAge     time.Duration
	rateWindow time.Duration
	clock      *nodeClock
	proves     bool // whether the API server's start times are known, see Config.State
	jumped     bool // whether this scrape showed a jump of the node's clock
}

// jumpedRecently reports whether the node's clock jumped so recently that a start time, or the
// window of a kubelet-reported rate, may be from before the jump.
func (a *arrival) jumpedRecently() bool { return a.clock.hasJumpedWithin(usage.MaxAgeSinceStart, a.at) }

// observe adds the next sample and reports whether there is a new Amount.
func (s *series) observe(cur usage.Sample, a *arrival, counts *counts) bool {
	if s.since == 0 {
		s.since = a.at
	}
	switch {
	case !cur.Complete():
		return false
	case s.suspect > 0:
		if cur.At != s.prev.at || s.suspect > 1 {
			suspect := s.suspect - 1
			if a.jumped && a.clock.isAfterJump(cur.At, s.prev.at) {
				suspect = 0
			}
			s.restart(cur, a, counts)
			s.suspect = suspect // overrides restart: samples that stay ahead of the node's clock are by another one
		}
		return false
	case s.sampled && cur.NewCounter:
		s.restart(cur, a, counts)
		return s.applyMeanSinceStart(cur, a)
	case s.sampled && s.untimed != cur.Untimed: // by different clocks
		s.restart(cur, a, counts)
		return false
	case !s.sampled:
		isNew := s.isNew
		s.restart(cur, a, counts)
		if !cur.Untimed && a.jumpedRecently() && !a.clock.isAfterJump(cur.At, 0) {
			s.suspect = 1
		}
		return isNew && s.applyMeanSinceStart(cur, a)
	case cur.At >= s.prev.at && s.isOfOther(cur, a):
		s.restart(cur, a, counts)
		return false
	}

	amount, verdict := usage.Rate(s.previous(), cur, a.maxAge, a.capacity)
	isDense, isYoung := amount.Window < a.rateWindow*3/5, s.isYoung(cur, a)
	if verdict == usage.Fresh && isYoung && !isDense {
		verdict = usage.Unchanged // so that the first rate covers the time since the first sample
	}
	if s.fellSinceSkipped(cur) {
		verdict = usage.Reset
	}
	switch verdict {
	case usage.Fresh:
		s.endSkipping()
		if isDense || s.history != nil {
			amount = s.widen(amount, cur, isDense, a)
		}
		s.setPrevious(cur)
		if isYoung { // it is in the history of later ones
			return false
		}
		s.setAmount(amount, cur, a)
		return true
	case usage.Unchanged:
		s.olderCount = 0
		s.skip(cur)
	case usage.Older:
		counts.older.Add(1)
		if s.olderCount++; s.olderCount >= maxOlder {
			counts.stepsBack.Add(1)
			s.restart(cur, a, counts)
		}
	case usage.Gap:
		s.restart(cur, a, counts)
	case usage.Reset:
		s.restart(cur, a, counts)
		return s.applyMeanSinceStart(cur, a)
	}
	return false
}

// restart starts a new series with a sample.
func (s *series) restart(cur usage.Sample, a *arrival, counts *counts) {
	counts.baselines.Add(1)
	s.startFell = s.sampled && s.suspect == 0 && s.startMoved(cur) < 0
	s.setPrevious(cur)
	s.hasAmount, s.isNew, s.isProven, s.suspect, s.since, s.history = false, false, false, 0, a.at, nil
	if a.clock.isAhead(&cur, a.at) {
		s.suspect = 1
	}
}

// startMoved returns how far the start time has moved since the previous sample; 0 if by no more
// than the margin, or if one of the two is not known.
func (s *series) startMoved(cur usage.Sample) time.Duration {
	moved := cur.StartedAt.Sub(s.prev.startedAt)
	if s.prev.startedAt == 0 || cur.StartedAt == 0 || moved.Abs() <= usage.StartMargin {
		return 0
	}
	return moved
}

// isOfOther reports whether the start time shows that a sample is of another container than the
// previous one. A kubelet that runs two pods of one name reports either of them.
//
// Start times from cAdvisor move forwards while a container runs, but do not fall. A move forwards
// shows another container if it follows a fall, or if the previous one may be of a deleted pod. If
// the counter fell as well, it is a restart. usage.Rate notices that.
func (s *series) isOfOther(cur usage.Sample, a *arrival) bool {
	moved := s.startMoved(cur)
	if moved <= 0 {
		return moved < 0
	}
	return (s.startFell || a.proves && !s.isProven) && cur.CPUSeconds >= s.prev.cpuSeconds
}

func (s *series) setPrevious(cur usage.Sample) {
	s.prev = reading{cur.At, cur.StartedAt, cur.CPUSeconds}
	s.sampled, s.untimed, s.olderCount = true, cur.Untimed, 0
}

// previous returns the sample that the next one is compared with, as far as usage.Rate needs it.
func (s *series) previous() usage.Sample {
	return usage.Sample{At: s.prev.at, CPUSeconds: s.prev.cpuSeconds, Has: usage.HasCPU}
}

// markSuspect notes that the node's clock jumped after prev was taken.
func (s *series) markSuspect() {
	if s.sampled {
		s.suspect = 2
	}
}

// isYoung reports whether the container is starting up. A container that has an Amount, or has been
// reported for MinAgeSinceStart, is not, whatever its start time is.
func (s *series) isYoung(cur usage.Sample, a *arrival) bool {
	return !s.hasAmount && cur.Young() && a.at.Sub(s.since) < usage.MinAgeSinceStart
}

// applyMeanSinceStart sets the Amount of a container that is known to have started recently, and
// reports whether it did. It needs a start time that is by the same clock as the sample, and not
// from before a jump of that clock. The window must not exceed the maximum age.
func (s *series) applyMeanSinceStart(cur usage.Sample, a *arrival) bool {
	if cur.Untimed || s.suspect > 0 || a.jumpedRecently() || cur.At.Sub(cur.StartedAt) > a.maxAge {
		return false
	}
	amount, ok := usage.MeanSinceStart(cur, a.capacity)
	if ok {
		s.setAmount(amount, cur, a)
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
	if s.hasAmount || s.suspect > 0 || !s.repeats(cur) || a.jumpedRecently() {
		return false
	}
	amount, ok := usage.FromKubeletRate(cur, zeroIsReal, a.capacity)
	if ok {
		s.setAmount(amount, cur, a)
	}
	return ok
}

// repeats reports whether a summary's sample has the reading in prev.
func (s *series) repeats(cur usage.Sample) bool {
	return s.sampled && cur.CPUSeconds == s.prev.cpuSeconds
}

func (s *series) setAmount(amount usage.Amount, cur usage.Sample, a *arrival) {
	s.amount, s.asOf, s.hasAmount = amount, a.clock.ourTime(&cur, a.at), true
}

// missing describes a series without an Amount.
func (s *series) missing(a *arrival) usage.Missing {
	missing := usage.Missing{Since: s.since}
	if !s.sampled {
		return missing
	}
	prev := usage.Sample{At: s.prev.at, StartedAt: s.prev.startedAt, Untimed: s.untimed}
	missing.SampledAt = a.clock.ourTime(&prev, a.at)
	if age, ok := prev.Age(); ok {
		missing.StartedAt = missing.SampledAt.Add(-age)
	}
	missing.KubeletRate = !prev.Young() && !a.jumpedRecently()
	return missing
}
