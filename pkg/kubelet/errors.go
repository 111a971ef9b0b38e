package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
)

// Error is the reason why a node's metrics are missing. Its text names the node and what to do.
type Error struct {
	Node string // its name

	reason  string // one of Reasons
	subject string // what was requested; empty for the resource metrics
	problem string // may be empty
	hint    string // what to do about it; may be empty
	err     error  // the cause; may be nil
}

// Error implements error.
func (e *Error) Error() string {
	text := fmt.Sprintf("node %q", e.Node)
	for _, part := range []string{e.subject, e.problem} {
		if part != "" {
			text += ": " + part
		}
	}
	if e.err != nil {
		text += ": " + e.err.Error()
	}
	if e.hint != "" {
		text += " (" + e.hint + ")"
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// Reason returns the class of an error of Fetch or FetchSummary, for telemetry. It is empty if
// there is no error.
func Reason(err error) string {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.reason
	}
	return reasonOther
}

// explain returns err as an Error.
func explain(node string, err error) *Error {
	e := &Error{Node: node, reason: classify(err), err: err}
	for _, c := range classes() {
		if c.reason == e.reason {
			e.problem, e.hint = c.problem, c.hint
		}
	}
	return e
}

// scrapeError is an error whose reason is known where it occurs.
type scrapeError struct {
	reason string
	error
}

func (e *scrapeError) Unwrap() error { return e.error }

func newScrapeError(reason, format string, args ...any) error {
	return &scrapeError{reason, fmt.Errorf(format, args...)}
}

// classify returns the reason of an error. The order matters: an error often wraps another one.
func classify(err error) string {
	var (
		known   *scrapeError
		badTime *decode.BadTimeError
		record  tls.RecordHeaderError
		dns     *net.DNSError
		op      *net.OpError
	)
	isOp := errors.As(err, &op)
	switch {
	case errors.Is(err, context.Canceled):
		return reasonCanceled
	case errors.As(err, &known):
		return known.reason
	case errors.Is(err, decode.ErrNotJSON):
		return reasonMalformed
	case errors.Is(err, decode.ErrOtherNode):
		return reasonEndpoint
	case errors.As(err, &badTime):
		return reasonBadTime
	case errors.Is(err, decode.ErrNoSamples):
		return reasonNoSamples
	case errors.Is(err, decode.ErrContainersUnread):
		return reasonUnread
	case errors.As(err, &record), isOp && (op.Op == "remote error" || op.Op == "local error"): // TLS alerts
		return reasonTLS
	case errors.As(err, &dns):
		return reasonDNS
	case errors.Is(err, syscall.ECONNREFUSED):
		return reasonRefused
	case isOp && op.Op == "dial":
		return reasonUnreachable
	case isOp, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return reasonConnection
	}
	return reasonProtocol
}

// certificateReason returns the reason of an error of x509.Certificate.Verify.
func certificateReason(err error) string {
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority):
		return reasonTLSAuthority
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return reasonTLSExpired
	}
	return reasonTLS
}

// statusReason returns the reason of a response with a status other than 200.
func statusReason(code int) string {
	switch {
	case code == http.StatusUnauthorized:
		return reasonUnauthorized
	case code == http.StatusForbidden:
		return reasonForbidden
	case code == http.StatusNotFound:
		return reasonNotFound
	case code >= 500:
		return reasonServer
	}
	return reasonStatus
}
