package filter

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

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

// TestHandshakeMemory opens connections whose handshakes take as much memory as they can, and sends a request on each:
// the bytes of the handshake then do not count as unanswered any more.
func TestHandshakeMemory(t *testing.T) {
	const connections = 5
	begun, release := make(chan bool), make(chan bool)
	address, l := serveTLS(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		begun <- true
		<-release
	}))
	long := strings.Repeat("x", 250)
	for name, config := range map[string]*tls.Config{
		"a small certificate":       {Certificates: []tls.Certificate{certificateOf(t, 1)}},
		"many names":                {Certificates: []tls.Certificate{certificateOf(t, 5000)}},
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
			_, _ = io.WriteString(client, "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
			<-begun
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
			release <- true
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

// provider counts how often certificates are verified.
type provider struct {
	dynamiccertificates.CAContentProvider
	verified int
}

func (p *provider) VerifyOptions() (x509.VerifyOptions, bool) {
	p.verified++
	return x509.VerifyOptions{}, false
}

// TestCertificatesAreLimited checks which certificates of clients are not verified, since that would take long.
func TestCertificatesAreLimited(t *testing.T) {
	usual := &x509.Certificate{Raw: make([]byte, 4<<10), PublicKey: &rsa.PublicKey{E: maxExponent}}
	for name, test := range map[string]struct {
		certificates []*x509.Certificate
		want         int
	}{
		"none":           {nil, http.StatusOK},
		"a chain":        {[]*x509.Certificate{usual, {PublicKey: &ecdsa.PublicKey{}}, usual, usual}, http.StatusOK},
		"many":           {[]*x509.Certificate{usual, usual, usual, usual, usual}, http.StatusBadRequest},
		"large exponent": {[]*x509.Certificate{{PublicKey: &rsa.PublicKey{E: maxExponent + 2}}}, http.StatusBadRequest},
		"long":           {[]*x509.Certificate{{Raw: make([]byte, maxCertificateBytes+1)}}, http.StatusBadRequest},
	} {
		cas := &provider{}
		config := &genericapiserver.Config{}
		config.Authentication.RequestHeaderConfig = &authenticatorfactory.RequestHeaderConfig{CAContentProvider: cas}
		passed := 0
		h := WithRequestLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed++ }), config,
			func() []string { return []string{"/livez"} }, nil)
		dialed := make(chan net.Conn, 1)
		conn := accept(t, NewListener(testenv.Listener(dialed), time.Hour, time.Hour, 1<<30), dialed, "10.0.0.1:1")
		ctx := context.WithValue(t.Context(), http.LocalAddrContextKey, conn.LocalAddr())
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/livez", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: test.certificates}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		verifies := test.want == http.StatusOK && test.certificates != nil
		if w.Code != test.want || (passed == 1) != (test.want == http.StatusOK) || (cas.verified > 0) != verifies {
			t.Errorf("%s: got status %d, passed %d times, verified %d times", name, w.Code, passed, cas.verified)
		}
	}
}
