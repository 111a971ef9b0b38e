package decode

import (
	"errors"
	"strconv"
)

// parseFloat returns the value of the number at the start of b, which ends at a blank, and what
// follows the blanks. A number that is too large is infinite. strconv also accepts hexadecimal
// numbers and underscores, which the text exposition format does not have.
func parseFloat(b []byte) (value float64, rest []byte, ok bool) {
	n, ok := 0, true
	for ; n < len(b) && !isBlank(b[n]); n++ {
		if c := b[n]; c == 'x' || c == 'X' || c == '_' {
			ok = false
		}
	}
	if !ok {
		return 0, nil, false
	}
	value, err := strconv.ParseFloat(alias(b[:n]), 64)
	return value, b[skipBlanks(b, n):], err == nil || errors.Is(err, strconv.ErrRange)
}

// parseInt returns the value of the integer at the start of b, which ends at a blank, and what
// follows the blanks. It fails if the integer does not fit into an int64.
func parseInt(b []byte) (value int64, rest []byte, ok bool) {
	n := 0
	for n < len(b) && !isBlank(b[n]) {
		n++
	}
	value, err := strconv.ParseInt(alias(b[:n]), 10, 64)
	return value, b[skipBlanks(b, n):], err == nil
}

// Value is the value in a line of the text exposition format.
type Value struct {
	Float  float64
	Millis int64 // its time, since the epoch; meaningful if Timed
	Timed  bool
}

// ParseValue parses what follows the labels of a line: a value and an optional time.
func ParseValue(b []byte) (v Value, ok bool) {
	if v.Float, b, ok = parseFloat(b[skipBlanks(b, 0):]); ok && len(b) > 0 {
		v.Timed = true
		v.Millis, b, ok = parseInt(b)
	}
	return v, ok && len(b) == 0
}

func isDigit(c byte) bool { return c-'0' < 10 }

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// skipBlanks returns the position of the first byte of b, from i on, that is neither a space nor a
// tab.
func skipBlanks(b []byte, i int) int {
	for i < len(b) && isBlank(b[i]) {
		i++
	}
	return i
}
