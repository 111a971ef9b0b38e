package store

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// After maxOlder consecutive older samples, the node's clock is assumed to have been set back, although the offset did
// not show it.
const maxOlder = 3

// reading is the part of a sample that the next sample is compared with. The store keeps one for
// each container of the cluster.
type reading struct {
	usage.Reading
	startedAt usage.NodeTime
}

func readingOf(s *usage.Sample) reading { return reading{s.Reading(), s.StartedAt} }

// beforeJump is whether a reading is from before a jump of the node's clock: kubelets repeat samples.
type beforeJump uint8

const (
	notBeforeJump    beforeJump = iota
	maybeBeforeJump             // a sample with another time begins a series
	surelyBeforeJump            // any sample begins a series, also one with the same time
	longBeforeJump              // the same; its time is by a clock before the last one, so it cannot be compared
)

// series is the state of one node or container: the reading that the next sample is compared with,
// and the Amount derived from the samples so far. A counter reset, a gap or a jump of the node's clock
// ends the samples that rates can start at; the same struct then begins another series (begin).
type series struct {
	prev   reading      // meaningful if sampled
	amount usage.Amount // the last one; of an earlier series unless hasAmount is set
	asOf   usage.Time   // when amount was sampled
	since  usage.Time   // when the series began

	history *history // nil: the samples are not close to each other, and none is unserved or refused

	sampled    bool  // whether prev is set
	untimed    bool  // whether prev.At is a usage.Time, see usage.Sample
	hasAmount  bool  // whether amount belongs to this series
	isNew      bool  // whether the first sample may have a mean since the start: the container did not run before
	startFell  bool  // whether the series began because the start time fell
	isProven   bool  // whether prev, if sampled, is of the pod in the API server, as far as its start shows: checkOwner
	olderCount uint8 // consecutive samples that were older than prev
	prevIs     beforeJump
}

// arrival is what all samples of one response have in common.
type arrival struct {
	at       usage.Time // when the response arrived
	capacity uint64     // of the node, in nanocores; 0: not known
	clock    *nodeClock
	config   *Config
	counts   *counts // nil for a summary

	wasAway bool       // whether the previous scrape did not mention the container that is observed
	lost    usage.Loss // why observe did not use a sample
	excess  uint64     // the rate in nanocores that was above the capacity; 0: none was

	// Set by checkOwner:
	hasForeign bool         // whether there are samples of another pod of the name
	dropped    bool         // whether a snapshot or a container is dropped because of them
	foreign    []*container // of another pod only, dropped once all have been observed, in the order of node.containers
}

// jumpedRecently reports whether the node's clock jumped recently, see nodeClock.jumpedRecently.
func (a *arrival) jumpedRecently() bool { return a.clock.jumpedRecently(a.at) }

// startsAreAmbiguous reports whether the node's clock is ambiguous, or was in the last minute.
func (a *arrival) startsAreAmbiguous() bool {
	return a.at.Sub(a.clock.ambiguousUntil) <= recentJump
}

// observe adds the next sample and reports whether there is a new Amount.
func (s *series) observe(cur *usage.Sample, a *arrival) bool {
	if s.since == 0 {
		s.since = a.at
	}
	if base := cur.Base; base.At != 0 && base.At != cur.At && s.prevIs == notBeforeJump {
		s.prev, s.sampled = reading{base, cur.StartedAt}, true
		s.untimed, s.history = cur.Untimed, nil
	}
	a.lost, a.excess = cur.Loss, 0
	if !cur.Complete() || s.prevIs == maybeBeforeJump && cur.At == s.prev.At {
		return false
	}
	if s.sampled && cur.CPUSeconds == 0 && s.prev.CPUSeconds > 0 && !s.startedLater(cur) {
		a.lost = usage.LostZero
		return false
	}
	if isFirst, fromZero := s.isFirst(cur, a); isFirst {
		s.begin(cur, a)
		// After a clock was set back, a container that was not reported before may be older than it looks.
		return fromZero && !a.startsAreAmbiguous() && s.applyMeanSinceStart(cur, a)
	}
	return s.advance(cur, a)
}

// isFirst reports whether a sample is the first of a new series, whatever its counter is, and whether the
// counter is then known to have been 0 at the start of the container.
func (s *series) isFirst(cur *usage.Sample, a *arrival) (isFirst, fromZero bool) {
	switch {
	case !s.sampled:
		// If a scrape mentioned it, without a value, before the start time that it shows now, that start time is too late:
		// cAdvisor moves it. sampledAt is exact to a dateUnit.
		age, _ := cur.Age()
		return true, s.isNew && a.clock.sampledAt(cur, a.at).Sub(s.since) <= age+2*dateUnit
	case s.prevIs != notBeforeJump:
		return true, false
	case cur.Base.At == cur.At && cur.At != 0: // the counter is another one
		return true, true
	case s.untimed != cur.Untimed: // by different clocks
		return true, false
	}
	return cur.At >= s.prev.At && s.isOfOther(cur, a.wasAway), false
}

// These add to the verdicts of usage.Rate. usage.Fell is then a counter that fell for no known reason.
const (
	restarted = usage.Excess + 1 + iota // the counter fell because the container was restarted
	tooEarly                            // it has a rate, but the container is starting up
)

// verdict returns how a sample counts, compared with the previous one, and its Amount, see usage.Rate.
func (s *series) verdict(cur *usage.Sample, a *arrival) (usage.Amount, usage.Verdict) {
	amount, verdict := usage.Rate(s.prev.Reading, cur, a.config.MaxSampleAge, a.capacity)
	hasFallen := verdict == usage.Fell || s.fellSinceUnserved(cur)
	switch {
	case hasFallen && s.isRestart(cur, a):
		return amount, restarted
	case hasFallen && cur.At.Sub(s.prev.At) > a.config.MaxSampleAge:
		return amount, usage.Gap
	case hasFallen:
		return amount, usage.Fell
	case verdict == usage.Fresh && s.isYoung(cur, a) && !a.config.isDense(amount.Window):
		return amount, tooEarly
	}
	return amount, verdict
}

// advance compares a sample with the previous one, and reports whether there is a new Amount.
func (s *series) advance(cur *usage.Sample, a *arrival) bool {
	amount, verdict := s.verdict(cur, a)
	switch verdict {
	case usage.Fresh:
		return s.adopt(cur, amount, a)
	case usage.Excess:
		return s.refuse(cur, amount, a)
	case usage.Unchanged:
		s.olderCount = 0
		s.noteUnserved(cur)
	case tooEarly: // the next rate covers the time since the previous sample
		s.olderCount = 0
		s.noteUnserved(cur)
		s.prev.startedAt = cur.StartedAt // a start that moves with each sample would be far from the first one
	case usage.Older:
		a.counts.older.Add(1)
		if s.olderCount++; s.olderCount >= maxOlder {
			a.counts.stepsBack.Add(1)
			s.begin(cur, a)
		}
	case usage.Gap:
		s.isProven = false // the counter may be that of another container
		s.begin(cur, a)
	case restarted:
		isDated := s.startedLater(cur) // otherwise the start is not that of the new counter
		s.begin(cur, a)
		return isDated && s.applyMeanSinceStart(cur, a)
	case usage.Fell:
		a.lost = usage.LostFall
	}
	return false
}

// adopt makes a sample with a rate the previous one, and reports whether there is a new Amount.
func (s *series) adopt(cur *usage.Sample, amount usage.Amount, a *arrival) bool {
	isDense, isYoung := a.config.isDense(amount.Window), s.isYoung(cur, a)
	amount = s.widen(amount, cur, isDense, a)
	s.setPrevious(cur)
	if isYoung {
		return false
	}
	if isDense && amount.IsShort(a.config.RateWindow) { // the next rate starts at a sample of the history
		if a.excess > 0 {
			a.lost = usage.LostExcess
		}
		return false
	}
	s.setAmount(amount, cur, a)
	return true
}

// refuse handles a sample whose rate is above the node's capacity, and reports whether there is a new Amount.
// Either that sample is wrong, or the previous one: the next sample shows which of the two it follows.
func (s *series) refuse(cur *usage.Sample, amount usage.Amount, a *arrival) bool {
	if s.history == nil {
		s.history = &history{}
	}
	if refused := s.history.refused; refused.At != 0 {
		next, verdict := usage.Rate(refused, cur, a.config.MaxSampleAge, a.capacity)
		if verdict == usage.Fresh && next.CPUNanocores > 0 && usage.IsWithin(next.CPUNanocores, a.capacity) {
			s.begin(&usage.Sample{
				At: refused.At, CPUSeconds: refused.CPUSeconds, StartedAt: cur.StartedAt, Untimed: cur.Untimed,
			}, a)
			return s.prevIs == notBeforeJump && s.advance(cur, a)
		}
		amount = next // the rate between refused samples, or 0: only that shows that the capacity is wrong
	}
	s.history.refused = cur.Reading()
	a.lost, a.excess = usage.LostExcess, amount.CPUNanocores
	return false
}

// begin begins a new series with a sample.
func (s *series) begin(cur *usage.Sample, a *arrival) {
	a.counts.baselines.Add(1)
	s.startFell = s.sampled && s.prevIs == notBeforeJump && s.startMoved(cur) < 0
	s.prevIs = s.beforeJumpOf(cur, a)
	s.setPrevious(cur)
	s.hasAmount, s.isNew, s.since, s.history = false, false, a.at, nil
}

// beforeJumpOf reports whether a sample that begins a series is from before a jump.
func (s *series) beforeJumpOf(cur *usage.Sample, a *arrival) beforeJump {
	switch {
	case s.prevIs == surelyBeforeJump, s.prevIs == longBeforeJump:
		prev := s.prev.At
		if s.prevIs == longBeforeJump { // by another clock than that before the last jump
			prev = 0
		}
		if a.clock.isAfterJump(cur.At, prev, a.at) {
			return notBeforeJump
		}
		return maybeBeforeJump
	case s.prevIs == maybeBeforeJump: // samples that stay ahead of the node's clock are by another one
		return notBeforeJump
	case a.clock.isAhead(cur, a.at),
		!s.sampled && !cur.Untimed && a.jumpedRecently() && !a.clock.isAfterJump(cur.At, 0, a.at):
		return maybeBeforeJump
	}
	return notBeforeJump
}

// startMoved returns how far the start time has moved since the previous sample; 0 if by no more
// than the margin, or if one of the two is not known.
func (s *series) startMoved(cur *usage.Sample) time.Duration {
	moved := cur.StartedAt.Sub(s.prev.startedAt)
	if s.prev.startedAt == 0 || cur.StartedAt == 0 || moved.Abs() <= usage.StartMargin {
		return 0
	}
	return moved
}

// isOfOther reports whether the start time shows that a sample is of another container than the
// previous one. A kubelet that runs two pods of one name reports either of them.
//
// Start times from cAdvisor move forwards while a container runs, but do not fall. So a move forwards
// shows another container only if it follows a fall, or if the container was away. If the counter fell
// as well, it is a restart. usage.Rate notices that.
func (s *series) isOfOther(cur *usage.Sample, wasAway bool) bool {
	moved := s.startMoved(cur)
	return moved < 0 || moved > 0 && (s.startFell || wasAway) && cur.CPUSeconds >= s.prev.CPUSeconds
}

// startedLater reports whether the start time is later than that of the previous sample.
func (s *series) startedLater(cur *usage.Sample) bool {
	return s.prev.startedAt != 0 && cur.StartedAt > s.prev.startedAt
}

// isRestart reports whether a restart of the container explains that its counter fell: its start time
// is later, or the scrape before did not mention it. If start times are unknown or ambiguous, any fall is a
// restart: the start before may be by a clock that was set back since.
func (s *series) isRestart(cur *usage.Sample, a *arrival) bool {
	return s.prev.startedAt == 0 || cur.StartedAt == 0 || s.startedLater(cur) || a.wasAway || a.startsAreAmbiguous()
}

func (s *series) setPrevious(cur *usage.Sample) {
	s.prev, s.sampled, s.untimed, s.olderCount = readingOf(cur), true, cur.Untimed, 0
}

// markJumped notes that the node's clock jumped after prev was taken.
func (s *series) markJumped() {
	switch {
	case !s.sampled:
	case s.prevIs == notBeforeJump:
		s.prevIs = surelyBeforeJump
	default:
		s.prevIs = longBeforeJump
	}
}

// isYoung reports whether the container was starting up when a sample was taken. A container that has an Amount, or
// had been reported for MinAgeSinceStart, was not, whatever its start time is.
func (s *series) isYoung(cur *usage.Sample, a *arrival) bool {
	return !s.hasAmount && cur.Young() && a.clock.sampledAt(cur, a.at).Sub(s.since) < usage.MinAgeSinceStart
}

// applyMeanSinceStart sets the Amount of a container that is known to have started recently, and
// reports whether it did. It needs a start time that is by the same clock as the sample, and not
// from before a jump of that clock. The window must not exceed the maximum age.
func (s *series) applyMeanSinceStart(cur *usage.Sample, a *arrival) bool {
	if s.prevIs != notBeforeJump || a.jumpedRecently() || cur.At.Sub(cur.StartedAt) > a.config.MaxSampleAge {
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
// request, possibly milliseconds, and the next scrape will give a real one.
func (s *series) applyKubeletRate(cur *usage.Sample, a *arrival) bool {
	if s.hasAmount || s.prevIs != notBeforeJump || !s.repeats(cur) || a.jumpedRecently() {
		return false
	}
	amount, ok := usage.FromKubeletRate(cur, a.capacity)
	if ok {
		s.setAmount(amount, cur, a)
	}
	return ok
}

// repeats reports whether a summary's sample has the reading in prev.
func (s *series) repeats(cur *usage.Sample) bool {
	return s.sampled && cur.CPUSeconds == s.prev.CPUSeconds
}

func (s *series) setAmount(amount usage.Amount, cur *usage.Sample, a *arrival) {
	s.amount, s.asOf, s.hasAmount = amount, a.clock.sampledAt(cur, a.at), true
}

// isMissing reports whether the series needs another sample soon: it has no Amount, or one of a short window.
func (s *series) isMissing(a *arrival) bool { return !s.hasAmount || a.config.isDense(s.amount.Window) }

// missing describes a series that isMissing.
func (s *series) missing(a *arrival) usage.Missing {
	missing := usage.Missing{Since: s.since}
	if !s.sampled {
		return missing
	}
	prev := usage.Sample{At: s.prev.At, StartedAt: s.prev.startedAt, Untimed: s.untimed}
	missing.SampledAt = a.clock.sampledAt(&prev, a.at)
	if age, ok := prev.Age(); ok {
		missing.StartedAt = missing.SampledAt.Add(-age)
	}
	missing.KubeletRate = !s.hasAmount && !prev.Young() && !a.jumpedRecently()
	return missing
}
