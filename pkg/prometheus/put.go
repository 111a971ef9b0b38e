package prometheus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// put stores the new samples of a node, and reports whether there were any. If rates need samples
// that were not stored before, it stores these first.
func (s *Source) put(n *node, sent, arrived usage.Time, partial bool) bool {
	s.observeStamps(n)
	hasNew, needsBase := s.decide(n, sent)
	if !hasNew {
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
	if needsBase {
		isPartial := s.scrape.Partial
		s.scrape.Partial = isPartial || !n.isStored // a container that only the newest samples have need not be new
		s.fill(n, true)
		s.Sink.Put(n.name, &s.scrape)
		s.scrape.Partial = isPartial
	}
	s.fill(n, false)
	s.Sink.Put(n.name, &s.scrape)
	n.commit(s.refreshes)
	n.isStored = true
	return true
}

// decide sets how the containers of a node occur in what is stored. It reports whether there are
// new samples, and whether some of them need earlier ones.
func (s *Source) decide(n *node, sent usage.Time) (hasNew, needsBase bool) {
	reference := s.reference(n, sent)
	apart := s.apart(n, reference)
	n.forgetForeign()
	newest := usage.Time(0)
	note := func(c *counter) {
		if c.refresh != s.refreshes {
			return
		}
		// An older sample is in the response only because of the range for clocks that are ahead.
		ahead := c.choice.cur.at.Sub(reference)
		if ahead > apart {
			n.ignore(c, c.choice.cur.at)
		}
		if ahead > apart || -ahead > s.client.window {
			c.refresh = 0
			return
		}
		newest = max(newest, c.choice.cur.at)
	}
	s.eachCounter(n, note)
	if reference != 0 && n.clock.observe(reference, newest, sent) {
		s.eachCounter(n, (*counter).restart)
	}
	s.eachCounter(n, func(c *counter) {
		if c.isFresh(s.refreshes) {
			if n.clock.isLate(c.choice, sent) {
				c.restart()
			}
			hasNew, needsBase = true, needsBase || c.choice.isBase
		}
	})
	if !hasNew {
		return false, false
	}
	for _, c := range n.order {
		c.mention = s.mentionOf(n, c, reference)
	}
	return hasNew, needsBase
}

// mentionOf returns how a container occurs in what is stored. The engine may not have the latest
// samples of all containers, and has samples of containers that have ended. The API server reports
// later than the kubelet that a container has started.
func (s *Source) mentionOf(n *node, c *container, reference usage.Time) mention {
	isReported := c.refresh == s.refreshes && reference.Sub(c.choice.cur.at) <= endedAfter
	switch {
	case !isReported && !s.IsRunning(n.name, c.namespace, c.pod, c.name):
		return ended
	case c.isFresh(s.refreshes):
		return fresh
	case c.refresh == s.refreshes && c.last.at != 0:
		return repeated
	}
	return silent
}

// fill sets the samples of s.scrape: the newest ones, or the earlier ones that their rates need.
func (s *Source) fill(n *node, earlier bool) {
	s.scrape.Containers, s.names = s.scrape.Containers[:0], s.names[:0]
	s.scrape.Node = n.sampleOf(s.refreshes, earlier)
	for _, c := range n.order {
		var sample usage.Sample
		switch {
		case c.mention == ended:
			continue
		case c.mention == fresh && earlier:
			var ok bool
			if sample, ok = c.earlier(); !ok {
				continue
			}
		case c.mention == fresh:
			sample = c.current()
		case c.mention == repeated:
			sample = c.sample(c.last)
		}
		s.scrape.Containers = append(s.scrape.Containers, usage.ContainerSample{
			Namespace: s.copyName(c.namespace), Pod: s.copyName(c.pod), Name: s.copyName(c.name), Sample: sample,
		})
	}
}

// sampleOf returns the sample of the node itself. It has no values if there is nothing new.
func (n *node) sampleOf(refresh uint64, earlier bool) usage.Sample {
	if !n.counter.isFresh(refresh) {
		return usage.Sample{}
	}
	if earlier {
		sample, _ := n.counter.earlier()
		return sample
	}
	return n.counter.current()
}

// copyName returns a copy that is valid until the next call of fill.
func (s *Source) copyName(name string) []byte {
	start := len(s.names)
	s.names = append(s.names, name...)
	return s.names[start:len(s.names):len(s.names)]
}

// commit notes what was stored, and drops the containers that have ended.
func (n *node) commit(refresh uint64) {
	stored := func(c *counter) {
		if c.isFresh(refresh) {
			c.last, c.hash = c.choice.cur, c.choice.hash
		}
	}
	stored(&n.counter)
	for _, c := range n.order {
		stored(&c.counter)
		if c.mention == ended {
			delete(n.containers, c.namespace+"\x00"+c.pod+"\x00"+c.name)
		}
	}
	n.order = slices.DeleteFunc(n.order, func(c *container) bool { return c.mention == ended })
}

// capacity returns the CPU capacity of a node in nanocores, or 0 if its status does not report it.
func capacity(node *corev1.Node) uint64 {
	return uint64(max(0, node.Status.Capacity.Cpu().ScaledValue(resource.Nano)))
}
