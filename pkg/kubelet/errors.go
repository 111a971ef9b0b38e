package kubelet

import (
	"bytes"
	"crypto/x509"
	"errors"
	"strings"
	"syscall"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// newError returns the error of a request: without the node, which the caller knows, and with the cure if the
// usual one of its reason does not fit.
func (q *query) newError(err error) error {
	text := err.Error()
	if q.subject != "" {
		text = q.subject + ": " + text
	}
	// A kubelet can choose the names in its certificates, for example, so the text is cut.
	e := reason.Flatten(err, "%.1000s", text)
	switch cure := q.cures[e.Reason]; {
	case e.Reason != reason.Canceled && isFileLimit(err): // not a fault of the network
		e.Reason = reason.InternalFailure
		e.Cure = "raise the limit of open files of kube-vitals (LimitNOFILE of the container runtime, or ulimit -n)"
	case cure != "":
		e.Cure = cure
	}
	return e
}

// isFileLimit reports whether this process, or its machine, has too many open files.
func isFileLimit(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// hasNoRoute reports whether this machine has no route to an address, has no address of its family, or does
// not support that family.
func hasNoRoute(err error) bool {
	return errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
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
