package scrape

import (
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	// MaxClockSkew is the difference between a node's clock and ours above which it is reported.
	MaxClockSkew = 5 * time.Second
	// maxNodeLines is the number of lines about clocks and capacities that may be logged at once. One more is
	// allowed with each interval: if our clock is wrong, those of all nodes differ from it.
	maxNodeLines = 5
)

// clockCure is what to do about a wrong clock. Which of the two is wrong cannot be known.
const clockCure = "run a time service (NTP) on the node and on the machine of kube-vitals; " +
	"few such lines are logged in a row, /nodez has all nodes; see docs/troubleshooting.md#wrong-clocks"

// logCapacity logs that the CPU capacity in a node's status is too low, when that is first known. exceeded and
// before are usage.Report.Exceeded after the scrape and before it.
func (s *Scraper) logCapacity(logger klog.Logger, r *Result, exceeded, before uint64) {
	if exceeded != 0 && before == 0 && s.nodeLines.Allow() {
		d := reason.AboveCapacity.Describe()
		logger.Info("The CPU usage of the node is above the capacity in its status; it is served ("+d.Cure+
			"; few such lines are logged in a row, /nodez has all nodes)", "node", r.Node,
			"capacity", float64(r.Capacity)/1e9, "usage", float64(exceeded)/1e9) // cores
	}
}

// logClock logs the clock of a node if it is wrong when it is first known, and when it jumps. known is
// set if an earlier scrape has shown the offset.
func (s *Scraper) logClock(logger klog.Logger, node string, r *usage.Report, known bool) {
	message := "The clock of the node differs from ours; its metrics stay right"
	if r.ClockJumped {
		message = "The clock of the node jumped against ours; the rates of its containers start again"
	} else if known || !r.ClockKnown || r.ClockOffset.Abs() <= MaxClockSkew {
		return
	}
	if s.nodeLines.Allow() {
		logger.Info(message+" ("+clockCure+")", "node", node,
			"skew", r.ClockOffset.Round(100*time.Millisecond)) // above 0: the node's clock is ahead of ours
	}
}
