// Package decode reads the responses of an engine with Prometheus' HTTP API while they arrive.
// Memory is limited, whatever an engine, or who writes series into it, sends.
package decode

import (
	"bytes"
	"cmp"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/internal/printable"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Series is one series of a response. The next one overwrites its memory.
type Series struct {
	Labels []Label
	Points []Point // in the order of their times
	Bad    int     // points that were skipped: the value is infinite or below 0, or the time not after the last one

	text      []byte // of the labels
	overLimit bool   // whether it has more labels or points than the limits allow
}

// Label is a label of a series.
type Label struct{ Name, Value []byte }

// Point is one sample.
type Point struct {
	At    usage.NodeTime
	Value float64
}

// MaxUnixSeconds is the latest time of a sample, in the year 2255; a usage.NodeTime ends in 2262.
const MaxUnixSeconds = 9_000_000_000

const (
	maxLabels     = 512
	maxLabelBytes = 64 << 10
	maxPoints     = 16 << 10 // of one series; more than one in each second of the longest range
	maxWarning    = 256      // bytes of a warning or error of an engine that are reported
)

// Time converts seconds since 1970. Engines store milliseconds; a float64 is not exact.
func Time(seconds float64) usage.NodeTime {
	return usage.NodeTime(math.Round(seconds*1000)) * usage.NodeTime(time.Millisecond)
}

// Get returns the value of a label, or nil. An empty label is equal to none.
func (s *Series) Get(name string) []byte {
	for _, l := range s.Labels {
		if len(l.Value) > 0 && string(l.Name) == name {
			return l.Value
		}
	}
	return nil
}

// keep returns a copy of the text of a label, unless the series then has more than the limit.
func (s *Series) keep(text []byte, isCut bool) []byte {
	if s.overLimit = s.overLimit || isCut || len(s.text)+len(text) > maxLabelBytes; s.overLimit {
		return nil
	}
	start := len(s.text)
	s.text = append(s.text, text...)
	return s.text[start:]
}

// Response is what a response has apart from its series.
type Response struct {
	Status, ErrorType, Message string
	Warning                    string // the first one: the engine does not have all series
	Series                     int
	OverLimit                  int // of series
}

// Decode reads the response to an instant query, and calls emit for each series of it. A
// series is valid until emit returns. Series that exceed a limit are skipped. The series of an
// incomplete response are emitted before the error is known.
//
// See https://prometheus.io/docs/prometheus/latest/querying/api/.
func Decode(r io.Reader, emit func(*Series)) (*Response, error) {
	d := &decoder{scanner: newScanner(r), emit: emit}
	for name := range d.fields {
		switch string(name) {
		case "status":
			d.response.Status = d.short()
		case "errorType":
			d.response.ErrorType = d.short()
		case "error":
			d.response.Message = d.short()
		case "warnings":
			for range d.elements {
				d.response.Warning = cmp.Or(d.response.Warning, d.short())
			}
		case "isPartial": // VictoriaMetrics: whether some storage nodes have not responded
			if string(d.value()) == "true" {
				d.response.Warning = "the response is partial"
			}
		case "data":
			d.data()
		default:
			d.skip()
		}
	}
	if err := d.finish(); err != nil { // it reads until the end: compressed responses end with a checksum
		return nil, err
	}
	return &d.response, nil
}

type decoder struct {
	*scanner
	emit     func(*Series)
	series   Series
	response Response
}

// short reads a string and keeps only its start. It may be logged.
func (d *decoder) short() string {
	text, _ := d.str()
	return printable.Text(string(text[:min(len(text), maxWarning)]))
}

func (d *decoder) data() {
	for name := range d.fields {
		if string(name) != "result" {
			d.skip()
			continue
		}
		for range d.elements {
			d.readSeries()
		}
	}
}

func (d *decoder) readSeries() {
	s := &d.series
	s.Labels, s.Points, s.text, s.Bad, s.overLimit = s.Labels[:0], s.Points[:0], s.text[:0], 0, false
	for name := range d.fields {
		switch string(name) {
		case "metric":
			d.readLabels()
		case "values":
			for range d.elements {
				d.readPoint()
			}
		case "value":
			d.readPoint()
		default:
			d.skip()
		}
	}
	switch {
	case d.err != nil:
		return
	case s.overLimit:
		d.response.OverLimit++
	default:
		d.emit(s)
	}
	d.response.Series++
}

// readLabels reads labels. Nothing more is kept of a series that exceeds a limit.
func (d *decoder) readLabels() {
	s := &d.series
	for name, isCut := range d.fields {
		if s.overLimit = s.overLimit || len(s.Labels) >= maxLabels; s.overLimit {
			d.skip()
			continue
		}
		s.Labels = append(s.Labels, Label{Name: s.keep(name, isCut), Value: s.keep(d.str())})
	}
}

// readPoint reads [TIME, "VALUE"]. It skips a point that has no valid value, such as NaN.
func (d *decoder) readPoint() {
	s := &d.series
	seconds, quoted, isPair := bytes.Cut(bytes.Trim(d.value(), "[] \t\r\n"), []byte{','})
	at, err := strconv.ParseFloat(string(bytes.TrimSpace(seconds)), 64)
	if !isPair || err != nil || !(at > 0 && at <= MaxUnixSeconds) {
		d.fail("a sample is not a time and a value")
		return
	}
	value, err := strconv.ParseFloat(string(bytes.Trim(quoted, "\" \t\r\n")), 64)
	p := Point{Time(at), value}
	switch {
	case math.IsNaN(p.Value): // VictoriaMetrics: the marker of a series that has ended
	case err != nil, value < 0, math.IsInf(value, 1), len(s.Points) > 0 && p.At <= s.Points[len(s.Points)-1].At:
		s.Bad++
	case len(s.Points) >= maxPoints:
		s.overLimit = true
	default:
		s.Points = append(s.Points, p)
	}
}
