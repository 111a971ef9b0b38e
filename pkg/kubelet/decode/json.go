package decode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// scanner reads a JSON text once, from its start to its end, without allocating. After an error,
// which is returned by finish, objects and arrays have no further elements.
//
// encoding/json cannot replace it. Unmarshal into structs allocates 400 MiB for the 4 MiB that a
// hostile kubelet can send, and reports only the first value of a wrong type.
//
// An object or array is read by token, then by a loop over field or element. Each value in it must be
// consumed: by token and a loop of its own, or by str, scalar or skip.
type scanner struct {
	decoder jsontext.Decoder
	source  bytes.Buffer
	text    []byte
	err     error
}

// begin starts to read a text.
func (s *scanner) begin(text []byte) {
	s.source = *bytes.NewBuffer(text)
	s.text, s.err = text, nil
	// As encoding/json, which kubelets use.
	s.decoder.Reset(&s.source, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// finish returns an error unless the text was one valid JSON value, which has been consumed.
func (s *scanner) finish() error {
	if s.err == nil {
		if _, err := s.decoder.ReadToken(); !errors.Is(err, io.EOF) {
			s.err = err
			if err == nil {
				s.err = errMoreJSON
			}
		}
	}
	if s.err != nil {
		return fmt.Errorf("%w: %w", ErrNotJSON, s.err)
	}
	return nil
}

// peek returns the first byte of the next token, with the digit 0 for a number, or 0 at the end.
func (s *scanner) peek() byte {
	if s.err != nil {
		return 0
	}
	return byte(s.decoder.PeekKind())
}

// token consumes a token, such as the bracket at which an object or array begins.
func (s *scanner) token() {
	if s.err == nil {
		_, s.err = s.decoder.ReadToken()
	}
}

// element reports whether the open object or array has another element. If it has not, it consumes
// the closing bracket.
func (s *scanner) element() bool {
	switch s.peek() {
	case '}', ']', 0:
		s.token()
		return false
	}
	return s.err == nil
}

// field consumes the key of the next field of the open object and returns it. If there is none, it
// consumes the closing bracket and returns false.
func (s *scanner) field() (key []byte, ok bool) {
	if !s.element() {
		return nil, false
	}
	key = s.str()
	return key, s.err == nil
}

// skip consumes any value.
func (s *scanner) skip() {
	if s.err == nil {
		s.err = s.decoder.SkipValue()
	}
}

// scalar consumes and returns a string, number, true, false or null, which aliases the text.
func (s *scanner) scalar() []byte {
	if s.err != nil {
		return nil
	}
	value, err := s.decoder.ReadValue()
	if s.err = err; err != nil {
		return nil
	}
	end := s.decoder.InputOffset()
	return s.text[end-int64(len(value)) : end : end]
}

// str consumes a string and returns its value, which aliases the text unless it was escaped, and may
// be invalid UTF-8.
func (s *scanner) str() []byte {
	quoted := s.scalar()
	if len(quoted) < 2 {
		return nil
	}
	if bytes.IndexByte(quoted, '\\') < 0 || !utf8.Valid(quoted) { // AppendUnquote would replace what is invalid
		return quoted[1 : len(quoted)-1 : len(quoted)-1]
	}
	value, _ := jsontext.AppendUnquote(nil, quoted) // it is valid
	return value
}
