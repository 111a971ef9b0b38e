// Package printable keeps text that others have chosen from controlling the terminal of its readers, and from forging
// lines of a log.
package printable

import (
	"strings"
	"unicode"
)

// Text returns text in one line without control characters.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, text)
}
