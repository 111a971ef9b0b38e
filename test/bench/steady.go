package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// simulateFastReads compares autoscalers that read every 3 s with those that read every 15 s.
func simulateFastReads() {
	columns := append([]string{"kubelet", "a read every", "rule"}, reactionColumns...)
	t := newTable("Autoscalers that read often", append(columns, "spike", "noise")...)
	for _, k := range kubelets {
		for _, period := range []time.Duration{syncPeriod, fastPeriod} {
			for _, r := range k.servers(period) {
				t.row(append([]string{k.name, period.String()}, r.cells()[:3+len(reactionColumns)]...)...)
			}
		}
	}
	t.print()
}

// steadyLoad is a load whose mean does not change. It has one load for each pod of an autoscaler.
type steadyLoad struct {
	name     string
	mean     float64 // cores of a pod
	generate func(random *rand.Rand, duration time.Duration) []load
}

// A pod that serves requests uses as many cores as it has requests at a time.
const (
	requestsPerSecond = 10
	requestDuration   = 50 * time.Millisecond
)

var steadyLoads = []steadyLoad{
	{"constant", 0.5, func(*rand.Rand, time.Duration) []load { return []load{{{0, 0.5}}} }},
	{"requests", requestsPerSecond * requestDuration.Seconds(), requestsOf(1)},
	{"requests, 10 pods", requestsPerSecond * requestDuration.Seconds(), requestsOf(10)},
}

// requestsOf returns the loads of pods that serve requests which arrive at random times.
func requestsOf(pods int) func(random *rand.Rand, duration time.Duration) []load {
	return func(random *rand.Rand, duration time.Duration) []load {
		loads := make([]load, pods)
		for i := range loads {
			var changes load // cores are the difference
			for t := 0.0; t < duration.Seconds(); t += random.ExpFloat64() / requestsPerSecond {
				begin := time.Duration(t * float64(time.Second))
				changes = append(changes, change{begin, 1}, change{begin + requestDuration, -1})
			}
			slices.SortFunc(changes, func(a, b change) int { return int(a.at - b.at) })
			for j := range changes[1:] {
				changes[j+1].cores += changes[j].cores
			}
			loads[i] = changes
		}
		return loads
	}
}

// deviation returns the standard deviation of what an autoscaler reads, the mean of its pods, as a share of what is
// right. The first minute does not count.
func (l steadyLoad) deviation(r ruleRow) float64 {
	random, sum, n := rand.New(rand.NewPCG(7, 8)), 0.0, 0
	for range steadyRuns {
		r.schedule.read(random, l.generate(random, ruleDuration), r.newRule, func(at float64, served []float64) {
			if at > 60 {
				sum += math.Pow(mean(served)/l.mean-1, 2)
				n++
			}
		})
	}
	return math.Sqrt(sum / float64(n))
}

const steadyRuns = 20

// simulateSteady prints the noise of what is served while a load is steady.
func simulateSteady() {
	columns := []string{"kubelet", "rule"}
	for _, l := range steadyLoads {
		columns = append(columns, l.name)
	}
	t := newTable(fmt.Sprintf("Standard deviation under a steady load; requests: %d of %v a second, at random times",
		requestsPerSecond, requestDuration), columns...)
	for _, k := range kubelets {
		for _, r := range k.servers(syncPeriod) {
			cells := []string{k.name, r.name}
			for _, l := range steadyLoads {
				cells = append(cells, fmt.Sprintf("%.2f %%", 100*l.deviation(r)))
			}
			t.row(cells...)
		}
	}
	t.print()
}
