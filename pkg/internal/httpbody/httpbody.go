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
	if r.ContentLength > limit {
		return nil, withReason(&http.MaxBytesError{Limit: limit})
	}
	body := reader{http.MaxBytesReader(nil, r.Body, limit)}
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
	return reader{http.MaxBytesReader(nil, z, limit)}, nil
}

// reader is a reader whose errors have a reason.
type reader struct{ io.Reader }

// Read implements io.Reader.
func (r reader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil {
		err = withReason(err)
	}
	return n, err
}

// withReason returns an error with its reason if the text is too large or is not valid gzip.
func withReason(err error) error {
	var tooLarge *http.MaxBytesError
	var corrupt flate.CorruptInputError
	switch {
	case errors.As(err, &tooLarge):
		return reason.Errorf(reason.BodyTooLarge, "more than the limit of %d bytes", tooLarge.Limit)
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.As(err, &corrupt):
		return &reason.Error{Reason: reason.BadFormat, Err: err}
	}
	return err
}
