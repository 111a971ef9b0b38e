package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// mount is a Secret's volume, as kubelet keeps it: the files are links to those in a folder, which
// a link names that is exchanged as a whole.
type mount struct {
	dir   string
	times int // written
}

const (
	mountedCertificate = "tls.crt"
	mountedKey         = "tls.key"
)

// write exchanges the files.
func (m *mount) write(cert, key []byte) error {
	m.times++
	data := fmt.Sprintf("..%d", m.times)
	if err := os.Mkdir(filepath.Join(m.dir, data), 0o700); err != nil {
		return err
	}
	old, _ := os.Readlink(filepath.Join(m.dir, "..data")) // the first time there is none
	return errors.Join(
		os.WriteFile(filepath.Join(m.dir, data, mountedCertificate), cert, 0o600),
		os.WriteFile(filepath.Join(m.dir, data, mountedKey), key, 0o600),
		os.Symlink(data, filepath.Join(m.dir, "..data_tmp")),
		os.Rename(filepath.Join(m.dir, "..data_tmp"), filepath.Join(m.dir, "..data")),
		m.clear(old),
	)
}

// clear makes the links of the first time, and removes what they led to before.
func (m *mount) clear(old string) error {
	if old != "" {
		return os.RemoveAll(filepath.Join(m.dir, old))
	}
	return errors.Join(
		os.Symlink(filepath.Join("..data", mountedCertificate), filepath.Join(m.dir, mountedCertificate)),
		os.Symlink(filepath.Join("..data", mountedKey), filepath.Join(m.dir, mountedKey)),
	)
}

// certificate exchanges the serving certificate under requests: not one fails, whether its
// connection is new or was there before, and in the end new connections see the new certificate. A
// certificate that is broken changes nothing.
func (d *disturbed) certificate(t *testing.T) {
	ca := kubelettest.NewCA()
	m := &mount{dir: t.TempDir()}
	issue := func() (leaf *x509.Certificate, cert, key []byte) {
		c := ca.Issue([]string{d.Server.Host}, nil)
		cert, key = kubelettest.PEM(c)
		return c.Leaf, cert, key
	}
	first, cert, key := issue()
	if err := m.write(cert, key); err != nil {
		t.Fatal(err)
	}
	trusting := *d.Server
	trusting.CA = ca.PEM()
	s := d.replicaOf(t, &trusting, "--tls-secret=",
		"--tls-cert-file="+filepath.Join(m.dir, mountedCertificate), "--tls-private-key-file="+filepath.Join(m.dir, mountedKey))

	requests := d.load(t, s)
	wait := func(leaf *x509.Certificate) {
		t.Helper()
		enough := requests.Load() + 20
		d.eventually(t, "requests, and the new certificate", func(ctx context.Context) error {
			if got := served(ctx, t, s); got.SerialNumber.Cmp(leaf.SerialNumber) != 0 {
				return fmt.Errorf("it is still %v", got.SerialNumber)
			}
			if n := requests.Load(); n < enough {
				return fmt.Errorf("%d requests of %d", n, enough)
			}
			return nil
		})
	}
	wait(first)
	for range 3 {
		leaf, cert, key := issue()
		if err := m.write(cert, key); err != nil {
			t.Fatal(err)
		}
		wait(leaf)
	}
	last, cert, key := issue()
	_, otherCert, _ := issue()
	if err := errors.Join(m.write(otherCert, key), m.write([]byte("broken"), key), m.write(cert, key)); err != nil {
		t.Fatal(err)
	}
	wait(last)
}

// served is the certificate that a new connection sees.
func served(ctx context.Context, t *testing.T, s *cluster.Server) *x509.Certificate {
	t.Helper()
	r := newReader(t, s)
	conn, err := (&tls.Dialer{Config: r.transport.TLSClientConfig}).DialContext(ctx, "tcp", s.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
}

// load asks a server for pods until the end of the test, over kept and over new connections, and
// counts the requests. Each has to be answered in full.
func (d *disturbed) load(t *testing.T, s *cluster.Server) *atomic.Int64 {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var requests atomic.Int64
	for _, kept := range []bool{true, false} {
		r := d.administrator(t, s)
		r.transport.DisableKeepAlives = !kept
		clients.Go(func() {
			for ctx.Err() == nil {
				err := wholePods(r.get(ctx, podsPath))
				if err != nil && ctx.Err() == nil {
					t.Errorf("a request over a kept connection (%v) fails: %v", kept, err)
				}
				requests.Add(1)
				time.Sleep(10 * time.Millisecond) // a pause between requests, so that there are processors left
			}
		})
	}
	t.Cleanup(func() { cancel(); clients.Wait() })
	return &requests
}
