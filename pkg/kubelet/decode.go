package kubelet

import (
	"bytes"
	"math"
	"time"
	"unicode/utf8"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Limits bound what one answer can make us keep. A field that is 0 stands for its default.
type Limits struct {
	// MaxContainers is how many containers of one node are taken; by default DefaultMaxContainers.
	MaxContainers int
	// MaxLabelBytes is the longest name of a namespace, pod or container that is taken; by default DefaultMaxLabelBytes.
	MaxLabelBytes int
}

// The defaults of Limits.
const (
	DefaultMaxContainers = 5000 // some ten times what a large node runs
	DefaultMaxLabelBytes = 253  // the longest name that Kubernetes allows
)

func (l *Limits) maxContainers() int { return orDefault(l.MaxContainers, DefaultMaxContainers) }

// admit says whether a container of these names can be taken, or why not.
func (l *Limits) admit(id *identity) (reason usage.Reason, ok bool) {
	switch {
	case id.longest() > orDefault(l.MaxLabelBytes, DefaultMaxLabelBytes):
		return usage.OverLimit, false
	case !utf8.Valid(id.namespace) || !utf8.Valid(id.pod) || !utf8.Valid(id.container):
		return usage.Malformed, false
	}
	return 0, true
}

const (
	// maxAhead is how far the clock of a node may be ahead of ours. A reading of a later time would make all that follow look
	// old.
	maxAhead = time.Hour
	// oldestStart is the first start time, in seconds since the epoch, that is taken for a date: the year 2000. Simulated
	// kubelets (kwok) give the seconds since the pod's start instead, which say nothing about when.
	oldestStart = 946684800
)

// Decoder decodes the text that a kubelet answers on /metrics/resource. The zero value is ready for use; one that is reused
// decodes without allocating. It must not be used by two goroutines at once, and not be copied.
type Decoder struct {
	Limits Limits

	index index

	// The state of the decoding that is going on.
	dst    *usage.Scrape
	at     usage.Time
	latest usage.Time // no time can be after this one
	name   []byte     // of the family that the last line belonged to; aliases the text
	family family     // the same
	cursor int        // position of the container that the next line of this family is expected to be about
	series []series   // parallel to dst.Containers
	seen   reading    // which readings of the node and of the outcome have had their line
	failed bool       // the kubelet says that it could not read its containers
}

// series is what is remembered of a container while its answer is decoded.
type series struct {
	labels []byte  // the label block of its first line, as it stands in the text; an empty one matches nothing
	seen   reading // which of its readings have had their line
}

// Decode reads a kubelet's answer that arrived at the given moment into dst, whose memory it reuses. Lines that are of no
// interest are passed over; lines that cannot be read are skipped and counted by reason in dst.Skipped, and never cost the
// others.
//
// The names in dst alias text, which therefore must not be reused as long as dst is read. Decode writes to text: names with
// escape sequences are unescaped in place.
//
// It is an error when the kubelet says that it could not read its containers, as it then lists none of them, and when there
// is no sample of a node or a container at all. Then dst holds nothing that may be used.
func (d *Decoder) Decode(dst *usage.Scrape, text []byte, at usage.Time) error {
	d.begin(dst, at)
	defer d.end()
	for start := 0; start < len(text); {
		n := bytes.IndexByte(text[start:], '\n')
		if n < 0 {
			if len(trim(text[start:])) > 0 { // cut off: the last figure may lack digits, and more may have followed
				d.lost(usage.Malformed)
			}
			break
		}
		d.line(text[start : start+n])
		start += n + 1
	}
	switch {
	case d.failed:
		return errContainersUnread
	case dst.Node.Has == 0 && len(dst.Containers) == 0:
		return errNoSamples
	}
	return nil
}

func (d *Decoder) begin(dst *usage.Scrape, at usage.Time) {
	*dst = usage.Scrape{At: at, Containers: dst.Containers[:0]}
	d.index.reset()
	d.dst, d.at, d.latest = dst, at, at.Add(maxAhead)
	d.name, d.family, d.cursor = nil, family{}, 0
	d.series = d.series[:0]
	d.seen, d.failed = 0, false
}

// end lets go of what belongs to others.
func (d *Decoder) end() {
	clear(d.series)
	d.dst, d.name = nil, nil
}

// line reads one line, without its end.
func (d *Decoder) line(b []byte) {
	b = trim(b)
	if len(b) == 0 || b[0] == '#' {
		return
	}
	b = d.enter(b)
	switch d.family.about {
	case aboutNothing:
		d.lost(usage.Malformed)
	case aboutScrape:
		d.outcome(b)
	case aboutNode:
		d.node(b)
	case aboutContainer:
		d.container(b)
	}
}

// enter finds the family that a line belongs to, and gives what follows its name. Nearly always it is that of the line
// before.
func (d *Decoder) enter(b []byte) (rest []byte) {
	if n := len(d.name); n > 0 && n < len(b) && b[n] == '{' && string(b[:n]) == string(d.name) {
		return b[n:]
	}
	n := 0
	for n < len(b) && (isNameByte(b[n]) || b[n] == ':') {
		n++
	}
	d.name, d.family, d.cursor = b[:n], familyOf(b[:n]), 0
	return b[skipBlanks(b, n):]
}

// outcome reads the line that says whether the kubelet could read its containers. When even that cannot be told, those that
// are missing may exist.
func (d *Decoder) outcome(b []byte) {
	b, ok := d.passLabels(b)
	if ok && !d.first(&d.seen) {
		return
	}
	var p point
	if ok {
		p, ok = d.point(b)
	}
	if !ok {
		d.dst.Partial = true
	}
	d.failed = d.failed || p.value != 0
}

// node reads a line about the node. Labels on it are of no interest.
func (d *Decoder) node(b []byte) {
	if b, ok := d.passLabels(b); ok {
		d.sample(&d.dst.Node, &d.seen, b)
	}
}

// container reads a line about a container.
func (d *Decoder) container(b []byte) {
	if i, b := d.locate(b); i >= 0 {
		d.cursor = i + 1
		d.sample(&d.dst.Containers[i].Sample, &d.series[i].seen, b)
	}
}

// locate gives the position in dst.Containers of the container that the label block at the start of b names, and what
// follows that block; -1 when it cannot be told or not be taken.
//
// A kubelet lists the containers in the same order in every family, so that comparing the block with that of the next
// container in line mostly tells. One that a family leaves out costs a second comparison.
func (d *Decoder) locate(b []byte) (i int, rest []byte) {
	for i := d.cursor; i < len(d.series) && i <= d.cursor+1; i++ {
		labels := d.series[i].labels
		if len(labels) > 0 && bytes.HasPrefix(b, labels) {
			return i, b[len(labels):]
		}
	}
	var id identity
	n, escaped, ok := 0, false, len(b) > 0 && b[0] == '{'
	if ok {
		if n, escaped, ok = parseLabels(b, &id); !ok {
			return d.lost(usage.Malformed), nil
		}
	}
	if !id.complete() {
		return d.lost(usage.NoIdentity), nil
	}
	i, hash := d.index.find(d.dst.Containers, &id)
	if i < 0 {
		i = d.add(&id, hash)
		if i >= 0 && !escaped {
			d.series[i].labels = b[:n]
		}
	}
	return i, b[n:]
}

// add takes a container that was not there yet, and gives its position, or -1 when it cannot be taken.
func (d *Decoder) add(id *identity, hash uint32) int {
	i := len(d.dst.Containers)
	if i >= d.Limits.maxContainers() {
		return d.lost(usage.OverLimit)
	}
	if reason, ok := d.Limits.admit(id); !ok {
		return d.lost(reason)
	}
	d.dst.Containers = append(d.dst.Containers, usage.ContainerSample{
		Namespace: id.namespace, Pod: id.pod, Name: id.container,
	})
	d.series = append(d.series, series{})
	d.index.put(i, hash)
	return i
}

// passLabels gives what follows the label block at the start of b, if there is one.
func (d *Decoder) passLabels(b []byte) (rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '{' {
		return b, true
	}
	var id identity
	n, _, ok := parseLabels(b, &id)
	if !ok {
		d.skip(usage.Malformed)
	}
	return b[n:], ok
}

// sample reads what follows the labels of a line into s, unless the series has had its line.
func (d *Decoder) sample(s *usage.Sample, seen *reading, b []byte) {
	if !d.first(seen) {
		return
	}
	if p, ok := d.point(b); ok {
		d.keep(s, p)
	}
}

// first says whether a line is the first one of its series, and notes that it was there.
func (d *Decoder) first(seen *reading) bool {
	if *seen&d.family.gives != 0 {
		d.skip(usage.Duplicate)
		return false
	}
	*seen |= d.family.gives
	return true
}

// point is what a line says besides what it is about.
type point struct {
	value float64
	at    usage.Time // the moment of the scrape where the line gives none
}

// point reads what follows the labels of a line: a value and, maybe, a time in milliseconds since the epoch.
func (d *Decoder) point(b []byte) (p point, ok bool) {
	i := skipBlanks(b, 0)
	value, n, ok := parseFloat(b[i:])
	if !ok {
		d.skip(usage.Malformed)
		return p, false
	}
	p = point{value, d.at}
	if i = skipBlanks(b, i+n); i < len(b) {
		millis, n, ok := parseInt(b[i:])
		if !ok || millis <= 0 || millis > int64(d.latest)/int64(time.Millisecond) {
			d.skip(usage.BadTime)
			return p, false
		}
		p.at = usage.Time(millis * int64(time.Millisecond))
		if skipBlanks(b, i+n) < len(b) {
			d.skip(usage.Malformed)
			return p, false
		}
	}
	if !(value >= 0 && value <= math.MaxFloat64) {
		d.skip(usage.BadValue)
		return p, false
	}
	return p, true
}

// keep stores a reading. The bytes of a kubelet fit into an int64, as the API carries them.
func (d *Decoder) keep(s *usage.Sample, p point) {
	switch d.family.gives {
	case cpuReading:
		s.CPUSeconds, s.At = p.value, p.at
		s.Has |= usage.HasCPU
	case memoryReading, swapReading:
		if p.value >= math.MaxInt64 {
			d.skip(usage.BadValue)
			return
		}
		if d.family.gives == memoryReading {
			s.Memory, s.MemoryAt = uint64(p.value), p.at
			s.Has |= usage.HasMemory
			return
		}
		s.Swap = uint64(p.value)
		s.Has |= usage.HasSwap
	case startReading:
		s.StartedAt = d.startTime(p.value)
	}
}

// startTime converts seconds since the epoch. A float64 of them is not exact to the nanosecond, but to the microsecond.
func (d *Decoder) startTime(seconds float64) usage.Time {
	if seconds < oldestStart {
		return 0
	}
	if seconds > time.Duration(d.latest).Seconds() {
		d.skip(usage.BadTime)
		return 0
	}
	return usage.Time(math.Round(seconds*1e6)) * usage.Time(time.Microsecond)
}

// skip counts a line that is left out.
func (d *Decoder) skip(r usage.Reason) { d.dst.Skipped[r]++ }

// lost counts a line that may have named a container which no other line names. It gives the position of no container.
func (d *Decoder) lost(r usage.Reason) int {
	d.skip(r)
	d.dst.Partial = true
	return -1
}

// trim takes the blanks from the start of a line, and the carriage return that some servers end it with.
func trim(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == '\r' {
		b = b[:n-1]
	}
	return b[skipBlanks(b, 0):]
}

func orDefault(limit, byDefault int) int {
	if limit > 0 {
		return limit
	}
	return byDefault
}
