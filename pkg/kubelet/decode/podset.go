package decode

import (
	"hash/maphash"
	"slices"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// podSet is the set of pods that a response reports in part only. It is nearly always empty. It
// keeps hashes instead of names: 8 bytes for each pod, whatever a kubelet sends. In the unlikely
// case that two hashes are equal, one pod too many is dropped from one scrape.
type podSet struct {
	seed   maphash.Seed // secret, so that no kubelet can choose names that collide
	hashes map[uint64]struct{}
}

func (s *podSet) add(namespace, pod []byte) {
	if s.hashes == nil {
		s.seed, s.hashes = maphash.MakeSeed(), map[uint64]struct{}{}
	}
	s.hashes[s.hash(namespace, pod)] = struct{}{}
}

// removeFrom returns containers without those of the pods in the set. It works in place.
func (s *podSet) removeFrom(containers []usage.ContainerSample) []usage.ContainerSample {
	if len(s.hashes) == 0 {
		return containers
	}
	return slices.DeleteFunc(containers, func(c usage.ContainerSample) bool {
		_, dropped := s.hashes[s.hash(c.Namespace, c.Pod)]
		return dropped
	})
}

// reset empties the set.
func (s *podSet) reset() { s.hashes = nil }

func (s *podSet) hash(namespace, pod []byte) uint64 {
	const odd = 0x9e3779b97f4a7c15 // spreads the parts, so that swapping them results in another hash
	return maphash.Bytes(s.seed, namespace)*odd ^ maphash.Bytes(s.seed, pod)
}
