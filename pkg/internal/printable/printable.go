// Package printable keeps text that others have chosen from controlling the terminal of its readers, and from forging
// lines of a log.
package printable

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
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

// IsName reports whether a name can be served: clients such as kubectl print it unchanged.
func IsName(name []byte) bool {
	for _, b := range name { // of Kubernetes, all names are ASCII
		if b < ' ' || b >= 0x7f {
			return utf8.Valid(name) && !bytes.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
		}
	}
	return true
}
