package kubelet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/kube-vitals/kube-vitals/pkg/internal/reload"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// credentials verify kubelets and authenticate this client to them. Files are read again when they
// change.
type credentials struct {
	insecure    bool
	pins        Pins                            // nil: only a CA can verify a certificate
	authority   *reload.Value[*x509.CertPool]   // nil for the roots of the system
	certificate *reload.Value[*tls.Certificate] // nil for no client certificate
	tokenFile   *reload.Value[string]           // nil for no token
	tokenSource func(context.Context) (string, error)

	encoding, userAgent string // headers of every request
}

func newCredentials(c *Config) (*credentials, error) {
	s := &credentials{insecure: c.TLS.Insecure, pins: c.Pins, encoding: "identity", userAgent: c.UserAgent}
	if c.Gzip {
		s.encoding = "gzip"
	}
	var authorityErr, certificateErr, tokenErr error
	s.authority, authorityErr = newReloaded(c, "CA", parseAuthority,
		[]string{c.TLS.CAFile}, c.TLS.CAData)
	s.certificate, certificateErr = newReloaded(c, "client certificate", parseKeyPair,
		[]string{c.TLS.CertFile, c.TLS.KeyFile}, c.TLS.CertData, c.TLS.KeyData)
	switch {
	case c.PlainHTTP, s.certificate != nil: // no token
	case c.Token != nil:
		s.tokenSource = c.Token
	default:
		s.tokenFile, tokenErr = newReloaded(c, "bearer token", parseToken,
			[]string{c.BearerTokenFile}, []byte(c.BearerToken))
	}
	return s, errors.Join(authorityErr, certificateErr, tokenErr)
}

// newReloaded returns the content of the files, or the inline content if a file is not set, or nil
// without either. The content must be valid. kind is what it is, for the error.
func newReloaded[T any](
	c *Config, kind string, parse func([][]byte) (T, error), files []string, inline ...[]byte,
) (v *reload.Value[T], err error) {
	switch {
	case !slices.Contains(files, ""):
		v, err = reload.New(files, parse, c.Reloaded)
	case len(inline[0]) > 0:
		kind += " in the kubeconfig"
		var value T
		value, err = parse(inline)
		v = reload.Fixed(value)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot use the %s for kubelets: %w", kind, err)
	}
	return v, nil
}

// headers returns the headers of a request that accepts the given content type.
func (s *credentials) headers(ctx context.Context, accept string) (http.Header, error) {
	token, _ := s.tokenFile.Get()
	if s.tokenSource != nil {
		var err error
		if token, err = s.tokenSource(ctx); err != nil {
			return nil, &reason.Error{Reason: reason.NoToken, Err: err}
		}
	}
	h := http.Header{
		"Accept":          {accept},
		"Accept-Encoding": {s.encoding},
		"User-Agent":      {s.userAgent},
	}
	if token != "" {
		h.Set("Authorization", "Bearer "+token)
	}
	return h, nil
}

// version returns a number that changes when existing connections must not be used any more,
// because they were verified by another CA or show another certificate.
func (s *credentials) version() int {
	_, authority := s.authority.Get()
	_, certificate := s.certificate.Get()
	return authority + certificate
}

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

func parseAuthority(contents [][]byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(contents[0]) {
		return nil, errors.New("no certificate in PEM format")
	}
	return pool, nil
}

func parseKeyPair(contents [][]byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	return &pair, err
}

// parseToken returns a token that can be sent in a header. Its errors do not contain the token.
func parseToken(contents [][]byte) (string, error) {
	token := bytes.TrimSpace(contents[0])
	if len(token) == 0 {
		return "", errors.New("no token")
	}
	if slices.ContainsFunc(token, func(c byte) bool { return c <= ' ' || c > '~' }) {
		return "", errors.New("invalid characters in the token")
	}
	return string(token), nil
}
