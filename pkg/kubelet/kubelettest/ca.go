package kubelettest

import (
	"crypto"
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

// CA is a certificate authority that lives as long as its test. Keys are ECDSA P-256, which are
// made in microseconds. Its functions panic where cryptography itself fails, which a test can do
// nothing about.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA makes a certificate authority, valid from an hour ago until ten years from now.
func NewCA() *CA {
	key := newKey()
	template := template(nil, nil)
	template.Subject = pkix.Name{CommonName: "kubelettest CA"}
	template.NotAfter = time.Now().AddDate(10, 0, 0)
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = nil
	template.IsCA = true
	return &CA{cert: sign(template, template, key.Public(), key), key: key}
}

// PEM is the authority's certificate, as a CA file has it.
func (ca *CA) PEM() []byte { return certificatePEM(ca.cert.Raw) }

// Pool trusts this authority, and nobody else.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// CertificateOption makes a certificate unusual.
type CertificateOption func(*x509.Certificate)

// Expired makes a certificate that was valid until an hour ago.
func Expired(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = time.Now().Add(-48*time.Hour), time.Now().Add(-time.Hour)
}

// NotYetValid makes a certificate that will be valid in an hour.
func NotYetValid(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(48*time.Hour)
}

// Subject names the holder: of a client certificate, the user (CommonName) and the groups
// (Organization).
func Subject(name pkix.Name) CertificateOption {
	return func(c *x509.Certificate) { c.Subject = name }
}

// Issue makes a certificate for servers and clients, valid from an hour ago until tomorrow.
func (ca *CA) Issue(dnsNames []string, ips []net.IP, options ...CertificateOption) tls.Certificate {
	return ca.issue(newKey(), dnsNames, ips, options...)
}

func (ca *CA) issue(key *ecdsa.PrivateKey, dnsNames []string, ips []net.IP, options ...CertificateOption) tls.Certificate {
	template := template(dnsNames, ips, options...)
	leaf := sign(template, ca.cert, key.Public(), ca.key)
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

// SelfSigned makes a certificate that no authority vouches for, as a kubelet makes for itself by
// default.
func SelfSigned(dnsNames []string, ips []net.IP, options ...CertificateOption) tls.Certificate {
	key := newKey()
	template := template(dnsNames, ips, options...)
	leaf := sign(template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

// PEM gives the two files of a certificate that was made here: the certificate and its key.
func PEM(c tls.Certificate) (certificate, key []byte) {
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		panic(fmt.Sprintf("kubelettest: cannot encode the certificate's key: %v", err))
	}
	return certificatePEM(c.Certificate[0]), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(fmt.Sprintf("kubelettest: cannot make a key: %v", err))
	}
	return key
}

func template(dnsNames []string, ips []net.IP, options ...CertificateOption) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(fmt.Sprintf("kubelettest: cannot make a serial number: %v", err))
	}
	c := &x509.Certificate{
		SerialNumber:          serial,
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
		option(c)
	}
	return c
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		panic(fmt.Sprintf("kubelettest: cannot sign a certificate: %v", err))
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		panic(fmt.Sprintf("kubelettest: cannot read a certificate that was just signed: %v", err))
	}
	return c
}
