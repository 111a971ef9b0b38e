package kubelet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// Error is the reason why a node's metrics are missing. Its text names the node and what to do.
type Error struct {
	Node string // its name

	reason  reason.Reason
	subject string // what was requested; empty for the resource metrics
	problem string // may be empty
	cure    string // may be empty
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
	if e.cure != "" {
		text += " (" + e.cure + ")"
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// Reason returns the reason of an error of Fetch or FetchSummary. It is empty if there is no error.
func Reason(err error) reason.Reason {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.reason
	}
	return reason.InternalFailure
}

// explain returns err as an Error.
func explain(node string, err error) *Error {
	e := &Error{Node: node, reason: classify(err), err: err}
	description := e.reason.Describe()
	e.problem, e.cure = description.Problem, description.Cure
	switch e.reason {
	case reason.BadEndpoint, reason.ConnectTimeout, reason.Timeout, reason.InternalFailure:
		e.problem = "" // the error itself names it
	case reason.NoToken:
		e.cure = "" // the error itself names it
	}
	if isFileLimit(err) {
		e.cure = "raise the limit of open files of kube-vitals (LimitNOFILE of the container runtime, or ulimit -n)"
	}
	return e
}

// scrapeError is an error whose reason is known where it occurs.
type scrapeError struct {
	reason reason.Reason
	error
}

func (e *scrapeError) Unwrap() error { return e.error }

func newScrapeError(reason reason.Reason, format string, args ...any) error {
	return &scrapeError{reason, fmt.Errorf(format, args...)}
}

// classify returns the reason of an error. The order matters: an error often wraps another one.
func classify(err error) reason.Reason {
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
		return reason.Canceled
	case errors.As(err, &known):
		return known.reason
	case errors.Is(err, decode.ErrNotJSON), errors.Is(err, decode.ErrUndecodable):
		return reason.Undecodable
	case errors.Is(err, decode.ErrOtherNode):
		return reason.BadEndpoint
	case errors.As(err, &badTime):
		return reason.ClockSkew
	case errors.Is(err, decode.ErrNoSamples):
		return reason.NoSamples
	case errors.Is(err, decode.ErrContainersUnread):
		return reason.RuntimeNoStats
	case errors.As(err, &record), isOp && (op.Op == "remote error" || op.Op == "local error"): // TLS alerts
		return reason.TLSHandshake
	case isFileLimit(err): // not a fault of the network
		return reason.InternalFailure
	case errors.As(err, &dns):
		return reason.DNS
	case errors.Is(err, syscall.ECONNREFUSED):
		return reason.ConnectRefused
	case isOp && op.Op == "dial":
		return reason.Unreachable
	case isOp, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return reason.ConnectionLost
	}
	return reason.BadHTTP
}

// isFileLimit reports whether this process, or its machine, has too many open files.
func isFileLimit(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// certificateReason returns the reason of an error of x509.Certificate.Verify.
func certificateReason(leaf *x509.Certificate, err error) reason.Reason {
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority) && isSelfSigned(leaf):
		return reason.TLSSelfSigned
	case errors.As(err, &authority):
		return reason.TLSAuthority
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return reason.TLSExpired
	}
	return reason.TLSHandshake
}

// isSelfSigned reports whether a kubelet created the certificate itself. It then signs it with a CA
// of its own, NAME-ca@TIME, where NAME is the name in the certificate, NAME@TIME (client-go,
// util/cert.GenerateSelfSignedCertKeyWithOptions). The names prove nothing: with pins, only the key
// counts; without, a forged name changes only the text of an error.
func isSelfSigned(leaf *x509.Certificate) bool {
	subject, _, _ := strings.Cut(leaf.Subject.CommonName, "@")
	issuer, _, found := strings.Cut(leaf.Issuer.CommonName, "@")
	return found && issuer == subject+"-ca" || bytes.Equal(leaf.RawSubject, leaf.RawIssuer)
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
	case code >= 500:
		return reason.ServerError
	}
	return reason.BadStatus
}
