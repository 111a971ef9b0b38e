package decode

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Summary decodes responses to /stats/summary, in JSON. The zero value is ready for use. A Summary
// that is reused decodes without allocating. It must not be copied, nor used by two goroutines at
// once.
type Summary struct {
	Limits Limits
	state

	json    scanner
	node    string // the expected name of the node
	other   error  // not nil if the summary is of another node
	partial bool   // a container of the current pod was skipped
}

// Decode parses the summary of a node into dst, whose memory it reuses. The result is that of
// Text.Decode with two differences: times are in whole seconds, because kubelets truncate them, and
// samples have the kubelet-reported rate.
//
// Decode ignores other fields and counts the values that it skips in dst.Skipped, by reason. A
// field that is null is missing; of duplicates, the last one counts.
//
// Decode returns ErrNotJSON if the text is not valid JSON; ErrOtherNode if it is the summary of
// another node; ErrNoSamples if there is no sample of the node or of a container; ErrUndecodable if
// there is none, but a value of another type than in summaries; and a BadTimeError if no sample has
// a valid time. dst is not valid after an error.
func (d *Summary) Decode(dst *usage.Scrape, text []byte, node string, times Times) error {
	d.begin(dst, times)
	defer d.release()
	if err := validateJSON(text); err != nil {
		return err
	}
	d.json, d.node, d.other = scanner{text: text}, node, nil
	d.summary()
	if d.other != nil {
		return d.other
	}
	return d.finish()
}

func (d *Summary) release() {
	d.state.release()
	d.json = scanner{}
}

func (d *Summary) summary() {
	for key := range d.fields {
		switch key {
		case "node":
			d.nodeStats()
		case "pods":
			for range d.elements {
				d.pod()
			}
		default:
			d.json.skip()
		}
	}
}

// nodeStats decodes the samples of the node. Its start time is ignored: /metrics/resource does not
// have it, and a node must not seem to restart because one of two responses does.
func (d *Summary) nodeStats() {
	for key := range d.fields {
		if key == "nodeName" {
			d.checkNode(d.name())
			continue
		}
		d.sample(key, &d.dst.Node)
	}
}

// checkNode rejects the summary of another node. The server at a node's address may represent many
// kubelets, or be the kubelet of another node that has the address now.
func (d *Summary) checkNode(name []byte) {
	if len(name) > 0 && string(name) != d.node {
		d.other = fmt.Errorf("%w: its summary is that of %.100q", ErrOtherNode, name)
	}
}

// pod decodes a pod. Its containers may come before its name.
func (d *Summary) pod() {
	var namespace, pod []byte
	first := len(d.dst.Containers)
	d.partial = false
	for key := range d.fields {
		switch key {
		case "podRef":
			for key := range d.fields {
				switch key {
				case "namespace":
					namespace = d.name()
				case "name":
					pod = d.name()
				default:
					d.json.skip()
				}
			}
		case "containers":
			d.checkType('[')
			for range d.elements {
				d.container()
			}
		default:
			d.json.skip()
		}
	}
	containers := d.dst.Containers[first:]
	d.dst.Containers = d.dst.Containers[:first]
	d.addPod(namespace, pod, containers)
}

// checkType marks the pod as partial unless the next value begins with the bracket or is null.
func (d *Summary) checkType(bracket byte) {
	c := d.json.peek()
	d.partial = d.partial || c != bracket && c != 'n'
}

// addPod appends the containers of a pod, or drops the pod if it cannot be kept as a whole.
func (d *Summary) addPod(namespace, pod []byte, containers []usage.ContainerSample) {
	if reason, ok := d.Limits.check(namespace, pod); !ok {
		for range containers {
			d.skipContainer(reason)
		}
		return
	}
	if d.partial {
		d.dropPod(namespace, pod)
		return
	}
	for _, c := range containers {
		c.Namespace, c.Pod = namespace, pod
		id := containerID{alias(namespace), alias(pod), alias(c.Name)}
		if _, known := d.index[id]; known {
			d.skip(usage.Duplicate)
			continue
		}
		d.index[id] = len(d.dst.Containers)
		d.dst.Containers = append(d.dst.Containers, c)
	}
}

// container appends a container to dst.Containers. Its pod is not known yet.
func (d *Summary) container() {
	d.checkType('{')
	if d.json.peek() != '{' {
		d.skipValue(usage.Malformed)
		return
	}
	var c usage.ContainerSample
	for key := range d.fields {
		switch key {
		case "name":
			c.Name = d.name()
		case "startTime":
			c.StartedAt = d.startTime()
		default:
			d.sample(key, &c.Sample)
		}
	}
	reason, ok := d.Limits.check(c.Name)
	if ok && len(d.dst.Containers) >= d.Limits.maxContainers() {
		reason, ok = usage.OverLimit, false
	}
	if !ok {
		d.skipContainer(reason)
		d.partial = true
		return
	}
	d.dst.Containers = append(d.dst.Containers, c)
}

// sample decodes a field of a node or container into s, if it is a part of a sample.
func (d *Summary) sample(key string, s *usage.Sample) {
	switch key {
	case "cpu":
		d.cpu(s)
	case "memory":
		if used, at := d.bytes("workingSetBytes"); used.present && at != 0 {
			s.Memory, s.MemoryAt = used.value, at
			s.Has |= usage.HasMemory
		}
	case "swap":
		if used, at := d.bytes("swapUsageBytes"); used.present && at != 0 {
			s.Swap = used.value
			s.Has |= usage.HasSwap
		}
	default:
		d.json.skip()
	}
}

// cpu decodes the counter and the kubelet-reported rate. A rate of 0 may mean that the kubelet does
// not know it; see usage.FromKubeletRate.
func (d *Summary) cpu(s *usage.Sample) {
	var used, rate number
	at, untimed := d.dst.At, true
	for key := range d.fields {
		switch key {
		case "time":
			at, untimed = d.time()
		case "usageCoreNanoSeconds":
			used = d.number(math.MaxUint64)
		case "usageNanoCores":
			rate = d.number(math.MaxInt64)
		default:
			d.json.skip()
		}
	}
	if at == 0 || !used.present && !rate.present {
		return
	}
	s.At, s.Untimed = at, untimed
	if used.present {
		s.CPUSeconds = float64(used.value) / float64(time.Second)
		s.Has |= usage.HasCPU
	}
	if rate.present {
		s.Rate = rate.value
		s.Has |= usage.HasRate
	}
}

// bytes decodes an object that has a time and, under the given key, a number of bytes.
func (d *Summary) bytes(name string) (used number, at usage.Time) {
	at = d.dst.At
	for key := range d.fields {
		switch key {
		case "time":
			at, _ = d.time()
		case name:
			used = d.number(math.MaxInt64)
		default:
			d.json.skip()
		}
	}
	return used, at
}

// fields consumes an object and yields its keys. The body of the loop must consume the value of
// each field, and must not end the loop. Anything but an object is skipped.
func (d *Summary) fields(yield func(key string) bool) {
	if !d.open('{') {
		return
	}
	for {
		key, ok := d.json.field()
		if !ok || !yield(alias(key)) {
			return
		}
	}
}

// elements consumes an array and yields once for each element, which the body of the loop must
// consume.
func (d *Summary) elements(yield func() bool) {
	if !d.open('[') {
		return
	}
	for d.json.element() && yield() {
	}
}

// open begins an object or array. It skips anything else and returns false.
func (d *Summary) open(bracket byte) bool {
	if d.json.peek() != bracket {
		d.skipValue(usage.Malformed)
		return false
	}
	d.json.open()
	return true
}

// skipValue consumes a value of the wrong type. It counts the value, which may have named a
// container, unless it is null.
func (d *Summary) skipValue(r usage.Reason) (isNull bool) {
	if isNull = d.json.peek() == 'n'; !isNull {
		d.skipContainer(r)
	}
	d.json.skip()
	return isNull
}

// name decodes a string; nil if there is none.
func (d *Summary) name() []byte {
	if d.json.peek() != '"' {
		d.skipValue(usage.Malformed)
		return nil
	}
	return d.json.str()
}

// number is an integer that may be missing.
type number struct {
	value   uint64
	present bool
}

// number decodes an integer from 0 to limit.
func (d *Summary) number(limit uint64) number {
	if c := d.json.peek(); c != '-' && !isDigit(c) {
		d.skipValue(usage.Malformed)
		return number{}
	}
	value, err := strconv.ParseUint(alias(d.json.scalar()), 10, 64)
	if err != nil || value > limit {
		d.skip(usage.BadValue)
		return number{}
	}
	return number{value, true}
}

// time decodes the time of a sample: that of the scrape if it is null, 0 if it is not valid.
func (d *Summary) time() (t usage.Time, isNull bool) {
	if t, isNull = d.date(); isNull {
		return d.dst.At, true
	}
	return t, false
}

// startTime decodes when a container started; 0 if that is not known.
func (d *Summary) startTime() usage.Time {
	if t, _ := d.date(); t >= usage.Time(oldestStart*time.Second) {
		return t
	}
	return 0
}

// date decodes a time; 0 if it is not valid.
func (d *Summary) date() (t usage.Time, isNull bool) {
	if d.json.peek() != '"' {
		return 0, d.skipValue(usage.BadTime)
	}
	var date time.Time
	err := date.UnmarshalText(d.json.str())
	if err != nil || date.Unix() <= 0 || date.After(d.latest.Time()) {
		d.skip(usage.BadTime)
		if err == nil && ValidTime(date) {
			d.future = usage.At(date)
		}
		return 0, false
	}
	return usage.At(date), false
}
