package usage

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// MaxNameBytes is the length of the longest name that Kubernetes allows.
const MaxNameBytes = 253

// CheckNames reports whether all of these names of pods and containers can be kept and served, and the reason if one
// cannot.
func CheckNames(names ...[]byte) (r SkipReason, ok bool) {
	for _, name := range names {
		switch {
		case len(name) == 0:
			return NoIdentity, false
		case len(name) > MaxNameBytes:
			return OverLimit, false
		case !isPrintable(name):
			return Malformed, false
		}
	}
	return 0, true
}

// isPrintable reports whether a name can be served: clients such as kubectl print it unchanged.
func isPrintable(name []byte) bool {
	for _, b := range name { // of Kubernetes, all names are ASCII
		if b < ' ' || b >= 0x7f {
			return utf8.Valid(name) && !bytes.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
		}
	}
	return true
}
