package decode

import (
	"bytes"
	"math"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Text decodes responses to /metrics/resource, in the text exposition format. A Text that is reused
// decodes without allocating. It must not be copied, nor used by two goroutines at once.
type Text struct {
	MaxContainers int // that are kept of a response
	state

	name       []byte // the metric name of the last line; aliases the text
	metric     metric // what it stands for
	cursor     int    // position of the container that the next line of this metric is expected to name
	containers []containerLines
	seen       fieldSet // what has been seen of the node and of the scrape error
	failed     bool     // the kubelet reports a scrape error
}

// containerLines is what the lines of a container have had so far. Text.containers is parallel to dst.Containers.
type containerLines struct {
	labels []byte // the label block of its first line; empty if it was unescaped
	seen   fieldSet
}

// Decode parses a kubelet's response into dst, whose memory it reuses. It ignores other metrics and
// counts the lines that it skips in dst.Skipped, by reason.
//
// Errors have a reason: RuntimeNoStats if the kubelet reports that it could not read its containers, and
// so lists none of them; NoSamples if there is no sample of the node or of a container;
// Undecodable if there is none, but a line that cannot be parsed; and ClockSkew if no sample has a valid
// time. dst is not valid after an error.
func (d *Text) Decode(dst *usage.Scrape, text []byte) error {
	d.begin(dst, d.MaxContainers)
	d.name, d.metric, d.cursor, d.containers, d.seen, d.failed = nil, metric{}, 0, d.containers[:0], 0, false
	defer d.release()
	for len(text) > 0 {
		n := bytes.IndexByte(text, '\n')
		if n < 0 {
			if len(trim(text)) > 0 { // truncated: digits of the value may be missing, and further lines
				d.skipContainer(usage.Malformed)
			}
			break
		}
		d.line(text[:n])
		text = text[n+1:]
	}
	if d.failed {
		return errContainersUnread
	}
	return d.finish()
}

func (d *Text) release() {
	d.state.release()
	d.name = nil
	clear(d.containers)
}

// line decodes one line, without the newline.
func (d *Text) line(b []byte) {
	b = trim(b)
	if len(b) == 0 || b[0] == '#' {
		return
	}
	b = d.parseName(b)
	switch d.metric.subject {
	case subjectIgnored:
		if len(d.name) == 0 {
			d.skipContainer(usage.Malformed)
		}
	case subjectScrapeError:
		d.scrapeError(b)
	case subjectNode:
		if b, ok := d.skipLabels(b); ok {
			d.sample(&d.dst.Node, &d.seen, b)
		}
	case subjectContainer:
		if i, b := d.findContainer(b); i >= 0 {
			d.cursor = i + 1
			d.sample(&d.dst.Containers[i].Sample, &d.containers[i].seen, b)
		}
	}
}

// parseName sets the metric of a line, which is nearly always that of the line before, and returns
// what follows its name.
func (d *Text) parseName(b []byte) (rest []byte) {
	if n := len(d.name); n > 0 && n < len(b) && b[n] == '{' && string(b[:n]) == string(d.name) {
		return b[n:]
	}
	n := 0
	for n < len(b) && (isNameByte(b[n]) || b[n] == ':') {
		n++
	}
	d.name, d.metric, d.cursor = b[:n], metrics[string(b[:n])], 0
	return b[skipBlanks(b, n):]
}

// scrapeError decodes the line with the number of errors when the kubelet read its containers.
// If the line cannot be read, containers that are missing from the response may exist.
func (d *Text) scrapeError(b []byte) {
	b, ok := d.skipLabels(b)
	if ok && !d.markSeen(&d.seen) {
		return
	}
	var v Value
	if ok {
		v, _, ok = d.value(b)
	}
	d.dst.Partial = d.dst.Partial || !ok
	d.failed = d.failed || v.Float != 0
}

// skipLabels returns what follows the label block at the start of b, if there is one.
func (d *Text) skipLabels(b []byte) (rest []byte, ok bool) {
	n, _, ok := ParseLabels(b, new(containerLabels).set)
	if !ok {
		d.skip(usage.Malformed)
	}
	return b[n:], ok
}

// findContainer returns the position in dst.Containers of the container that the label block at the
// start of b names, and what follows that block. It appends a container that is new. It returns -1
// if the block cannot be read or the container cannot be kept.
//
// Kubelets list the containers in the same order for every metric, so the block is nearly always
// that of the next container. A container that a metric leaves out costs a second comparison.
func (d *Text) findContainer(b []byte) (i int, rest []byte) {
	for i := d.cursor; i < len(d.containers) && i <= d.cursor+1; i++ {
		block := d.containers[i].labels
		if len(block) > 0 && bytes.HasPrefix(b, block) {
			return i, b[len(block):]
		}
	}
	var labels containerLabels
	n, escaped, ok := ParseLabels(b, labels.set)
	if !ok {
		return d.dropContainer(usage.Malformed, &labels), nil
	}
	i, known := d.index[labels.id()]
	if !known {
		i = d.addContainer(&labels)
		if i >= 0 && !escaped {
			d.containers[i].labels = b[:n]
		}
	}
	return i, b[n:]
}

// addContainer appends a new container and returns its position, or -1 if it cannot be kept.
func (d *Text) addContainer(l *containerLabels) int {
	if r, ok := usage.CheckNames(l.namespace, l.pod, l.container); !ok {
		return d.dropContainer(r, l)
	}
	i := len(d.dst.Containers)
	if i >= d.max {
		return d.dropContainer(usage.OverLimit, l)
	}
	c := usage.ContainerSample{Namespace: l.namespace, Pod: l.pod, Name: l.container}
	d.dst.Containers = append(d.dst.Containers, c)
	d.containers = append(d.containers, containerLines{})
	d.index[l.id()] = i
	return i
}

// dropContainer skips a line and drops the pod that it names. It returns -1, which is the position
// of no container.
func (d *Text) dropContainer(r usage.SkipReason, l *containerLabels) int {
	if len(l.namespace) > 0 && len(l.pod) > 0 {
		d.dropPod(l.namespace, l.pod)
	}
	d.skipContainer(r)
	return -1
}

// sample decodes what follows the labels of a line into s, unless an earlier line has the same
// labels. Bytes are limited to an int64, the type of the API.
func (d *Text) sample(s *usage.Sample, seen *fieldSet, b []byte) {
	if !d.markSeen(seen) {
		d.checkSecond(s, b)
		return
	}
	field := d.metric.field
	v, r, ok := d.value(b)
	if ok && field&(fieldMemory|fieldSwap) != 0 && v.Float >= math.MaxInt64 {
		r, ok = usage.BadValue, false
		d.skip(r)
	}
	if !ok {
		if field&(fieldCPU|fieldMemory) != 0 && s.Loss != usage.LostOwner {
			s.Loss = lossOf(r)
		}
		return
	}
	switch field {
	case fieldCPU:
		s.CPUSeconds, s.At, s.Untimed = v.Float, d.scrapedAt, !v.Timed
		if v.Timed {
			s.At = usage.NodeTime(v.Millis * int64(time.Millisecond))
		}
		s.Has |= usage.HasCPU
	case fieldMemory:
		s.Memory = uint64(v.Float)
		s.Has |= usage.HasMemory
	case fieldSwap:
		s.Swap = uint64(v.Float)
		s.Has |= usage.HasSwap
	case fieldStart:
		s.StartedAt = d.startTime(v.Float)
	}
}

// checkSecond drops the CPU counter of a container if another line has another one. A kubelet that runs two pods of one
// name reports the counters and memory of both, but one start time: the Prometheus library drops a second value only if
// both have the same time, or none. So nothing shows which of them are of the same container. Lines that cannot be read
// show nothing.
func (d *Text) checkSecond(s *usage.Sample, b []byte) {
	if d.metric != (metric{subjectContainer, fieldCPU}) {
		return
	}
	v, _, ok := ParseValue(b)
	if isOther := v.Float >= 0 && v.Float != s.CPUSeconds; ok && isOther && s.Has&usage.HasCPU != 0 {
		s.Has, s.Loss = s.Has&^usage.HasCPU, usage.LostOwner
	}
}

// lossOf returns the loss of a value whose line was skipped.
func lossOf(r usage.SkipReason) usage.Loss {
	if r == usage.BadTime {
		return usage.LostTime
	}
	return usage.LostValue
}

// markSeen adds the metric of the line to seen. It skips the line and returns false if the metric
// is a duplicate.
func (d *Text) markSeen(seen *fieldSet) bool {
	if *seen&d.metric.field != 0 {
		d.skip(usage.Duplicate)
		return false
	}
	*seen |= d.metric.field
	return true
}

// value parses what follows the labels of a line. If it fails, it skips the line and returns the reason. If
// only the time is not valid, or the value not possible, it returns the value nevertheless.
func (d *Text) value(b []byte) (v Value, r usage.SkipReason, ok bool) {
	v, r, ok = ParseValue(b)
	switch {
	case !ok:
	case v.Timed && (v.Millis <= 0 || v.Millis > int64(d.latest)/int64(time.Millisecond)):
		r, ok = usage.BadTime, false
		if 0 < v.Millis && v.Millis <= math.MaxInt64/int64(time.Millisecond) {
			d.future = usage.NodeTime(v.Millis * int64(time.Millisecond))
		}
	case !(v.Float >= 0 && v.Float <= math.MaxFloat64):
		r, ok = usage.BadValue, false
	}
	if !ok {
		d.skip(r)
	}
	return v, r, ok
}

// startTime converts seconds since the epoch. A float64 of them is exact to the microsecond only. A start in the
// future, from before the node's clock was set back, is not known, and no fault of the response.
func (d *Text) startTime(seconds float64) usage.NodeTime {
	if seconds < usage.OldestStart || seconds > time.Duration(d.latest).Seconds() {
		return 0
	}
	return usage.NodeTime(math.Round(seconds*1e6)) * usage.NodeTime(time.Microsecond)
}

// trim removes the blanks at the start of a line, and the carriage return that some servers end it with.
func trim(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == '\r' {
		b = b[:n-1]
	}
	return b[skipBlanks(b, 0):]
}
