// Package jsonscan reads a JSON text of any size once, from its start to its end, in little memory: it
// wraps jsontext for responses of servers that may be hostile. encoding/json allocates each token.
package jsonscan

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// MaxToken is the length of a string from which on it may be cut. Longer numbers are errors.
const MaxToken = 64 << 10

const (
	maxRead = 4 << 10 // the size of the decoder's buffer if there are no long tokens
	// maxLevels limits the arrays and objects around a value that is skipped: the decoder keeps the names
	// of the fields around a value, each up to MaxToken.
	maxLevels = 64
)

// Scanner reads a JSON text. After an error, which Finish returns, objects and arrays have no further
// elements.
//
// An object or array is read by Open, then by a loop over Field or Element. Each value in it must be
// consumed: by Open and a loop of its own, or by Scalar, String or Skip. What these return is valid
// until the next call.
type Scanner struct {
	decoder  jsontext.Decoder
	source   *bufio.Reader
	received int64 // bytes that the decoder has received
	readErr  error // of the source
	text     []byte
	err      error
}

// New returns a Scanner of a text.
func New(r io.Reader) *Scanner {
	s := &Scanner{source: bufio.NewReaderSize(r, MaxToken)}
	s.decoder.Reset((*bounded)(s), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return s
}

// Finish returns an error unless the text was one JSON value, which has been consumed.
func (s *Scanner) Finish() error {
	if s.err == nil {
		if _, s.err = s.decoder.ReadToken(); errors.Is(s.err, io.EOF) {
			return nil
		}
		s.Fail("it goes on after its end")
	}
	var known *reason.Error
	var invalid *jsontext.SyntacticError
	switch {
	case s.readErr != nil:
		return s.readErr
	case errors.Is(s.err, io.EOF), errors.Is(s.err, io.ErrUnexpectedEOF):
		return io.ErrUnexpectedEOF
	case errors.As(s.err, &known):
		return s.err
	case errors.As(s.err, &invalid): // without the names of fields around it, which may be long
		s.err = fmt.Errorf("%w at offset %d", invalid.Err, invalid.ByteOffset)
	}
	return reason.Errorf(reason.Undecodable, "the response is not valid JSON: %w", s.err)
}

// Fail makes the text invalid, unless it is already.
func (s *Scanner) Fail(problem string) {
	if s.err == nil {
		s.err = reason.Errorf(reason.Undecodable, "the response is not valid JSON: %s", problem)
	}
}

// Failed reports whether there was an error.
func (s *Scanner) Failed() bool { return s.err != nil }

// Open consumes the bracket at which an object or array begins.
func (s *Scanner) Open(bracket byte) {
	if s.err != nil {
		return
	}
	token, err := s.decoder.ReadToken()
	if s.err = err; err == nil && byte(token.Kind()) != bracket {
		s.Fail("there is no " + string(bracket))
	}
}

// OpenUnlessNull consumes null, or else does what Open does. It reports whether it did.
func (s *Scanner) OpenUnlessNull(bracket byte) bool {
	if s.err == nil && s.decoder.PeekKind() == 'n' {
		s.Skip()
		return false
	}
	s.Open(bracket)
	return true
}

// Element reports whether the open object or array has another element. If it has not, it consumes the
// closing bracket.
func (s *Scanner) Element() bool {
	if s.err != nil {
		return false
	}
	switch s.decoder.PeekKind() {
	case '}', ']', 0:
		_, s.err = s.decoder.ReadToken()
		return false
	}
	return true
}

// Field consumes the key of the next field of the open object and returns it. If there is none, it
// consumes the closing bracket and reports false.
func (s *Scanner) Field() (key []byte, ok bool) {
	if !s.Element() {
		return nil, false
	}
	key, _ = s.String()
	return key, s.err == nil
}

// Skip consumes any value.
func (s *Scanner) Skip() {
	for level := s.decoder.StackDepth(); s.err == nil; {
		_, s.err = s.decoder.ReadToken()
		switch now := s.decoder.StackDepth(); {
		case now <= level:
			return
		case now > maxLevels:
			s.Fail(fmt.Sprintf("more than %d levels", maxLevels))
		}
	}
}

// Value consumes a value of any kind and returns its text.
func (s *Scanner) Value() []byte {
	if s.err != nil {
		return nil
	}
	value, err := s.decoder.ReadValue()
	s.err = err
	return value
}

// String consumes a string and returns what it stands for, or nothing for null. isCut is set if it is
// longer than MaxToken: then there may be only its start.
func (s *Scanner) String() (text []byte, isCut bool) {
	quoted := s.Value()
	if s.err != nil || quoted[0] == 'n' {
		return nil, false
	}
	if quoted[0] != '"' {
		s.Fail("a value is no string")
		return nil, false
	}
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1], len(quoted) > MaxToken
	}
	s.text, _ = jsontext.AppendUnquote(s.text[:0], quoted) // it is valid, apart from its UTF-8
	return s.text, len(quoted) > MaxToken
}

// bounded is the Scanner as the reader of its decoder, which keeps whole tokens in memory, with the
// white space before them.
type bounded Scanner

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (n int, err error) {
	size := min(len(p), maxRead) // a full buffer would grow
	if b.received-b.decoder.InputOffset() > MaxToken {
		token := bytes.TrimLeft(b.decoder.UnreadBuffer(), ",:"+space)
		if endsInEscape(token) {
			size = 1
		} else {
			err = b.skipRest(token)
		}
	}
	if err == nil {
		n, err = b.source.Read(p[:size])
	}
	if b.received += int64(n); err != nil && !errors.Is(err, io.EOF) {
		b.readErr = err
	}
	return n, err
}

const space = " \t\r\n"

// skipRest consumes the rest of a string, up to its closing quote, or of white space. token is what the
// decoder has received of the string.
func (b *bounded) skipRest(token []byte) error {
	switch {
	case len(token) == 0:
		return b.skip(func(c byte) bool { return strings.IndexByte(space, c) < 0 })
	case token[0] != '"':
		return reason.Errorf(reason.Undecodable, "the response is not valid JSON: a number is too long")
	case len(token) <= MaxToken:
		return nil
	}
	isEscaped := false
	return b.skip(func(c byte) bool {
		isEnd := c == '"' && !isEscaped
		isEscaped = c == '\\' && !isEscaped
		return isEnd
	})
}

// skip consumes the bytes before the first one for which isEnd is true.
func (b *bounded) skip(isEnd func(byte) bool) error {
	for {
		c, err := b.source.ReadByte()
		if err != nil {
			return err
		}
		if isEnd(c) {
			return b.source.UnreadByte()
		}
	}
}

// endsInEscape reports whether the beginning of a string ends within an escape sequence.
func endsInEscape(text []byte) bool {
	rest := text[bytes.LastIndexByte(text, '\\')+1:]
	before := text[:len(text)-len(rest)]
	backslashes := len(before) - len(bytes.TrimRight(before, `\`))
	return backslashes%2 == 1 && (len(rest) == 0 || rest[0] == 'u' && len(rest) < len("u0000"))
}
