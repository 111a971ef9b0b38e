package reason

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns text that others have chosen in one line without control characters: a line break would forge a
// line of the log, and an escape sequence would control the terminal of its readers.
func Printable(text string) string {
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

// IsPrintable reports whether a name can be served: clients such as kubectl print it as it is.
func IsPrintable(name []byte) bool {
	for _, b := range name { // of Kubernetes, all names are ASCII
		if b < ' ' || b >= 0x7f {
			return utf8.Valid(name) && !bytes.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
		}
	}
	return true
}
