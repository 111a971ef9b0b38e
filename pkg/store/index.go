package store

import (
	"hash/maphash"
	"sync"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// shards is the number of parts of the index, each with a lock of its own, so that reads and scrapes seldom meet.
const shards = 64

type podKey struct{ namespace, name string }

type containerKey struct {
	podKey
	container string
}

// publishedPod is a pod's figures that may be served, for a time. It is immutable.
type publishedPod struct {
	usage.Pod
	asOf      usage.Time // the oldest of its containers'
	startedAt usage.Time // when the youngest of its containers started
}

// index leads from a pod's name to what is served for it, and knows which node that comes from.
type index struct {
	seed   maphash.Seed
	shards [shards]shard
}

type shard struct {
	mu   sync.RWMutex
	pods map[podKey]entry
}

type entry struct {
	pod   *publishedPod
	owner *node
}

func (x *index) init() {
	x.seed = maphash.MakeSeed()
	for i := range x.shards {
		x.shards[i].pods = map[podKey]entry{}
	}
}

func (x *index) shard(key podKey) *shard {
	return &x.shards[maphash.Comparable(x.seed, key)%shards]
}

// get gives what is served for a pod and the node that it comes from, or nil.
func (x *index) get(key podKey) (*publishedPod, *node) {
	s := x.shard(key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	e := s.pods[key]
	return e.pod, e.owner
}

// serve serves the claim's complete snapshot.
func (x *index) serve(c *claim, by *node) {
	s := x.shard(c.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[c.key] = entry{c.complete, by}
}

// offer serves the claim's complete snapshot, unless another node's claim prevails: the one whose container started last,
// and the first come among equals. What is older than oldest does not prevail. It says whether the snapshot is served.
func (x *index) offer(c *claim, by *node, oldest usage.Time) bool {
	s := x.shard(c.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	held, ok := s.pods[c.key]
	if ok && held.owner != by && held.pod.asOf >= oldest &&
		(c.complete.asOf < oldest || held.pod.startedAt >= c.complete.startedAt) {
		return false
	}
	s.pods[c.key] = entry{c.complete, by}
	return true
}

// withdraw ends what is served for a pod, if that comes from the node.
func (x *index) withdraw(key podKey, by *node) {
	s := x.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods[key].owner == by {
		delete(s.pods, key)
	}
}

// each calls f for every pod that is held, with the node that it comes from.
func (x *index) each(f func(*publishedPod, *node)) {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.RLock()
		for _, e := range s.pods {
			f(e.pod, e.owner)
		}
		s.mu.RUnlock()
	}
}
