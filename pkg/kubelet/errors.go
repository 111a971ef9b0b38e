package kubelet

import (
	"compress/flate"
	"compress/gzip"
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
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
)

// Error is why the figures of a node could not be had. Its text is a sentence that names the node
// and says what to do.
type Error struct {
	Node string // its name

	reason  string // one of Reasons
	problem string // begins where "node NAME" ends
	hint    string // what to do about it; may be empty
	err     error  // what was seen; may be nil
}

// Error gives the sentence.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "node %q%s", e.Node, e.problem)
	if e.err != nil {
		fmt.Fprintf(&b, ": %v", e.err)
	}
	if e.hint != "" {
		fmt.Fprintf(&b, " (%s)", e.hint)
	}
	return b.String()
}

// Unwrap gives what was seen.
func (e *Error) Unwrap() error { return e.err }

// The classes of errors.
const (
	reasonNoAddress       = "no_address"
	reasonEndpoint        = "bad_endpoint"
	reasonCanceled        = "canceled"
	reasonDNS             = "dns"
	reasonRefused         = "refused"
	reasonUnreachable     = "unreachable"
	reasonConnectTimeout  = "connect_timeout"
	reasonTimeout         = "timeout"
	reasonConnection      = "connection"
	reasonProtocol        = "protocol"
	reasonTLSAuthority    = "tls_authority"
	reasonTLSName         = "tls_name"
	reasonTLSExpired      = "tls_expired"
	reasonTLS             = "tls"
	reasonUnauthorized    = "unauthorized"
	reasonForbidden       = "forbidden"
	reasonNotFound        = "not_found"
	reasonServer          = "server_error"
	reasonStatus          = "status"
	reasonTooLarge        = "too_large"
	reasonTruncated       = "truncated"
	reasonContentType     = "content_type"
	reasonContentEncoding = "content_encoding"
	reasonMalformed       = "malformed"
	reasonNoSamples       = "no_samples"
	reasonUnread          = "containers_unread"
	reasonBadTime         = "bad_time"
	reasonNoToken         = "no_token"
	reasonOther           = "other"
)

// Reasons lists all that Reason can give for an error.
func Reasons() []string {
	return []string{
		reasonNoAddress, reasonEndpoint, reasonCanceled, reasonDNS, reasonRefused, reasonUnreachable, reasonConnectTimeout,
		reasonTimeout, reasonConnection, reasonProtocol, reasonTLSAuthority, reasonTLSName, reasonTLSExpired, reasonTLS,
		reasonUnauthorized, reasonForbidden, reasonNotFound, reasonServer, reasonStatus, reasonTooLarge, reasonTruncated,
		reasonContentType, reasonContentEncoding, reasonMalformed, reasonNoSamples, reasonUnread,
		reasonBadTime, reasonNoToken, reasonOther,
	}
}

// Reason gives the class of an error of Fetch or FetchSummary in one or two words, for telemetry.
// It is empty when there is no error.
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

// explain turns what was seen into an Error.
func explain(node string, err error) *Error {
	e := &Error{Node: node, reason: classify(err), err: err}
	e.problem, e.hint = advice(e.reason)
	return e
}

// classify finds the class of what a scrape met. Order matters: an error often wraps another one.
func classify(err error) string {
	var (
		timedOut *timeoutError
		status   *statusError
		refused  *refusedAnswer
		body     *bodyError
		address  *addressError
		badTime  *decode.BadTimeError
		noToken  *noTokenError
	)
	switch {
	case errors.Is(err, context.Canceled):
		return reasonCanceled
	case errors.As(err, &noToken):
		return reasonNoToken
	case errors.As(err, &timedOut):
		if timedOut.connecting {
			return reasonConnectTimeout
		}
		return reasonTimeout
	case errors.As(err, &status):
		return status.reason()
	case errors.As(err, &refused):
		return refused.reason
	case errors.Is(err, decode.ErrNotJSON):
		return reasonMalformed
	case errors.Is(err, decode.ErrOtherNode):
		return reasonEndpoint
	case errors.As(err, &address):
		return reasonEndpoint
	case errors.As(err, &badTime):
		return reasonBadTime
	case errors.Is(err, decode.ErrNoSamples):
		return reasonNoSamples
	case errors.Is(err, decode.ErrContainersUnread):
		return reasonUnread
	case errors.As(err, &body):
		return body.reason()
	}
	if reason := classifyTLS(err); reason != "" {
		return reason
	}
	return classifyNet(err)
}

// classifyTLS finds the class of a failed handshake; it is empty for any other error.
func classifyTLS(err error) string {
	var (
		unverified *unverifiedError
		authority  x509.UnknownAuthorityError
		name       x509.HostnameError
		invalid    x509.CertificateInvalidError
		record     tls.RecordHeaderError
		op         *net.OpError
	)
	switch {
	case errors.As(err, &authority):
		return reasonTLSAuthority
	case errors.As(err, &name):
		return reasonTLSName
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return reasonTLSExpired
	case errors.As(err, &unverified), errors.As(err, &record):
		return reasonTLS
	case errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error"): // a TLS alert, by crypto/tls
		return reasonTLS
	}
	return ""
}

func classifyNet(err error) string {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		return reasonDNS
	case errors.Is(err, syscall.ECONNREFUSED):
		return reasonRefused
	case errors.As(err, &op) && op.Op == "dial":
		return reasonUnreachable
	case errors.As(err, &op), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return reasonConnection
	}
	return reasonProtocol
}

// advice gives the problem and what to do about it.
func advice(reason string) (problem, hint string) {
	const unverified = ": cannot verify the kubelet's certificate"
	switch reason {
	case reasonEndpoint:
		return "", "check the node's addresses, and --kubelet-preferred-address-types"
	case reasonCanceled:
		return ": the scrape was given up", ""
	case reasonDNS:
		return ": cannot look up its address",
			"check that kube-vitals can resolve it, or put InternalIP first in --kubelet-preferred-address-types"
	case reasonRefused:
		return ": nothing listens where its kubelet should",
			"check that the kubelet runs, and --kubelet-port and --kubelet-use-node-status-port"
	case reasonUnreachable:
		return ": cannot connect to its kubelet", "check the routes, firewalls and NetworkPolicies between kube-vitals and the node"
	case reasonConnectTimeout:
		return "", "check the firewalls and NetworkPolicies between kube-vitals and the node, and whether the node is up"
	case reasonTimeout:
		return "", "the kubelet or the node may be overloaded; if it is only slow, raise --kubelet-request-timeout"
	case reasonConnection:
		return ": the connection to its kubelet broke", ""
	case reasonProtocol:
		return ": what answers there is no kubelet", "check --kubelet-port and --kubelet-use-node-status-port"
	case reasonTLSAuthority:
		return unverified, "set --kubelet-certificate-authority to the CA that signed it, have the kubelet request one with " +
			"serverTLSBootstrap, or set --kubelet-insecure-tls"
	case reasonTLSName:
		return unverified, "have the kubelet request one for its names and addresses with serverTLSBootstrap, or prefer another " +
			"address by --kubelet-preferred-address-types"
	case reasonTLSExpired:
		return unverified, "have the kubelet renew it, and check the clocks of the node and of kube-vitals"
	case reasonTLS:
		return ": the TLS handshake with its kubelet failed", "check --kubelet-port, and whether the kubelet accepts the " +
			"certificate of --kubelet-client-certificate"
	case reasonUnauthorized:
		return ": its kubelet does not know who asks", "check that the kubelet has webhook authentication on, and that the " +
			"bearer token or client certificate is valid"
	case reasonForbidden:
		return ": its kubelet refuses access", "grant the verb get on nodes/metrics to the user that kube-vitals runs as"
	case reasonNotFound:
		return ": its kubelet has nothing there", "check the node's annotation " + PathAnnotation
	case reasonServer:
		return ": its kubelet failed to answer", "see the kubelet's log"
	case reasonStatus:
		return ": its kubelet did not answer as one", "check --kubelet-port and the node's annotation " + PathAnnotation
	case reasonTooLarge:
		return ": its kubelet's answer is too large", ""
	case reasonTruncated:
		return ": its kubelet's answer was cut off", ""
	case reasonContentType, reasonContentEncoding:
		return ": its kubelet's answer is in another form than asked for", "check --kubelet-port and the node's annotation " + PathAnnotation
	case reasonMalformed:
		return ": its kubelet's answer cannot be read", "check --kubelet-port, and see the kubelet's log"
	case reasonNoSamples:
		return ": its kubelet's answer says nothing of use", "check the node's annotation " + PathAnnotation
	case reasonBadTime:
		return ": no sample of its kubelet has a possible time", "set the node's clock, for example by NTP"
	case reasonNoToken:
		return ": there is no token to send to its kubelet", ""
	case reasonUnread:
		return ": its kubelet could not read its containers", "see the kubelet's log, and check the container runtime"
	}
	return "", ""
}

// noTokenError is the reason why there is no bearer token.
type noTokenError struct{ error }

func (e *noTokenError) Unwrap() error { return e.error }

// timeoutError is that an answer took too long.
type timeoutError struct {
	address    string
	after      time.Duration
	connecting bool // not even a connection was there
}

func (e *timeoutError) Error() string {
	if e.connecting {
		return fmt.Sprintf("no connection to the kubelet at %s within %v", e.address, e.after)
	}
	return fmt.Sprintf("no complete answer from the kubelet at %s within %v", e.address, e.after)
}

func (e *timeoutError) Unwrap() error { return context.DeadlineExceeded }

// statusError is an answer of another status than 200.
type statusError struct {
	code     int
	location string // where a redirection points to
	text     string // the start of the body
}

func (e *statusError) Error() string {
	s := fmt.Sprintf("status %d %s", e.code, http.StatusText(e.code))
	if e.location != "" {
		s += fmt.Sprintf(", a redirection to %.200q, which is not followed", e.location)
	}
	if e.text != "" {
		s += fmt.Sprintf(", %q", e.text)
	}
	return s
}

func (e *statusError) reason() string {
	switch {
	case e.code == http.StatusUnauthorized:
		return reasonUnauthorized
	case e.code == http.StatusForbidden:
		return reasonForbidden
	case e.code == http.StatusNotFound:
		return reasonNotFound
	case e.code >= 500:
		return reasonServer
	}
	return reasonStatus
}

// refusedAnswer is an answer that is not taken because of what its headers or its length say.
type refusedAnswer struct {
	reason, text string
}

func (e *refusedAnswer) Error() string { return e.text }

// bodyError is a failure while the body was read.
type bodyError struct{ error }

func (e *bodyError) Unwrap() error { return e.error }

func (e *bodyError) reason() string {
	var corrupt flate.CorruptInputError
	if errors.Is(e, gzip.ErrHeader) || errors.Is(e, gzip.ErrChecksum) || errors.As(e, &corrupt) {
		return reasonContentEncoding
	}
	return reasonTruncated
}
