package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// put stores the new samples of a node, and adds the refresh to what is known of it. It reports whether the
// engine has series of the node. observeStamps must be first: it decides which selection of each counter the
// rest uses.
func (s *Source) put(n *node, sent, arrived usage.Time, partial bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[n.name] != n { // it was deleted
		return true
	}
	s.observeStamps(n)
	if reference, hasNew := s.prepare(n, sent); hasNew {
		s.scrape = usage.Scrape{
			At: arrived, Sent: sent, Partial: partial || n.overLimit, Containers: s.scrape.Containers[:0],
			Capacity: health.CapacityOf(n.object),
		}
		n.overLimit = false
		s.fill(n, reference)
		s.scrape.DropUnknown()
		report := s.Sink.Put(n.name, &s.scrape)
		n.health.Capacity, n.health.Exceeded = s.scrape.Capacity, report.Exceeded
	}
	return s.recordNode(n, time.Now())
}

// prepare drops the samples that are by another clock than those of their node. It returns the time that the
// others are compared with, and whether there are new samples.
func (s *Source) prepare(n *node, sent usage.Time) (reference usage.NodeTime, hasNew bool) {
	reference = s.reference(n, sent)
	apart := s.apart(n, reference)
	maps.DeleteFunc(n.foreign, func(f foreign, _ bool) bool { // the engine does not return it any more
		return n.times.reference.Sub(f.at) > maxAhead+maxWindow
	})
	newest := usage.NodeTime(0)
	for c := range s.current(n) {
		ahead := c.cur.At.Sub(reference)
		if ahead > apart {
			n.foreign[foreign{c, c.cur.At}] = true
		}
		// An older sample is in the response only because of the range for clocks that are ahead.
		if ahead > apart || -ahead > s.client.window {
			c.refresh = 0
			continue
		}
		newest = max(newest, c.cur.At)
		hasNew = hasNew || s.isFresh(c)
	}
	if reference != 0 {
		n.times.observe(reference, newest, sent)
	}
	return reference, hasNew
}

// fill sets the samples of s.scrape, and drops the containers that have ended.
func (s *Source) fill(n *node, reference usage.NodeTime) {
	s.names = s.names[:0]
	if s.isFresh(&n.counter) {
		s.scrape.Node = s.next(n, &n.counter)
	}
	containers := slices.DeleteFunc(n.all[1:], func(c *counter) bool {
		sample, exists := s.sampleOf(n, c, reference)
		if !exists {
			delete(n.containers, c.namespace+"\x00"+c.pod+"\x00"+c.name)
			return true
		}
		s.scrape.Containers = append(s.scrape.Containers, usage.ContainerSample{
			Namespace: s.copyName(c.namespace), Pod: s.copyName(c.pod), Name: s.copyName(c.name), Sample: sample,
		})
		return false
	})
	n.all = n.all[:1+len(containers)]
}

// sampleOf returns what is stored of a container, and whether it exists. The engine may not have the
// latest samples of all containers, and has samples of containers that have ended. The API server
// reports later than the kubelet that a container has started, and has no status of debug containers.
func (s *Source) sampleOf(n *node, c *counter, reference usage.NodeTime) (sample usage.Sample, exists bool) {
	if c.refresh != s.refreshes || reference.Sub(c.cur.At) > endedAfter {
		if state := s.State(n.name, c.namespace, c.pod, c.name); !state.Accepted || !state.Running {
			return sample, false
		}
	}
	switch {
	case s.isFresh(c):
		return s.next(n, c), true
	case c.refresh == s.refreshes && c.last.At != 0: // the last one again
		return c.sample(c.last), true
	}
	return sample, true // it runs, but the engine has no recent sample
}

// next returns the newest sample, and notes that it is stored. After a fall without a restart, the store decides, as it
// does with kubelets: it refuses lower samples, and computes the rate of the next one from what it stored last.
func (s *Source) next(n *node, c *counter) usage.Sample {
	sample := c.sample(c.cur)
	if c.isReset && !c.isRestart(n.stamped > 0) && c.cur.At.Sub(c.last.At) <= s.MaxSampleAge {
		if c.basesFrom = c.cur.At; c.cur.Value < c.last.Value {
			return sample
		}
		c.base = point{}
	}
	c.last, c.lastHash, c.lastStartedAt = c.cur, c.hash, c.startedAt
	sample.Base = usage.Reading{At: c.base.At, CPUSeconds: c.base.Value}
	return sample
}

// sample returns the counter's other values with the CPU counter of p.
func (c *counter) sample(p point) usage.Sample {
	return usage.Sample{
		At: p.At, StartedAt: c.startedAt, CPUSeconds: p.Value, Memory: c.memory, Swap: c.swap,
		Has: usage.HasCPU | c.has&(usage.HasMemory|usage.HasSwap),
	}
}

// copyName returns a copy that is valid until the next call of fill.
func (s *Source) copyName(name string) []byte {
	start := len(s.names)
	s.names = append(s.names, name...)
	return s.names[start:len(s.names):len(s.names)]
}
