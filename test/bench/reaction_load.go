package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

// The loads, in cores per pod. Autoscalers aim at target, so a pod with this usage is at 100 %.
// Every Deployment has podsPerAutoscaler pods, which is also the minimum of its autoscaler.
const (
	target            = 0.100
	podsPerAutoscaler = 2
	maxReplicas       = 12

	// steps go up to a usage that needs stepReplicas replicas, and down again.
	stepLow, stepHigh = 0.050, 0.290
	stepReplicas      = 6
	stepPeriod        = 100 * time.Second
	stepDuration      = 55 * time.Second

	// A ramp goes up to a usage that needs ten replicas, and stays there for a while.
	rampLow, rampHigh = 0.050, 0.500
	rampRise          = 2 * time.Minute
	rampDuration      = rampRise + 40*time.Second

	// Spikes are as high as their distance to the target is between a fifth and four times that. Both
	// pods have them at the same time, one a minute.
	spikeLow              = 0.060
	spikeMin, spikeMax    = 1.2 * target, 4 * target
	spikePeriod           = time.Minute
	spikeShort, spikeLong = 3 * time.Second, 5 * time.Second

	// noise changes every second. Its mean needs no more replicas than the minimum, and each second is
	// log-normal with this coefficient of variation, as a pod that serves a few requests a second.
	noiseMean      = 0.080
	noiseVariation = 1
	noisePeriod    = time.Second
)

// load is the CPU usage of a pod over time. It is constant between two changes.
type load []change

// change is the usage from some time on, which counts from the start of the measurement.
type change struct {
	at    time.Duration
	cores float64
}

// kind is a kind of load. Its name is that of its Deployments, with a number. generate returns the loads of
// the pods of one Deployment, and add adds what its autoscaler has decided for the load of its first pod, if
// the load needs changes.
type kind struct {
	name     string
	generate func(random *rand.Rand, duration time.Duration) []load
	add      func(*delays, load, decisions, time.Duration)
}

var (
	stepKind  = kind{"step", steps, (*delays).addSteps}
	rampKind  = kind{"ramp", ramp, (*delays).addRamp}
	spikeKind = kind{name: "spike", generate: spikes}
	noiseKind = kind{name: "noise", generate: noiseOf(noiseVariation, noisePeriod)}
)

// same returns the same load for all pods.
func same(l load) []load { return slices.Repeat([]load{l}, podsPerAutoscaler) }

// between returns a random duration.
func between(random *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(random.Int64N(int64(high-low)))
}

// steps go up once a period, at a random time that is independent of when anybody reads.
func steps(random *rand.Rand, duration time.Duration) []load {
	l := load{{0, stepLow}}
	const first = 5 * time.Second
	for start := first; start+15*time.Second+stepDuration <= duration; start += stepPeriod {
		at := start + between(random, 0, 15*time.Second)
		l = append(l, change{at, stepHigh}, change{at + stepDuration, stepLow})
	}
	return same(l)
}

// ramp rises once, in steps of a second.
func ramp(random *rand.Rand, duration time.Duration) []load {
	l := load{{0, rampLow}}
	start := between(random, 5*time.Second, duration-rampDuration-10*time.Second)
	for t := time.Second; t <= rampRise; t += time.Second {
		l = append(l, change{start + t, rampLow + (rampHigh-rampLow)*t.Seconds()/rampRise.Seconds()})
	}
	return same(append(l, change{start + rampDuration, rampLow}))
}

func spikes(random *rand.Rand, duration time.Duration) []load {
	l := load{{0, spikeLow}}
	for start := time.Duration(0); start+spikePeriod <= duration; start += spikePeriod {
		at := start + between(random, 0, spikePeriod-spikeLong-time.Second)
		height := spikeMin * math.Pow(spikeMax/spikeMin, random.Float64())
		l = append(l, change{at, height}, change{at + between(random, spikeShort, spikeLong), spikeLow})
	}
	return same(l)
}

// noiseOf returns loads that differ between the pods, and change once a period.
func noiseOf(variation float64, period time.Duration) func(*rand.Rand, time.Duration) []load {
	sigma := math.Sqrt(math.Log(1 + variation*variation))
	return func(random *rand.Rand, duration time.Duration) []load {
		loads := make([]load, podsPerAutoscaler)
		for i := range loads {
			offset := between(random, 0, period)
			loads[i] = load{{0, noiseMean}}
			for t := offset; t < duration; t += period {
				loads[i] = append(loads[i], change{t, noiseMean * math.Exp(sigma*random.NormFloat64()-sigma*sigma/2)})
			}
		}
		return loads
	}
}

// play calls set for each change of each load when it is due, until the duration has passed. It
// returns the loads with the times when that was done: on a busy machine, it is late.
func play(
	ctx context.Context, loads []load, duration time.Duration, set func(i int, cores float64),
) ([]load, error) {
	start, played := time.Now(), make([]load, len(loads))
	var group sync.WaitGroup
	for i, l := range loads {
		group.Go(func() {
			for _, c := range l {
				if c.at >= duration || program.Sleep(ctx, time.Until(start.Add(c.at))) != nil {
					break
				}
				set(i, c.cores)
				played[i] = append(played[i], change{time.Since(start), c.cores})
			}
		})
	}
	group.Wait()
	return played, program.Sleep(ctx, time.Until(start.Add(duration)))
}

// autoscaler is one Deployment with its autoscaler and the load of its pods.
type autoscaler struct {
	kind  kind
	name  string
	phase time.Duration // when it is created, and so when it reads
	pods  []objects.Pod
	loads []load // of the pods
}

// newAutoscalers returns the same autoscalers for the same shape, so that all modes are measured with
// the same loads. The nodes with their pods are the first ones. The autoscalers of a node read
// together, as they do after the controller has started.
func newAutoscalers(s shape, period time.Duration) []autoscaler {
	random := rand.New(rand.NewPCG(1, 2))
	active := max(1, int(activeShare*float64(s.nodes)+0.5))
	groups := max(1, active/podsPerAutoscaler)
	var list []autoscaler
	index := s.pods()
	for _, k := range []kind{stepKind, rampKind, spikeKind, noiseKind} {
		for i := range perKind {
			group := i % groups
			a := autoscaler{
				kind: k, name: fmt.Sprintf("%s-%02d", k.name, i),
				phase: period * time.Duration(group) / time.Duration(groups),
				loads: k.generate(random, reactionDuration),
			}
			for j := range podsPerAutoscaler {
				pod := objects.NewPod(reactionNamespace, a.name, (podsPerAutoscaler*group+j)%active, index)
				pod.Containers = 1
				a.pods = append(a.pods, pod)
				index++
			}
			list = append(list, a)
		}
	}
	slices.SortStableFunc(list, func(a, b autoscaler) int { return int(a.phase - b.phase) })
	return list
}
