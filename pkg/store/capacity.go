package store

import "github.com/kube-vitals/kube-vitals/pkg/usage"

// maxExcess is the number of samples in a row above the capacity in the node's status that show that the
// status is wrong: kubelets report it once, virtual ones that of another node (kubernetes#54281, liqo#3209).
const maxExcess = 3

// capacity is what is known of the CPU capacity of a node, in nanocores.
type capacity struct {
	status uint64 // in the node's status; 0: not known
	shown  uint64 // what the node's counter has shown, above the limit, in maxExcess samples in a row; 0: nothing
	excess int    // samples in a row above the limit
	least  uint64 // the lowest rate of these
}

// limit returns the capacity for the samples of a scrape, given that in the node's status; 0: not known.
// Twice what the node's counter has shown stops impossible rates where the status is too low.
func (c *capacity) limit(status uint64) uint64 {
	if status != c.status {
		*c = capacity{status: status}
	}
	return max(status, 2*c.shown)
}

// learn adds whether the node's sample has led to a new Amount. It raises the limit in the arrival and reports
// true if the sample shows that the status is wrong; it must be observed again then.
func (c *capacity) learn(hasNew bool, a *arrival) bool {
	switch {
	case hasNew:
		c.excess = 0
	case a.lost == usage.LostExcess && c.status != 0 && a.excess > 0:
		if c.excess++; c.excess == 1 || a.excess < c.least {
			c.least = a.excess
		}
		if c.excess >= maxExcess {
			c.excess, c.shown = 0, c.least
			a.capacity = c.limit(c.status)
			return true
		}
	}
	return false
}
