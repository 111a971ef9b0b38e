// Package usage defines the types that all packages share: what is scraped (Sample, Scrape), what
// is served (Amount, Node, Pod, Container), and the formula that derives one from the other (Rate).
//
// A Time is by our clock, a NodeTime by that of a node. pkg/store estimates how far the clock of a node
// is ahead, and converts between the two. Elsewhere, ByClock(0) takes the clocks for equal.
//
// It does no I/O, reads no clock, and imports only the standard library. docs/numbers.md explains the
// rules of the numbers to users.
package usage

import (
	"math"
	"time"
)

// Time is an instant by our clock, in nanoseconds since the Unix epoch; 0 means "not known". The store keeps
// several of them for every container of a cluster: a Time has a third of the size of a time.Time,
// and no pointer for the garbage collector to follow.
type Time int64

// At converts a time. One that is not after 1970 and before 2200, such as the zero time.Time, becomes 0, "not
// known": times of nodes may be any, and there must be room to compute with them.
func At(t time.Time) Time {
	const year2200 = 7258118400
	if s := t.Unix(); s <= 0 || s >= year2200 {
		return 0
	}
	return Time(t.UnixNano())
}

// Sub returns t − u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// Add returns t + d.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// IsExpired reports whether what was sampled at t is older than maxAge at the time now, so that it is not served.
func (t Time) IsExpired(maxAge time.Duration, now Time) bool { return now.Sub(t) > maxAge }

// ByClock returns what the clock of a node shows at t, if it is ahead of ours by that much. 0 takes the clocks for
// equal, where its offset is not known.
func (t Time) ByClock(ahead time.Duration) NodeTime { return NodeTime(t.Add(ahead)) }

// Time converts to the standard library's type, in UTC.
func (t Time) Time() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(t)).UTC()
}

// NodeTime is a Time by the clock of a node, which may be wrong. An exporter or engine that sets times itself
// counts as a node.
type NodeTime int64

// NodeAt is At for a time by the clock of a node.
func NodeAt(t time.Time) NodeTime { return NodeTime(At(t)) }

// Sub returns t − u.
func (t NodeTime) Sub(u NodeTime) time.Duration { return time.Duration(t - u) }

// Add returns t + d.
func (t NodeTime) Add(d time.Duration) NodeTime { return t + NodeTime(d) }

// Time converts to the standard library's type, in UTC.
func (t NodeTime) Time() time.Time { return Time(t).Time() }

// AheadOf returns how far the clock of the node is ahead of ours, if both times are of the same moment.
func (t NodeTime) AheadOf(u Time) time.Duration { return time.Duration(t) - time.Duration(u) }

// OldestStart is the earliest start time, in seconds since the epoch, that counts as a date: the year
// 2000. Simulated kubelets (kwok) report the seconds since the pod's start instead.
const OldestStart = 946684800

// Has is the set of values that a Sample has. Zero is data: a container that used no CPU has a CPU
// value of 0, which differs from having none.
type Has uint8

// The values that a Sample can have.
const (
	HasCPU Has = 1 << iota
	HasMemory
	HasSwap
	HasRate
)

// Sample is one sample of a node or container, as its kubelet took it.
type Sample struct {
	At         NodeTime // when the CPU counter was read
	StartedAt  NodeTime // when the container started; 0: not known
	CPUSeconds float64  // core-seconds used since the start; a counter
	Memory     uint64   // working set in bytes
	Swap       uint64   // swap in use in bytes
	Rate       uint64   // the kubelet-reported rate in nanocores; only summaries have it
	Has        Has      // which of CPU, memory, swap and rate are set
	Loss       Loss     // why CPU or memory is not set, if that is known

	// Untimed is set if the kubelet sent no time for the CPU counter. At is then the Time of the scrape, by
	// our clock: a NodeTime would move with the estimated offset, and windows with it.
	Untimed bool
	// Base is the reading where the rate of this sample starts, if it is not the previous
	// sample. It is this sample's own reading if there is none: the CPU counter is another one than
	// before, for example because the container was restarted. Only pkg/engine sets it; it is
	// zero in samples of kubelets.
	Base Reading
}

// Loss is why a sample cannot be used, or a value of it.
type Loss uint8

// The losses. The source of the samples notices LostZero, LostTime and LostValue, and two counters of a container
// (LostOwner). The store notices LostZero and LostOwner, too, and the others.
const (
	NotLost    Loss = iota
	LostZero        // 0, which kubelets report for what they do not know
	LostTime        // the time of the CPU counter is not valid
	LostValue       // the value is not possible, such as NaN
	LostFall        // the CPU counter fell, but the container was not restarted
	LostExcess      // the rate is above the CPU capacity in the node's status
	LostOwner       // the sample is of an earlier pod or container of the same name, or may be
)

// DropUnknown removes values of 0 that stand for unknown ones. A kubelet reports a CPU counter of 0,
// memory of 0 and the current time for a running container if the runtime has no statistics of it
// (makeContainerCPUAndMemoryStats of kubelet 1.37). A counter of 0 is unknown beside memory of 0, or
// if the container is at least MinAgeSinceStart old; memory of 0 is unknown beside such a counter, or
// if no container of the node has any. A node always uses both: kubelets report 0 for what the kernel
// does not show of the root cgroup (rancher/rke2#10759, metrics-server#819).
//
// Swap of 0 of all containers is unknown unless the node's is 0, too: kubelets 1.34 and 1.35 report 0 for each
// container of containerd, later ones for those that cAdvisor does not know (kubernetes#137093).
func (s *Scrape) DropUnknown() {
	hasMemory, knowsSwap := false, s.Node.Has&HasSwap != 0 && s.Node.Swap == 0
	for i := range s.Containers {
		hasMemory = hasMemory || s.Containers[i].Memory > 0
		knowsSwap = knowsSwap || s.Containers[i].Swap > 0
	}
	s.Node.dropUnknown(false, false)
	for i := range s.Containers {
		c := &s.Containers[i]
		age, ok := c.Age()
		isOld := ok && age >= MinAgeSinceStart
		c.dropUnknown(!isOld, hasMemory)
		if !knowsSwap {
			c.Has &^= HasSwap
		}
	}
}

// dropUnknown is DropUnknown for one sample. mayBeUnused and mayBeEmpty report whether a counter and memory
// of 0 can be real.
func (s *Sample) dropUnknown(mayBeUnused, mayBeEmpty bool) {
	noMemory := s.Has&HasMemory != 0 && s.Memory == 0
	if s.Has&HasCPU != 0 && s.CPUSeconds == 0 && (noMemory || !mayBeUnused) {
		s.Has &^= HasCPU | HasRate
		s.Loss, mayBeEmpty = LostZero, false
	}
	if noMemory && !mayBeEmpty {
		s.Has &^= HasMemory
		s.Loss = LostZero
	}
}

// Reading is the value of a CPU counter at a time; At is 0 if there is none. A rate is computed from two.
type Reading struct {
	At         NodeTime
	CPUSeconds float64
}

// Reading returns the CPU value of the sample.
func (s *Sample) Reading() Reading { return Reading{s.At, s.CPUSeconds} }

// ContainerSample is a sample of one container.
type ContainerSample struct {
	Namespace, Pod, Name []byte // alias memory that the next response overwrites
	Sample
}

// StorageSample is the local ephemeral storage that a container uses, or that a pod uses outside of its
// containers, for example in volumes (Container is empty), or that a node uses (all names are empty).
type StorageSample struct {
	Namespace, Pod, UID, Container []byte // alias memory that the next response overwrites; UID is that of the pod
	Bytes                          uint64
	At                             NodeTime // when the kubelet measured the pod or node; 0: not known
}

// Scrape holds the samples of one node: of one response of its kubelet, or of one refresh from an
// engine. Its owner reuses it for the next response: a function that receives a *Scrape may read it
// until the function returns, and copies what it keeps.
type Scrape struct {
	At       Time     // when the body of a kubelet's response began, or the last response of an engine had arrived
	Sent     Time     // when the request was sent; 0: not known
	Date     NodeTime // the Date header: a time between Sent and Dated, in whole seconds; 0: not known
	Dated    Time     // when the Date header arrived; 0: with the body, At
	Capacity uint64   // CPU of the node in nanocores, from the API server; set by the source; 0: not known

	Node       Sample            // Has is 0 if the response has no sample of the node
	Containers []ContainerSample // one element for each container, in the order of the response

	// Storage is the usage of local ephemeral storage. Only complete summaries have it; they have no samples.
	Storage []StorageSample

	// Partial is set if the response had lines whose container could not be read, a number of errors of the
	// kubelet that could not be read, more containers than the limit, or neither a length nor chunks, which mark
	// its end. A container that such a scrape does not mention may still exist.
	Partial bool

	Skipped [NumSkipReasons]int // the number of skipped lines, by reason
}

// Timing is how long a request took, also if it failed.
type Timing struct {
	Queued time.Duration // the wait for permits of this process (pkg/kubelet/permits.go)
	Took   time.Duration // the rest, without a wait for a token, until the response was decoded or the request failed
	Slow   bool          // whether that is so long that the next request may take longer
}

// SkipReason is the reason why a line of a response was skipped.
type SkipReason uint8

// The reasons for skipping a line. The other lines of the response are not affected.
const (
	Malformed      SkipReason = iota // cannot be parsed
	NoIdentity                       // a container's line without the labels namespace, pod and container
	BadValue                         // NaN, infinite, negative or out of range
	BadTime                          // an impossible timestamp: before 1970 or far in the future
	Duplicate                        // the response already had the same series
	OverLimit                        // a label or the number of containers exceeds its limit
	NumSkipReasons = iota            // the number of reasons
)

// String returns the reason's name in metrics of kube-vitals.
func (r SkipReason) String() string {
	return [NumSkipReasons]string{"malformed", "no_identity", "bad_value", "bad_time", "duplicate", "over_limit"}[r]
}

// Report describes a node after one of its scrapes was stored.
type Report struct {
	// Missing has an element for the node and for each of its containers that has no Amount, or one of a
	// window that another sample soon makes longer.
	Missing []Missing

	ClockOffset time.Duration // how far the node's clock is ahead of ours; below 0: behind
	ClockKnown  bool          // whether the offset is known
	ClockJumped bool          // whether the offset has jumped since the previous scrape; if so, all series restart

	// Exceeded is the CPU usage in nanocores that the node's own counter has shown several times in a row,
	// if that is above the capacity in the node's status. The status is wrong then. 0: it is not.
	Exceeded uint64
}

// Missing describes a node or container that needs another sample soon.
type Missing struct {
	Since     Time // when its series started
	SampledAt Time // when its last sample was taken; 0: there is none
	StartedAt Time // when it started, as the last sample reports it; 0: not known

	// KubeletRate reports whether a kubelet-reported rate could be served until the next sample.
	KubeletRate bool
}

// Amount is the usage of a node or container, derived from its samples. The API serves it
// unchanged.
type Amount struct {
	CPUNanocores uint64        // mean over Window; 10⁹ are one core
	Memory       uint64        // working set in bytes
	Swap         uint64        // in bytes; meaningful only with HasSwap
	At           NodeTime      // when the CPU counter was last read: the end of Window
	Window       time.Duration // the time over which CPUNanocores is the mean; above 0
	HasSwap      bool          // whether the kubelet reports swap
}

// Sum returns the sum of two values, or the largest value that the API can have.
func Sum(a, b uint64) uint64 {
	const largest = math.MaxInt64
	return min(min(a, largest)+min(b, largest), largest)
}

// Resource is the usage of a resource other than CPU, memory and swap, for example of
// "ephemeral-storage" or "nvidia.com/gpu". Its name is none of theirs.
type Resource struct {
	Name  string
	Value uint64 // in Unit
	Unit  Unit
}

// Unit is the unit of a Resource.
type Unit uint8

// The units.
const (
	Bytes Unit = iota // printed with binary suffixes: 2Mi
	Milli             // thousandths, printed with decimal suffixes: 250m
)

// EphemeralStorage is the resource that the samples of Scrape.Storage are of.
const EphemeralStorage = "ephemeral-storage"

// ContainerResource is the usage of a resource by a container. If a ResourceReport has several of one
// container and resource, they are added. If Container is empty, it is what the pod uses outside of
// its containers, which is served with the first container: only containers have usage in the API.
type ContainerResource struct {
	Namespace, Pod, Container string
	Resource
}

// ResourceReport is what one source reports of one node.
type ResourceReport struct {
	At     Time          // when it was requested, or measured if that is known to be earlier
	MaxAge time.Duration // it expires at this age

	Node       []Resource
	Containers []ContainerResource
	// Whole is set if a pod must not be served with the values of only some of its containers, and if the sum of its
	// values must be that of the report. If it is not set, a container without a value has 0 if another one of its pod
	// has a value, and values of containers without metrics are ignored.
	Whole bool
}

// IsExpired reports whether the report is not served at the time now.
func (r *ResourceReport) IsExpired(now Time) bool { return r.At.IsExpired(r.MaxAge, now) }

// Node is the usage of a node. It is immutable once published.
type Node struct {
	Name string
	Amount
	AsOf Time // when the Amount was sampled
}

// Container is the usage of a container. It is immutable once published.
type Container struct {
	Name string
	Amount
}

// Pod is the usage of a whole pod: all containers that its kubelet reports, each with an Amount. It
// is immutable once published.
type Pod struct {
	Namespace, Name string
	Containers      []Container // sorted by name; at least one

	// At and AsOf are those of the container with the oldest sample. Window is the longest one, so no rate
	// began before At − Window: an autoscaler ignores a pod if that is before it was ready.
	At     NodeTime
	Window time.Duration
	AsOf   Time // the same moment as At

	// Ambiguous is set if At does not show whether a container had started before: the node's clock had been set
	// back, and showed times for the second time, or the kubelet sent no times, so that At is by our clock.
	Ambiguous bool
}

// ReadAhead is the number of pods that are looked up or encoded at the same time. The pods of a large cluster
// do not fit into the caches of the processor. So a loop over many pods first reads what it needs of a few:
// these reads do not depend on each other, and the processor waits for all of them at once. What is read of so
// many pods fits into its first cache (docs/dev/measurements.md).
const ReadAhead = 32

// PodKey identifies a pod on the node that it is bound to.
type PodKey struct{ Node, Namespace, Name string }
