package scrape

import (
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	// MaxClockSkew is the difference between a node's clock and ours above which it is reported.
	MaxClockSkew = 5 * time.Second
	// maxClockLogs is the number of lines about clocks in one interval: if our clock is wrong, those
	// of all nodes differ from it.
	maxClockLogs = 5
)

// clockCure is what to do about a wrong clock. Which of the two is wrong cannot be known.
const clockCure = "run a time service (NTP) on the node and on the machine of kube-vitals; " +
	"see docs/troubleshooting.md#wrong-clocks"

// clockLog logs the clock of a node if it is wrong when it is first known, and when it jumps.
type clockLog struct {
	interval time.Duration // between two scrapes of a node

	mu    sync.Mutex
	since time.Time // the start of the interval in which lines are counted
	lines int       // in that interval
}

// observe logs what a successful scrape of a node revealed about its clock. known is set if an earlier
// scrape has shown the offset.
func (l *clockLog) observe(logger klog.Logger, node string, r usage.Report, known bool) {
	message := "The clock of the node differs from ours; its metrics stay right"
	if r.ClockJumped {
		message = "The clock of the node jumped against ours; the rates of its containers start again"
	} else if known || !r.ClockKnown || r.ClockOffset.Abs() <= MaxClockSkew {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.since) >= l.interval {
		l.since, l.lines = now, 0
	}
	if l.lines++; l.lines > maxClockLogs+1 {
		return
	} else if l.lines > maxClockLogs {
		message = "The clocks of more nodes differ from ours or jumped"
	}
	logger.Info(message+" ("+clockCure+")", "node", node,
		"skew", r.ClockOffset.Round(100*time.Millisecond)) // above 0: the node's clock is ahead of ours
}
