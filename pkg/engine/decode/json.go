package decode

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

// maxToken is the length of the longest string that is never cut. Longer numbers are errors.
const maxToken = 64 << 10

const (
	maxRead = 4 << 10 // the size of the decoder's buffer if there are no long tokens
	// maxLevels limits the arrays and objects around a value that is skipped: the decoder keeps the names
	// of the fields around a value, each up to maxToken.
	maxLevels = 64
)

// scanner reads a JSON text of any size once, from its start to its end, in little memory: it wraps
// jsontext for texts that may be hostile. encoding/json allocates each token. After an error, which
// finish returns, objects and arrays have no further elements.
//
// An object or array is read by a loop over fields or elements, which must consume each value in it: by a
// loop of its own, or by value, str or skip. What these return is valid until the next call.
type scanner struct {
	decoder  jsontext.Decoder
	source   *bufio.Reader
	received int64 // bytes that the decoder has received
	readErr  error // of the source
	text     []byte
	err      error
}

func newScanner(r io.Reader) *scanner {
	s := &scanner{source: bufio.NewReaderSize(r, maxToken)}
	s.decoder.Reset(s, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return s
}

// finish returns an error unless the text was one JSON value, which has been consumed.
func (s *scanner) finish() error {
	if s.err == nil {
		if _, s.err = s.decoder.ReadToken(); errors.Is(s.err, io.EOF) {
			return nil
		}
		s.fail("it goes on after its end")
	}
	var invalid *jsontext.SyntacticError
	switch {
	case s.readErr != nil:
		return s.readErr
	case errors.Is(s.err, io.EOF), errors.Is(s.err, io.ErrUnexpectedEOF):
		return io.ErrUnexpectedEOF
	case errors.As(s.err, &invalid): // without the names of fields around it, which may be long
		s.err = fmt.Errorf("%w at offset %d", invalid.Err, invalid.ByteOffset)
	}
	return reason.Errorf(reason.Undecodable, "the response is not valid JSON: %w", s.err)
}

// fail makes the text invalid, unless it is already.
func (s *scanner) fail(problem string) {
	if s.err == nil {
		s.err = errors.New(problem)
	}
}

// fields consumes an object and yields the name of each field, as str returns it.
func (s *scanner) fields(yield func(name []byte, isCut bool) bool) {
	s.each('{', func() bool { return yield(s.str()) })
}

// elements consumes an array and yields before each element.
func (s *scanner) elements(yield func() bool) { s.each('[', yield) }

// each consumes an object or array, and yields before each element of it. Null has no elements.
func (s *scanner) each(bracket byte, yield func() bool) {
	if s.err != nil {
		return
	}
	token, err := s.decoder.ReadToken()
	if s.err = err; err != nil || token.Kind() == 'n' {
		return
	}
	if byte(token.Kind()) != bracket {
		s.fail("there is no " + string(bracket))
	}
	for s.err == nil {
		switch s.decoder.PeekKind() {
		case '}', ']', 0:
			_, s.err = s.decoder.ReadToken()
			return
		}
		if !yield() {
			return
		}
	}
}

// skip consumes any value.
func (s *scanner) skip() {
	for level := s.decoder.StackDepth(); s.err == nil; {
		_, s.err = s.decoder.ReadToken()
		switch now := s.decoder.StackDepth(); {
		case now <= level:
			return
		case now > maxLevels:
			s.fail(fmt.Sprintf("more than %d levels", maxLevels))
		}
	}
}

// value consumes a value of any kind and returns its text.
func (s *scanner) value() (text []byte) {
	if s.err == nil {
		text, s.err = s.decoder.ReadValue()
	}
	return text
}

// str consumes a string and returns what it stands for, or nothing for null. isCut is set if it is
// longer than maxToken: then there may be only its start.
func (s *scanner) str() (text []byte, isCut bool) {
	quoted := s.value()
	if s.err != nil || quoted[0] == 'n' {
		return nil, false
	}
	if quoted[0] != '"' {
		s.fail("a value is no string")
		return nil, false
	}
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1], len(quoted) > maxToken
	}
	s.text, _ = jsontext.AppendUnquote(s.text[:0], quoted) // it is valid, apart from its UTF-8
	return s.text, len(quoted) > maxToken
}

// Read implements io.Reader for the decoder, which keeps whole tokens in memory, with the white space
// before them.
func (s *scanner) Read(p []byte) (n int, err error) {
	if s.received-s.decoder.InputOffset() > maxToken {
		n, err = s.skipRest(p)
	}
	if err == nil {
		var more int
		more, err = s.source.Read(p[n:min(len(p), maxRead)]) // a full buffer would grow
		n += more
	}
	if s.received += int64(n); err != nil && !errors.Is(err, io.EOF) {
		s.readErr = err
	}
	return n, err
}

const space = " \t\r\n"

// skipRest consumes the rest of the string that the decoder has received the start of, up to its
// closing quote, or of white space. Instead of it, the decoder receives the text in p.
func (s *scanner) skipRest(p []byte) (n int, err error) {
	token := bytes.TrimLeft(s.decoder.UnreadBuffer(), ",:"+space)
	switch {
	case len(token) == 0:
		return 0, s.skipTo(func(c byte) bool { return strings.IndexByte(space, c) < 0 })
	case token[0] != '"':
		return 0, reason.Errorf(reason.Undecodable, "the response is not valid JSON: a number is too long")
	case len(token) <= maxToken:
		return 0, nil
	}
	isEscaped := (len(token)-len(bytes.TrimRight(token, `\`)))%2 == 1
	err = s.skipTo(func(c byte) bool {
		isEnd := c == '"' && !isEscaped
		isEscaped = c == '\\' && !isEscaped
		return isEnd
	})
	if err != nil {
		return 0, err
	}
	return copy(p, "ffff"), nil // ends any escape sequence
}

// skipTo consumes the bytes before the first one where isEnd is true.
func (s *scanner) skipTo(isEnd func(byte) bool) error {
	for {
		c, err := s.source.ReadByte()
		if err != nil {
			return err
		}
		if isEnd(c) {
			return s.source.UnreadByte()
		}
	}
}
