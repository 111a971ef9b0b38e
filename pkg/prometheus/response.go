package prometheus

import (
	"bufio"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// series is one series of a response. The next one overwrites its memory.
type series struct {
	labels []label
	points []point // in the order of their times
	bad    int     // points that were skipped: the value is infinite or below 0, or the time not after the last one

	text      []byte // of labels
	overLimit bool   // whether it has more labels or points than the limits allow
}

// label is a name and a value in series.text.
type label struct{ name, value span }

type span struct{ start, end int }

// point is one sample.
type point struct {
	at    usage.Time
	value float64
}

const (
	maxLabels      = 512
	maxLabelBytes  = 64 << 10
	maxPoints      = 16 << 10      // of one series; more than one in each second of the longest range
	readBuffer     = 64 << 10      // bytes
	maxWarning     = 256           // bytes of a warning or error of an engine that are reported
	maxWarnings    = 16            // that are kept of one response
	maxUnixSeconds = 9_000_000_000 // in the year 2255; a usage.Time ends in 2262
)

// timeOf converts seconds since 1970. Engines store milliseconds; a float64 is not exact.
func timeOf(seconds float64) usage.Time {
	return usage.Time(math.Round(seconds*1000)) * usage.Time(time.Millisecond)
}

func (s *series) name(l label) []byte  { return s.text[l.name.start:l.name.end] }
func (s *series) value(l label) []byte { return s.text[l.value.start:l.value.end] }

// get returns the value of a label, or nil. An empty label is equal to none.
func (s *series) get(name string) []byte {
	for _, l := range s.labels {
		if string(s.name(l)) == name {
			if value := s.value(l); len(value) > 0 {
				return value
			}
			return nil
		}
	}
	return nil
}

func (s *series) reset() {
	s.labels, s.points, s.text, s.bad, s.overLimit = s.labels[:0], s.points[:0], s.text[:0], 0, false
}

// add adds the text of a label, unless the series then has more text than the limit.
func (s *series) add(text []byte) span {
	start := len(s.text)
	if start+len(text) > maxLabelBytes {
		s.overLimit = true
		return span{start, start}
	}
	s.text = append(s.text, text...)
	return span{start, len(s.text)}
}

// response is what a response has apart from its series.
type response struct {
	status, errorType, message string
	warnings                   []string
	partial                    bool // VictoriaMetrics: not all storage nodes have responded
	series                     int
	overLimit                  int // of series
}

// decodeResponse reads the response to an instant query, and calls emit for each series of it. A
// series is valid until emit returns. Series that exceed a limit are skipped. The series of an
// incomplete response are emitted before the error is known.
//
// See https://prometheus.io/docs/prometheus/latest/querying/api/.
func decodeResponse(r io.Reader, emit func(*series)) (*response, error) {
	d := &decoder{scanner: scanner{r: bufio.NewReaderSize(r, readBuffer)}, emit: emit}
	err := d.object(func(name []byte) error {
		switch string(name) {
		case "status":
			return d.short(&d.response.status)
		case "errorType":
			return d.short(&d.response.errorType)
		case "error":
			return d.short(&d.response.message)
		case "warnings":
			return d.warnings()
		case "isPartial":
			err := d.readScalar()
			d.response.partial = string(d.text) == "true"
			return err
		case "data":
			return d.data()
		}
		return d.skip()
	})
	if err == nil {
		err = d.end() // compressed responses end with a checksum
	}
	if err != nil {
		return nil, err
	}
	return &d.response, nil
}

type decoder struct {
	scanner
	emit     func(*series)
	series   series
	response response
}

// short reads a string of which only the start is kept. It may be logged.
func (d *decoder) short(into *string) error {
	err := d.readScalar()
	*into = printable(d.text[:min(len(d.text), maxWarning)])
	return err
}

// printable returns text in one line without control characters: a line break would forge a line
// of the log.
func printable(text []byte) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, string(text))
}

func (d *decoder) warnings() error {
	return d.orNull(func() error {
		return d.array(func() error {
			var warning string
			err := d.short(&warning)
			if len(d.response.warnings) < maxWarnings {
				d.response.warnings = append(d.response.warnings, warning)
			}
			return err
		})
	})
}

// orNull calls read, unless the value is null.
func (d *decoder) orNull(read func() error) error {
	if c, err := d.next(); err != nil || c == 'n' {
		if err == nil {
			err = d.skip()
		}
		return err
	}
	return read()
}

func (d *decoder) data() error {
	return d.orNull(func() error {
		return d.object(func(name []byte) error {
			if string(name) != "result" {
				return d.skip()
			}
			return d.orNull(func() error { return d.array(d.readSeries) })
		})
	})
}

func (d *decoder) readSeries() error {
	d.series.reset()
	err := d.object(func(name []byte) error {
		switch string(name) {
		case "metric":
			return d.object(d.readLabel)
		case "values":
			return d.array(d.readPoint)
		case "value":
			return d.readPoint()
		}
		return d.skip()
	})
	if err != nil {
		return err
	}
	d.response.series++
	if d.series.overLimit {
		d.response.overLimit++
		return nil
	}
	d.emit(&d.series)
	return nil
}

// readLabel reads the value of a label. Nothing more is kept of a series that exceeds a limit.
func (d *decoder) readLabel(name []byte) error {
	s := &d.series
	s.overLimit = s.overLimit || d.isCut || len(s.labels) >= maxLabels
	if s.overLimit {
		return d.readString()
	}
	l := label{name: s.add(name)}
	if err := d.readString(); err != nil {
		return err
	}
	l.value = s.add(d.text)
	s.labels, s.overLimit = append(s.labels, l), s.overLimit || d.isCut
	return nil
}

// readPoint reads [TIME, "VALUE"]. It skips a point that has no valid value, such as NaN.
func (d *decoder) readPoint() error {
	var p point
	var valid [2]bool
	n := 0
	err := d.array(func() error {
		if err := d.readScalar(); err != nil {
			return err
		}
		f, err := strconv.ParseFloat(string(d.text), 64)
		switch n {
		case 0:
			if valid[0] = err == nil && f > 0 && f <= maxUnixSeconds; valid[0] {
				p.at = timeOf(f)
			}
		case 1:
			p.value = f
			valid[1] = err == nil && f >= 0 && !math.IsInf(f, 1)
		}
		n++
		return nil
	})
	switch {
	case err != nil:
		return err
	case n != 2 || !valid[0]:
		return &invalidJSON{"a sample is not a time and a value"}
	case math.IsNaN(p.value): // VictoriaMetrics: the marker of a series that has ended
	case !valid[1], len(d.series.points) > 0 && p.at <= d.series.points[len(d.series.points)-1].at:
		d.series.bad++
	case len(d.series.points) >= maxPoints:
		d.series.overLimit = true
	default:
		d.series.points = append(d.series.points, p)
	}
	return nil
}
