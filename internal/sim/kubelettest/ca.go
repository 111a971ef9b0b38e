package kubelettest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// CA is a certificate authority for tests. Its keys are ECDSA P-256, which take microseconds to
// generate. Its functions panic if a certificate cannot be created.
type CA struct {
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
	chain [][]byte // certificates that lead to the root, in DER; nil for a root
}

// NewCA returns a root CA. It is valid from an hour ago until ten years from now.
func NewCA(options ...CertificateOption) *CA { return newCA(nil, options...) }

// Intermediate returns a CA whose certificate this CA issues. Leaf certificates of the intermediate
// contain its own certificate.
func (ca *CA) Intermediate(options ...CertificateOption) *CA { return newCA(ca, options...) }

func newCA(parent *CA, options ...CertificateOption) *CA {
	asCA := func(c *x509.Certificate) {
		c.Subject = pkix.Name{CommonName: "kubelettest CA"}
		c.NotAfter = time.Now().AddDate(10, 0, 0)
		c.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
		c.ExtKeyUsage = nil
		c.IsCA = true
	}
	key := newKey()
	pair := parent.issue(key, nil, nil, append([]CertificateOption{asCA}, options...)...)
	ca := &CA{cert: pair.Leaf, key: key}
	if parent != nil {
		ca.chain = pair.Certificate
	}
	return ca
}

// PEM returns the CA's certificate in PEM format.
func (ca *CA) PEM() []byte { return certificatePEM(ca.cert.Raw) }

// Pool returns a pool with only this CA.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// CertificateOption changes the template of a certificate.
type CertificateOption func(*x509.Certificate)

// Expired makes a certificate expire an hour ago.
func Expired(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = time.Now().Add(-48*time.Hour), time.Now().Add(-time.Hour)
}

// NotYetValid makes a certificate valid from an hour from now.
func NotYetValid(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(48*time.Hour)
}

// Subject sets the subject. In a client certificate, the CommonName is the user and the
// Organization is the list of groups.
func Subject(name pkix.Name) CertificateOption {
	return func(c *x509.Certificate) { c.Subject = name }
}

// Issue returns a certificate for servers and clients. It is valid from an hour ago until tomorrow.
func (ca *CA) Issue(dnsNames []string, ips []net.IP, options ...CertificateOption) tls.Certificate {
	return ca.issue(newKey(), dnsNames, ips, options...)
}

// SelfSigned returns a self-signed certificate, which is what a kubelet uses by default.
func SelfSigned(dnsNames []string, ips []net.IP, options ...CertificateOption) tls.Certificate {
	return (*CA)(nil).issue(newKey(), dnsNames, ips, options...)
}

// KubeletSigned returns a certificate in the form that a kubelet creates: it is for the name of the
// node only, and signed by a CA of its own.
func KubeletSigned(node string, options ...CertificateOption) tls.Certificate {
	at := time.Now().Unix()
	ca := newCA(nil, Subject(pkix.Name{CommonName: fmt.Sprintf("%s-ca@%d", node, at)}))
	named := Subject(pkix.Name{CommonName: fmt.Sprintf("%s@%d", node, at)})
	certificate := ca.Issue([]string{node}, nil, append([]CertificateOption{named}, options...)...)
	certificate.Certificate = append(certificate.Certificate, ca.cert.Raw)
	return certificate
}

// issue returns a certificate for a key. A nil CA makes it self-signed.
func (ca *CA) issue(
	key *ecdsa.PrivateKey, dnsNames []string, ips []net.IP, options ...CertificateOption,
) tls.Certificate {
	template := &x509.Certificate{
		SerialNumber:          must(rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))),
		Subject:               pkix.Name{CommonName: "kubelettest"},
		DNSNames:              dnsNames,
		IPAddresses:           ips,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	for _, option := range options {
		option(template)
	}
	if ca == nil {
		ca = &CA{cert: template, key: key}
	}
	der := must(x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key))
	return tls.Certificate{
		Certificate: append([][]byte{der}, ca.chain...), PrivateKey: key, Leaf: must(x509.ParseCertificate(der)),
	}
}

// PEM returns a certificate and its key in PEM format.
func PEM(c tls.Certificate) (certificate, key []byte) {
	der := must(x509.MarshalPKCS8PrivateKey(c.PrivateKey))
	return certificatePEM(c.Certificate[0]), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newKey() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("kubelettest: cannot create a certificate: %v", err))
	}
	return v
}
