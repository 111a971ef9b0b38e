package main

import (
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
)

// A lie is a fault with complete and readable responses that are not true: what real kubelets do. The oracle
// knows the truth, and accepts no number that follows from a lie.
type lie struct {
	name string
	new  func(who selection, random *responses) kubelettest.Fault

	// needsStarts is set if only the start time tells the lie from a restart.
	needsStarts bool
}

// The lies that the oracle treats specially.
const (
	lateResponses      = "late responses"
	impossibleCounters = "impossible counters"
)

// maxLateness is the longest delay of a response.
const maxLateness = 20 * time.Second

// leastImpossible and mostImpossible are by how much a counter may be too high, in core-seconds: more than any
// node has had since the start of the test.
const leastImpossible, mostImpossible = 5e3, 1e7

var lies = []lie{
	{name: "zeros", new: each((*kubelettest.Sample).Zero)},
	{name: "zero counters", needsStarts: true, new: each(func(s *kubelettest.Sample, _ time.Time) {
		if s.At.Sub(s.Start) >= minContainerAge { // else it may have just started
			s.CPU = 0
		}
	})},
	{name: "no memory on the whole node", new: func(selection, *responses) kubelettest.Fault {
		return each(func(s *kubelettest.Sample, _ time.Time) { s.Memory = 0 })(everyone, nil)
	}},
	{name: "containers omitted", new: each(func(s *kubelettest.Sample, _ time.Time) { s.Omitted = true })},
	{name: impossibleCounters, new: impossible},
	{name: lateResponses, new: func(_ selection, random *responses) kubelettest.Fault {
		return func(r *kubelettest.Response) {
			r.Delay = time.Duration(random.float() * float64(maxLateness))
		}
	}},
	{name: "samples repeated", new: repeat},
}

// noRates makes the kubelet-reported rate of all containers of that name 0, beside others above 0.
func noRates(container string) kubelettest.Fault {
	return kubelettest.EditSamples(func(s *kubelettest.Sample, _ time.Time) {
		if s.Container == container {
			s.Rate = 0
		}
	})
}

// A selection is of the containers of a node that a lie is about: always the same share of them.
type selection struct {
	seed  uint64
	share float64
}

var everyone = selection{share: 1}

func (w selection) has(s *kubelettest.Sample) bool {
	h := fnv.New64a()
	for _, name := range []string{s.Namespace, s.Pod, s.Container} {
		h.Write([]byte(name))
	}
	return s.Container != "" && rand.New(rand.NewPCG(w.seed, h.Sum64())).Float64() < w.share
}

// responses is a source of randomness for the responses of a kubelet, which may overlap.
type responses struct {
	mu     sync.Mutex
	random *rand.Rand
}

func (r *responses) float() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.random.Float64()
}

// each returns a lie about every selected container.
func each(change func(*kubelettest.Sample, time.Time)) func(selection, *responses) kubelettest.Fault {
	return func(who selection, _ *responses) kubelettest.Fault {
		return kubelettest.EditSamples(func(s *kubelettest.Sample, now time.Time) {
			if who.has(s) {
				change(s, now)
			}
		})
	}
}

// impossible makes counters too high in some responses, but not in two in a row: those would be like what a
// deleted pod of the same name has used.
func impossible(who selection, random *responses) kubelettest.Fault {
	var mu sync.Mutex
	more := 0.0 // core-seconds
	return func(r *kubelettest.Response) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Request.URL.Path != kubelettest.ResourcePath:
		case more == 0 && random.float() < 0.5:
			more = leastImpossible + random.float()*(mostImpossible-leastImpossible)
		default:
			more = 0
		}
		each(func(s *kubelettest.Sample, _ time.Time) { s.CPU += more })(who, nil)(r)
	}
}

// repeat repeats the samples of one response in the next ones, where some are new.
func repeat(who selection, random *responses) kubelettest.Fault {
	var mu sync.Mutex
	said := map[kubelettest.Sample]kubelettest.Sample{} // by names and start: a repeated one is of the same container
	return func(r *kubelettest.Response) {
		isNew := random.float() < 0.3
		kubelettest.EditSamples(func(s *kubelettest.Sample, _ time.Time) {
			key := kubelettest.Sample{
				Namespace: s.Namespace, Pod: s.Pod, Container: s.Container, Start: s.Start.Truncate(time.Second),
			}
			mu.Lock()
			defer mu.Unlock()
			old, isKnown := said[key]
			switch {
			case r.Request.URL.Path != kubelettest.ResourcePath || !who.has(s):
			case isKnown && !isNew:
				s.CPU, s.Memory, s.At = old.CPU, old.Memory, old.At
			default:
				said[key] = *s
			}
		})(r)
	}
}

// newLie returns a random lie of a kubelet: about all its containers, or some.
func (c *churn) newLie(n *node) (kubelettest.NamedFault, bool) {
	l := lies[c.random.IntN(len(lies))]
	if l.needsStarts && n.startsMove {
		return kubelettest.NamedFault{}, false
	}
	who := selection{seed: c.random.Uint64(), share: []float64{0.1, 0.5, 1}[c.random.IntN(3)]}
	random := &responses{random: rand.New(rand.NewPCG(c.random.Uint64(), 0))}
	c.events["lies: "+l.name]++
	return kubelettest.NamedFault{Name: l.name, Fault: l.new(who, random)}, true
}

// recovery returns for how long a fault may cost metrics after its end.
func (o *oracle) recovery(fault string) time.Duration {
	switch fault {
	case impossibleCounters:
		return o.maxAge // the true counter is lower than the last one, without a restart
	case lateResponses:
		return maxLateness // one may have been requested just before
	}
	return 0
}
