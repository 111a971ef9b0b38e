package prometheus

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads one JSON value from a stream, token by token. It needs memory for the current
// string only. encoding/json allocates each token, which takes 10 times as long; a response may
// have millions of them.
//
// It accepts all valid JSON. It also accepts some invalid JSON, such as numbers with leading zeros
// or control characters in strings.
type scanner struct {
	r     *bufio.Reader
	text  []byte // of the current string or number; the next token overwrites it
	isCut bool   // whether text has only the start of the current string
	depth int
}

const (
	maxTextBytes = 64 << 10 // of one string or number; longer strings are cut
	maxDepth     = 64       // of arrays and objects
)

// invalidJSON is an error about the syntax.
type invalidJSON struct{ text string }

func (e *invalidJSON) Error() string { return "the response is not valid JSON: " + e.text }

func unexpected(c byte, want string) error {
	return &invalidJSON{fmt.Sprintf("got %q instead of %s", c, want)}
}

// next returns the next byte that is not white space, without consuming it.
func (s *scanner) next() (byte, error) {
	for {
		c, err := s.r.ReadByte()
		if err != nil {
			return 0, truncated(err)
		}
		switch c {
		case ' ', '\t', '\n', '\r':
			continue
		}
		return c, s.r.UnreadByte()
	}
}

// end reads the rest of the stream, which must be white space.
func (s *scanner) end() error {
	for {
		c, err := s.r.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case c != ' ' && c != '\t' && c != '\n' && c != '\r':
			return unexpected(c, "the end")
		}
	}
}

// truncated returns err, or io.ErrUnexpectedEOF for the end of the stream.
func truncated(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// expect consumes one byte.
func (s *scanner) expect(want byte) error {
	c, err := s.next()
	if err != nil {
		return err
	}
	if c != want {
		return unexpected(c, strconv.QuoteRune(rune(want)))
	}
	_, err = s.r.ReadByte()
	return err
}

// object calls field for each field of an object. field must read the value. The name is valid
// until field reads.
func (s *scanner) object(field func(name []byte) error) error {
	return s.list('{', '}', func() error {
		if err := s.readString(); err != nil {
			return err
		}
		name := s.text
		if err := s.expect(':'); err != nil {
			return err
		}
		return field(name)
	})
}

// array calls element for each element of an array. element must read it.
func (s *scanner) array(element func() error) error { return s.list('[', ']', element) }

func (s *scanner) list(first, last byte, element func() error) error {
	if s.depth++; s.depth > maxDepth {
		return &invalidJSON{fmt.Sprintf("more than %d levels", maxDepth)}
	}
	defer func() { s.depth-- }()
	if err := s.expect(first); err != nil {
		return err
	}
	for empty := true; ; empty = false {
		c, err := s.next()
		if err != nil {
			return err
		}
		switch {
		case c == last:
			_, err := s.r.ReadByte()
			return err
		case !empty && c != ',':
			return unexpected(c, "a comma")
		case !empty:
			if _, err := s.r.ReadByte(); err != nil {
				return err
			}
			if c, err = s.next(); err != nil {
				return err
			}
			if c == last {
				return unexpected(c, "an element")
			}
		}
		if err := element(); err != nil {
			return err
		}
	}
}

// readString reads a string into s.text. Invalid UTF-8 is passed on. Of a string that is too long,
// only the start is kept: anyone who can write series into an engine can write such labels.
func (s *scanner) readString() error {
	if err := s.expect('"'); err != nil {
		return err
	}
	s.text, s.isCut = s.text[:0], false
	for {
		if _, err := s.r.Peek(1); err != nil {
			return truncated(err)
		}
		buffered, _ := s.r.Peek(s.r.Buffered()) // cannot fail
		plain := 0
		for plain < len(buffered) && buffered[plain] != '"' && buffered[plain] != '\\' {
			plain++
		}
		s.append(buffered[:plain])
		_, _ = s.r.Discard(plain) // cannot fail: it is buffered
		if plain == len(buffered) {
			continue
		}
		if c, _ := s.r.ReadByte(); c == '"' { // cannot fail either
			return nil
		}
		if err := s.readEscape(); err != nil {
			return err
		}
	}
}

// append adds text to the current string, up to its limit.
func (s *scanner) append(text []byte) {
	fitting := min(len(text), maxTextBytes-len(s.text))
	s.isCut = s.isCut || fitting < len(text)
	s.text = append(s.text, text[:fitting]...)
}

// readEscape reads an escape sequence after its backslash.
func (s *scanner) readEscape() error {
	c, err := s.r.ReadByte()
	if err != nil {
		return truncated(err)
	}
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		return s.readCodePoint()
	default:
		return unexpected(c, "an escape sequence")
	}
	s.append([]byte{c})
	return nil
}

// readCodePoint reads the digits of a \u sequence, and the second sequence of a surrogate pair.
func (s *scanner) readCodePoint() error {
	digits, err := s.r.Peek(4)
	if err != nil {
		return truncated(err)
	}
	code, ok := hexadecimal(digits)
	if !ok {
		return &invalidJSON{fmt.Sprintf("escape sequence %q", `\u`+string(digits))}
	}
	_, _ = s.r.Discard(len(digits)) // cannot fail: it is buffered
	if utf16.IsSurrogate(code) {
		second, ok := rune(0), false
		if pair, err := s.r.Peek(6); err == nil && pair[0] == '\\' && pair[1] == 'u' {
			second, ok = hexadecimal(pair[2:])
		}
		if code = utf16.DecodeRune(code, second); ok && code != utf8.RuneError {
			_, _ = s.r.Discard(6) // cannot fail: it is buffered
		}
	}
	var encoded [utf8.UTFMax]byte
	s.append(encoded[:utf8.EncodeRune(encoded[:], code)])
	return nil
}

func hexadecimal(digits []byte) (rune, bool) {
	code := rune(0)
	for _, c := range digits {
		switch {
		case c >= '0' && c <= '9':
			code = code<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			code = code<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			code = code<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return code, true
}

// readScalar reads a string, a number, true, false or null into s.text.
func (s *scanner) readScalar() error {
	c, err := s.next()
	if err != nil {
		return err
	}
	if c == '"' {
		return s.readString()
	}
	s.text = s.text[:0]
	for {
		c, err := s.r.ReadByte()
		if errors.Is(err, io.EOF) && len(s.text) > 0 {
			return nil // a number may be the last token
		}
		if err != nil {
			return truncated(err)
		}
		isPart := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '-' || c == '+' || c == '.' || c == 'E'
		if !isPart {
			if len(s.text) == 0 {
				return unexpected(c, "a value")
			}
			return s.r.UnreadByte()
		}
		if s.text = append(s.text, c); len(s.text) > maxTextBytes {
			return &invalidJSON{fmt.Sprintf("a number of more than %d bytes", maxTextBytes)}
		}
	}
}

// skip reads a value of any kind.
func (s *scanner) skip() error {
	c, err := s.next()
	if err != nil {
		return err
	}
	switch c {
	case '{':
		return s.object(func([]byte) error { return s.skip() })
	case '[':
		return s.array(s.skip)
	}
	if err := s.readScalar(); err != nil || c == '"' {
		return err
	}
	switch string(s.text) {
	case "true", "false", "null":
		return nil
	}
	if _, err := strconv.ParseFloat(string(s.text), 64); err != nil && !errors.Is(err, strconv.ErrRange) {
		return &invalidJSON{fmt.Sprintf("value %.20q", s.text)}
	}
	return nil
}
