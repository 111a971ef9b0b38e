package decode

import (
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deep objects and arrays may be nested. A kubelet's summary needs 8 levels.
const maxDepth = 32

// What a text can be that is no JSON of a kubelet.
var (
	ErrNotJSON = errors.New("it is not JSON")
	ErrTooDeep = fmt.Errorf("it is nested more than %d levels deep", maxDepth)
)

// scanner reads a JSON text once from its start to its end, without allocating. It takes what
// encoding/json takes as valid, up to maxDepth, and nothing else.
//
// An object or array is read by a loop of field or element in which each value is consumed: by open
// and a loop of its own, by string, by number or by skip. After an error such loops end; the first
// error is what end gives.
type scanner struct {
	text  []byte
	pos   int    // of the next byte in text
	depth int    // how many objects and arrays are open
	first bool   // the object or array that was opened last has had nothing yet
	key   []byte // of the field that is being read; aliases text
	err   error
}

// start begins with a text, which is written to: strings with escape sequences are unescaped in
// place.
func (s *scanner) start(text []byte) { *s = scanner{text: text} }

// end says whether all of the text has been read, and was valid. It lets go of the text.
func (s *scanner) end() error {
	if s.peek(); s.pos < len(s.text) {
		s.fail(ErrNotJSON)
	}
	err := s.err
	*s = scanner{}
	return err
}

// fail notes an error where the scanner is, and has everything that follows find the end of the
// text.
func (s *scanner) fail(err error) {
	if s.err == nil {
		s.err = fmt.Errorf("%w, as byte %d of %d shows", err, s.pos, len(s.text))
	}
	s.pos = len(s.text)
}

// peek gives the first byte of the next token, or 0 at the end of the text, where no token begins
// with 0.
func (s *scanner) peek() byte {
	for ; s.pos < len(s.text); s.pos++ {
		if c := s.text[s.pos]; c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			return c
		}
	}
	return 0
}

// open begins the object or array whose bracket peek gave.
func (s *scanner) open() {
	if s.depth++; s.depth > maxDepth {
		s.fail(ErrTooDeep)
		return
	}
	s.pos++
	s.first = true
}

// element says whether the open array has another element, which is then to be consumed.
func (s *scanner) element() bool { return s.more(']') }

// field says whether the open object has another field, whose key is then in s.key, and whose value
// is to be consumed.
func (s *scanner) field() bool {
	if !s.more('}') {
		return false
	}
	if s.peek() == '"' {
		if s.key = s.string(); s.peek() == ':' {
			s.pos++
			return true
		}
	}
	s.fail(ErrNotJSON)
	return false
}

// more says whether there is more before the given bracket. If there is not, the bracket is
// consumed.
func (s *scanner) more(bracket byte) bool {
	c := s.peek()
	if c == bracket {
		s.pos++
		s.depth--
		s.first = false
		return false
	}
	if !s.first {
		if c != ',' {
			s.fail(ErrNotJSON)
			return false
		}
		s.pos++
	}
	s.first = false
	return s.err == nil
}

// skip consumes any value.
func (s *scanner) skip() {
	switch c := s.peek(); {
	case c == '{':
		for s.open(); s.field(); {
			s.skip()
		}
	case c == '[':
		for s.open(); s.element(); {
			s.skip()
		}
	case c == '"':
		s.string()
	case c == '-' || isDigit(c):
		s.number()
	case c == 't':
		s.literal("true")
	case c == 'f':
		s.literal("false")
	case c == 'n':
		s.literal("null")
	default:
		s.fail(ErrNotJSON)
	}
}

func (s *scanner) literal(word string) {
	if end := s.pos + len(word); end <= len(s.text) && string(s.text[s.pos:end]) == word {
		s.pos = end
		return
	}
	s.fail(ErrNotJSON)
}

// string consumes the string whose quotation mark peek gave. What it gives aliases the text, and
// need not be valid UTF-8.
func (s *scanner) string() []byte {
	start := s.pos + 1
	for i := start; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c == '"':
			s.pos = i + 1
			return s.text[start:i:i]
		case c == '\\':
			return s.escaped(start, i)
		case c < ' ':
			s.pos = i
			s.fail(ErrNotJSON)
			return nil
		}
	}
	s.fail(ErrNotJSON)
	return nil
}

// escaped consumes a string that has its first escape sequence at i. It writes the value over its
// escaped form, which is never shorter.
func (s *scanner) escaped(start, i int) []byte {
	value := s.text[start:i]
	for i < len(s.text) {
		c := s.text[i]
		if c == '"' {
			s.pos = i + 1
			return value[:len(value):len(value)]
		}
		if c != '\\' {
			if c < ' ' {
				break
			}
			value = append(value, c)
			i++
			continue
		}
		r, n := unescapeRune(s.text[i:])
		if n == 0 {
			break
		}
		value = utf8.AppendRune(value, r)
		i += n
	}
	s.pos = i
	s.fail(ErrNotJSON)
	return nil
}

// unescapeRune reads the escape sequence at the start of b, and gives its length; 0 when it is
// none. Half a surrogate pair stands for the replacement character.
func unescapeRune(b []byte) (r rune, n int) {
	if len(b) < 2 {
		return 0, 0
	}
	switch c := b[1]; c {
	case '"', '\\', '/':
		return rune(c), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	}
	r, ok := unescapeHex(b)
	if !ok {
		return 0, 0
	}
	if utf16.IsSurrogate(r) {
		if second, ok := unescapeHex(b[6:]); ok {
			if pair := utf16.DecodeRune(r, second); pair != utf8.RuneError {
				return pair, 12
			}
		}
		r = utf8.RuneError
	}
	return r, 6
}

// unescapeHex reads the \uXXXX at the start of b.
func unescapeHex(b []byte) (r rune, ok bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	for _, c := range b[2:6] {
		switch {
		case isDigit(c):
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// number consumes the number whose first byte peek gave, and gives it as it stands in the text.
func (s *scanner) number() []byte {
	start := s.pos
	s.accept('-', '-')
	ok := s.accept('0', '0') || s.digits()
	if s.accept('.', '.') {
		ok = s.digits() && ok
	}
	if s.accept('e', 'E') {
		s.accept('+', '-')
		ok = s.digits() && ok
	}
	if !ok {
		s.fail(ErrNotJSON)
		return nil
	}
	return s.text[start:s.pos]
}

// accept consumes a byte that is one of two.
func (s *scanner) accept(a, b byte) bool {
	if s.pos < len(s.text) && (s.text[s.pos] == a || s.text[s.pos] == b) {
		s.pos++
		return true
	}
	return false
}

// digits consumes digits, and says whether there is at least one.
func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.text) && isDigit(s.text[s.pos]) {
		s.pos++
	}
	return s.pos > start
}
