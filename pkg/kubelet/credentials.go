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
