package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
)

// serverName is the name that the API server verifies.
func (d *doctor) serverName() string {
	return d.target.name + "." + d.target.namespace + ".svc"
}

// servedChain returns the certificates that the server presents. It sends no credentials.
func (d *doctor) servedChain(ctx context.Context) ([]*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	conn, err := d.dial(ctx)
	if err != nil {
		return nil, &connectError{err}
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	client := tls.Client(conn, &tls.Config{
		ServerName:         d.serverName(),
		InsecureSkipVerify: true, //nolint:gosec // the chain is examined, and nothing is sent
	})
	if err := client.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return client.ConnectionState().PeerCertificates, nil
}

// connectError is a failure to connect, from which nothing follows about the server's certificate.
type connectError struct{ error }

func (e *connectError) Unwrap() error { return e.error }

func (d *doctor) checkCertificate(ctx context.Context) []Check {
	c := Check{ID: "certificate", Title: "certificate", Status: Skipped, Reason: noConnection}
	if d.dial == nil {
		c.Seen = "there is no running pod whose certificate can be read"
		return []Check{c}
	}
	chain, err := d.servedChain(ctx)
	var connect *connectError
	switch {
	case errors.As(err, &connect):
		c.Seen = "the pod cannot be connected to by port-forward: " + err.Error()
		if strings.Contains(err.Error(), "forbidden") {
			c.Reason = noPermission
		}
		return []Check{c}
	case err != nil:
		c.Status, c.Reason, c.Seen = Failed, certificateHandshake, "the TLS handshake with the server fails: "+err.Error()
		return []Check{c}
	}
	leaf := chain[0]
	served := fmt.Sprintf("the server presents a certificate of issuer %q for %s, valid until %s", leaf.Issuer.CommonName,
		namesOf(leaf), leaf.NotAfter.UTC().Format("2006-01-02 15:04Z"))
	c.Seen = served + "; there is no caBundle to compare it with"
	for _, version := range versions() {
		a := d.apiServices[version]
		if a == nil || a.Spec.Service == nil || !d.target.is(a.Spec.Service.Namespace, a.Spec.Service.Name) {
			continue
		}
		if a.Spec.InsecureSkipTLSVerify {
			c.Status, c.Reason = Skipped, tlsNotVerified
			c.Seen = served + "; the API server does not verify it"
			continue
		}
		if err := verify(a.Spec.CABundle, chain, d.serverName()); err != nil {
			c.Status, c.Reason = Failed, certificateReason(err)
			c.Seen = fmt.Sprintf("%s. The caBundle of %s.metrics.k8s.io, of %s, does not verify it: %v",
				served, version, issuers(a.Spec.CABundle), err)
			return []Check{c}
		}
		c.Status, c.Reason, c.Seen = OK, "", served
	}
	return []Check{c}
}

// verify verifies a chain as the API server does.
func verify(bundle []byte, chain []*x509.Certificate, name string) error {
	options := x509.VerifyOptions{DNSName: name, Intermediates: x509.NewCertPool()}
	if len(bundle) > 0 { // otherwise the roots of the system
		options.Roots = x509.NewCertPool()
		options.Roots.AppendCertsFromPEM(bundle)
	}
	for _, certificate := range chain[1:] {
		options.Intermediates.AddCert(certificate)
	}
	_, err := chain[0].Verify(options)
	return err
}

func certificateReason(err error) string {
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &name):
		return certificateName
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return certificateExpired
	default:
		return caBundleForeign
	}
}

func namesOf(certificate *x509.Certificate) string {
	if len(certificate.DNSNames) == 0 {
		return commonName(certificate)
	}
	return certificate.DNSNames[0]
}

func issuers(bundle []byte) string {
	cas, err := certutil.ParseCertsPEM(bundle)
	if err != nil {
		return "no certificate"
	}
	var names []string
	for _, ca := range cas {
		names = append(names, commonName(ca))
	}
	return strings.Join(names, ", ")
}

// maxPage is larger than the page of nodes of any cluster.
const maxPage = 64 << 20

// getVerified sends a GET request with a token to the server, whose certificate is verified by the
// caBundle before anything is sent. The body is nil if there was no response.
func (d *doctor) getVerified(ctx context.Context, path, token string, bundle []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	transport := &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return d.dial(ctx) },
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: d.serverName(), MinVersion: tls.VersionTLS12},
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+d.serverName()+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Accept", "application/json")
	response, err := transport.RoundTrip(request) // without redirects
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxPage))
	body = bytes.ReplaceAll(body, []byte(token), []byte("<token>")) // errors are printed
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s%s", response.Status, messageOf(body))
	}
	return body, err
}

// messageOf returns the message of a Status, or the beginning of another text.
func messageOf(body []byte) string {
	var status metav1.Status
	text := string(bytes.TrimSpace(body[:min(len(body), 200)]))
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		text = status.Message
	}
	if text == "" {
		return ""
	}
	return ": " + text
}
