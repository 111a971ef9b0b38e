// Package untrusted checks what servers that may be hostile send and choose: responses and addresses.
package untrusted

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// maxStatusBytes is how much is reported of the body of a response with a status other than 200.
const maxStatusBytes = 256

// Open returns the body of a response, and limits it to so many bytes. The response must have status 200 and a
// content type that is accepted. z uncompresses the body, see Body.
//
// Errors have a reason, unless the body ends early or its connection fails.
func Open(r *http.Response, accepts func(contentType string) bool, limit int64, z *gzip.Reader) (io.Reader, error) {
	if r.StatusCode != http.StatusOK {
		return nil, statusError(r, limit, z)
	}
	if content := r.Header.Get("Content-Type"); !accepts(content) {
		return nil, reason.Errorf(reason.BadFormat, "content type %.100q", content)
	}
	return Body(r, limit, z)
}

// statusError returns an error with the start of the body, where servers explain the status.
func statusError(r *http.Response, limit int64, z *gzip.Reader) error {
	text := fmt.Sprintf("status %d %s", r.StatusCode, http.StatusText(r.StatusCode))
	if location, _, _ := strings.Cut(r.Header.Get("Location"), "?"); location != "" && r.StatusCode/100 == 3 {
		text += fmt.Sprintf(", redirect to %.200q is not followed", location) // a query may have secrets
	}
	if body, err := Body(r, limit, z); err == nil {
		start := make([]byte, maxStatusBytes)
		n, _ := io.ReadFull(body, start) // helpful, but not required
		if start = bytes.ToValidUTF8(bytes.TrimSpace(start[:n]), nil); len(start) > 0 {
			text += fmt.Sprintf(", %q", start)
		}
	}
	return reason.Errorf(reason.OfStatus(r.StatusCode), "%s", text)
}

// Body returns the body of a response with any status, and limits it to so many bytes. It uncompresses gzip
// with z; if z is nil, no compression was requested. The compressed body has the same limit: it can be
// endless and uncompress to nothing.
//
// Errors have a reason if the body is too large, or is not compressed as requested.
func Body(r *http.Response, limit int64, z *gzip.Reader) (io.Reader, error) {
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
