package filter

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"io"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// certificateOf returns a self-signed certificate with n URIs of one character. Of all that a certificate can
// contain, they take most memory.
func certificateOf(t *testing.T, n int) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	names, err := asn1.Marshal(asn1.RawValue{
		Tag: asn1.TagSequence, IsCompound: true, Bytes: []byte(strings.Repeat("\x86\x01a", n)),
	})
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: names}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestHandshakeMemory opens connections whose handshakes take as much memory as they can, and sends requests on each:
// the bytes of the handshake then do not count as unanswered any more.
func TestHandshakeMemory(t *testing.T) {
	const connections = 5
	address, l := serveTLS(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	long := strings.Repeat("x", 250)
	for name, config := range map[string]*tls.Config{
		"a small certificate":       {Certificates: []tls.Certificate{certificateOf(t, 1)}},
		"many names":                {Certificates: []tls.Certificate{certificateOf(t, 80_000)}},
		"a long name of the server": {ServerName: strings.Repeat(long, 240)},
		"many protocols":            {NextProtos: append(slices.Repeat([]string{long}, 240), "http/1.1")},
	} {
		config.InsecureSkipVerify = true
		before := heap()
		var clients []net.Conn
		for range connections {
			client, err := tls.Dial("tcp", address, config)
			if err != nil {
				t.Fatal(err)
			}
			clients = append(clients, client)
			for range 2 {
				_, _ = io.WriteString(client, "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
				response, err := http.ReadResponse(bufio.NewReader(client), nil)
				if err != nil {
					t.Fatal(err)
				}
				response.Body.Close()
			}
		}
		took := (heap() - before) / connections
		l.mu.Lock()
		counted := l.taken / connections
		l.mu.Unlock()
		t.Logf("%s: a connection takes %d bytes, counted are %d", name, took, counted)
		if took > counted {
			t.Errorf("%s: a connection takes %d bytes, counted are %d", name, took, counted)
		}
		for _, client := range clients {
			client.Close()
		}
		for deadline := time.Now().Add(testenv.Patience); counted > 0; time.Sleep(10 * time.Millisecond) {
			l.mu.Lock()
			counted = l.taken
			l.mu.Unlock()
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d bytes of closed connections count", name, counted)
			}
		}
	}
}
