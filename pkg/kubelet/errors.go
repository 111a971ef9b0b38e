package kubelet

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// withCure returns an error of a request with the node, the problem and what to do. The subject is what
// was requested; it is empty for the resource metrics. cures replace the usual ones.
func withCure(node, subject string, cures map[reason.Reason]string, err error) error {
	r := reason.Of(err)
	if r != reason.Canceled && isFileLimit(err) { // not a fault of the network
		r = reason.InternalFailure
	}
	description := r.Describe()
	problem, cure := description.Problem, description.Cure
	switch r {
	case reason.NoAddress, reason.BadEndpoint, reason.ConnectTimeout, reason.Timeout, reason.InternalFailure:
		problem = "" // the error itself names it
	case reason.NoToken:
		cure = "" // the error itself names it
	}
	if isFileLimit(err) {
		cure = "raise the limit of open files of kube-vitals (LimitNOFILE of the container runtime, or ulimit -n)"
	}
	if other, ok := cures[r]; ok {
		cure = other
	}
	text := fmt.Sprintf("node %q: ", node)
	for _, part := range []string{subject, problem} {
		if part != "" {
			text += part + ": "
		}
	}
	if cure != "" {
		cure = " (" + cure + ")"
	}
	// A kubelet can choose the names in its certificates, for example, so the text is cut.
	return fmt.Errorf("%s%w%s", text, reason.Errorf(r, "%.1000s", err.Error()), cure)
}

// isFileLimit reports whether this process, or its machine, has too many open files.
func isFileLimit(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
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
