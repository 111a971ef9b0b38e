package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// decision is a number of replicas that an autoscaler wants from some time on, which counts from the
// start of the measurement.
type decision struct {
	at       time.Duration
	replicas int
}

// decisions are those of one autoscaler in the order of time. Two in a row differ.
type decisions []decision

// add adds what the autoscaler wants, if that is something new.
func (d *decisions) add(at time.Duration, replicas int) {
	if n := len(*d); n == 0 || (*d)[n-1].replicas != replicas {
		*d = append(*d, decision{at, replicas})
	}
}

// at returns the replicas that are wanted at a time. Before the first decision, that is the minimum.
func (d decisions) at(t time.Duration) int {
	replicas := podsPerAutoscaler
	for _, one := range d {
		if one.at > t {
			break
		}
		replicas = one.replicas
	}
	return replicas
}

// delay returns the seconds from one time until the decision is at least, or with a negative sign at
// most, the given number of replicas. It is +Inf if that does not happen before the other time.
func (d decisions) delay(from, to time.Duration, reached func(replicas int) bool) float64 {
	if reached(d.at(from)) {
		return 0
	}
	for _, one := range d {
		if one.at > from && one.at < to && reached(one.replicas) {
			return (one.at - from).Seconds()
		}
	}
	return math.Inf(1)
}

// changes returns the number of changes from the start of the measurement until a time.
func (d decisions) changes(until time.Duration) (n int) {
	for _, one := range d {
		if one.at > 0 && one.at <= until {
			n++
		}
	}
	return n
}

// delays are those of many autoscalers, in seconds. +Inf means that it did not happen in time.
type delays struct {
	first, right []float64 // from a step up until more replicas, and until stepReplicas, are wanted
	down         []float64 // from a step down until the minimum is wanted
	ramp         []float64 // from when a ramp needs a replica more until that is wanted
}

// addSteps adds the delays of all steps of a load.
func (s *delays) addSteps(l load, d decisions, end time.Duration) {
	for i, c := range l {
		next := end
		if i+1 < len(l) {
			next = l[i+1].at
		}
		switch c.cores {
		case stepHigh:
			if d.at(c.at) != podsPerAutoscaler {
				continue
			}
			s.first = append(s.first, d.delay(c.at, next, func(n int) bool { return n > podsPerAutoscaler }))
			s.right = append(s.right, d.delay(c.at, next, func(n int) bool { return n >= stepReplicas }))
		case stepLow:
			if i+1 < len(l) && d.at(c.at) > podsPerAutoscaler { // the last one may be just before the end
				s.down = append(s.down, d.delay(c.at, next, func(n int) bool { return n <= podsPerAutoscaler }))
			}
		}
	}
}

// addRamp adds how late each replica of a ramp is wanted. The first one does not count: the tolerance
// of autoscalers delays it.
func (s *delays) addRamp(l load, d decisions, end time.Duration) {
	needed := podsPerAutoscaler + 1
	for _, c := range l {
		for ; needed < replicasFor(c.cores); needed++ {
			want := needed + 1
			s.ramp = append(s.ramp, d.delay(c.at, end, func(n int) bool { return n >= want }))
		}
	}
}

// replicasFor returns the right number of replicas while each of the pods has this usage.
func replicasFor(cores float64) int {
	return int(math.Ceil(cores / target * podsPerAutoscaler * (1 - 1e-9)))
}

// since returns the decisions with times that count from t. Earlier ones have a negative time.
func (d decisions) since(t time.Duration) decisions {
	moved := make(decisions, len(d))
	for i, one := range d {
		moved[i] = decision{one.at - t, one.replicas}
	}
	return moved
}

var reactionColumns = []string{"first decision after a step: p50", "p95", "right decision: p50", "p95",
	"after the step down: p50", "behind a ramp: mean"}

// cells are those of reactionColumns.
func (s *delays) cells() []string {
	return []string{seconds(percentile(s.first, 50)), seconds(percentile(s.first, 95)), seconds(percentile(s.right, 50)),
		seconds(percentile(s.right, 95)), seconds(percentile(s.down, 50)), seconds(mean(s.ramp))}
}

// printReaction prints the table, and how to read it.
func printReaction(nodes int, results []*reactionResult) {
	t := newTable(fmt.Sprintf("Reaction of %d autoscalers for each load: %d nodes, %g %% with their pods",
		perKind, nodes, 100*activeShare),
		slices.Concat([]string{"Mode", "scrapes a node and minute"}, reactionColumns,
			[]string{"changes by spikes", "by noise"})...)
	for _, r := range results {
		t.row(slices.Concat([]string{r.name, fmt.Sprintf("%.1f", r.scrapes)}, r.cells(),
			[]string{fmt.Sprintf("%.1f", r.changes[spikeKind.name]), fmt.Sprintf("%.1f", r.changes[noiseKind.name])})...)
	}
	t.print()
	fmt.Printf(`
Changes of desiredReplicas are per autoscaler and hour; spikes and noise need none.
Steps: %.0fm to %.0fm per pod, target %.0fm, %d pods, %d replicas are right. A step does not count if the
autoscaler had not returned to the minimum. Autoscalers read every %s, if the mode has no other period.
Scale-down stabilization is 0s in the autoscalers, so that they return soon after a wrong decision.
`, 1e3*stepLow, 1e3*stepHigh, 1e3*target, podsPerAutoscaler, stepReplicas, syncPeriod)
}

// seconds formats a delay.
func seconds(v float64) string {
	if math.IsInf(v, 1) {
		return "never"
	}
	return fmt.Sprintf("%.1f s", v)
}
