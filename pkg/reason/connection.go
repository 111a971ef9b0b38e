package reason

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"syscall"
)

// Of returns the reason of an error of a request: Canceled if it was, else that of the first Error in it, which may be
// empty, else one of the connection or of TLS, else BadHTTP. It is empty if there is no error. The order matters: an
// error often wraps another one.
//
// A response that ends too early is Truncated. Who knows that there was no response at all, and so
// that the connection was lost, returns an Error.
func Of(err error) Reason {
	var (
		known     *Error
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		dns       *net.DNSError
		op        *net.OpError
		timeout   interface{ Timeout() bool }
	)
	isOp := errors.As(err, &op)
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.As(err, &known):
		return known.Reason
	case errors.As(err, &dns):
		return DNS
	case isOp && op.Op == "dial" && op.Timeout():
		return ConnectTimeout
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return Timeout
	case errors.Is(err, io.ErrUnexpectedEOF):
		return Truncated
	case errors.As(err, &authority):
		return TLSAuthority
	case errors.As(err, &name):
		return TLSName
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return TLSExpired
	case errors.As(err, &invalid), errors.As(err, &record),
		isOp && (op.Op == "remote error" || op.Op == "local error"): // TLS alerts
		return TLSHandshake
	case errors.Is(err, syscall.ECONNREFUSED):
		return ConnectRefused
	case isOp && op.Op == "dial":
		return Unreachable
	case isOp, errors.Is(err, io.EOF):
		return ConnectionLost
	}
	return BadHTTP
}
