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
	// minClockSkew is the difference below which a reported clock is right again. The gap to
	// MaxClockSkew prevents repeated reports of a skew near the limit.
	minClockSkew = 4 * time.Second
	// sameSkew is the largest difference between two skews that are assumed to have the same cause.
	sameSkew = 2 * time.Second
	// minNodesToBlame is the minimum number of nodes for a skew of most of them to be blamed on the
	// clock of this machine.
	minNodesToBlame = 3
	// maxJumpLogs is the number of jumps that are logged in one interval.
	maxJumpLogs = 5
)

const (
	docsClockSkew = "docs/troubleshooting.md#wrong-clocks"
	fixNodeClock  = "run a time service (NTP) on the node; see " + docsClockSkew
	fixOurClock   = "run a time service (NTP) on the machine of kube-vitals, and restart kube-vitals when its clock " +
		"is right; see " + docsClockSkew
)

// clockLog logs once when the clock of a node becomes wrong and once when it is right again, and
// each jump. If most nodes are wrong by about the same amount, the clock of this machine is the
// likely cause, and that is logged instead.
type clockLog struct {
	interval time.Duration // between two scrapes of a node

	mu         sync.Mutex
	skews      map[string]*skew // of the nodes whose clocks are wrong, by name
	blamed     int              // the number of skews with the state blamedOnUs
	ourSkew    time.Duration    // the offset of these; meaningful if blamed > 0
	jumpsSince time.Time        // the start of the interval in which jumps are counted
	jumps      int              // in that interval
}

// skew describes a wrong clock.
type skew struct {
	offset time.Duration
	since  time.Time
	state  skewState
}

type skewState int

const (
	unlogged   skewState = iota
	logged               // as the node's
	blamedOnUs           // logged as ours, once for all nodes
)

func newClockLog(interval time.Duration) *clockLog {
	return &clockLog{interval: interval, skews: map[string]*skew{}}
}

// observe logs what a successful scrape of a node revealed about its clock. nodes is the number of
// nodes that are scraped.
func (l *clockLog) observe(logger klog.Logger, node string, r usage.Report, nodes int) {
	if !r.ClockKnown {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.ClockJumped {
		l.logJump(logger, node, r.ClockOffset)
	}
	s := l.skews[node]
	switch offset := r.ClockOffset.Abs(); {
	case s == nil && offset > MaxClockSkew:
		l.skews[node] = &skew{offset: r.ClockOffset, since: time.Now()}
	case s == nil:
	case offset < minClockSkew:
		l.logRight(logger, node, s, nodes)
	default:
		s.offset = r.ClockOffset
		// After an interval, the other nodes have been scraped too, so it is known how many of them
		// have the same skew.
		if s.state == unlogged && time.Since(s.since) >= l.interval {
			l.logWrong(logger, node, s, nodes)
		}
	}
}

// logWrong logs a skew, as the node's or as ours.
func (l *clockLog) logWrong(logger klog.Logger, node string, s *skew, nodes int) {
	if l.blamed > 0 && near(s.offset, l.ourSkew) {
		s.state = blamedOnUs
		l.blamed++
		return
	}
	if l.blamed == 0 && nodes >= minNodesToBlame {
		var same []*skew
		for _, other := range l.skews {
			if near(other.offset, s.offset) {
				same = append(same, other)
			}
		}
		if 2*len(same) > nodes {
			for _, other := range same {
				other.state = blamedOnUs
			}
			l.blamed, l.ourSkew = len(same), s.offset
			logger.Info("The clocks of most nodes differ from the clock of this machine by about the same amount: "+
				"its clock is the likely cause; metrics stay right ("+fixOurClock+")", "skew", rounded(s.offset))
			return
		}
	}
	s.state = logged
	logger.Info("The clock of the node is wrong; its metrics stay right ("+fixNodeClock+")",
		"node", node, "skew", rounded(s.offset))
}

// logRight logs that a clock is right again. Once the skews that were blamed on our clock are no
// longer those of most nodes, it logs that our clock is right, and the remaining ones are judged
// again.
func (l *clockLog) logRight(logger klog.Logger, node string, s *skew, nodes int) {
	l.remove(node)
	switch s.state {
	case logged:
		logger.Info("The clock of the node is right again", "node", node)
	case blamedOnUs:
		if 2*l.blamed > nodes {
			return
		}
		logger.Info("The clocks of most nodes agree with the clock of this machine again")
		l.blamed = 0
		for _, other := range l.skews {
			if other.state == blamedOnUs {
				other.state, other.since = unlogged, time.Now()
			}
		}
	}
}

// logJump logs a jump, unless there were too many in this interval.
func (l *clockLog) logJump(logger klog.Logger, node string, offset time.Duration) {
	if now := time.Now(); now.Sub(l.jumpsSince) >= l.interval {
		l.jumpsSince, l.jumps = now, 0
	}
	switch l.jumps++; {
	case l.jumps <= maxJumpLogs:
		logger.Info("The clock of the node jumped; the rates of its containers start again ("+fixNodeClock+")",
			"node", node, "skew", rounded(offset))
	case l.jumps == maxJumpLogs+1:
		logger.Info("The clocks of more nodes jumped; if those of all nodes did, this machine was suspended "+
			"(see "+docsClockSkew+")", "node", node, "skew", rounded(offset))
	}
}

// forget drops the skew of a deleted node.
func (l *clockLog) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(node)
}

func (l *clockLog) remove(node string) {
	if s := l.skews[node]; s != nil && s.state == blamedOnUs {
		l.blamed = max(0, l.blamed-1)
	}
	delete(l.skews, node)
}

func near(a, b time.Duration) bool { return (a - b).Abs() <= sameSkew }

// rounded returns a skew as it is logged: above 0, the node's clock is ahead of ours.
func rounded(offset time.Duration) time.Duration { return offset.Round(100 * time.Millisecond) }
