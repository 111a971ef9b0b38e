package engine

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/engine/decode"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// reindex updates the index of the nodes by name and by address, and returns the nodes. A node sets
// the addresses in its own status, but must not take those of others: an address of several nodes stays
// with the one that had it first, or, after a restart, with the oldest node. The first conflict of each
// other node is logged: a node may set thousands of addresses, and others all the time.
func (s *Source) reindex(ctx context.Context) []*node {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notePrevious(s.Clock.At(time.Now()))
	index := map[string]*node{}
	nodes := slices.SortedFunc(maps.Values(s.nodes), byAge)
	for _, n := range nodes {
		for _, a := range n.object.Status.Addresses {
			owner, other, before := index[a.Address], n, s.index[a.Address]
			if owner == nil || owner == n {
				index[a.Address] = n
				continue
			}
			if before != nil && before.name == n.name {
				owner, other = n, owner
			}
			index[a.Address] = owner
			if !other.conflictLogged {
				other.conflictLogged = true
				klog.FromContext(ctx).Info("Two nodes have the same address; series that only the address identifies count "+
					"for the node that had it first", "address", a.Address, "node", owner.name, "otherNode", other.name)
			}
		}
	}
	maps.Copy(index, s.nodes)
	s.index = index
	return nodes
}

// notePrevious makes new nodes ignore the samples of previous nodes of their names, whose clocks may
// have been ahead.
func (s *Source) notePrevious(now usage.Time) {
	for name, old := range s.index {
		if s.nodes[name] != old && old.name == name {
			s.previous[name] = max(old.times.before, old.times.newest.Add(now.Sub(old.times.sent)))
		}
	}
	for name, n := range s.nodes {
		if s.index[name] != n {
			created := min(usage.At(n.object.CreationTimestamp.Time), now)
			n.times.before = max(s.previous[name], created.ByClock(0))
		}
	}
	maps.DeleteFunc(s.previous, func(_ string, at usage.NodeTime) bool { return -at.AheadOf(now) > maxWindow })
}

// byAge sorts nodes by age, the oldest one first.
func byAge(a, b *node) int {
	return cmp.Or(a.object.CreationTimestamp.Compare(b.object.CreationTimestamp.Time), cmp.Compare(a.name, b.name))
}

// nodeOf returns the node of a series, or nil if it is not of this cluster. A label may have the
// name or an address of the node, with or without a port.
func (s *Source) nodeOf(series *decode.Series) *node {
	for _, label := range s.client.settings.Labels.Node {
		value := series.Get(label)
		if value == nil {
			continue
		}
		if n := s.index[string(value)]; n != nil {
			return n
		}
		// An IPv6 address has colons as well, and brackets if a port follows. Most series may be of other
		// nodes, so this makes no garbage, as net.SplitHostPort does.
		port := bytes.LastIndexByte(value, ':')
		if port >= 0 && (bytes.IndexByte(value, ':') == port || bytes.HasSuffix(value[:port], []byte("]"))) {
			value = value[:port]
		}
		return s.index[string(bytes.Trim(value, "[]"))]
	}
	return nil
}
