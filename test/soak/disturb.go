package main

import (
	"math"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
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
	leastNoticed := 2 * time.Second
	if isUnreachable { // for up to a minute, in which a clock may drift by more than a second
		leastNoticed = 4 * time.Second
	}
	if step == 0 || step.Abs() > maxUnnoticedStep && step.Abs() < leastNoticed {
		return
	}
	n.nextStep = now.Add(c.oracle.settle)
	if step.Abs() <= maxUnnoticedStep {
		n.nextStep = now.Add(time.Minute) // a step soon after it could undo a part of it, and not be noticed either
	}
	c.events["clock steps"]++
	if step < 0 {
		c.events["clock steps back"]++
	}
	c.setClock(n, n.offset+step)
}

// clockStep returns a random step in either direction: in three of ten cases so small that the server
// may not notice it, in one of ten 25 hours, else 2 seconds to 10 minutes.
func (c *churn) clockStep() time.Duration {
	step := time.Duration(2 * math.Pow(300, c.random.Float64()) * float64(time.Second))
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

// disconnect makes a node unreachable for longer than its metrics are served.
func (c *churn) disconnect(n *node, now time.Time) {
	disconnected := 0
	for _, other := range c.nodes {
		if !other.loadChange.IsZero() {
			disconnected++
		}
	}
	if !n.failing.IsZero() || float64(disconnected) >= maxUnreachableShare*float64(len(c.nodes)) {
		return
	}
	c.events["nodes unreachable, with another load on their return"]++
	shortest := c.oracle.maxAge + 2*time.Second
	until := now.Add(shortest + time.Duration(c.random.Int64N(int64(max(1, maxUnreachable-shortest)))))
	n.loadChange = until.Add(-loadLead)
	c.fail(n, unreachable, kubelettest.Refuse, now, until)
}

// fail makes a kubelet misbehave until a time.
func (c *churn) fail(n *node, name string, fault kubelettest.Fault, now, until time.Time) {
	c.oracle.update(func() { n.failing, n.fault = now, name })
	n.faultyUntil = until
	c.setFaults(n, fault)
}

// changeLoads changes the load of unreachable nodes at the planned times.
func (c *churn) changeLoads(now time.Time) {
	for _, n := range c.nodes {
		if n.loadChange.IsZero() || now.Before(n.loadChange) {
			continue
		}
		n.loadChange = time.Time{}
		n.usage = c.otherLoad(n.usage)
		n.kubelet.SetNode(n.usage)
		for _, p := range n.pods {
			for j, name := range objects.ContainerNames {
				p.usage[j] = c.otherLoad(p.usage[j])
				n.kubelet.SetContainer(p.Namespace, p.Name, name, p.usage[j])
			}
		}
	}
}

// otherLoad returns a usage with 1/4 to 4 times the CPU.
func (c *churn) otherLoad(u kubelettest.Usage) kubelettest.Usage {
	u.CPU = min(u.CPU*math.Pow(4, c.random.Float64()*2-1), 4)
	u.Memory += 1 << 20
	return u
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
	faults := kubelettest.Faults()
	f := faults[c.random.IntN(len(faults))]
	if f.Name == responsesWithoutDate && now.Sub(n.stepped) < c.oracle.settle {
		return // without a Date header, the server cannot notice the step
	}
	if f.Name == samplesFromYesterday && n.withoutDate {
		return // to the server, the node's clock is a day behind, and the samples are current
	}
	c.events["kubelet faults"]++
	if f.Name == startsFollowSamples || f.Name == startsMovedOnce {
		c.oracle.moveStarts(n, now)
	}
	if c.random.IntN(2) == 0 {
		f.Fault = kubelettest.Sometimes(0.5, c.random.Uint64(), f.Fault)
	}
	if hasWrongTimes(f.Name) {
		c.oracle.update(func() { n.unjudgeable = now.Add(maxFault + c.oracle.settle + c.oracle.wrongStartTime()) })
	}
	c.fail(n, f.Name, f.Fault, now, now.Add(time.Duration(c.random.Int64N(int64(maxFault)))))
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
		n.loadChange = time.Time{}
		c.oracle.update(func() { n.failing, n.undisturbed = time.Time{}, time.Now() })
	}
}
