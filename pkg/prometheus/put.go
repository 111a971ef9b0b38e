package prometheus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// put stores the new samples of a node, and reports whether there were any.
func (s *Source) put(n *node, sent, arrived usage.Time, partial bool) bool {
	s.observeStamps(n)
	if !s.prepare(n, sent) {
		return false
	}
	s.scrape = usage.Scrape{
		At: arrived, Sent: sent, Capacity: capacity(n.object.Load()), Partial: partial || n.overLimit,
		Containers: s.scrape.Containers[:0],
	}
	n.overLimit = false
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.deleted {
		return false
	}
	s.fill(n)
	s.Sink.Put(n.name, &s.scrape)
	s.commit(n)
	return true
}

// prepare sets how the containers of a node occur in what is stored. It reports whether there are new
// samples.
func (s *Source) prepare(n *node, sent usage.Time) (hasNew bool) {
	reference := s.reference(n, sent)
	apart := s.apart(n, reference)
	n.forgetForeign()
	newest := usage.Time(0)
	for c := range s.current(n) {
		ahead := c.cur.at.Sub(reference)
		if ahead > apart {
			n.ignore(c, c.cur.at)
		}
		// An older sample is in the response only because of the range for clocks that are ahead.
		if ahead > apart || -ahead > s.client.window {
			c.refresh = 0
			continue
		}
		newest = max(newest, c.cur.at)
	}
	wasSet := reference != 0 && n.clock.observe(reference, newest, sent)
	for c := range s.current(n) {
		if wasSet || s.isFresh(c) && n.clock.isLate(&c.selection, sent) {
			c.restart()
		}
		hasNew = hasNew || s.isFresh(c)
	}
	for _, c := range n.order {
		c.mention = s.mentionOf(n, c, reference)
	}
	return hasNew
}

// mentionOf returns how a container occurs in what is stored. The engine may not have the latest
// samples of all containers, and has samples of containers that have ended. The API server reports
// later than the kubelet that a container has started.
func (s *Source) mentionOf(n *node, c *container, reference usage.Time) mention {
	isReported := c.refresh == s.refreshes && reference.Sub(c.cur.at) <= endedAfter
	switch {
	case !isReported && !s.IsRunning(n.name, c.namespace, c.pod, c.name):
		return ended
	case s.isFresh(&c.counter):
		return fresh
	case c.refresh == s.refreshes && c.last.at != 0:
		return repeated
	}
	return silent
}

// fill sets the samples of s.scrape.
func (s *Source) fill(n *node) {
	s.scrape.Containers, s.names = s.scrape.Containers[:0], s.names[:0]
	if s.isFresh(&n.counter) {
		s.scrape.Node = n.counter.newSample()
	}
	for _, c := range n.order {
		var sample usage.Sample
		switch c.mention {
		case ended:
			continue
		case fresh:
			sample = c.newSample()
		case repeated:
			sample = c.sample(c.last)
		}
		s.scrape.Containers = append(s.scrape.Containers, usage.ContainerSample{
			Namespace: s.copyName(c.namespace), Pod: s.copyName(c.pod), Name: s.copyName(c.name), Sample: sample,
		})
	}
}

// sample returns the counter's other values with the CPU counter of p.
func (c *counter) sample(p point) usage.Sample {
	return usage.Sample{
		At: p.at, MemoryAt: p.at, StartedAt: c.startedAt, CPUSeconds: p.value, Memory: c.memory, Swap: c.swap,
		Has: usage.HasCPU | c.has&(usage.HasMemory|usage.HasSwap),
	}
}

// newSample returns the newest sample.
func (c *counter) newSample() usage.Sample {
	s := c.sample(c.cur)
	s.Base = usage.Reading{At: c.base.at, CPUSeconds: c.base.value}
	return s
}

// copyName returns a copy that is valid until the next call of fill.
func (s *Source) copyName(name string) []byte {
	start := len(s.names)
	s.names = append(s.names, name...)
	return s.names[start:len(s.names):len(s.names)]
}

// commit notes what was stored, and drops the containers that have ended.
func (s *Source) commit(n *node) {
	for c := range s.current(n) {
		if s.isFresh(c) {
			c.last, c.lastHash = c.cur, c.hash
		}
	}
	n.order = slices.DeleteFunc(n.order, func(c *container) bool {
		if c.mention == ended {
			delete(n.containers, c.namespace+"\x00"+c.pod+"\x00"+c.name)
		}
		return c.mention == ended
	})
}

// capacity returns the CPU capacity of a node in nanocores, or 0 if its status does not report it.
func capacity(node *corev1.Node) uint64 {
	return uint64(max(0, node.Status.Capacity.Cpu().ScaledValue(resource.Nano)))
}
