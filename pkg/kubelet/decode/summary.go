package decode

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Summary decodes the JSON that a kubelet answers on /stats/summary. Like Text, it
// decodes without allocating when it is reused, and must not be used by two goroutines at once, nor
// be copied.
type Summary struct {
	Limits Limits

	index   index
	dropped podSet

	// The state of the decoding that is going on.
	json    scanner
	dst     *usage.Scrape
	latest  usage.Time // no time can be after this one
	future  usage.Time // the last time that was; 0: there was none
	node    string     // the name that the node must have
	other   error      // it has another one
	partial bool       // a container of the pod that is being read cannot be kept
}

// decode parses a node's summary into dst, whose memory it reuses. The result is the same as
// Decode's for /metrics/resource, with two differences: times are in whole seconds, because the
// kubelet cuts them, and there are rates. Fields that are of no interest are ignored; null means
// that there is no field; if a field is there twice, the last one counts. A value that cannot be
// used is skipped and counted by reason in dst.Skipped, and never costs the others. A pod is
// decoded as a whole or not at all.
//
// The names in dst alias text, which must not be reused as long as dst is read. decode writes to
// text: it unescapes strings in place.
//
// decode returns an error if the text as a whole is not valid JSON, if it is the summary of another
// node, and if there is no sample of the node or of a container in it, or none with a possible
// time. dst is then not valid.
func (d *Summary) Decode(dst *usage.Scrape, text []byte, node string, times Times) error {
	*dst = usage.Scrape{At: times.At, Sent: times.Sent, Date: times.Date, Containers: dst.Containers[:0]}
	d.index.reset()
	d.dst, d.latest, d.future, d.node, d.other = dst, times.latest(), 0, node, nil
	defer d.end()
	d.json.start(text)
	d.summary()
	if err := d.json.end(); err != nil {
		return err
	}
	if d.other != nil {
		return d.other
	}
	dst.Containers = d.dropped.removeFrom(dst.Containers)
	return checkSamples(dst, d.future)
}

// end releases the memory of others.
func (d *Summary) end() {
	d.dropped.reset()
	d.dst = nil
}

func (d *Summary) summary() {
	if !d.open('{') {
		return
	}
	for d.json.field() {
		switch string(d.json.key) {
		case "node":
			d.ofNode()
		case "pods":
			d.pods()
		default:
			d.json.skip()
		}
	}
}

// ofNode reads what is said of the node. When it started is left out: /metrics/resource does not
// say, and a node's counter must not seem to have begun anew because one of two answers has a start
// time.
func (d *Summary) ofNode() {
	if !d.open('{') {
		return
	}
	for d.json.field() {
		switch string(d.json.key) {
		case "nodeName":
			d.checkNode(d.name())
		default:
			d.reading(&d.dst.Node)
		}
	}
}

// checkNode notes that a summary speaks for another node: what answers where a node's kubelet
// should may stand in for many of them, or be the kubelet of a node that has got the address since.
func (d *Summary) checkNode(name []byte) {
	if len(name) > 0 && string(name) != d.node {
		d.other = fmt.Errorf("%w: its summary is that of %.100q", ErrOtherNode, name)
	}
}

func (d *Summary) pods() {
	if !d.open('[') {
		return
	}
	for d.json.element() {
		d.pod()
	}
}

// pod reads a pod. Its containers may come before its name.
func (d *Summary) pod() {
	if !d.open('{') {
		return
	}
	var id identity
	first := len(d.dst.Containers)
	d.partial = false
	for d.json.field() {
		switch string(d.json.key) {
		case "podRef":
			d.podRef(&id)
		case "containers":
			d.containers()
		default:
			d.json.skip()
		}
	}
	d.namePod(first, &id)
}

func (d *Summary) podRef(id *identity) {
	if !d.open('{') {
		return
	}
	for d.json.field() {
		switch string(d.json.key) {
		case "namespace":
			id.namespace = d.name()
		case "name":
			id.pod = d.name()
		default:
			d.json.skip()
		}
	}
}

// namePod sets the pod of the containers from the first one on. It drops them if the pod cannot be
// kept as a whole.
func (d *Summary) namePod(first int, id *identity) {
	containers := d.dst.Containers[first:]
	d.dst.Containers = d.dst.Containers[:first]
	for _, name := range [...][]byte{id.namespace, id.pod} {
		if reason, ok := d.Limits.admit(name); !ok {
			for range containers {
				d.lost(reason)
			}
			return
		}
	}
	if d.partial {
		d.dropped.add(id.namespace, id.pod)
		return
	}
	for _, c := range containers {
		id.container = c.Name
		i, hash := d.index.find(d.dst.Containers, id)
		if i >= 0 {
			d.skip(usage.Duplicate)
			continue
		}
		d.index.put(len(d.dst.Containers), hash)
		c.Namespace, c.Pod = id.namespace, id.pod
		d.dst.Containers = append(d.dst.Containers, c)
	}
}

func (d *Summary) containers() {
	if d.json.peek() != '[' {
		d.partial = !d.pass(usage.Malformed) || d.partial
		return
	}
	d.json.open()
	for d.json.element() {
		d.container()
	}
}

// container reads a container, whose pod is not known yet.
func (d *Summary) container() {
	if d.json.peek() != '{' {
		d.partial = !d.pass(usage.Malformed) || d.partial
		return
	}
	d.json.open()
	var c usage.ContainerSample
	for d.json.field() {
		switch string(d.json.key) {
		case "name":
			c.Name = d.name()
		case "startTime":
			c.StartedAt = d.startTime()
		default:
			d.reading(&c.Sample)
		}
	}
	reason, ok := d.Limits.admit(c.Name)
	if ok && len(d.dst.Containers) >= d.Limits.maxContainers() {
		reason, ok = usage.OverLimit, false
	}
	if !ok {
		d.lost(reason)
		d.partial = true
		return
	}
	d.dst.Containers = append(d.dst.Containers, c)
}

// reading reads a field of a node or of a container that may be one of the readings.
func (d *Summary) reading(s *usage.Sample) {
	switch string(d.json.key) {
	case "cpu":
		d.cpu(s)
	case "memory":
		d.memory(s)
	case "swap":
		d.swap(s)
	default:
		d.json.skip()
	}
}

// cpu reads the counter, and the kubelet's own rate. What a rate of 0 means is not for here to say.
func (d *Summary) cpu(s *usage.Sample) {
	if !d.open('{') {
		return
	}
	var used, rate figure
	at, untimed := d.dst.At, true
	for d.json.field() {
		switch string(d.json.key) {
		case "time":
			at, untimed = d.time()
		case "usageCoreNanoSeconds":
			used = d.figure(math.MaxUint64)
		case "usageNanoCores":
			rate = d.figure(math.MaxInt64)
		default:
			d.json.skip()
		}
	}
	if at == 0 {
		return
	}
	if used.there {
		s.CPUSeconds, s.At, s.Untimed = float64(used.value)/float64(time.Second), at, untimed
		s.Has |= usage.HasCPU
	}
	if rate.there {
		s.Rate, s.At, s.Untimed = rate.value, at, untimed
		s.Has |= usage.HasRate
	}
}

func (d *Summary) memory(s *usage.Sample) {
	if used, at := d.bytes("workingSetBytes"); used.there && at != 0 {
		s.Memory, s.MemoryAt = used.value, at
		s.Has |= usage.HasMemory
	}
}

func (d *Summary) swap(s *usage.Sample) {
	if used, at := d.bytes("swapUsageBytes"); used.there && at != 0 {
		s.Swap = used.value
		s.Has |= usage.HasSwap
	}
}

// bytes reads an object that has a time and, under the given key, a number of bytes.
func (d *Summary) bytes(key string) (used figure, at usage.Time) {
	if !d.open('{') {
		return figure{}, 0
	}
	at = d.dst.At
	for d.json.field() {
		switch string(d.json.key) {
		case "time":
			at, _ = d.time()
		case key:
			used = d.figure(math.MaxInt64)
		default:
			d.json.skip()
		}
	}
	return used, at
}

// open begins an object or array, if that is what comes next; if it is something else, that is
// passed over.
func (d *Summary) open(bracket byte) bool {
	if d.json.peek() != bracket {
		d.pass(usage.Malformed)
		return false
	}
	d.json.open()
	return true
}

// pass consumes a value that is not what it should be. Unless it is null, it is counted, and may
// have named what nothing else does.
func (d *Summary) pass(r usage.Reason) (isNull bool) {
	if isNull = d.json.peek() == 'n'; !isNull {
		d.lost(r)
	}
	d.json.skip()
	return isNull
}

// name reads a name; nil where there is none.
func (d *Summary) name() []byte {
	if d.json.peek() != '"' {
		d.pass(usage.Malformed)
		return nil
	}
	return d.json.string()
}

// figure is a number that may not be there.
type figure struct {
	value uint64
	there bool
}

// figure reads an integer from 0 to limit.
func (d *Summary) figure(limit uint64) figure {
	if c := d.json.peek(); c != '-' && !isDigit(c) {
		d.pass(usage.Malformed)
		return figure{}
	}
	value, err := strconv.ParseUint(string(d.json.number()), 10, 64)
	if err != nil || value > limit {
		d.skip(usage.BadValue)
		return figure{}
	}
	return figure{value, true}
}

// time reads the time of a reading, which is that of the scrape if it is null, and 0 if it cannot
// be. It reports whether it was null.
func (d *Summary) time() (t usage.Time, isNull bool) {
	if t, isNull = d.date(); isNull {
		return d.dst.At, true
	}
	return t, false
}

// startTime reads when a container started; 0 where it is not known.
func (d *Summary) startTime() usage.Time {
	if t, _ := d.date(); t >= usage.Time(oldestStart*time.Second) {
		return t
	}
	return 0
}

// date reads a time; 0 where it cannot be.
func (d *Summary) date() (t usage.Time, isNull bool) {
	if d.json.peek() != '"' {
		return 0, d.pass(usage.BadTime)
	}
	var date time.Time
	err := date.UnmarshalText(d.json.string())
	if err != nil || date.Unix() <= 0 || date.After(d.latest.Time()) {
		d.skip(usage.BadTime)
		if err == nil && ValidTime(date) {
			d.future = usage.At(date)
		}
		return 0, false
	}
	return usage.At(date), false
}

// skip counts a value that is left out.
func (d *Summary) skip(r usage.Reason) { d.dst.Skipped[r]++ }

// lost counts a value with which a container may have been left out.
func (d *Summary) lost(r usage.Reason) {
	d.skip(r)
	d.dst.Partial = true
}
