package decode

import (
	"slices"
	"unsafe"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// maxReusedIndex limits the containers of an index that is reused, to more than a large node
// has. A larger map would cost every later response its memory and the time to clear it.
const maxReusedIndex = 2048

// state is the part of the state of decoding that all decoders share.
type state struct {
	dst     *usage.Scrape
	max     int                 // number of containers that are kept
	latest  usage.NodeTime      // the latest valid time
	future  usage.NodeTime      // the last time that was later; 0: none
	index   map[containerID]int // positions in dst.Containers
	dropped map[podID]struct{}  // the pods that have a skipped container; nearly always none

	scrapedAt usage.NodeTime // what samples without a time have instead: dst.At
}

// containerID and podID are keys of maps. Their strings alias the text: see alias.
type (
	podID       struct{ namespace, pod string }
	containerID struct{ namespace, pod, container string }
)

// alias returns a string that shares the memory of b, so that map keys and the arguments of strconv
// need no copy. The string is valid until b is written to. Text writes to a part of the text only
// once, to unescape a name in it before anything refers to that name. Decoders drop all such strings
// before Decode returns.
func alias(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b)) //nolint:gosec // safe for the reasons above
}

func (s *state) begin(dst *usage.Scrape, maxContainers int) {
	*dst = usage.Scrape{
		At: dst.At, Sent: dst.Sent, Date: dst.Date, Dated: dst.Dated,
		Containers: dst.Containers[:0], Storage: dst.Storage[:0],
	}
	s.dst, s.max, s.latest, s.future = dst, maxContainers, latestTime(dst), 0
	s.scrapedAt = dst.At.ByClock(0)
	if s.index == nil {
		s.index = map[containerID]int{}
	}
}

// release drops the references to the text and to dst.
func (s *state) release() {
	if len(s.index) > maxReusedIndex {
		s.index = nil
	}
	clear(s.index)
	s.dst, s.dropped = nil, nil
}

// finish removes the containers of dropped pods and what the kubelet does not know, and returns an error
// if nothing of use is left.
func (s *state) finish() error {
	if len(s.dropped) > 0 {
		s.dst.Containers = slices.DeleteFunc(s.dst.Containers, func(c usage.ContainerSample) bool {
			return s.isDropped(c.Namespace, c.Pod)
		})
	}
	s.dst.DropUnknown()
	// A node with 0 for what the kubelet does not know has been read: the scrape succeeds, with a loss. So has a
	// container without values, unless the kubelet's times are wrong: then they are missing for that reason.
	hasNode := s.dst.Node.Has != 0 || s.dst.Node.Loss == usage.LostZero
	hasBadTimes := s.dst.Skipped[usage.BadTime] > 0
	return s.result(hasNode || slices.ContainsFunc(s.dst.Containers, func(c usage.ContainerSample) bool {
		return c.Has != 0 || !hasBadTimes
	}))
}

// result returns an error unless there are samples.
func (s *state) result(hasSamples bool) error {
	switch {
	case hasSamples:
		return nil
	case s.dst.Skipped[usage.BadTime] > 0:
		return badTimes(s.future, s.dst.Date)
	case s.dst.Skipped[usage.Malformed] > 0:
		return errUndecodable
	}
	return errNoSamples
}

func (s *state) isDropped(namespace, pod []byte) bool {
	_, dropped := s.dropped[podID{alias(namespace), alias(pod)}]
	return dropped
}

// dropPod marks a pod to be removed from the result.
func (s *state) dropPod(namespace, pod []byte) {
	if s.dropped == nil {
		s.dropped = map[podID]struct{}{}
	}
	s.dropped[podID{alias(namespace), alias(pod)}] = struct{}{}
}

// skip counts a skipped line or value.
func (s *state) skip(r usage.SkipReason) { s.dst.Skipped[r]++ }

// skipContainer counts a skipped line or value that may have named a container, and marks the
// scrape as partial.
func (s *state) skipContainer(r usage.SkipReason) {
	s.skip(r)
	s.dst.Partial = true
}
