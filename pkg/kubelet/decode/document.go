package decode

import (
	"fmt"
	"strconv"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// document reads the JSON of /stats/summary.
type document struct {
	state

	json  scanner
	node  string // the expected name of the node
	other error  // not nil if the summary is of another node
}

// begin must be called before anything is read, and release at the end.
func (d *document) begin(dst *usage.Scrape, text []byte, node string, times Times) {
	d.state.begin(dst, times)
	d.node, d.other = node, nil
	d.json.begin(text)
}

func (d *document) release() {
	d.state.release()
	d.json.begin(nil)
}

// checkNode rejects the summary of another node. The server at a node's address may represent many
// kubelets, or be the kubelet of another node that has the address now.
func (d *document) checkNode(name []byte) {
	if len(name) > 0 && string(name) != d.node {
		d.other = fmt.Errorf("%w: its summary is that of %.100q", ErrOtherNode, name)
	}
}

// fields consumes an object and yields its keys. The body of the loop must consume the value of
// each field, and must not end the loop. Anything but an object is skipped.
func (d *document) fields(yield func(key string) bool) {
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
func (d *document) elements(yield func() bool) {
	if !d.open('[') {
		return
	}
	for d.json.element() && yield() {
	}
}

// open begins an object or array. It skips anything else and returns false.
func (d *document) open(bracket byte) bool {
	if d.json.peek() != bracket {
		d.skipValue(usage.Malformed)
		return false
	}
	d.json.open()
	return true
}

// skipValue consumes a value of the wrong type. It counts the value, which may have named a
// container, unless it is null.
func (d *document) skipValue(r usage.Reason) (isNull bool) {
	if isNull = d.json.peek() == 'n'; !isNull {
		d.skipContainer(r)
	}
	d.json.skip()
	return isNull
}

// name decodes a string; nil if there is none.
func (d *document) name() []byte {
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
func (d *document) number(limit uint64) number {
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
func (d *document) time() (t usage.Time, isNull bool) {
	if t, isNull = d.date(); isNull {
		return d.dst.At, true
	}
	return t, false
}

// date decodes a time; 0 if it is not valid.
func (d *document) date() (t usage.Time, isNull bool) {
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
