package kubelet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestVerification(t *testing.T) {
	ca, otherCA := kubelettest.NewCA(), kubelettest.NewCA()
	intermediate := ca.Intermediate()
	withoutChain := intermediate.Issue([]string{"n7"}, loopback)
	withoutChain.Certificate = withoutChain.Certificate[:1]
	notCA := ca.Intermediate(func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, 0 })
	forClient := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
	node := []string{"n7"}

	const untrusted = "(set --kubelet-certificate-authority to the CA that signed it, " +
		"enable serverTLSBootstrap in the kubelet, or set --kubelet-insecure-tls)"
	tests := []struct {
		name         string
		certificate  tls.Certificate
		reason, text string // empty if it is accepted
	}{
		{"address", ca.Issue(nil, loopback), "", ""},
		{"node name", ca.Issue(node, nil), "", ""},
		{"both", ca.Issue(node, loopback), "", ""},
		{"intermediate", intermediate.Issue(node, loopback), "", ""},
		{"other name", ca.Issue([]string{"n70"}, nil), reasonTLSName, "nor for the node's name"},
		{"no name", ca.Issue(nil, nil), reasonTLSName, "nor for the node's name"},
		{"other CA", otherCA.Issue(node, loopback), reasonTLSAuthority, untrusted},
		{"self-signed", kubelettest.SelfSigned(node, loopback), reasonTLSAuthority, untrusted},
		{"missing intermediate", withoutChain, reasonTLSAuthority, untrusted},
		{"signed by a leaf", notCA.Issue(node, loopback), reasonTLSAuthority,
			"cannot verify the kubelet's certificate: x509: certificate signed by unknown authority"},
		{"expired", ca.Issue(node, loopback, kubelettest.Expired), reasonTLSExpired, "expired"},
		{"not yet valid", ca.Issue(node, loopback, kubelettest.NotYetValid), reasonTLSExpired, "not yet valid"},
		{"client certificate", ca.Issue(node, loopback, forClient), reasonTLS, "incompatible key usage"},
	}
	resource := realResource(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := newKubelet(t, &tt.certificate, func(w http.ResponseWriter, _ *http.Request) { respond(w, resource) })
			fetch := func(config Config) error {
				return newTestClient(t, config).Fetch(t.Context(), k.node("n7"), &usage.Scrape{})
			}
			switch err := fetch(Config{Inline: Inline{CertificateAuthority: ca.PEM()}}); {
			case tt.reason != "":
				checkError(t, err, tt.reason, tt.text)
			case err != nil:
				t.Error(err)
			}
			if err := fetch(Config{}); err == nil {
				t.Error("got no error with the system's roots")
			}
			if err := fetch(Config{InsecureTLS: true}); err != nil {
				t.Errorf("got error %v without verification", err)
			}
		})
	}
}

// TestWrongProtocol has TLS meet plain HTTP.
func TestWrongProtocol(t *testing.T) {
	serve := func(w http.ResponseWriter, _ *http.Request) { respond(w, []byte("node_cpu_usage_seconds_total 1\n")) }
	c := newTestClient(t, Config{InsecureTLS: true})
	err := c.Fetch(t.Context(), newKubelet(t, nil, serve).node("n7"), &usage.Scrape{})
	checkError(t, err, reasonTLS, "check --kubelet-port")
	c = newTestClient(t, Config{PlainHTTP: true})
	k := newKubelet(t, forServerAuth(kubelettest.NewCA(), "n7"), serve)
	checkError(t, c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}), reasonStatus, "HTTP request to an HTTPS server")
}

func TestPlainHTTPSendsNoToken(t *testing.T) {
	k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("got a token without encryption")
		}
		respond(w, []byte("node_cpu_usage_seconds_total 1\n"))
	})
	c := newTestClient(t, Config{PlainHTTP: true, BearerTokenFile: writeFile(t, t.TempDir(), "token", []byte("secret"))})
	if err := c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}); err != nil {
		t.Error(err)
	}
}

// TestBearerToken checks that a kubelet gets the client's certificate or its token, but never both.
func TestBearerToken(t *testing.T) {
	ca := kubelettest.NewCA()
	clientPEM, keyPEM := kubelettest.PEM(ca.Issue(nil, nil))
	dir := t.TempDir()
	tokenFile := writeFile(t, dir, "token", []byte("of-file"))
	source := func(context.Context) (string, error) { return "of-source", nil }
	resource, summary := realResource(t), realSummary(t)
	files := Config{ClientCertificate: writeFile(t, dir, "crt", clientPEM), ClientKey: writeFile(t, dir, "key", keyPEM)}
	inline := Config{Inline: Inline{ClientCertificate: clientPEM, ClientKey: keyPEM}}
	with := func(c Config, file, inline string, source func(context.Context) (string, error)) Config {
		c.BearerTokenFile, c.Inline.BearerToken, c.Token = file, inline, source
		return c
	}

	var token string
	var certificate bool
	k := newKubelet(t, forServerAuth(ca, "node1"), func(w http.ResponseWriter, r *http.Request) {
		token, certificate = r.Header.Get("Authorization"), len(r.TLS.PeerCertificates) > 0
		respondTo(w, r, resource, summary)
	})
	for name, tt := range map[string]struct {
		config      Config
		token       string // that the kubelet gets
		certificate bool   // the kubelet gets a certificate
	}{
		"nothing":                       {Config{}, "", false},
		"file":                          {with(Config{}, tokenFile, "", nil), "Bearer of-file", false},
		"inline":                        {with(Config{}, "", "inline", nil), "Bearer inline", false},
		"file replaces inline":          {with(Config{}, tokenFile, "inline", nil), "Bearer of-file", false},
		"source":                        {with(Config{}, "", "", source), "Bearer of-source", false},
		"source replaces file":          {with(Config{}, tokenFile, "", source), "Bearer of-source", false},
		"source replaces inline":        {with(Config{}, "", "inline", source), "Bearer of-source", false},
		"certificate replaces file":     {with(files, tokenFile, "", nil), "", true},
		"certificate replaces inline":   {with(files, "", "inline", nil), "", true},
		"certificate replaces source":   {with(files, "", "", source), "", true},
		"inline certificate and file":   {with(inline, tokenFile, "", nil), "", true},
		"inline certificate and token":  {with(inline, "", "inline", nil), "", true},
		"inline certificate and source": {with(inline, "", "", source), "", true},
	} {
		t.Run(name, func(t *testing.T) {
			tt.config.Inline.CertificateAuthority = ca.PEM()
			c := newTestClient(t, tt.config)
			for _, fetch := range fetchFuncs() {
				token, certificate = "", false
				if err := fetch(c, t.Context(), k.node("node1"), &usage.Scrape{}); err != nil {
					t.Fatal(err)
				}
				if token != tt.token || certificate != tt.certificate {
					t.Errorf("got token %q and a certificate: %v, want %q, %v", token, certificate, tt.token, tt.certificate)
				}
			}
		})
	}
}

// TestTokenSource changes the token, and makes the source fail and hang.
func TestTokenSource(t *testing.T) {
	var got string
	k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		respond(w, []byte("node_cpu_usage_seconds_total 1\n"))
	})
	var token string
	var failure error
	c := newTestClient(t, Config{PlainHTTP: true})
	c.credentials.tokenSource = func(context.Context) (string, error) { return token, failure }
	for _, token = range []string{"one", "two", "two"} {
		if err := c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}); err != nil || got != "Bearer "+token {
			t.Errorf("got %q, error %v, want token %q", got, err, token)
		}
	}
	got, failure = "", errors.New("the reason: the cure")
	err := c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{})
	checkError(t, err, reasonNoToken, "no token for the kubelet: the reason: the cure")
	if got != "" {
		t.Error("got a request without a token")
	}
	c.credentials.tokenSource = func(ctx context.Context) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}
	c.resource.timeout = time.Millisecond
	checkError(t, c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}), reasonNoToken, "deadline exceeded")
}

// expire makes the next get of a reloader read the files.
func expire[T any](r *reloader[T]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readAt = time.Time{}
}

// TestRotation replaces the client certificate and the CA between requests. TestFetch does the same
// for the token.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	oldCA, newCA, clientCA := kubelettest.NewCA(), kubelettest.NewCA(), kubelettest.NewCA()
	writePair := func(name string) (string, string) {
		certificate, key := kubelettest.PEM(clientCA.Issue([]string{name}, nil))
		return writeFile(t, dir, "client.crt", certificate), writeFile(t, dir, "client.key", key)
	}
	var mu sync.Mutex
	var got string // name in the client certificate
	serve := func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		got = r.TLS.PeerCertificates[0].DNSNames[0]
		mu.Unlock()
		respond(w, []byte("node_cpu_usage_seconds_total 1\n"))
	}
	k := newKubelet(t, forServerAuth(oldCA, "n7"), serve)
	certificateFile, keyFile := writePair("old")
	var reports []error
	c := newTestClient(t, Config{
		CertificateAuthority: writeFile(t, dir, "ca", oldCA.PEM()),
		ClientCertificate:    certificateFile, ClientKey: keyFile,
		Reloaded: func(_ string, err error) { reports = append(reports, err) },
	})
	fetch := func(want string, connections int64) {
		t.Helper()
		if err := c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if n := k.opened.Load(); got != want || n != connections {
			t.Errorf("got certificate %q and %d connections, want %q, %d", got, n, want, connections)
		}
	}
	fetch("old", 1)

	writePair("new")
	expire(c.credentials.certificate)
	fetch("new", 2) // the old connection has the old certificate

	writeFile(t, dir, "client.key", []byte("half written"))
	expire(c.credentials.certificate)
	fetch("new", 2)

	writeFile(t, dir, "ca", append(oldCA.PEM(), newCA.PEM()...))
	expire(c.credentials.authority)
	fetch("new", 3)

	k = newKubelet(t, forServerAuth(newCA, "n7"), serve)
	fetch("new", 1)

	writeFile(t, dir, "ca", oldCA.PEM()) // removes the new CA; an open connection must not be used either
	expire(c.credentials.authority)
	checkError(t, c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}), reasonTLSAuthority, "unknown authority")

	failed := 0
	for _, err := range reports {
		if err != nil {
			failed++
		}
	}
	if len(reports) != 4 || failed != 1 {
		t.Errorf("got reports %v, want four with one error", reports)
	}
}

func TestReloader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := writeFile(t, dir, "value", []byte("1"))
		parse := func(contents [][]byte) (string, error) {
			if bytes.HasPrefix(contents[0], []byte("bad")) {
				return "", errors.New("bad content")
			}
			return string(contents[0]), nil
		}
		reports := 0
		var last error
		r, err := newReloader(parse, func(files string, err error) {
			reports++
			last = err
			if files != path {
				t.Errorf("got a report of %s, want %s", files, path)
			}
		}, path)
		if err != nil {
			t.Fatal(err)
		}
		check := func(what, want string, version, wantReports int, failed bool) {
			t.Helper()
			value, v := r.get()
			if value != want || v != version || reports != wantReports || (last != nil) != failed {
				t.Errorf("%s: got value %q, version %d, %d reports, last error %v, want %q, %d, %d, an error: %v",
					what, value, v, reports, last, want, version, wantReports, failed)
			}
		}
		next := func(content string) {
			writeFile(t, dir, "value", []byte(content))
			time.Sleep(reloadInterval)
		}
		check("first read", "1", 0, 0, false)
		writeFile(t, dir, "value", []byte("2"))
		check("before the interval", "1", 0, 0, false)
		time.Sleep(reloadInterval)
		check("changed", "2", 1, 1, false)
		next("2")
		check("same content", "2", 1, 1, false)
		next("bad")
		check("invalid", "2", 1, 2, true)
		next("bad")
		check("still invalid", "2", 1, 2, true)
		next("2")
		check("valid again", "2", 1, 3, false)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(reloadInterval)
		check("removed", "2", 1, 4, true)
		time.Sleep(reloadInterval)
		check("still removed", "2", 1, 4, true)
		next("2")
		check("restored", "2", 1, 5, false)
		next("3")
		check("changed again", "3", 2, 6, false)
	})
}

// TestInline checks that files replace inline credentials. TestBearerToken has the other cases.
func TestInline(t *testing.T) {
	ca, otherCA := kubelettest.NewCA(), kubelettest.NewCA()
	k := newKubelet(t, forServerAuth(ca, "n7"), func(w http.ResponseWriter, _ *http.Request) {
		respond(w, []byte("node_cpu_usage_seconds_total 1\n"))
	})
	c := newTestClient(t, Config{Inline: Inline{CertificateAuthority: ca.PEM()},
		CertificateAuthority: writeFile(t, t.TempDir(), "ca", otherCA.PEM())})
	checkError(t, c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}), reasonTLSAuthority, "unknown authority")
}
