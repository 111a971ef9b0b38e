package prometheus

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// queryError is an error whose reason is known where it occurs.
type queryError struct {
	reason reason.Reason
	error
}

func (e *queryError) Unwrap() error { return e.error }

func newError(r reason.Reason, format string, args ...any) error {
	return &queryError{r, fmt.Errorf(format, args...)}
}

// Reason returns the reason of an error of this package. It is empty if there is no error.
func Reason(err error) reason.Reason {
	var (
		known     *queryError
		invalid   *invalidJSON
		tooMany   *http.MaxBytesError
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		expired   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		dns       *net.DNSError
		op        *net.OpError
	)
	isOp := errors.As(err, &op)
	switch {
	case err == nil:
		return ""
	case errors.As(err, &known):
		return known.reason
	case errors.Is(err, context.Canceled):
		return reason.Canceled
	case errors.As(err, &tooMany):
		return reason.BodyTooLarge
	case isOp && op.Op == "dial" && op.Timeout():
		return reason.ConnectTimeout
	case isTimeout(err):
		return reason.Timeout
	case errors.As(err, &invalid):
		return reason.Undecodable
	case errors.Is(err, io.ErrUnexpectedEOF):
		return reason.Truncated
	case errors.As(err, &authority):
		return reason.TLSAuthority
	case errors.As(err, &name):
		return reason.TLSName
	case errors.As(err, &expired):
		return reason.TLSExpired
	case errors.As(err, &record), isOp && (op.Op == "remote error" || op.Op == "local error"): // TLS alerts
		return reason.TLSHandshake
	case errors.As(err, &dns):
		return reason.DNS
	case errors.Is(err, syscall.ECONNREFUSED):
		return reason.ConnectRefused
	case isOp && op.Op == "dial":
		return reason.Unreachable
	case isOp, errors.Is(err, io.EOF):
		return reason.ConnectionLost
	}
	return reason.BadHTTP
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// statusReason returns the reason of a response with a status other than 200.
func statusReason(code int) reason.Reason {
	switch {
	case code == http.StatusUnauthorized:
		return reason.Unauthorized
	case code == http.StatusForbidden:
		return reason.Forbidden
	case code == http.StatusNotFound:
		return reason.NotFound
	case code >= http.StatusInternalServerError:
		return reason.ServerError
	}
	return reason.BadStatus
}

// explain adds to an error which query failed and what to do. It removes the URLs that libraries
// put in front of the cause: those of the configuration may have passwords.
func explain(err error, k kind, engine string) error {
	for request := (*url.Error)(nil); errors.As(err, &request); {
		err = request.Err
	}
	r := Reason(err)
	text := ""
	if c := r.DescribeEngine().Cure; c != "" {
		text = " (" + c + ")"
	}
	return &queryError{r, fmt.Errorf("query %v at %s: %w%s", k, engine, err, text)}
}
