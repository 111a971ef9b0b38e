package decode

import "bytes"

// containerLabels are the labels that name a container. They alias the text.
type containerLabels struct {
	namespace, pod, container []byte
}

func (l *containerLabels) id() containerID {
	return containerID{alias(l.namespace), alias(l.pod), alias(l.container)}
}

// set stores a label, unless it does not name a container. It rejects a duplicate.
func (l *containerLabels) set(name, value []byte) bool {
	var known *[]byte
	switch string(name) {
	case "namespace":
		known = &l.namespace
	case "pod":
		known = &l.pod
	case "container":
		known = &l.container
	default:
		return true
	}
	if *known != nil {
		return false
	}
	*known = value
	return true
}

// ParseLabels parses the label block at the start of b, if there is one, and returns its length. It
// calls label for each label, in any order, with a part of b, and fails if label returns false.
// Escaped values are unescaped in place; escaped reports whether there were any, so that the block is
// no longer as it was sent.
func ParseLabels(b []byte, label func(name, value []byte) bool) (n int, escaped, ok bool) {
	if len(b) == 0 || b[0] != '{' {
		return 0, false, true
	}
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
		value, length, ok := unquote(b[i+1:])
		if !ok || !label(name, value) {
			return 0, escaped, false
		}
		escaped = escaped || length > len(value)+1
		i = skipBlanks(b, i+1+length)
		if i < len(b) && b[i] == ',' {
			i++
		} else if i == len(b) || b[i] != '}' {
			return 0, escaped, false
		}
	}
	return 0, escaped, false
}

// unquote returns the value that ends at the next quote, and its length in b including the quote. It
// writes the value over its escaped form, which is never shorter. The value is not nil, even if it is
// empty.
func unquote(b []byte) (value []byte, n int, ok bool) {
	if end := bytes.IndexByte(b, '"'); end >= 0 && bytes.IndexByte(b[:end], '\\') < 0 {
		return b[:end:end], end + 1, true
	}
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
