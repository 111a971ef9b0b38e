package decode

import (
	"errors"
	"strconv"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Value is the value in a line of the text exposition format.
type Value struct {
	Float  float64 // infinite if it is too large
	Millis int64   // its time, since the epoch; meaningful if Timed
	Timed  bool
}

// ParseValue parses what follows the labels of a line: a value and an optional time. It returns the
// reason if it fails.
func ParseValue(b []byte) (v Value, r usage.SkipReason, ok bool) {
	number, b, isDecimal := cutNumber(b[skipBlanks(b, 0):])
	var err error
	v.Float, err = strconv.ParseFloat(alias(number), 64)
	if !isDecimal || err != nil && !errors.Is(err, strconv.ErrRange) {
		return Value{}, usage.Malformed, false
	}
	if len(b) > 0 {
		number, b, _ = cutNumber(b)
		v.Timed = true
		if v.Millis, err = strconv.ParseInt(alias(number), 10, 64); err != nil {
			return v, usage.BadTime, false
		}
	}
	return v, usage.Malformed, len(b) == 0
}

// cutNumber returns the number at the start of b, which ends at a blank, and what follows the blanks.
// A decimal number has no underscores: strconv accepts them and hexadecimal numbers, which the text
// exposition format does not have.
func cutNumber(b []byte) (number, rest []byte, isDecimal bool) {
	n, isDecimal := 0, true
	for ; n < len(b) && !isBlank(b[n]); n++ {
		if c := b[n]; c == 'x' || c == 'X' || c == '_' {
			isDecimal = false
		}
	}
	return b[:n], b[skipBlanks(b, n):], isDecimal
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
