package store

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// maxOlder is how many samples in a row may be older than the one before until it is believed that the node's clock was
// set back.
const maxOlder = 3

// What is known of when kubelets take samples. Some take them when they are asked; others ask their counters every 10
// seconds or less often, and tell what they have.
const (
	onDemand     = usage.MinWindow + 200*time.Millisecond // a sample that is younger may have been taken for us; two of them that far apart give a rate
	housekeeping = 10*time.Second + 100*time.Millisecond  // from one sample to the next, at least
	overdue      = 2 * time.Second                        // between two looks for a sample that can come at any time
	giveUp       = 30 * time.Second                       // after which a sample is not looked for any more than regularly
)

// reading is what is kept of a sample for the next one to be compared with. There are as many of them as containers in the
// cluster.
type reading struct {
	at, startedAt usage.Time
	cpuSeconds    float64
}

func readingOf(s usage.Sample) reading { return reading{s.At, s.StartedAt, s.CPUSeconds} }

// series is the state of one node or container: the reading that the next sample is compared with, and the Amount that
// follows from the samples so far.
type series struct {
	prev    reading // if sampled
	last    usage.Amount
	asOf    usage.Time // last.At, or the moment at which it arrived if the node's clock is ahead of ours
	since   usage.Time // while there is no Amount: when the wait for one began, by our clock
	sampled bool       // whether there was a sample to begin with
	has     bool       // whether there is an Amount
	older   uint8      // samples in a row that were older than prev
}

// observe takes in the next sample, which arrived at the moment received, and says whether there is a new Amount.
func (s *series) observe(cur usage.Sample, received usage.Time, counts *counts) bool {
	if s.since == 0 {
		s.since = received
	}
	amount, verdict := usage.Between(s.previous(), cur)
	if verdict == usage.Older {
		counts.older.Add(1)
		if s.older++; s.older < maxOlder {
			return false
		}
		counts.stepsBack.Add(1)
		amount, verdict = usage.Between(usage.Sample{}, cur)
	}
	switch verdict {
	case usage.Fresh:
		s.prev, s.sampled, s.older = readingOf(cur), true, 0
		s.set(amount, received)
		return true
	case usage.Baseline:
		counts.baselines.Add(1)
		s.prev, s.sampled, s.older = readingOf(cur), true, 0
		s.has, s.since = false, received
	case usage.Unchanged:
		s.older = 0
	}
	return false
}

// previous gives the sample that the next one is compared with, as far as usage.Between asks; without HasCPU, there is none.
func (s *series) previous() usage.Sample {
	if !s.sampled {
		return usage.Sample{}
	}
	return usage.Sample{At: s.prev.at, StartedAt: s.prev.startedAt, CPUSeconds: s.prev.cpuSeconds, Has: usage.HasCPU}
}

// lend gives a series that has no Amount the one that the kubelet's own rate makes. The summary must repeat the reading that
// prev is of: its rate is then the mean up to that reading. If the counter has moved, the kubelet takes its readings when it
// is asked, its rate is the mean over the moment since it was asked last, and asking again gives a true one soon. What knows
// says, see usage.Borrow. It says whether there is a new Amount.
func (s *series) lend(cur usage.Sample, knows bool, received usage.Time) bool {
	if s.has || !s.repeats(cur) {
		return false
	}
	amount, ok := usage.Borrow(cur, knows)
	if ok {
		s.set(amount, received)
	}
	return ok
}

// repeats says whether a summary's sample is of the reading that prev is of.
func (s *series) repeats(cur usage.Sample) bool {
	return s.sampled && cur.CPUSeconds == s.prev.cpuSeconds && cur.StartedAt <= s.prev.at
}

func (s *series) set(amount usage.Amount, received usage.Time) {
	s.last, s.asOf, s.has = amount, min(amount.At, received), true
}

// lack says what is missing after a scrape at the moment received. What was borrowed serves until the next regular one.
func (s *series) lack(received usage.Time) usage.Lack {
	if s.has || received.Sub(s.since) > giveUp {
		return usage.Lack{}
	}
	if !s.sampled {
		return usage.Lack{Wait: overdue}
	}
	age := max(0, received.Sub(s.prev.at))
	wait := onDemand
	if age >= onDemand {
		wait = max(housekeeping-age, overdue)
	}
	grown := s.prev.startedAt.Add(usage.MinAgeSinceStart).Sub(s.prev.at)
	young := grown > 0 && grown <= usage.MinAgeSinceStart
	if young {
		wait = max(wait, grown-age+100*time.Millisecond)
	}
	return usage.Lack{Rates: !young, Wait: wait}
}

// and adds what another series lacks.
func and(a, b usage.Lack) usage.Lack {
	if a.Wait == 0 || b.Wait != 0 && b.Wait < a.Wait {
		a.Wait = b.Wait
	}
	a.Rates = a.Rates || b.Rates
	return a
}
