package decode

import (
	"math"
	"strconv"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

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
	d.json.token()
	return true
}

// skipValue consumes a value of the wrong type. It counts the value, which may have named a
// container, unless it is null.
func (d *Summary) skipValue(r usage.SkipReason) (isNull bool) {
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

// bytes decodes an object that has a number of bytes under the given key, and the time of it: that of
// the scrape if it has none, 0 if it is not valid.
func (d *Summary) bytes(name string) (used number, at usage.Time, untimed bool) {
	at, untimed = d.dst.At, true
	for key := range d.fields {
		switch key {
		case "time":
			at, untimed = d.time()
		case name:
			used = d.number(math.MaxInt64)
		default:
			d.json.skip()
		}
	}
	return used, at, untimed
}
