package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// times is what is known of the times of a node's samples.
type times struct {
	reference usage.NodeTime // of the last refresh with new samples
	newest    usage.NodeTime // of the samples of that refresh
	sent      usage.Time     // of that refresh
	// Samples up to before may be of an earlier node with this name.
	before usage.NodeTime
}

// observe adds the times of a refresh.
func (t *times) observe(reference, newest usage.NodeTime, sent usage.Time) {
	switch {
	case t.reference.Sub(reference) > maxAhead+maxWindow: // no query can have returned both
		*t = times{reference: reference, newest: newest, sent: sent}
	case reference <= t.reference:
		t.newest = max(t.newest, newest)
	default:
		t.reference, t.newest, t.sent = reference, newest, sent
	}
}

// startUnit is the resolution of starts in the API server, which truncates them to it.
const startUnit = time.Second

// since returns when the samples of a container begin: earlier ones are of its predecessor.
//
// Times of the kubelet and the start in the API server are by the same clock. Times of scrapes are by the
// engine's clock. The offset of the node's clock is not known then, so the creation of the pod counts as
// well: the clocks of the API server and the engine are assumed to agree, that of the node may be behind.
// The kubelet has read the counter earlier.
func (t *times) since(state *usage.ContainerState, points []point, areOfScrapes bool) usage.NodeTime {
	// That of the pod if that of the container is not known. Unlike EarliestStart, it is the latest: samples from before
	// it are of an earlier container.
	start := cmp.Or(state.StartedAt, state.EarliestStart)
	started, margin := usage.NodeTime(0), startUnit
	if areOfScrapes {
		started, margin = state.PodCreatedAt.ByClock(0), startUnit+maxCounterAge
	}
	// A start that is further ahead of the samples than they can be late is from before the node's clock
	// was set back: it shows nothing.
	if start.Sub(max(t.newest, points[len(points)-1].At)) <= maxWindow {
		started = max(started, start)
	}
	return max(t.before+1, started.Add(margin))
}

// earliest returns the time before which samples are of an earlier pod of the name; 0: it is not known. The start may
// be by the node's clock before it was set back, or by another clock than times of scrapes. So the creation of the pod
// counts as well: the clock of the samples is ahead of the API server's by at least as much as the newest of them.
func (t *times) earliest(state *usage.ContainerState) usage.NodeTime {
	ahead := max(0, t.reference.AheadOf(t.sent))
	return min(state.EarliestStart, state.PodCreatedAt.ByClock(ahead))
}

// withoutEarlier returns the points of a container without those that may be of an earlier pod of the name, given the
// points before them. A pod that was deleted by force may run on, and the engine then has the samples of both in one
// series. The counter of the earlier pod is not below what it was before the earliest start of the next one.
// If the newest point may be of the earlier pod, so may be the memory, and no point counts.
func (s *Source) withoutEarlier(before, points []point, earliest usage.NodeTime) []point {
	for len(before) > 0 && before[len(before)-1].At >= earliest {
		before = before[:len(before)-1]
	}
	if len(before) == 0 || len(points) == 0 {
		return points
	}
	last, newest := before[len(before)-1], points[len(points)-1]
	switch {
	case last.Value == 0 || newest.At.Sub(last.At) > s.client.window:
		return points
	case newest.Value >= last.Value:
		return nil
	}
	return slices.DeleteFunc(points, func(p point) bool { return p.Value >= last.Value })
}

// from returns the points that are not older than a time.
func from(points []point, since usage.NodeTime) []point {
	for len(points) > 0 && points[0].At < since {
		points = points[1:]
	}
	return points
}

// reference returns the median of the times of the node's newest samples: what the others are
// compared with. The newest of all could be one sample of the future, which would make all others
// too old. Containers that have ended do not count, unless there are no others. Of two in the middle,
// the later one counts, unless it is from the future compared to the reference before.
func (s *Source) reference(n *node, sent usage.Time) usage.NodeTime {
	all := s.newest[:0]
	for c := range s.current(n) {
		if c.isRunning {
			all = append(all, c.cur.At)
		}
	}
	if len(all) == 0 {
		for c := range s.current(n) {
			all = append(all, c.cur.At)
		}
	}
	if s.newest = all; len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	t, later := &n.times, all[len(all)/2]
	if t.reference == 0 || later.Sub(t.reference) <= sent.Sub(t.sent)+s.client.window {
		return later
	}
	return all[(len(all)-1)/2]
}

// apart returns how far a sample may be ahead of the reference of its node. One that is further ahead
// is by another clock.
func (s *Source) apart(n *node, reference usage.NodeTime) time.Duration {
	interval := time.Duration(0)
	for c := range s.current(n) {
		if c.second != 0 && c.cur.At <= reference {
			interval = max(interval, c.cur.At.Sub(c.second))
		}
	}
	if interval == 0 {
		return s.client.window
	}
	return min(interval+maxCounterAge, s.client.window)
}

// foreign identifies a sample that is by another clock than those of its node.
type foreign struct {
	counter *counter
	at      usage.NodeTime
}
