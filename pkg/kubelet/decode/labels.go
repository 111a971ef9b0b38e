package decode

import "bytes"

// identity names a container. The slices alias the text they were read from.
type identity struct {
	namespace, pod, container []byte
}

// field gives the name that a label carries, or nil when it is none of the three.
func (id *identity) field(label []byte) *[]byte {
	switch string(label) {
	case "namespace":
		return &id.namespace
	case "pod":
		return &id.pod
	case "container":
		return &id.container
	}
	return nil
}

// parseLabels reads the label block at the start of b, which begins with a brace, into id, and
// gives its length. Labels may come in any order, with others between them. Escaped values are
// unescaped in place, so that no memory is needed for them; escaped says that this happened, and
// that the bytes of the block are no longer those that were sent.
func parseLabels(b []byte, id *identity) (n int, escaped, ok bool) {
	for i := skipBlanks(b, 1); i < len(b); i = skipBlanks(b, i) {
		if b[i] == '}' {
			return i + 1, escaped, true
		}
		start := i
		for i < len(b) && isNameByte(b[i]) {
			i++
		}
		label := b[start:i]
		if i = skipBlanks(b, i); len(label) == 0 || isDigit(label[0]) || i == len(b) || b[i] != '=' {
			return 0, escaped, false
		}
		if i = skipBlanks(b, i+1); i == len(b) || b[i] != '"' {
			return 0, escaped, false
		}
		value, length, unescaped, ok := unquote(b[i+1:])
		if !ok {
			return 0, escaped, false
		}
		escaped = escaped || unescaped
		if field := id.field(label); field != nil {
			if *field != nil {
				return 0, escaped, false // the same label twice
			}
			*field = value
		}
		i = skipBlanks(b, i+1+length)
		if i < len(b) && b[i] == ',' {
			i++
		} else if i == len(b) || b[i] != '}' {
			return 0, escaped, false
		}
	}
	return 0, escaped, false
}

// unquote gives the value that ends at the next quote, and its length in b with that quote. The
// value is not nil, even when it is empty.
func unquote(b []byte) (value []byte, n int, escaped, ok bool) {
	end := bytes.IndexByte(b, '"')
	if end < 0 {
		return nil, 0, false, false
	}
	if bytes.IndexByte(b[:end], '\\') < 0 {
		return b[:end:end], end + 1, false, true
	}
	value, n, ok = unescape(b)
	return value, n, true, ok
}

// unescape does the same where there are escapes. It writes the value over its escaped form, which
// is never shorter.
func unescape(b []byte) (value []byte, n int, ok bool) {
	out := 0
	for i := 0; i < len(b); i++ {
		c := b[i]
		switch c {
		case '"':
			return b[:out:out], i + 1, true
		case '\\':
			i++
			if i == len(b) {
				return nil, 0, false
			}
			switch c = b[i]; c {
			case 'n':
				c = '\n'
			case '\\', '"':
			default:
				return nil, 0, false
			}
		}
		b[out] = c
		out++
	}
	return nil, 0, false
}

// isNameByte says whether c can be part of the name of a label. Names of metrics may have colons
// besides.
func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || isDigit(c)
}
