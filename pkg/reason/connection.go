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

// OfRequest returns the reason of an error of an HTTP client: BadHTTP if it is neither of the
// connection nor of TLS. The order matters: an error often wraps another one.
func OfRequest(err error) Reason {
	var (
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
	case errors.As(err, &dns):
		return DNS
	case errors.Is(err, syscall.ECONNREFUSED):
		return ConnectRefused
	case isOp && op.Op == "dial":
		return Unreachable
	case isOp, errors.Is(err, io.EOF):
		return ConnectionLost
	}
	return BadHTTP
}
