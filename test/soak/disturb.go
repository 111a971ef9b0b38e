package main

import (
	"math"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

// stepClock sets the clock of a node, if the node is unreachable or has been healthy for so long
// that the server has noticed the last step.
func (c *churn) stepClock(n *node, now time.Time) {
	isHealthy := n.failing.IsZero() && now.Sub(n.undisturbed) >= c.oracle.settle
	// The server sees two steps in an outage as one, and cannot know that a sample is from between them.
	isUnreachable := !n.failing.IsZero() && n.fault == unreachable && n.stepped.Before(n.failing)
	if n.withoutDate || now.Before(n.nextStep) || !isHealthy && !isUnreachable {
		return
	}
	step := c.clockStep()
	if n.offset.Abs() > 24*time.Hour || c.random.IntN(4) == 0 {
		step = -n.offset // the clock is right again
	}
	leastNoticed := leastNoticedStep
	if isUnreachable { // for nearly a minute, while a clock may drift by more than a second
		leastNoticed *= 2
	}
	if step == 0 || step.Abs() > maxUnnoticedStep && step.Abs() < leastNoticed {
		return
	}
	n.nextStep = now.Add(c.oracle.settle)
	if step.Abs() <= maxUnnoticedStep {
		n.nextStep = now.Add(time.Minute) // a step soon after it could undo a part of it, and not be noticed either
	}
	c.events["clock steps"]++
	c.oracle.stepClock(n, now, n.offset+step)
}

// leastNoticedStep is the smallest step that the server must notice while a node is reachable.
const leastNoticedStep = 2 * time.Second

// clockStep returns a random step in either direction: in three of ten cases so small that the server
// may not notice it, in one of ten 25 hours, else up to 10 minutes.
func (c *churn) clockStep() time.Duration {
	step := time.Duration(math.Pow(300, c.random.Float64()) * float64(leastNoticedStep))
	switch c.random.IntN(10) {
	case 0, 1, 2:
		step = time.Duration(c.random.Int64N(int64(maxUnnoticedStep)))
	case 3:
		step = 25 * time.Hour
	}
	if c.random.IntN(2) == 0 {
		step = -step
	}
	return step.Truncate(time.Millisecond)
}

// changeLoad changes the load of a node and its containers.
func (c *churn) changeLoad(n *node) {
	c.events["loads changed"]++
	n.kubelet.SetNode(c.load(4))
	for _, p := range n.pods {
		for _, name := range objects.ContainerNames {
			n.kubelet.SetContainer(p.Namespace, p.Name, name, c.load(0.5))
		}
	}
}

// load returns a random usage: in one of ten cases, no CPU.
func (c *churn) load(cores float64) kubelettest.Usage {
	return kubelettest.Usage{CPU: cores * float64(c.random.IntN(10)) / 10, Memory: uint64(16+c.random.IntN(100)) << 20}
}

// faulty returns how many kubelets misbehave.
func (c *churn) faulty() (n int) {
	c.oracle.update(func() {
		for _, m := range c.nodes {
			if !m.failing.IsZero() {
				n++
			}
		}
	})
	return n
}

// injectFault lets a kubelet misbehave for a while, in every response or in half of them.
func (c *churn) injectFault(n *node, now time.Time) {
	if !n.failing.IsZero() || float64(c.faulty()) >= maxFaultyShare*float64(len(c.nodes)) {
		return
	}
	f, ok := c.newFault(n)
	if !ok {
		return
	}
	if (f.Name == responsesWithoutDate || f.Name == unreachable) && now.Sub(n.stepped) < c.oracle.settle {
		return // without a Date header, the server cannot notice the step, nor a small one if an outage follows it
	}
	if f.Name == samplesFromYesterday && n.withoutDate {
		return // to the server, the node's clock is a day behind, and the samples are current
	}
	c.events["kubelet faults"]++
	if slices.Contains(wrongStarts, f.Name) {
		c.oracle.moveStarts(n, now)
	}
	if f.Name != unreachable && c.random.IntN(2) == 0 {
		f.Fault = kubelettest.Sometimes(0.5, c.random.Uint64(), f.Fault)
	}
	if slices.Contains(wrongTimes, f.Name) {
		c.oracle.update(func() { n.unjudgeable = now.Add(maxFault + c.oracle.settle + c.oracle.wrongStartTime()) })
	}
	c.fail(n, f, now, now.Add(time.Duration(c.random.Int64N(int64(maxFault)))))
}

// newFault returns a random fault of a node, if the node can have it.
func (c *churn) newFault(n *node) (kubelettest.NamedFault, bool) {
	faults := kubelettest.Faults()
	switch chance := c.random.Float64(); {
	case chance < 0.4:
		return c.newLie(n)
	case chance < 0.5:
		return kubelettest.NamedFault{Name: unreachable, Fault: kubelettest.Refuse}, true
	default:
		return faults[c.random.IntN(len(faults))], true
	}
}

// fail makes a kubelet misbehave until a time.
func (c *churn) fail(n *node, f kubelettest.NamedFault, now, until time.Time) {
	c.oracle.update(func() { n.failing, n.fault = now, f.Name })
	n.faultyUntil = until
	c.setFaults(n, f.Fault)
}

// setFaults sets the faults that a kubelet has in addition to its permanent ones.
func (c *churn) setFaults(n *node, more ...kubelettest.Fault) {
	record := c.oracle.recorder(n, len(more) == 0)
	n.kubelet.SetFaults(slices.Concat(n.permanent, more, []kubelettest.Fault{record})...)
}

// clearFaults clears the faults of the selected nodes.
func (c *churn) clearFaults(isSelected func(*node) bool) {
	for _, n := range c.nodes {
		if n.failing.IsZero() || !isSelected(n) {
			continue
		}
		c.setFaults(n)
		c.oracle.update(func() {
			n.failing, n.undisturbed = time.Time{}, time.Now().Add(c.oracle.recovery(n.fault))
		})
	}
}
