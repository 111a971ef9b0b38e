package kubelet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"sync"
)

// credentials are what this client verifies kubelets with, and what it identifies itself to them
// with. The files are read again when they change.
type credentials struct {
	insecure    bool
	authority   *reloaded[*x509.CertPool]   // nil: the roots of the system
	certificate *reloaded[*tls.Certificate] // nil: none is shown
	tokenFile   *reloaded[string]           // nil: no such token is sent
	tokenSource func(context.Context) (string, error)

	encoding, userAgent string // for every request

	mu    sync.Mutex
	made  map[string]http.Header // headers of requests, by what they accept; never changed once made
	token string                 // that the headers have
}

func newCredentials(c *Config) (*credentials, error) {
	t := &credentials{insecure: c.InsecureTLS, encoding: "identity", userAgent: c.UserAgent, made: map[string]http.Header{}}
	if c.Gzip {
		t.encoding = "gzip"
	}
	var errs []error
	var err error
	switch {
	case c.CertificateAuthority != "":
		if t.authority, err = newReloaded(parseAuthority, c.Reloaded, c.CertificateAuthority); err != nil {
			errs = append(errs, fmt.Errorf("cannot use --kubelet-certificate-authority: %w", err))
		}
	case len(c.Inline.CertificateAuthority) > 0:
		if t.authority, err = newFixed(parseAuthority, c.Inline.CertificateAuthority); err != nil {
			errs = append(errs, fmt.Errorf("cannot use the CA in the kubeconfig for kubelets: %w", err))
		}
	}
	switch {
	case c.ClientCertificate != "" && c.ClientKey != "":
		if t.certificate, err = newReloaded(parseKeyPair, c.Reloaded, c.ClientCertificate, c.ClientKey); err != nil {
			errs = append(errs, fmt.Errorf("cannot use --kubelet-client-certificate and --kubelet-client-key: %w", err))
		}
	case len(c.Inline.ClientCertificate) > 0:
		if t.certificate, err = newFixed(parseKeyPair, c.Inline.ClientCertificate, c.Inline.ClientKey); err != nil {
			errs = append(errs, fmt.Errorf("cannot use the client certificate in the kubeconfig for kubelets: %w", err))
		}
	}
	switch {
	case c.PlainHTTP, t.certificate != nil: // no token
	case c.Token != nil:
		t.tokenSource = c.Token
	case c.BearerTokenFile != "":
		if t.tokenFile, err = newReloaded(parseToken, c.Reloaded, c.BearerTokenFile); err != nil {
			errs = append(errs, fmt.Errorf("cannot use the bearer token for kubelets: %w", err))
		}
	case c.Inline.BearerToken != "":
		if t.tokenFile, err = newFixed(parseToken, []byte(c.Inline.BearerToken)); err != nil {
			errs = append(errs, fmt.Errorf("cannot use the bearer token in the kubeconfig for kubelets: %w", err))
		}
	}
	return t, errors.Join(errs...)
}

// headers returns the headers of a request that accepts the given type of content. They are shared
// by all such requests and must not be changed.
func (t *credentials) headers(ctx context.Context, accept string) (http.Header, error) {
	token, err := t.bearerToken(ctx)
	if err != nil {
		return nil, &noTokenError{err}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if token != t.token {
		clear(t.made)
		t.token = token
	}
	h := t.made[accept]
	if h == nil {
		h = t.newHeader(accept, token)
		t.made[accept] = h
	}
	return h, nil
}

// bearerToken returns the token to send; empty for none.
func (t *credentials) bearerToken(ctx context.Context) (string, error) {
	if t.tokenSource != nil {
		return t.tokenSource(ctx)
	}
	token, _ := t.tokenFile.get()
	return token, nil
}

func (t *credentials) newHeader(accept, token string) http.Header {
	h := http.Header{
		"Accept":          {accept},
		"Accept-Encoding": {t.encoding},
		"User-Agent":      {t.userAgent},
	}
	if token != "" {
		h.Set("Authorization", "Bearer "+token)
	}
	return h
}

// version changes when connections that were made before should not be used any more, because they
// were verified by another authority or show another certificate.
func (t *credentials) version() int {
	_, authority := t.authority.get()
	_, certificate := t.certificate.get()
	return authority + certificate
}

// config gives the TLS configuration for the kubelet of one node, which is dialled at host.
//
// The library's own verification accepts a certificate for one name. A kubelet's may be for its
// address or for the name of its node, so that verification is done here instead.
func (t *credentials) config(node, host string) *tls.Config {
	c := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies instead
	}
	if !t.insecure {
		c.VerifyConnection = func(state tls.ConnectionState) error {
			roots, _ := t.authority.get()
			return verify(state.PeerCertificates, roots, host, node)
		}
	}
	if t.certificate != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			certificate, _ := t.certificate.get()
			return certificate, nil
		}
	}
	return c
}

// verify does what crypto/tls does with a server's certificate: that there is a chain to one of the
// roots (nil: the system's) by way of the certificates that the server sent along, all of them
// valid now and the first one for a server, and that this first one is for the name that is meant;
// but any of two names will do.
func verify(certificates []*x509.Certificate, roots *x509.CertPool, host, node string) error {
	leaf := certificates[0] // a TLS server always has one
	options := x509.VerifyOptions{
		Roots:         roots,
		Intermediates: x509.NewCertPool(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, c := range certificates[1:] {
		options.Intermediates.AddCert(c)
	}
	_, err := leaf.Verify(options)
	if err == nil {
		err = verifyName(leaf, host, node)
	}
	if err != nil {
		return &unverifiedError{err}
	}
	return nil
}

// unverifiedError is why a certificate was not accepted.
type unverifiedError struct{ error }

func (e *unverifiedError) Unwrap() error { return e.error }

func verifyName(leaf *x509.Certificate, host, node string) error {
	err := leaf.VerifyHostname(host)
	if err == nil || leaf.VerifyHostname(node) == nil {
		return nil
	}
	return fmt.Errorf("%w, and neither is it for the node's name", err)
}

func parseAuthority(contents [][]byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(contents[0]) {
		return nil, errors.New("there is no PEM certificate in it")
	}
	return pool, nil
}

func parseKeyPair(contents [][]byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, err
	}
	return &pair, nil
}

// parseToken takes what can stand in a header. Its errors do not show the token.
func parseToken(contents [][]byte) (string, error) {
	token := bytes.TrimSpace(contents[0])
	if len(token) == 0 {
		return "", errors.New("there is no token in it")
	}
	for _, c := range token {
		if c <= ' ' || c > '~' {
			return "", errors.New("it has characters that no token has")
		}
	}
	return string(token), nil
}
