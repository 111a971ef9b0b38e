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

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// credentials verify kubelets and authenticate this client to them. Files are read again when they
// change.
type credentials struct {
	insecure    bool
	pins        Pins                        // nil: only a CA can verify a certificate
	authority   *reloader[*x509.CertPool]   // nil for the roots of the system
	certificate *reloader[*tls.Certificate] // nil for no client certificate
	tokenFile   *reloader[string]           // nil for no token
	tokenSource func(context.Context) (string, error)

	encoding, userAgent string // headers of every request
}

func newCredentials(c *Config) (*credentials, error) {
	s := &credentials{insecure: c.InsecureTLS, pins: c.Pins, encoding: "identity", userAgent: c.UserAgent}
	if c.Gzip {
		s.encoding = "gzip"
	}
	var authorityErr, certificateErr, tokenErr error
	s.authority, authorityErr = newCredential(c, "CA", parseAuthority,
		[]string{c.CertificateAuthority}, c.Inline.CertificateAuthority)
	s.certificate, certificateErr = newCredential(c, "client certificate", parseKeyPair,
		[]string{c.ClientCertificate, c.ClientKey}, c.Inline.ClientCertificate, c.Inline.ClientKey)
	switch {
	case c.PlainHTTP, s.certificate != nil: // no token
	case c.Token != nil:
		s.tokenSource = c.Token
	default:
		s.tokenFile, tokenErr = newCredential(c, "bearer token", parseToken,
			[]string{c.BearerTokenFile}, []byte(c.Inline.BearerToken))
	}
	return s, errors.Join(authorityErr, certificateErr, tokenErr)
}

// newCredential returns the content of the files, or the inline content if a file is not set, or
// nil without either.
func newCredential[T any](
	c *Config, kind string, parse func([][]byte) (T, error), files []string, inline ...[]byte,
) (*reloader[T], error) {
	var credential *reloader[T]
	var err error
	switch {
	case !slices.Contains(files, ""):
		credential, err = newReloader(parse, c.Reloaded, files...)
	case len(inline[0]) > 0:
		kind += " in the kubeconfig"
		credential, err = newConstant(parse, inline...)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot use the %s for kubelets: %w", kind, err)
	}
	return credential, nil
}

// headers returns the headers of a request that accepts the given content type.
func (s *credentials) headers(ctx context.Context, accept string) (http.Header, error) {
	token, _ := s.tokenFile.get()
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
	_, authority := s.authority.get()
	_, certificate := s.certificate.get()
	return authority + certificate
}

// tlsConfig returns the TLS configuration for a kubelet.
//
// crypto/tls verifies a certificate for one name. A kubelet's certificate may be for its address or
// for the name of its node, so it is verified here.
func (s *credentials) tlsConfig(p *peer) *tls.Config {
	c := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies instead
	}
	if !s.insecure {
		c.VerifyConnection = p.verifyConnection
	}
	if s.certificate != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			certificate, _ := s.certificate.get()
			return certificate, nil
		}
	}
	return c
}

// verify verifies a server's certificates like crypto/tls: the first one must be a valid server
// certificate, must lead to one of the roots (nil means the system's) through the others, and must
// be for the given name. Here, either of two names suffices.
func verify(certificates []*x509.Certificate, roots *x509.CertPool, host, node string) error {
	leaf := certificates[0] // crypto/tls requires one
	options := x509.VerifyOptions{
		Roots:         roots,
		Intermediates: x509.NewCertPool(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, c := range certificates[1:] {
		options.Intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(options); err != nil {
		return &reason.Error{Reason: certificateReason(leaf, err), Err: err}
	}
	return verifyName(leaf, host, node)
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
