package decode

import "bytes"

// containerLabels are the labels that name a container. They alias the text.
type containerLabels struct {
	namespace, pod, container []byte
}

func (l *containerLabels) id() containerID {
	return containerID{alias(l.namespace), alias(l.pod), alias(l.container)}
}

// value returns where the value of a label is stored, or nil for any other label.
func (l *containerLabels) value(name []byte) *[]byte {
	switch string(name) {
	case "namespace":
		return &l.namespace
	case "pod":
		return &l.pod
	case "container":
		return &l.container
	}
	return nil
}

// parse reads the label block at the start of b, which begins with a brace, and returns its length.
// Labels may come in any order, with others between them. Escaped values are unescaped in place;
// escaped reports whether there were any, so that the block is no longer as it was sent.
func (l *containerLabels) parse(b []byte) (n int, escaped, ok bool) {
	for i := skipBlanks(b, 1); i < len(b); i = skipBlanks(b, i) {
		if b[i] == '}' {
			return i + 1, escaped, true
		}
		start := i
		for i < len(b) && isNameByte(b[i]) {
			i++
		}
		name := b[start:i]
		if i = skipBlanks(b, i); len(name) == 0 || isDigit(name[0]) || i == len(b) || b[i] != '=' {
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
		if known := l.value(name); known != nil {
			if *known != nil {
				return 0, escaped, false // a duplicate
			}
			*known = value
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

// unquote returns the value that ends at the next quote, and its length in b including the quote.
// The value is not nil, even if it is empty.
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

// unescape is unquote for a value with escapes. It writes the value over its escaped form, which is
// never shorter.
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

// isNameByte reports whether c can be part of the name of a label.
func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || isDigit(c)
}
