package kubelettest

import (
	"math"
	"math/bits"
	"time"
)

// series is the usage of a node, a pod or a container over time: a CPU counter that is the exact
// integral of a piecewise constant usage, and the last two readings of it. Times are in nanoseconds
// since the epoch.
type series struct {
	labels  string        // label block in the text, with braces; empty for a node
	started int64         // when the counter was 0
	start   int64         // the same time by the node's clock of that moment
	delay   time.Duration // how much later than others it is sampled; whole milliseconds

	rate   uint64 // nanocores since the last change
	memory uint64 // bytes of the working set
	swap   uint64 // bytes
	base   uint64 // core-nanoseconds at the last change
	since  int64  // time of the last change

	last, prev reading
}

// reading is one sample. A reading whose at is 0 does not exist.
type reading struct {
	at     int64  // in whole milliseconds
	stamp  int64  // the same time by the node's clock of that moment
	cpu    uint64 // core-nanoseconds
	memory uint64 // bytes of the working set
	swap   uint64 // bytes
}

// newSeries returns a series that started at a time when the node's clock was ahead by the given
// duration.
func newSeries(labels string, started int64, ahead, delay time.Duration, u Usage) series {
	s := series{labels: labels, started: started, start: started + int64(ahead), delay: delay, since: started}
	s.rate, s.memory, s.swap = nanocores(u.CPU), u.Memory, u.Swap
	return s
}

// self returns the series that is embedded in a container or a pod.
func (s *series) self() *series { return s }

// sampled returns the series that have a reading.
func sampled[T interface{ self() *series }](all []T) []*series {
	list := make([]*series, 0, len(all))
	for _, object := range all {
		if s := object.self(); s.last.at != 0 {
			list = append(list, s)
		}
	}
	return list
}

// set changes the usage from now on. The readings must be up to date. A reading that was taken at
// this very moment gets the new memory and swap.
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

// cpuAt returns the counter in core-nanoseconds at a time that is not before the last change.
func (s *series) cpuAt(t int64) uint64 {
	high, low := bits.Mul64(s.rate, uint64(max(0, t-s.since)))
	used, _ := bits.Div64(high%1e9, low, 1e9)
	return s.base + used
}

// housekeep takes the readings that were due until now, by a clock that is ahead by the given
// duration. Only the last two are kept. They lie after the last change of the usage, because every
// change is preceded by a call of housekeep. An interval of 0 takes a reading on demand.
func (s *series) housekeep(now int64, ahead, interval time.Duration) {
	first := wholeMillisecond(s.started)
	if now < first {
		return
	}
	if interval == 0 {
		age := (s.delay / 16).Truncate(time.Millisecond) // a kubelet needs some milliseconds for all containers
		s.read(max(now-int64(age), first, s.since), ahead)
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
	s.read(before, ahead)
	s.read(latest, ahead)
}

// read takes a reading, unless the last one is as new.
func (s *series) read(at int64, ahead time.Duration) {
	if at > s.last.at {
		s.prev, s.last = s.last, reading{at: at, stamp: at + int64(ahead), cpu: s.cpuAt(at), memory: s.memory, swap: s.swap}
	}
}

// kubeletRate returns the rate between the last two readings in nanocores, as the summary reports
// it: 0 before there are two.
func (s *series) kubeletRate() uint64 {
	if s.prev.at == 0 {
		return 0
	}
	high, low := bits.Mul64(s.last.cpu-s.prev.cpu, uint64(time.Second))
	window := uint64(s.last.at - s.prev.at)
	rate, _ := bits.Div64(high%window, low, window)
	return rate
}

// wholeMillisecond returns the first whole millisecond that is not before t.
func wholeMillisecond(t int64) int64 {
	const ms = int64(time.Millisecond)
	return (t + ms - 1) / ms * ms
}

func nanocores(cores float64) uint64 { return uint64(math.Round(cores * 1e9)) }

// Reading is a reading of a node or a container, with what a test needs to know to verify what is
// derived from it.
type Reading struct {
	Namespace, Pod, Container string // empty: of the node

	At, Stamp           time.Time // when it was taken: the true time, and the time by the node's clock
	Started, StartStamp time.Time // when the counter was 0: likewise
	CPU                 float64   // core-seconds
	Memory              uint64    // bytes of the working set

	// Rate is the usageNanoCores of the summary. HasRate is false if it is a placeholder.
	Rate    uint64
	HasRate bool
}

// readings returns the last readings of the node and of its containers.
func (k *Kubelet) readings() []Reading {
	all := make([]Reading, 0, 1+len(k.containers))
	if k.node.last.at != 0 {
		all = append(all, k.node.reading())
	}
	for _, c := range k.containers {
		if c.last.at == 0 {
			continue
		}
		r := c.reading()
		r.Namespace, r.Pod, r.Container = c.namespace, c.pod, c.name
		// As with placeholders of a real kubelet, 0 may stand for an idle container, too.
		r.HasRate = r.HasRate && !k.cfg.ContainersOnDemand || c.last.cpu == 0
		all = append(all, r)
	}
	return all
}

func (s *series) reading() Reading {
	at := func(nanoseconds int64) time.Time { return time.Unix(0, nanoseconds) }
	return Reading{
		At: at(s.last.at), Stamp: at(s.last.stamp), Started: at(s.started), StartStamp: at(s.start),
		CPU: float64(s.last.cpu) / 1e9, Memory: s.last.memory,
		Rate: s.kubeletRate(), HasRate: s.prev.at != 0,
	}
}
