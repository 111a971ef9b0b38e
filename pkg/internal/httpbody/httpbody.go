// Package httpbody reads the bodies of responses of servers that may be hostile.
package httpbody

import (
	"compress/flate"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// Open returns the body of a response, of which at most limit bytes can be read. It uncompresses gzip
// with z; if z is nil, no compression was requested. The compressed body has the same limit: it can be
// endless and uncompress to nothing.
//
// Errors have a reason if the body is too large, or is not compressed as requested.
func Open(r *http.Response, limit int64, z *gzip.Reader) (io.Reader, error) {
	body := &limited{r.Body, limit, limit}
	if r.ContentLength > limit {
		return nil, body.tooLarge()
	}
	encoding := r.Header.Get("Content-Encoding")
	switch {
	case encoding == "" || strings.EqualFold(encoding, "identity"):
		return body, nil
	case z == nil || !strings.EqualFold(encoding, "gzip"):
		return nil, reason.Errorf(reason.BadFormat, "content encoding %.100q", encoding)
	}
	if err := z.Reset(body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, withReason(err)
	}
	return &limited{z, limit, limit}, nil
}

// limited is a reader that fails if its source has more bytes than the limit.
type limited struct {
	source      io.Reader
	left, limit int64
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	if l.left < 0 {
		return 0, l.tooLarge()
	}
	n, err := l.source.Read(p[:min(int64(len(p)), l.left+1)]) // one byte more shows that there are more
	if l.left -= int64(n); l.left < 0 {
		return n - 1, l.tooLarge()
	}
	return n, withReason(err)
}

func (l *limited) tooLarge() error {
	return reason.Errorf(reason.BodyTooLarge, "more than the limit of %d bytes", l.limit)
}

// withReason returns an error with its reason if the text is not valid gzip.
func withReason(err error) error {
	var corrupt flate.CorruptInputError
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.As(err, &corrupt) {
		return &reason.Error{Reason: reason.BadFormat, Err: err}
	}
	return err
}
