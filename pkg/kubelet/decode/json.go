package decode

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// document reads a JSON text once, from its start to its end, without allocating. After an error,
// which end returns, there are no further values.
//
// encoding/json cannot replace it. Unmarshal into structs allocates 400 MiB for the 4 MiB that a
// hostile kubelet can send, and reports only the first value of a wrong type.
//
// An object or array is read by a loop over Summary.keys or Summary.elements. The body of the loop
// must consume each value, and must not end the loop.
type document struct {
	decoder jsontext.Decoder
	source  bytes.Buffer
	text    []byte
	err     error
}

// read starts to read a text.
func (d *document) read(text []byte) {
	d.source = *bytes.NewBuffer(text)
	d.text, d.err = text, nil
	// As encoding/json, which kubelets use.
	d.decoder.Reset(&d.source, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// end returns an error unless the text was one valid JSON value, which has been consumed.
func (d *document) end() error {
	err := d.err
	if err == nil {
		switch _, err = d.decoder.ReadToken(); {
		case errors.Is(err, io.EOF):
			return nil
		case err == nil:
			err = errMoreJSON
		}
	}
	return reason.Errorf(reason.Undecodable, "%w: %w", errNotJSON, err)
}

// peek returns the first byte of the next token, with the digit 0 for a number, or 0 at the end.
func (d *document) peek() byte {
	if d.err != nil {
		return 0
	}
	return byte(d.decoder.PeekKind())
}

// ignore consumes any value.
func (d *document) ignore() {
	if d.err == nil {
		d.err = d.decoder.SkipValue()
	}
}

// scalar consumes and returns a string, number, true, false or null, which aliases the text.
func (d *document) scalar() []byte {
	if d.err != nil {
		return nil
	}
	value, err := d.decoder.ReadValue()
	if d.err = err; err != nil {
		return nil
	}
	end := d.decoder.InputOffset()
	return d.text[end-int64(len(value)) : end : end]
}

// str consumes a string and returns its value, which aliases the text unless it was escaped, and may
// be invalid UTF-8.
func (d *document) str() []byte {
	quoted := d.scalar()
	if len(quoted) < 2 {
		return nil
	}
	if bytes.IndexByte(quoted, '\\') < 0 || !utf8.Valid(quoted) { // AppendUnquote would replace what is invalid
		return quoted[1 : len(quoted)-1 : len(quoted)-1]
	}
	value, _ := jsontext.AppendUnquote(nil, quoted) // it is valid
	return value
}

// keys consumes an object and yields the key of each field. It skips anything else.
func (d *Summary) keys(yield func(key string) bool) {
	d.each('{', func() bool { return yield(alias(d.str())) })
}

// elements consumes an array and yields before each element. It skips anything else.
func (d *Summary) elements(yield func() bool) { d.each('[', yield) }

// each consumes an object or array and yields before each element of it. It skips anything else.
func (d *Summary) each(bracket byte, yield func() bool) {
	if d.peek() != bracket {
		d.wrongType(usage.Malformed)
		return
	}
	_, d.err = d.decoder.ReadToken()
	for d.err == nil {
		switch d.decoder.PeekKind() {
		case '}', ']', 0: // 0: an error, which ReadToken returns
			_, d.err = d.decoder.ReadToken()
			return
		}
		if !yield() {
			return
		}
	}
}

// wrongType consumes a value of the wrong type. It counts the value, which may have named a container,
// unless it is null.
func (d *Summary) wrongType(r usage.SkipReason) (isNull bool) {
	if isNull = d.peek() == 'n'; !isNull {
		d.skipContainer(r)
	}
	d.ignore()
	return isNull
}

// name decodes a string; nil if there is none.
func (d *Summary) name() []byte {
	if d.peek() != '"' {
		d.wrongType(usage.Malformed)
		return nil
	}
	return d.str()
}

// integer is a value that may be missing.
type integer struct {
	value   uint64
	present bool
}

// integer decodes an integer from 0 to limit.
func (d *Summary) integer(limit uint64) integer {
	if d.peek() != '0' {
		d.wrongType(usage.Malformed)
		return integer{}
	}
	value, err := strconv.ParseUint(alias(d.scalar()), 10, 64)
	if err != nil || value > limit {
		d.skip(usage.BadValue)
		return integer{}
	}
	return integer{value, true}
}

// time decodes the time of a sample: that of the scrape if it is null, 0 if it is not valid.
func (d *Summary) time() (t usage.NodeTime, isNull bool) {
	if t, isNull = d.date(); isNull {
		return d.scrapedAt, true
	}
	return t, false
}

// date decodes a time; 0 if it is not valid.
func (d *Summary) date() (t usage.NodeTime, isNull bool) {
	if d.peek() != '"' {
		return 0, d.wrongType(usage.BadTime)
	}
	var date time.Time
	err := date.UnmarshalText(d.str())
	if err != nil || date.Unix() <= 0 || date.After(d.latest.Time()) {
		d.skip(usage.BadTime)
		if err == nil && ValidTime(date) {
			d.future = usage.NodeAt(date)
		}
		return 0, false
	}
	return usage.NodeAt(date), false
}

// bytes decodes an object that has a number of bytes under the given key, and the time of it: that of
// the scrape if it has none, 0 if it is not valid.
func (d *Summary) bytes(name string) (used integer, at usage.NodeTime, untimed bool) {
	at, untimed = d.scrapedAt, true
	for key := range d.keys {
		switch key {
		case "time":
			at, untimed = d.time()
		case name:
			used = d.integer(math.MaxInt64)
		default:
			d.ignore()
		}
	}
	return used, at, untimed
}
