package kubelet

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestVerification(t *testing.T) {
	const server = x509.ExtKeyUsageServerAuth
	ca, stranger := newAuthority(t), newAuthority(t)
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	serverTemplate := func() *x509.Certificate {
		return &x509.Certificate{Subject: pkix.Name{CommonName: "n7"}, DNSNames: []string{"n7"}, IPAddresses: loopback,
			ExtKeyUsage: []x509.ExtKeyUsage{server}}
	}
	expired, early := serverTemplate(), serverTemplate()
	expired.NotBefore, expired.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	early.NotBefore, early.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	intermediate := issue(t, ca, &x509.Certificate{Subject: pkix.Name{CommonName: "intermediate"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	notCA := issue(t, ca, &x509.Certificate{Subject: pkix.Name{CommonName: "no CA"}, BasicConstraintsValid: true})

	const untrusted = `(set --kubelet-certificate-authority to the CA that signed it, have the kubelet request one with ` +
		`serverTLSBootstrap, or set --kubelet-insecure-tls)`
	tests := []struct {
		name         string
		certificate  tls.Certificate
		reason, text string // empty: it is accepted
	}{
		{"for the address", ca.leaf(t, server, "127.0.0.1"), "", ""},
		{"for the node's name", ca.leaf(t, server, "n7"), "", ""},
		{"for both", ca.leaf(t, server, "127.0.0.1", "n7"), "", ""},
		{"for others", ca.leaf(t, server, "10.0.0.7", "n8"), reasonTLSName, "valid for 10.0.0.7, not 127.0.0.1, and neither is it for the node's name"},
		{"for another name", ca.leaf(t, server, "n70"), reasonTLSName, "node's name"},
		{"for no name", ca.leaf(t, server), reasonTLSName, "node's name"},
		{"by a stranger", stranger.leaf(t, server, "127.0.0.1", "n7"), reasonTLSAuthority, untrusted},
		{"self-signed", issue(t, nil, serverTemplate()).pair(), reasonTLSAuthority, untrusted},
		{"expired", issue(t, ca, expired).pair(), reasonTLSExpired, "expired"},
		{"not yet valid", issue(t, ca, early).pair(), reasonTLSExpired, "not yet valid"},
		{"for a client", ca.leaf(t, x509.ExtKeyUsageClientAuth, "127.0.0.1", "n7"), reasonTLS, "incompatible key usage"},
		{"by an intermediate", issue(t, intermediate, serverTemplate()).pair(intermediate), "", ""},
		{"by an intermediate that is not sent", issue(t, intermediate, serverTemplate()).pair(), reasonTLSAuthority, untrusted},
		{"by what is no CA", issue(t, notCA, serverTemplate()).pair(notCA), reasonTLSAuthority, "cannot verify the kubelet's certificate: x509: certificate signed by unknown authority"},
	}
	sample := realSample(t)
	authorityFile := writeFile(t, t.TempDir(), "ca", ca.pem())
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := newKubelet(t, &tt.certificate, func(w http.ResponseWriter, _ *http.Request) { answer(w, sample) })
			verifying := newTestClient(t, Config{CertificateAuthority: authorityFile})
			switch err := verifying.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}); {
			case tt.reason != "":
				checkError(t, err, tt.reason, tt.text)
			case err != nil:
				t.Error(err)
			}
			bySystem := newTestClient(t, Config{})
			if err := bySystem.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}); err == nil {
				t.Error("the system's roots accept it")
			}
			insecure := newTestClient(t, Config{InsecureTLS: true})
			if err := insecure.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}); err != nil {
				t.Errorf("refused though nothing is to be verified: %v", err)
			}
		})
	}
}

// TestWrongProtocol checks what is said when TLS meets plain HTTP.
func TestWrongProtocol(t *testing.T) {
	ca := newAuthority(t)
	certificate := ca.leaf(t, x509.ExtKeyUsageServerAuth, "n7")
	serve := func(w http.ResponseWriter, _ *http.Request) { answer(w, []byte("node_cpu_usage_seconds_total 1\n")) }
	c := newTestClient(t, Config{InsecureTLS: true})
	err := c.Fetch(t.Context(), newKubelet(t, nil, serve).node("n7"), &usage.Scrape{})
	checkError(t, err, reasonTLS, "check --kubelet-port")
	c = newTestClient(t, Config{PlainHTTP: true})
	err = c.Fetch(t.Context(), newKubelet(t, &certificate, serve).node("n7"), &usage.Scrape{})
	checkError(t, err, reasonStatus, "HTTP request to an HTTPS server")
}

func TestPlainHTTPSendsNoToken(t *testing.T) {
	k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the token was sent without encryption")
		}
		answer(w, []byte("node_cpu_usage_seconds_total 1\n"))
	})
	c := newTestClient(t, Config{PlainHTTP: true, BearerTokenFile: writeFile(t, t.TempDir(), "token", []byte("secret"))})
	if err := c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}); err != nil {
		t.Error(err)
	}
}

// stale makes the next look at a value's files come at once.
func stale[T any](r *reloaded[T]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readAt = time.Time{}
}

// TestRotation replaces the client's certificate and the CA one after the other while requests go
// on. TestFetchSummary does the same for the token.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	oldCA, newCA, clientCA := newAuthority(t), newAuthority(t), newAuthority(t)
	oldServer, newServer := oldCA.leaf(t, x509.ExtKeyUsageServerAuth, "n7"), newCA.leaf(t, x509.ExtKeyUsageServerAuth, "n7")
	writePair := func(name string) (tls.Certificate, string, string) {
		pair := clientCA.leaf(t, x509.ExtKeyUsageClientAuth, name)
		certificate, key := pairPEM(t, pair)
		return pair, writeFile(t, dir, "client.crt", certificate), writeFile(t, dir, "client.key", key)
	}
	type seen struct{ token, name string }
	var mu sync.Mutex
	var last seen
	serve := func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		last = seen{token: r.Header.Get("Authorization")}
		if certificates := r.TLS.PeerCertificates; len(certificates) > 0 {
			last.name = certificates[0].DNSNames[0]
		}
		mu.Unlock()
		answer(w, []byte("node_cpu_usage_seconds_total 1\n"))
	}
	k := newKubelet(t, &oldServer, serve)
	_, certificateFile, keyFile := writePair("old")
	var reports []error
	c := newTestClient(t, Config{
		CertificateAuthority: writeFile(t, dir, "ca", oldCA.pem()),
		ClientCertificate:    certificateFile, ClientKey: keyFile,
		Reloaded: func(_ string, err error) { reports = append(reports, err) },
	})
	fetch := func(want seen, connections int64) {
		t.Helper()
		if err := c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if last != want {
			t.Errorf("the kubelet saw %+v, want %+v", last, want)
		}
		if n := k.opened.Load(); n != connections {
			t.Errorf("%d connections were opened, want %d", n, connections)
		}
	}
	fetch(seen{"", "old"}, 1)

	writePair("new")
	stale(c.credentials.certificate)
	fetch(seen{"", "new"}, 2) // a connection shows what it was made with, so there must be another

	writeFile(t, dir, "client.key", []byte("half written"))
	stale(c.credentials.certificate)
	fetch(seen{"", "new"}, 2)

	writeFile(t, dir, "ca", append(oldCA.pem(), newCA.pem()...))
	stale(c.credentials.authority)
	fetch(seen{"", "new"}, 3)

	k = newKubelet(t, &newServer, serve)
	fetch(seen{"", "new"}, 1)

	writeFile(t, dir, "ca", oldCA.pem()) // the new one is not trusted any more, not even where a connection is open
	stale(c.credentials.authority)
	checkError(t, c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}), reasonTLSAuthority, "unknown authority")

	failed := 0
	for _, err := range reports {
		if err != nil {
			failed++
		}
	}
	if len(reports) != 4 || failed != 1 {
		t.Errorf("reported %v, want four reports of which one is a failure", reports)
	}
}

func TestReloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := writeFile(t, dir, "value", []byte("1"))
		parse := func(contents [][]byte) (string, error) {
			if bytes.HasPrefix(contents[0], []byte("bad")) {
				return "", errors.New("it is bad")
			}
			return string(contents[0]), nil
		}
		reports := 0
		var last error
		r, err := newReloaded(parse, func(files string, err error) {
			reports++
			last = err
			if files != path {
				t.Errorf("reported for %s, want %s", files, path)
			}
		}, path)
		if err != nil {
			t.Fatal(err)
		}
		check := func(what, want string, version, wantReports int, failed bool) {
			t.Helper()
			value, v := r.get()
			if value != want || v != version || reports != wantReports || (last != nil) != failed {
				t.Errorf("%s: value %q, version %d, %d reports, the last one %v; want %q, %d, %d, failure %v",
					what, value, v, reports, last, want, version, wantReports, failed)
			}
		}
		next := func(content string) {
			writeFile(t, dir, "value", []byte(content))
			time.Sleep(reloadInterval)
		}
		check("at first", "1", 0, 0, false)
		writeFile(t, dir, "value", []byte("2"))
		check("too early", "1", 0, 0, false)
		time.Sleep(reloadInterval)
		check("changed", "2", 1, 1, false)
		next("2")
		check("written again", "2", 1, 1, false)
		next("bad")
		check("broken", "2", 1, 2, true)
		next("bad")
		check("still broken", "2", 1, 2, true)
		next("2")
		check("as before", "2", 1, 3, false)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(reloadInterval)
		check("gone", "2", 1, 4, true)
		time.Sleep(reloadInterval)
		check("still gone", "2", 1, 4, true)
		next("2")
		check("back", "2", 1, 5, false)
		next("3")
		check("changed once more", "3", 2, 6, false)
	})
}

// TestInline: what a kubeconfig has in its text serves as files do, and gives way to them.
func TestInline(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	certificate := ca.leaf(t, x509.ExtKeyUsageServerAuth, "n7")
	clientPEM, keyPEM := pairPEM(t, ca.leaf(t, x509.ExtKeyUsageClientAuth, "me"))
	sample := realSample(t)
	var token string
	k := newKubelet(t, &certificate, func(w http.ResponseWriter, r *http.Request) {
		token = r.Header.Get("Authorization")
		answer(w, sample)
	})

	inline := Inline{CertificateAuthority: ca.pem(), ClientCertificate: clientPEM, ClientKey: keyPEM, BearerToken: "secret"}
	c := newTestClient(t, Config{Inline: inline})
	if err := c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}); err != nil || token != "" {
		t.Errorf("Fetch: %v, with the header %q", err, token)
	}
	if shown, _ := c.credentials.certificate.get(); shown == nil || len(shown.Certificate) == 0 {
		t.Error("no client certificate is shown")
	}

	withToken := newTestClient(t, Config{Inline: Inline{CertificateAuthority: ca.pem(), BearerToken: "secret"}})
	if err := withToken.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}); err != nil || token != "Bearer secret" {
		t.Errorf("Fetch: %v, with the header %q", err, token)
	}

	other := newTestClient(t, Config{Inline: inline, CertificateAuthority: writeFile(t, t.TempDir(), "ca", stranger.pem())})
	checkError(t, other.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}), reasonTLSAuthority, "unknown authority")

	if _, err := NewClient(Config{Inline: Inline{CertificateAuthority: []byte("no"), ClientCertificate: []byte("no"), BearerToken: "a b"}}); err == nil {
		t.Error("no error")
	} else {
		for _, want := range []string{"the CA in the kubeconfig", "the client certificate in the kubeconfig", "the bearer token in the kubeconfig"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("nothing is said of %s: %v", want, err)
			}
		}
	}
}
