package decode

import (
	"errors"
	"strconv"
)

// exactPow10 holds the powers of ten that a float64 represents exactly.
var exactPow10 = [...]float64{
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

const (
	maxExactInt    = 1 << 53 // every integer up to here is a float64
	maxExactDigits = 19      // as many decimal digits always fit into a uint64
)

// parseFloat reads the number at the start of b, which ends at a blank or at the end of b. It gives
// what strconv.ParseFloat gives, bit for bit, and how long the number is. Numbers that are too
// large come out as infinite.
//
// Most figures of a kubelet are decimal integers m below 2⁵³, scaled by a power of ten of at most
// 22: both are exact, so that one multiplication or division rounds as it should. All others are
// left to strconv.
func parseFloat(b []byte) (value float64, n int, ok bool) {
	mantissa, exponent, n, ok := parseDecimal(b)
	if !ok || mantissa > maxExactInt || n < len(b) && !isBlank(b[n]) {
		return parseAnyFloat(b)
	}
	switch {
	case exponent == 0:
		return float64(mantissa), n, true
	case exponent > 0 && exponent < len(exactPow10):
		return float64(float64(mantissa) * exactPow10[exponent]), n, true
	case exponent < 0 && -exponent < len(exactPow10):
		return float64(float64(mantissa) / exactPow10[-exponent]), n, true
	}
	return parseAnyFloat(b)
}

// parseDecimal reads a number of the form 12, 12.5 or 1.25e+06 as mantissa × 10^exponent. It is not
// ok when there is something else, or too much of it; what follows the number is for the caller to
// judge.
func parseDecimal(b []byte) (mantissa uint64, exponent, n int, ok bool) {
	i := 0
	for ; i < len(b) && isDigit(b[i]); i++ {
		mantissa = mantissa*10 + uint64(b[i]-'0')
	}
	digits := i
	if i < len(b) && b[i] == '.' {
		i++
		point := i
		for ; i < len(b) && isDigit(b[i]); i++ {
			mantissa = mantissa*10 + uint64(b[i]-'0')
		}
		exponent = point - i
		digits -= exponent
	}
	if digits == 0 || digits > maxExactDigits {
		return 0, 0, 0, false
	}
	if i == len(b) || b[i] != 'e' {
		return mantissa, exponent, i, true
	}
	scale, length, ok := parseExponent(b[i+1:])
	return mantissa, exponent + scale, i + 1 + length, ok
}

// parseExponent reads what follows the e of a number: one or two digits, with or without a sign.
func parseExponent(b []byte) (exponent, n int, ok bool) {
	negative := false
	if len(b) > 0 && (b[0] == '+' || b[0] == '-') {
		negative = b[0] == '-'
		n++
	}
	first := n
	for ; n < len(b) && n < first+2 && isDigit(b[n]); n++ {
		exponent = exponent*10 + int(b[n]-'0')
	}
	if negative {
		exponent = -exponent
	}
	return exponent, n, n > first
}

// parseAnyFloat reads every other number. Hexadecimal ones and underscores, which strconv knows,
// are not part of the text exposition format.
func parseAnyFloat(b []byte) (value float64, n int, ok bool) {
	ok = true
	for ; n < len(b) && !isBlank(b[n]); n++ {
		if c := b[n]; c == 'p' || c == 'P' || c == '_' {
			ok = false
		}
	}
	if !ok {
		return 0, n, false
	}
	value, err := strconv.ParseFloat(string(b[:n]), 64)
	return value, n, err == nil || errors.Is(err, strconv.ErrRange)
}

// maxIntDigits is how many digits parseInt takes, leading zeros apart; as many always fit into an
// int64.
const maxIntDigits = 18

// parseInt reads the integer at the start of b, which ends at a blank or at the end of b, and says
// how long it is. It is not ok when there is something else, or when it is out of range.
func parseInt(b []byte) (value int64, n int, ok bool) {
	negative := false
	if len(b) > 0 && (b[0] == '+' || b[0] == '-') {
		negative = b[0] == '-'
		n++
	}
	first := n
	for n < len(b) && b[n] == '0' {
		n++
	}
	significant := n
	for ; n < len(b) && isDigit(b[n]); n++ {
		value = value*10 + int64(b[n]-'0')
	}
	if n == first || n-significant > maxIntDigits || n < len(b) && !isBlank(b[n]) {
		return 0, n, false
	}
	if negative {
		value = -value
	}
	return value, n, true
}

func isDigit(c byte) bool { return c-'0' < 10 }

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// skipBlanks gives the position of the first byte of b, from i on, that is neither a space nor a
// tab.
func skipBlanks(b []byte, i int) int {
	for i < len(b) && isBlank(b[i]) {
		i++
	}
	return i
}
