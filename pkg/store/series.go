package store

import "github.com/kube-vitals/kube-vitals/pkg/usage"

// maxOlder is how many samples in a row may be older than the one before until it is believed that the node's clock was
// set back.
const maxOlder = 3

// series is the state of one node or container: the sample that the next one is compared with, and the Amount that
// follows from the samples so far.
type series struct {
	prev  usage.Sample
	last  usage.Amount
	asOf  usage.Time // last.At, or the moment at which it arrived if the node's clock is ahead of ours
	has   bool       // whether there is an Amount
	older uint8      // samples in a row that were older than prev
}

// observe takes in the next sample, which arrived at the moment received, and says whether there is a new Amount.
func (s *series) observe(cur usage.Sample, received usage.Time, counts *counts) bool {
	amount, verdict := usage.Between(s.prev, cur)
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
		s.prev, s.last, s.asOf, s.has, s.older = cur, amount, min(amount.At, received), true, 0
		return true
	case usage.Baseline:
		counts.baselines.Add(1)
		s.prev, s.has, s.older = cur, false, 0
	case usage.Unchanged:
		s.older = 0
	}
	return false
}
