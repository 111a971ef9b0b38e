package kubelettest

import (
	"math/bits"
	"time"
)

// series is the usage of one thing over time: a CPU counter that is the exact integral of a
// piecewise constant usage, and the last two readings that were taken of it. Times are in
// nanoseconds since the epoch.
type series struct {
	started int64         // when the counter was 0
	start   int64         // the same by the node's clock at that time
	delay   time.Duration // by how much its samples come later than those of others; whole milliseconds

	rate   uint64 // nanocores since the last change
	memory uint64 // bytes of the working set
	swap   uint64 // bytes
	base   uint64 // core-nanoseconds at the last change
	since  int64  // when the last change was

	last, prev reading
}

// reading is one sample; with at 0, there is none.
type reading struct {
	at     int64  // in whole milliseconds
	stamp  int64  // the same by the node's clock at that time
	cpu    uint64 // core-nanoseconds
	memory uint64 // bytes of the working set
	swap   uint64 // bytes
}

// newSeries returns a series that began at started, when the node's clock was ahead by so much.
func newSeries(started int64, ahead, delay time.Duration, u Usage) series {
	s := series{started: started, start: started + int64(ahead), delay: delay, since: started}
	s.rate, s.memory, s.swap = nanocores(u.CPU), u.Memory, u.Swap
	return s
}

// set changes the usage from now on. The readings must have been brought up to date before; one
// that was taken at this very moment sees the change.
func (s *series) set(now int64, u Usage) {
	if now > s.since {
		s.base, s.since = s.cpuAt(now), now
	}
	s.rate, s.memory, s.swap = nanocores(u.CPU), u.Memory, u.Swap
	if s.last.at == now {
		s.last.memory, s.last.swap = u.Memory, u.Swap
	}
}

func (s *series) usage() Usage {
	return Usage{CPU: float64(s.rate) / 1e9, Memory: s.memory, Swap: s.swap}
}

// cpuAt is the counter at a time that is not before the last change: core-nanoseconds.
func (s *series) cpuAt(t int64) uint64 {
	high, low := bits.Mul64(s.rate, uint64(max(0, t-s.since)))
	used, _ := bits.Div64(high%1e9, low, 1e9)
	return s.base + used
}

// housekeep takes the readings that were due until now, of which the last two are kept, by a clock
// that is ahead by so much. They lie after the last change, because every change is preceded by a
// call of housekeep.
func (s *series) housekeep(now int64, ahead, interval time.Duration) {
	first := wholeMillisecond(s.started)
	if now < first {
		return
	}
	if interval == 0 {
		age := (s.delay / 16).Truncate(time.Millisecond) // a kubelet needs some milliseconds to ask for all
		s.take(max(now-int64(age), first, s.since), ahead)
		return
	}
	latest, before := first, int64(0)
	if n := (now - first - int64(s.delay)) / int64(interval); n > 0 {
		latest = first + int64(s.delay) + n*int64(interval)
		before = latest - int64(interval)
		if n == 1 {
			before = first
		}
	}
	s.take(before, ahead)
	s.take(latest, ahead)
}

// take takes a reading, unless there is one that is as new.
func (s *series) take(at int64, ahead time.Duration) {
	if at > s.last.at {
		s.prev, s.last = s.last, reading{at: at, stamp: at + int64(ahead), cpu: s.cpuAt(at), memory: s.memory, swap: s.swap}
	}
}

// nanocores is the rate between the last two readings, as a kubelet tells it: 0 before there are
// two.
func (s *series) nanocores() uint64 {
	if s.prev.at == 0 {
		return 0
	}
	high, low := bits.Mul64(s.last.cpu-s.prev.cpu, uint64(time.Second))
	window := uint64(s.last.at - s.prev.at)
	rate, _ := bits.Div64(high%window, low, window)
	return rate
}

// wholeMillisecond is the first whole millisecond that is not before t.
func wholeMillisecond(t int64) int64 {
	const ms = int64(time.Millisecond)
	return (t + ms - 1) / ms * ms
}
