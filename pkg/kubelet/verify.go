package kubelet

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// tlsConfig returns the TLS configuration for a connection to a host of the kubelet.
//
// crypto/tls verifies a certificate for one name. A kubelet's certificate may be for its address or
// for the name of its node, so it is verified here.
func (t *transport) tlsConfig(host string) *tls.Config {
	c := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies instead
	}
	if !t.insecure {
		c.VerifyConnection = func(state tls.ConnectionState) error { return t.verifyConnection(host, state) }
	}
	if t.certificate != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			certificate, _ := t.certificate.Get()
			return certificate, nil
		}
	}
	return c
}

// nodeUser begins the common name of certificates that kubelets request from the API server: the node's user name.
const nodeUser = "system:node:"

// verify verifies the certificates that a kubelet shows like crypto/tls: the first one must be a valid
// server certificate, must lead to one of the roots through the others, and must be for the right name.
// Here, that of the host that was dialed or that of the node suffices, but no certificate that names another node:
// a node that is gone may have had the same address. It returns the key of a self-signed certificate, which must be
// pinned, or "" if a CA verified the certificate.
//
// Only certificates that kubelets sign themselves can be pinned, and then their validity does not
// matter: a kubelet does not renew such a certificate. A CA renews its certificates with new keys,
// so pins of those would break one day.
func (t *transport) verify(host string, certificates []*x509.Certificate) (key string, err error) {
	leaf := certificates[0] // crypto/tls requires one
	roots, _ := t.authority.Get()
	options := x509.VerifyOptions{
		Roots:         roots, // nil for those of the system
		Intermediates: x509.NewCertPool(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, c := range certificates[1:] {
		options.Intermediates.AddCert(c)
	}
	if _, err = leaf.Verify(options); err != nil {
		selfSigned := isSelfSigned(leaf)
		switch {
		case t.pins != nil && selfSigned:
			key = keyOf(leaf)
		case selfSigned && reason.Of(err) == reason.TLSAuthority:
			return "", &reason.Error{Reason: reason.TLSSelfSigned, Err: err}
		default:
			return "", err
		}
	}
	if err = leaf.VerifyHostname(host); err != nil && leaf.VerifyHostname(t.node) != nil {
		return "", &reason.Error{Reason: reason.TLSName, Err: fmt.Errorf("%q, nor for the node's name", err.Error())}
	}
	if owner, ok := strings.CutPrefix(leaf.Subject.CommonName, nodeUser); ok && !strings.EqualFold(owner, t.node) {
		return "", &reason.Error{Reason: reason.TLSName, Err: fmt.Errorf("it is that of node %q", owner)}
	}
	return key, nil
}
