package store

import (
	"slices"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// podSnapshots are the snapshots of a node's pods. It is immutable.
type podSnapshots struct {
	hashes []uint32     // of the keys of the pods, sorted
	all    []*usage.Pod // in the same order; nil: the pod was never complete
}

var noSnapshots = &podSnapshots{}

// published returns the latest snapshots of a node. A nil node has none.
func (n *node) published() *podSnapshots {
	if n == nil {
		return noSnapshots
	}
	return n.pods.Load()
}

// find returns the position of the first hash that is not less. Hashes are evenly distributed, so it
// is a few steps from where it would be if they had equal distances.
func (s *podSnapshots) find(hash uint32) int {
	i := int(uint64(hash) * uint64(len(s.hashes)) >> 32)
	for i > 0 && s.hashes[i-1] >= hash {
		i--
	}
	for i < len(s.hashes) && s.hashes[i] < hash {
		i++
	}
	return i
}

// get returns the snapshot of a pod with that hash, or nil. The position is what find returned.
func (s *podSnapshots) get(key podKey, hash uint32, position int) *usage.Pod {
	for i := position; i < len(s.hashes) && s.hashes[i] == hash; i++ {
		if p := s.all[i]; p != nil && p.Name == key.name && p.Namespace == key.namespace {
			return p
		}
	}
	return nil
}

func (n *node) publishNode() {
	n.snapshot.Store(&usage.Node{Name: n.name, Amount: n.series.amount, AsOf: n.series.asOf})
}

// publishPods publishes new snapshots. changed is set if pods were added or removed.
func (n *node) publishPods(changed bool) {
	ready := slices.DeleteFunc(slices.Clone(n.reported), func(r *reportedPod) bool { return !r.isReady() })
	if len(ready) == 0 && !changed {
		return
	}
	for batch := range slices.Chunk(ready, batchSize) {
		snapshotBatch(batch, &n.clock)
	}
	next := &podSnapshots{make([]uint32, len(n.reported)), make([]*usage.Pod, len(n.reported))}
	for i, r := range n.reported {
		next.hashes[i], next.all[i] = r.hash, r.snapshot
	}
	n.pods.Store(next)
}

// batchSize is the number of snapshots that share one allocation: thousands of small ones would
// fragment the heap. Most snapshots of a batch are replaced together, by the next scrape. But if a
// kubelet reports nothing new of one pod for long, its snapshot keeps the whole batch in memory.
const batchSize = 32

// snapshotBatch makes snapshots of pods that are ready.
func snapshotBatch(ready []*reportedPod, clock *nodeClock) {
	count := 0
	for _, r := range ready {
		count += len(r.containers)
	}
	pods, containers := make([]usage.Pod, len(ready)), make([]usage.Container, count)
	for i, r := range ready {
		p, k := &pods[i], len(r.containers)
		p.Namespace, p.Name = r.key.namespace, r.key.name
		p.Containers, containers = containers[:k:k], containers[k:]
		for j, c := range r.containers {
			p.Containers[j] = usage.Container{Name: c.name.Value(), Amount: c.amount}
			if j == 0 || c.asOf < p.AsOf || c.asOf == p.AsOf && c.amount.At < p.At {
				p.AsOf, p.At = c.asOf, c.amount.At
			}
			p.Window = max(p.Window, c.amount.Window)
			p.Ambiguous = p.Ambiguous || c.untimed
		}
		p.Ambiguous = p.Ambiguous || clock.isAmbiguous(p.AsOf)
		r.snapshot, r.changed = p, false
	}
}

// isReady reports whether a new snapshot is possible: something has changed, every container has an Amount, and none
// is being restarted. Another one may have taken over the load of that.
func (r *reportedPod) isReady() bool {
	return r.changed && !r.awaitsRestart &&
		!slices.ContainsFunc(r.containers, func(c *container) bool { return !c.hasAmount })
}
