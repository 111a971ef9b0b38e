// Package usage defines the types that all packages share: what a kubelet reports (Sample, Scrape),
// what is served (Amount, Node, Pod, Container), and the formula that leads from the first to the
// second (Rate).
//
// It does no I/O, reads no clock and imports only the standard library. docs/numbers.md explains
// the rules of the numbers to users.
package usage

import "time"

// Time is an instant in nanoseconds since the Unix epoch; 0 means "not known". Two of them are kept
// for every container of a cluster, so it is a third of the size of a time.Time and holds no
// pointer for the garbage collector to follow.
type Time int64

// At converts t, which must lie between the years 1970 and 2262. The zero time.Time gives 0, "not
// known".
func At(t time.Time) Time {
	if t.IsZero() {
		return 0
	}
	return Time(t.UnixNano())
}

// Sub gives t − u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// Add gives t + d.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Time converts to the standard library's type, in UTC.
func (t Time) Time() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(t)).UTC()
}

// Clock converts moments of this process to Times that advance steadily: setting this machine's
// wall clock while the process runs does not move them. Ages are differences between such Times.
// The zero Clock is not valid; use NewClock.
type Clock struct{ start time.Time }

// NewClock returns a Clock that agrees with the wall clock at start, which must come from time.Now.
func NewClock(start time.Time) Clock { return Clock{start} }

// At converts t, which must come from time.Now: its monotonic reading counts.
func (c Clock) At(t time.Time) Time { return At(c.start).Add(t.Sub(c.start)) }

// Has is a set of bits that says which readings a Sample has. Zero is data: a container that used
// no CPU has a CPU reading of 0, which is not the same as having none.
type Has uint8

// The readings that a Sample can have.
const (
	HasCPU Has = 1 << iota
	HasMemory
	HasSwap
	HasRate
)

// Sample is one cumulative reading of a node or of a container, as its kubelet took it.
type Sample struct {
	At         Time    // when the CPU counter was read, by the node's clock
	MemoryAt   Time    // when the memory was read, by the node's clock
	StartedAt  Time    // when the container started, by the node's clock; 0: not known
	CPUSeconds float64 // core-seconds used since the start; a counter
	Memory     uint64  // bytes of the working set
	Swap       uint64  // bytes of swap in use
	Rate       uint64  // nanocores, as the kubelet itself reckons them; only a summary has it
	Has        Has     // which of CPU, memory, swap and rate are there

	// Untimed is set when the kubelet sent no time for the CPU counter. At is then the time of the
	// scrape by this server's Clock, and must not be corrected by the offset of the node's clock.
	Untimed bool
}

// ContainerSample is what a kubelet said of one container.
type ContainerSample struct {
	Namespace, Pod, Name []byte // alias the text that they were decoded from
	Sample
}

// Scrape is all that one kubelet said in one answer. It is filled by the decoder and reused for the
// next answer: whoever is handed a *Scrape may read it until it returns, and copies what it keeps.
type Scrape struct {
	At         Time              // when the response's headers arrived, by this server's Clock
	Sent       Time              // when the request was sent, by this server's Clock; 0: not known
	Date       Time              // the response's Date header: the node's clock between Sent and At, cut to whole seconds; 0: not known
	Capacity   uint64            // CPU of the node in nanocores, as the API server knows it; set by the scraper; 0: not known
	Queued     time.Duration     // how long the request waited for its turn in this server; also set when it failed
	Node       Sample            // Has is 0 when the answer said nothing of the node
	Containers []ContainerSample // one element for each container, in the order in which the kubelet named them

	// Partial is set when the answer had lines whose container could not be told, or more of them
	// than the bounds allow. What such a scrape does not mention may still exist.
	Partial bool

	Skipped [NumReasons]int // lines that were left out, by reason
}

// Reason says why a line of a kubelet's answer was skipped.
type Reason uint8

// The reasons for which a line is skipped. The other lines of the answer are not affected.
const (
	Malformed  Reason = iota // not a line of the text exposition format
	NoIdentity               // a container's line without the labels namespace, pod and container
	BadValue                 // NaN, infinite, negative or out of range
	BadTime                  // a timestamp that cannot be: before 1970 or far in the future
	Duplicate                // the series was there already in the same answer
	OverLimit                // a label or the number of containers exceeds the bounds
	NumReasons = iota        // how many reasons there are
)

// String gives the reason's name in telemetry.
func (r Reason) String() string {
	return [NumReasons]string{"malformed", "no_identity", "bad_value", "bad_time", "duplicate", "over_limit"}[r]
}

// Report describes a node after one of its scrapes was stored.
type Report struct {
	// Missing has an element for the node and for each of its containers that has no Amount.
	Missing []Missing

	ClockOffset time.Duration // how far the node's clock is ahead of ours; below 0: behind
	ClockKnown  bool          // whether the offset is known
	ClockJumped bool          // whether the offset changed by a step since the previous scrape, so that all rates start again
}

// Missing describes a node or container that has no Amount. Its times are by our Clock.
type Missing struct {
	Since     Time // when its series started
	SampledAt Time // when its last sample was taken; 0: there is none
	StartedAt Time // when it started, as the last sample reports it; 0: not known

	// KubeletRate reports whether a kubelet-reported rate with the last sample would be served.
	KubeletRate bool
}

// Amount is what a node or a container uses, derived from its samples. It is served as it stands.
type Amount struct {
	CPUNanocores uint64        // mean over Window; 10⁹ are one core
	Memory       uint64        // bytes of the working set
	Swap         uint64        // bytes; meaningful only with HasSwap
	At           Time          // when the CPU counter was read last, by the node's clock: the end of Window
	Window       time.Duration // the time over which CPUNanocores is the mean; above 0
	HasSwap      bool          // whether the kubelet reports swap
}

// Node is the usage of a node. It is immutable once published.
type Node struct {
	Name string
	Amount
	AsOf Time // when the Amount was sampled, by our Clock
}

// Container is the usage of a container. It is immutable once published.
type Container struct {
	Name string
	Amount
}

// Pod is the complete usage of one pod: every container that its kubelet reports, each with an
// Amount. It is immutable once published.
type Pod struct {
	Namespace, Name string
	Containers      []Container   // sorted by name; at least one
	At              Time          // that of the container that was sampled first, by the node's clock
	Window          time.Duration // that of the same container
	AsOf            Time          // when that container was sampled, by our Clock
	ClockShown      Time          // the latest time that the node's clock may have shown before it was set; 0: it was not
}
