package prometheus

import (
	"math"
	"slices"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// sum adds the series of a node that are one counter only together: node-exporter has one for each
// mode of each CPU. Samples are added if their times are equal, as they are for all series of one
// scrape.
type sum struct {
	hash    uint64              // of the labels that the series have in common
	members map[uint64]struct{} // hashes of the other labels of each series
	points  []sumPoint          // in the order of their times
}

type sumPoint struct {
	point          // the sum
	members uint64 // the sum of the hashes of the series that have a sample at this time
	isReset bool   // whether one of the series fell, compared to its sample before
}

const (
	maxSums       = 8        // of one node: for example, of two replicas of Prometheus
	maxSumMembers = 64 << 10 // of one sum: 6 modes of each of the 8192 CPUs that Linux supports
	maxSumPoints  = 1024     // of one sum; more than two in each second of the longest range
)

// addToSum adds a series to a sum of its node.
func (s *Source) addToSum(n *node, series *series, result *Result) {
	if len(series.points) == 0 {
		return
	}
	if n.sumsOf != s.refreshes {
		n.sums, n.sumsOf = nil, s.refreshes
	}
	hash, member := labelHash(series)
	i := slices.IndexFunc(n.sums, func(sum *sum) bool { return sum.hash == hash })
	if i < 0 {
		if len(n.sums) >= maxSums {
			result.Skipped[usage.OverLimit]++
			return
		}
		i = len(n.sums)
		n.sums = append(n.sums, &sum{hash: hash, members: map[uint64]struct{}{}})
	}
	sum := n.sums[i]
	if _, ok := sum.members[member]; ok {
		result.Skipped[usage.Duplicate]++
		return
	}
	if len(sum.members) >= maxSumMembers {
		result.Skipped[usage.OverLimit]++
		return
	}
	sum.members[member] = struct{}{}
	if !sum.add(member, series.points) {
		result.Skipped[usage.OverLimit]++
	}
}

// add adds the samples of a series. It reports false if they are too many.
func (s *sum) add(member uint64, points []point) bool {
	i := 0
	for j, p := range points {
		for i < len(s.points) && s.points[i].at < p.at {
			i++
		}
		if i == len(s.points) || s.points[i].at != p.at {
			if len(s.points) >= maxSumPoints {
				return false
			}
			s.points = slices.Insert(s.points, i, sumPoint{point: point{at: p.at}})
		}
		at := &s.points[i]
		at.value += p.value
		at.members += member
		at.isReset = at.isReset || j > 0 && p.value < points[j-1].value
	}
	return true
}

// counter returns the newest samples in a row between which the sum is a counter: all of them are
// of the same series, and none of these was reset. Two samples are needed for a rate, so a single
// one counts only if there are never two: the engine may not have stored the rest of a scrape yet.
func (s *sum) counter() []point {
	end := len(s.points)
	start := s.startOf(end)
	for next := start; end-start == 1 && next > 0; {
		if earlier := s.startOf(next); next-earlier > 1 {
			start, end = earlier, next
		} else {
			next = earlier
		}
	}
	points := make([]point, 0, end-start)
	for _, p := range s.points[start:end] {
		points = append(points, p.point)
	}
	return points
}

// startOf returns the index of the first of the samples in a row that end before an index.
func (s *sum) startOf(end int) int {
	start := end - 1
	for start > 0 && !s.points[start].isReset && s.points[start].members == s.points[start-1].members {
		start--
	}
	return start
}

// offerSums considers the sums of all nodes, after all of their series have been added.
func (s *Source) offerSums() {
	for _, n := range s.snapshot() {
		if n.sumsOf != s.refreshes {
			continue
		}
		for _, sum := range n.sums {
			points := sum.counter()
			isOther := !continues(points, n.counter.last) || n.counter.last.at <= n.clock.setBackAt
			if points = from(points, n.clock.setBackAt+1); len(points) > 0 {
				n.counter.offer(sum.hash, points, s.refreshes, s.chooseHonored, isOther)
			}
		}
		n.sums = nil
	}
}

// continues reports whether the samples of a sum follow the one that was stored last. If a CPU was
// added in between, or a sample was not complete when it was stored, they do not have that sample,
// or have another value of it.
func continues(points []point, last point) bool {
	const tolerance = 1e-3 // seconds; sums depend on the order of the series
	return slices.ContainsFunc(points, func(p point) bool {
		return p.at == last.at && math.Abs(p.value-last.value) < tolerance
	})
}
