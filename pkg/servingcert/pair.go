package servingcert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// backdate is how long before its creation a certificate becomes valid, for clocks that are behind.
const backdate = time.Hour

// pair is a serving certificate with its key and its CA. It is immutable.
type pair struct {
	leaf, ca *x509.Certificate
	key      []byte // PEM; nil if it was not stored
}

// certificate returns the PEM of the leaf, which is served.
func (p *pair) certificate() []byte { return encodePEM(p.leaf) }

// chain returns the PEM of the leaf and the CA, which is stored.
func (p *pair) chain() []byte { return encodePEM(p.leaf, p.ca) }

// issue creates a serving certificate for the names, and a CA for it alone. Both expire after
// lifetime. The key of the CA is discarded.
func issue(names []string, now time.Time, lifetime time.Duration) (*pair, error) {
	notBefore, notAfter := now.Add(-backdate).UTC(), now.Add(lifetime).UTC()
	ca, caKey, err := sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: fmt.Sprintf("kube-vitals-ca@%d", now.Unix())},
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}, nil, nil)
	if err != nil {
		return nil, err
	}
	leaf, leafKey, err := sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: names[0]},
		DNSNames:              names,
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}, ca, caKey)
	if err != nil {
		return nil, err
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(leafKey)
	if err != nil {
		return nil, fmt.Errorf("cannot encode a key: %w", err)
	}
	return &pair{leaf, ca, key}, nil
}

// sign creates a key and a certificate for it. Without a parent, the certificate is self-signed.
func sign(template, parent *x509.Certificate, parentKey crypto.Signer) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot create a key: %w", err)
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot sign a certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot parse the signed certificate: %w", err)
	}
	return certificate, key, nil
}

// readPair parses a pair created by issue. It checks that the key belongs to the certificate, that
// the CA signed it and that it covers the name. It does not check the dates.
func readPair(chain, key []byte, name string) (*pair, error) {
	p, err := readChain(chain, name)
	if err != nil {
		return nil, err
	}
	// readChain skips certificates with PEM headers, so the key is compared with what is served.
	if _, err := tls.X509KeyPair(p.certificate(), key); err != nil {
		return nil, err
	}
	p.key = key
	return p, nil
}

// readChain is readPair without a key.
func readChain(chain []byte, name string) (*pair, error) {
	certificates, err := cert.ParseCertsPEM(chain)
	if err != nil {
		return nil, err
	}
	if len(certificates) != 2 {
		return nil, fmt.Errorf("want two certificates, that of the Service and its CA, got %d", len(certificates))
	}
	p := &pair{leaf: certificates[0], ca: certificates[1]}
	if !p.ca.BasicConstraintsValid || !p.ca.IsCA || p.ca.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, errors.New("the second certificate is not a CA")
	}
	roots := x509.NewCertPool()
	roots.AddCert(p.ca)
	options := x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: p.leaf.NotAfter}
	if _, err := p.leaf.Verify(options); err != nil {
		return nil, err
	}
	return p, nil
}

// validAt reports whether the certificate and its CA are valid at that time.
func (p *pair) validAt(now time.Time) bool {
	valid := func(c *x509.Certificate) bool { return !now.Before(c.NotBefore) && !now.After(c.NotAfter) }
	return valid(p.leaf) && valid(p.ca)
}

// encodePEM encodes certificates. Equal certificates have equal bytes.
func encodePEM(certificates ...*x509.Certificate) []byte {
	text, _ := cert.EncodeCertificates(certificates...) // writing to memory does not fail
	return text
}
