package scrape

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Delays that depend on when a kubelet takes samples. Some runtimes sample on demand, with each
// request. With the others, the kubelet (cAdvisor) reads the counters every 10 seconds or less
// often, which it calls housekeeping, and reports the last sample.
const (
	// onDemandAge is the age below which a sample may have been taken on demand.
	onDemandAge = 1200 * time.Millisecond
	// onDemandMargin is how much later than the shortest window of a rate a runtime that samples on demand
	// is asked for a second sample.
	onDemandMargin = 200 * time.Millisecond
	// housekeepingInterval is the shortest time between two samples of a kubelet.
	housekeepingInterval = 10*time.Second + 100*time.Millisecond
	// overdueDelay is the wait for a sample that may arrive at any time.
	overdueDelay = 2 * time.Second
	// giveUpAfter is how long a series may have no Amount before it is left to the regular scrapes, and for how
	// long a new node may have no first metrics: a kubelet could put them off for ever.
	giveUpAfter = 30 * time.Second
)

// plan is what to do before the next regular scrape of a node to get missing Amounts early.
type plan struct {
	wait time.Duration // until an early scrape; 0: there is none
	// Whether a kubelet-reported rate, which the summary has, could be served meanwhile.
	missesKubeletRate bool
}

// newPlan returns the plan after a scrape whose response arrived at the given time. The early
// scrape is due at the first moment when the kubelet is likely to have one of the missing
// samples. minWindow is the shortest window of a rate.
func newPlan(missing []usage.Missing, arrived usage.Time, minWindow time.Duration) plan {
	var p plan
	for i := range missing {
		m := &missing[i]
		if arrived.Sub(m.Since) > giveUpAfter {
			continue
		}
		p.missesKubeletRate = p.missesKubeletRate || m.KubeletRate
		if wait := waitFor(m, arrived, minWindow); p.wait == 0 || wait < p.wait {
			p.wait = wait
		}
	}
	return p
}

// waitFor returns how long it takes from now until the kubelet is likely to have the sample that m
// needs.
func waitFor(m *usage.Missing, now usage.Time, minWindow time.Duration) time.Duration {
	if m.SampledAt == 0 {
		return overdueDelay
	}
	wait := minWindow + onDemandMargin
	if age := now.Sub(m.SampledAt); age >= onDemandAge {
		wait = max(housekeepingInterval-age, overdueDelay)
	}
	if m.StartedAt != 0 { // it may be too young for a rate
		wait = max(wait, m.StartedAt.Add(usage.MinAgeSinceStart).Sub(now)+100*time.Millisecond)
	}
	return wait
}

// maxEarly is how many early scrapes a node may have in a row. One more is allowed with each
// interval, so a node on which containers start all the time is scraped at most about twice as
// often as others.
const maxEarly = 10
