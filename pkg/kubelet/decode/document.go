package decode

import (
	"fmt"
	"strconv"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// document walks through the JSON of /stats/summary.
type document struct {
	state

	json    scanner
	limits  *Limits
	node    string // the expected name of the node
	other   error  // not nil if the summary is of another node
	readUID bool   // whether the UIDs of pods are needed
	partial bool   // a container of the current pod was skipped
}

// podRef names a pod.
type podRef struct{ namespace, name, uid []byte }

// visitor decodes the parts of a summary into samples. The methods that have a key must consume the
// value of that field.
type visitor interface {
	nodeField(key string)
	beginPod()
	container() // consumes an object; its pod is not known yet
	podField(key string)
	endPod(ref podRef)
	finish() error
}

// decode has a visitor decode a summary.
func (d *document) decode(v visitor, text []byte, node string) error {
	d.node, d.other = node, nil
	d.json.begin(text)
	for key := range d.fields {
		switch key {
		case "node":
			for key := range d.fields {
				if key == "nodeName" {
					d.checkNode(d.name())
				} else {
					v.nodeField(key)
				}
			}
		case "pods":
			for range d.elements {
				d.pod(v)
			}
		default:
			d.json.skip()
		}
	}
	if err := d.json.finish(); err != nil {
		return err
	}
	if d.other != nil {
		return d.other
	}
	return v.finish()
}

// release drops the references to the text and to the scrape.
func (d *document) release() {
	d.state.release()
	d.json.begin(nil)
}

// pod decodes a pod. Its containers may come before its name.
func (d *document) pod(v visitor) {
	var ref podRef
	d.partial = false
	v.beginPod()
	for key := range d.fields {
		switch key {
		case "podRef":
			d.podRef(&ref)
		case "containers":
			d.checkType('[')
			for range d.elements {
				if d.checkType('{'); d.json.peek() == '{' {
					v.container()
				} else {
					d.skipValue(usage.Malformed)
				}
			}
		default:
			v.podField(key)
		}
	}
	v.endPod(ref)
}

func (d *document) podRef(ref *podRef) {
	for key := range d.fields {
		switch {
		case key == "namespace":
			ref.namespace = d.name()
		case key == "name":
			ref.name = d.name()
		case key == "uid" && d.readUID:
			ref.uid = d.name()
		default:
			d.json.skip()
		}
	}
}

// checkType marks the pod as partial unless the next value begins with the bracket or is null.
func (d *document) checkType(bracket byte) {
	c := d.json.peek()
	d.partial = d.partial || c != bracket && c != 'n'
}

// canKeep reports whether a container can be kept, given the number of others. If not, it skips the container.
func (d *document) canKeep(name []byte, others int) bool {
	reason, ok := d.limits.check(name)
	if ok && others >= d.limits.maxContainers() {
		reason, ok = usage.OverLimit, false
	}
	if !ok {
		d.skipContainer(reason)
		d.partial = true
	}
	return ok
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
