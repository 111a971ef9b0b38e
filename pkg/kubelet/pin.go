package kubelet

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// Pins are the public keys of kubelets that sign their certificates themselves.
type Pins interface {
	// Check reports whether the key is pinned for the node. It returns an error with the reason TLSKeyChanged
	// if the node must have another key. Neither is true if the node has no pin yet.
	Check(node string, uid types.UID, key string) (pinned bool, err error)
	// Pin pins the key of a node that has no pin, and returns once it is stored.
	Pin(ctx context.Context, node string, uid types.UID, key string) error
	// Verified notes that a CA has verified the node's certificate. It does not wait.
	Verified(node string, uid types.UID)
}

// verifyConnection is tls.Config.VerifyConnection for a host. It is called before the kubelet proves
// that it has the private key, so it pins nothing.
func (t *transport) verifyConnection(host string, state tls.ConnectionState) error {
	key, err := t.verify(host, state.PeerCertificates)
	if err == nil && key != "" {
		_, err = t.pins.Check(t.node, t.uid, key)
	}
	return err
}

// admit returns once the key of a connection is pinned, or if a CA verified its certificate. It returns
// the key, or "" if it need not be pinned.
func (t *transport) admit(
	ctx context.Context, host string, c *tls.Conn, permit *permit,
) (key string, err error) {
	key, err = t.verify(host, c.ConnectionState().PeerCertificates)
	if err != nil {
		return "", err
	}
	if key == "" {
		t.pins.Verified(t.node, t.uid)
		return "", nil
	}
	pinned, err := t.pins.Check(t.node, t.uid, key)
	if err != nil || pinned {
		return key, err
	}
	permit.pause()
	err = t.pins.Pin(ctx, t.node, t.uid, key)
	permit.resume()
	if err != nil {
		if _, changed := t.pins.Check(t.node, t.uid, key); changed != nil {
			return "", changed // another replica has pinned another key meanwhile
		}
		notPinned := reason.Flatten(err, "%v", err) // a timeout in it is not the kubelet's
		notPinned.Reason = reason.TLSNotPinned
		return "", notPinned
	}
	return key, nil
}

// keyOf returns the hash of a certificate's public key, in the form of kubeadm's
// --discovery-token-ca-cert-hash.
func keyOf(c *x509.Certificate) string {
	hash := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(hash[:])
}
