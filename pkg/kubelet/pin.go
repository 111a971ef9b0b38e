package kubelet

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// Pins are the public keys of kubelets that sign their certificates themselves.
type Pins interface {
	// Check reports whether the key is pinned for the node. It returns an error if the node must have
	// another key. Neither is true if the node has no pin yet.
	Check(node string, uid types.UID, key string) (pinned bool, err error)
	// Pin pins the key of a node that has no pin, and returns once it is stored.
	Pin(ctx context.Context, node string, uid types.UID, key string) error
	// Verified notes that a CA has verified the node's certificate. It does not wait.
	Verified(node string, uid types.UID)
}

// peer is the kubelet that must be at the other end of a connection.
type peer struct {
	*credentials
	node string
	uid  types.UID // of the node
	host string    // that is dialed
}

// verify verifies the certificates that the kubelet shows. It returns the key of a self-signed
// certificate, which must be pinned, or "" if a CA verified the certificate.
//
// Only certificates that kubelets sign themselves can be pinned, and then their validity does not
// matter: a kubelet does not renew such a certificate. A CA renews its certificates with new keys,
// so pins of those would break one day.
func (p *peer) verify(certificates []*x509.Certificate) (key string, err error) {
	roots, _ := p.authority.get()
	leaf := certificates[0] // crypto/tls requires one
	if err = verify(certificates, roots, p.host, p.node); err == nil || p.pins == nil || !isSelfSigned(leaf) {
		return "", err
	}
	if err := verifyName(leaf, p.host, p.node); err != nil {
		return "", err
	}
	return keyOf(leaf), nil
}

// verifyConnection implements tls.Config.VerifyConnection. It is called before the kubelet proves
// that it has the private key, so it pins nothing.
func (p *peer) verifyConnection(state tls.ConnectionState) error {
	key, err := p.verify(state.PeerCertificates)
	if err == nil && key != "" {
		_, err = p.check(key)
	}
	return err
}

// check reports whether the key is pinned. It returns an error if another one is.
func (p *peer) check(key string) (pinned bool, err error) {
	if pinned, err = p.pins.Check(p.node, p.uid, key); err != nil {
		err = &reason.Error{Reason: reason.TLSKeyChanged, Err: err}
	}
	return pinned, err
}

// admit returns the connection after its handshake, once its key is pinned or if a CA verified it.
func (p *peer) admit(ctx context.Context, conn *tls.Conn, permit *permit) (net.Conn, error) {
	key, err := p.verify(conn.ConnectionState().PeerCertificates)
	if err != nil {
		return nil, err
	}
	if key == "" {
		p.pins.Verified(p.node, p.uid)
		return conn, nil
	}
	pinned, err := p.check(key)
	if err != nil {
		return nil, err
	}
	if !pinned {
		permit.pause()
		err = p.pins.Pin(ctx, p.node, p.uid, key)
		permit.resume()
	}
	if err != nil {
		if _, changed := p.check(key); changed != nil {
			return nil, changed // another replica has pinned another key meanwhile
		}
		// A timeout in it is not the kubelet's.
		return nil, &reason.Error{Reason: reason.TLSNotPinned, Err: errors.New(err.Error())}
	}
	return &pinnedConn{conn, key}, nil
}

// pinnedConn is a connection that was admitted because of its key.
type pinnedConn struct {
	net.Conn
	key string
}

// keyOf returns the hash of a certificate's public key, in the form of kubeadm's
// --discovery-token-ca-cert-hash.
func keyOf(c *x509.Certificate) string {
	hash := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(hash[:])
}

// verifyName returns an error if the certificate is neither for the host nor for the node.
func verifyName(leaf *x509.Certificate, host, node string) error {
	if err := leaf.VerifyHostname(host); err != nil && leaf.VerifyHostname(node) != nil {
		return &reason.Error{Reason: reason.TLSName, Err: fmt.Errorf("%w, nor for the node's name", err)}
	}
	return nil
}
