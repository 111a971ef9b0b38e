package decode

import (
	"bytes"
	"math"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Text decodes the text that a kubelet answers on /metrics/resource. The zero value is ready for
// use; one that is reused decodes without allocating. It must not be used by two goroutines at
// once, and not be copied.
type Text struct {
	Limits Limits

	index   index
	dropped podSet

	// The state of the decoding that is going on.
	dst    *usage.Scrape
	latest usage.Time // no time can be after this one
	future usage.Time // the last time that was; 0: there was none
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

// Decode parses a kubelet's response into dst, whose memory it reuses. It ignores lines that are of
// no interest. It skips lines that cannot be read, counts them by reason in dst.Skipped, and goes
// on with the others.
//
// A pod is decoded as a whole or not at all: if one of its containers cannot be kept, all of them
// are dropped and dst.Partial is set.
//
// The names in dst alias text, which must not be reused as long as dst is read. Decode writes to
// text: it unescapes names in place.
//
// Decode returns an error if the kubelet reports that it could not read its containers, as it then
// lists none of them, and if there is no sample of a node or a container, or none with a possible
// time. dst is then not valid.
func (d *Text) Decode(dst *usage.Scrape, text []byte, times Times) error {
	d.begin(dst, times)
	defer d.end()
	for start := 0; start < len(text); {
		n := bytes.IndexByte(text[start:], '\n')
		if n < 0 {
			if len(trim(text[start:])) > 0 { // cut off: the value may lack digits, and more lines may have followed
				d.lost(usage.Malformed)
			}
			break
		}
		d.line(text[start : start+n])
		start += n + 1
	}
	if d.failed {
		return ErrContainersUnread
	}
	dst.Containers = d.dropped.removeFrom(dst.Containers)
	return checkSamples(dst, d.future)
}

func (d *Text) begin(dst *usage.Scrape, times Times) {
	*dst = usage.Scrape{At: times.At, Sent: times.Sent, Date: times.Date, Containers: dst.Containers[:0]}
	d.index.reset()
	d.dst, d.latest, d.future = dst, times.latest(), 0
	d.name, d.family, d.cursor = nil, family{}, 0
	d.series = d.series[:0]
	d.seen, d.failed = 0, false
}

// end releases the memory of others.
func (d *Text) end() {
	clear(d.series)
	d.dropped.reset()
	d.dst, d.name = nil, nil
}

// line reads one line, without its end.
func (d *Text) line(b []byte) {
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

// enter finds the family that a line belongs to, and gives what follows its name. Nearly always it
// is that of the line before.
func (d *Text) enter(b []byte) (rest []byte) {
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

// outcome reads the line that says whether the kubelet could read its containers. When even that
// cannot be told, those that are missing may exist.
func (d *Text) outcome(b []byte) {
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
func (d *Text) node(b []byte) {
	if b, ok := d.passLabels(b); ok {
		d.sample(&d.dst.Node, &d.seen, b)
	}
}

// container reads a line about a container.
func (d *Text) container(b []byte) {
	if i, b := d.locate(b); i >= 0 {
		d.cursor = i + 1
		d.sample(&d.dst.Containers[i].Sample, &d.series[i].seen, b)
	}
}

// locate gives the position in dst.Containers of the container that the label block at the start of
// b names, and what follows that block; -1 when it cannot be told or not be taken.
//
// A kubelet lists the containers in the same order in every family, so that comparing the block
// with that of the next container in line mostly tells. One that a family leaves out costs a second
// comparison.
func (d *Text) locate(b []byte) (i int, rest []byte) {
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
			return d.drop(usage.Malformed, &id), nil
		}
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

// add appends a container that was not there yet, and returns its position, or -1 if it cannot be
// kept.
func (d *Text) add(id *identity, hash uint32) int {
	if reason, ok := d.Limits.admitAll(id); !ok {
		return d.drop(reason, id)
	}
	i := len(d.dst.Containers)
	if i >= d.Limits.maxContainers() {
		return d.drop(usage.OverLimit, id)
	}
	d.dst.Containers = append(d.dst.Containers, usage.ContainerSample{
		Namespace: id.namespace, Pod: id.pod, Name: id.container,
	})
	d.series = append(d.series, series{})
	d.index.put(i, hash)
	return i
}

// drop counts a line whose container cannot be kept, and drops its pod if the line names one. It
// returns -1, the position of no container.
func (d *Text) drop(r usage.Reason, id *identity) int {
	if len(id.namespace) > 0 && len(id.pod) > 0 {
		d.dropped.add(id.namespace, id.pod)
	}
	d.lost(r)
	return -1
}

// passLabels gives what follows the label block at the start of b, if there is one.
func (d *Text) passLabels(b []byte) (rest []byte, ok bool) {
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
func (d *Text) sample(s *usage.Sample, seen *reading, b []byte) {
	if !d.first(seen) {
		return
	}
	if p, ok := d.point(b); ok {
		d.keep(s, p)
	}
}

// first says whether a line is the first one of its series, and notes that it was there.
func (d *Text) first(seen *reading) bool {
	if *seen&d.family.gives != 0 {
		d.skip(usage.Duplicate)
		return false
	}
	*seen |= d.family.gives
	return true
}

// point is what a line says besides what it is about.
type point struct {
	value   float64
	at      usage.Time // the time of the scrape if the line has none
	untimed bool       // the line has none
}

// point reads what follows the labels of a line: a value and, maybe, a time in milliseconds since
// the epoch.
func (d *Text) point(b []byte) (p point, ok bool) {
	i := skipBlanks(b, 0)
	value, n, ok := parseFloat(b[i:])
	if !ok {
		d.skip(usage.Malformed)
		return p, false
	}
	p = point{value, d.dst.At, true}
	if i = skipBlanks(b, i+n); i < len(b) {
		millis, n, ok := parseInt(b[i:])
		if !ok || millis <= 0 || millis > int64(d.latest)/int64(time.Millisecond) {
			d.badTime(millis)
			return p, false
		}
		p.at, p.untimed = usage.Time(millis*int64(time.Millisecond)), false
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
func (d *Text) keep(s *usage.Sample, p point) {
	switch d.family.gives {
	case cpuReading:
		s.CPUSeconds, s.At, s.Untimed = p.value, p.at, p.untimed
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

// startTime converts seconds since the epoch. A float64 of them is not exact to the nanosecond, but
// to the microsecond.
func (d *Text) startTime(seconds float64) usage.Time {
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
func (d *Text) skip(r usage.Reason) { d.dst.Skipped[r]++ }

// badTime counts a line whose time cannot be, and remembers the time if it is that of a clock that
// is ahead.
func (d *Text) badTime(millis int64) {
	d.skip(usage.BadTime)
	if millis > 0 && millis <= math.MaxInt64/int64(time.Millisecond) {
		d.future = usage.Time(millis * int64(time.Millisecond))
	}
}

// lost counts a line that may have named a container which no other line names.
func (d *Text) lost(r usage.Reason) {
	d.skip(r)
	d.dst.Partial = true
}

// trim takes the blanks from the start of a line, and the carriage return that some servers end it
// with.
func trim(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == '\r' {
		b = b[:n-1]
	}
	return b[skipBlanks(b, 0):]
}
