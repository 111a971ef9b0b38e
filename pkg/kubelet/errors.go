package kubelet

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// Error is the reason why a node's metrics are missing. Its text names the node and what to do, and
// reason.Of returns its reason.
type Error struct {
	Node string // its name

	subject string        // what was requested; empty for the resource metrics
	problem string        // may be empty
	cure    string        // may be empty
	err     *reason.Error // the cause
}

// Error implements error.
func (e *Error) Error() string {
	text := fmt.Sprintf("node %q", e.Node)
	for _, part := range []string{e.subject, e.problem} {
		if part != "" {
			text += ": " + part
		}
	}
	text += ": " + e.err.Error()
	if e.cure != "" {
		text += " (" + e.cure + ")"
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// explain returns err as an Error.
func explain(node string, err error) *Error {
	r := classify(err)
	e := &Error{Node: node, err: &reason.Error{Reason: r, Err: err}}
	description := r.Describe()
	e.problem, e.cure = description.Problem, description.Cure
	switch r {
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

// classify returns the reason of an error.
func classify(err error) reason.Reason {
	var badTime *decode.BadTimeError
	switch {
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
	}
	r := reason.Of(err)
	if (r == reason.Unreachable || r == reason.DNS) && isFileLimit(err) { // not a fault of the network
		return reason.InternalFailure
	}
	return r
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
