package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// secretVolume is the volume of a TLS Secret as the kubelet writes it: tls.crt and tls.key are
// links to files in ..data, which is a link to a folder, and replaced atomically.
type secretVolume struct {
	dir    string
	writes int
}

func (v *secretVolume) certificate() string { return filepath.Join(v.dir, "tls.crt") }
func (v *secretVolume) key() string         { return filepath.Join(v.dir, "tls.key") }

// write replaces the files.
func (v *secretVolume) write(cert, key []byte) error {
	v.writes++
	folder, data := fmt.Sprintf("..%d", v.writes), filepath.Join(v.dir, "..data")
	if err := os.Mkdir(filepath.Join(v.dir, folder), 0o700); err != nil {
		return err
	}
	old, _ := os.Readlink(data) // empty the first time
	err := errors.Join(
		os.WriteFile(filepath.Join(v.dir, folder, "tls.crt"), cert, 0o600),
		os.WriteFile(filepath.Join(v.dir, folder, "tls.key"), key, 0o600),
		os.Symlink(folder, data+"_tmp"),
		os.Rename(data+"_tmp", data),
	)
	if old != "" {
		return errors.Join(err, os.RemoveAll(filepath.Join(v.dir, old)))
	}
	return errors.Join(err, os.Symlink("..data/tls.crt", v.certificate()), os.Symlink("..data/tls.key", v.key()))
}

// testCertificate replaces the serving certificate while clients send requests, over existing and
// new connections. No request fails, and new connections get the new certificate. A certificate
// that does not match its key, or cannot be parsed, changes nothing.
func (d *disruption) testCertificate(t *testing.T) {
	ca := kubelettest.NewCA()
	volume := &secretVolume{dir: t.TempDir()}
	issue := func() (leaf *x509.Certificate, cert, key []byte) {
		c := ca.Issue([]string{d.server.Host}, nil)
		cert, key = kubelettest.PEM(c)
		return c.Leaf, cert, key
	}
	leaf, cert, key := issue()
	must(t, volume.write(cert, key))
	template := *d.server
	template.CA = ca.PEM()
	s := d.replica(t, &template, "--tls-secret=",
		"--tls-cert-file="+volume.certificate(), "--tls-private-key-file="+volume.key())

	calls := map[string]func(context.Context) error{}
	for _, existing := range []bool{true, false} {
		client := d.asAdmin(t, s)
		client.transport.DisableKeepAlives = !existing
		calls[fmt.Sprintf("request over an existing connection: %t", existing)] = func(ctx context.Context) error {
			return d.checkPods(client.getOK(ctx, podsPath))
		}
	}
	load := startLoad(t, calls)
	await := func(leaf *x509.Certificate) {
		t.Helper()
		enough := load.requests.Load() + 20
		eventually(t, "the new certificate, and more requests", func(ctx context.Context) error {
			got, err := servedCertificate(ctx, s, ca.PEM())
			if err == nil && got.SerialNumber.Cmp(leaf.SerialNumber) != 0 {
				err = fmt.Errorf("got serial number %v, want %v", got.SerialNumber, leaf.SerialNumber)
			}
			if n := load.requests.Load(); err == nil && n < enough {
				err = fmt.Errorf("%d requests of %d", n, enough)
			}
			return err
		})
	}
	await(leaf)
	for range 3 {
		leaf, cert, key = issue()
		must(t, volume.write(cert, key))
		await(leaf)
	}
	leaf, cert, key = issue()
	_, otherCert, _ := issue()
	for _, cert := range [][]byte{otherCert, []byte("broken"), cert} {
		must(t, volume.write(cert, key))
	}
	await(leaf)
}

// servedCertificate connects as a client that trusts these CAs, and returns the server's
// certificate.
func servedCertificate(ctx context.Context, s *cluster.Server, ca []byte) (*x509.Certificate, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: s.Host}}).DialContext(ctx, "tcp", s.Address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}
