package prometheus

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// TestRedirects follows redirects on the same host, and sends nothing to others.
func TestRedirects(t *testing.T) {
	other := newEngine(t)
	for _, status := range []int{301, 302, 307, 308} {
		f := newFixture(t, "http: {authorization: {credentials: secret}, http_headers: {X-Scope-OrgID: {values: [tenant]}}}")
		f.put("app", "", -20, 100, -5, 103)
		var target string
		f.set(func() {
			f.respond = func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, target, status) }
		})
		target = strings.Replace(other.URL, "127.0.0.1", "localhost", 1) + "/api/v1/query"
		if result := f.refresh(context.Background()); reason.Of(result.Err) != reason.BadFormat || len(other.requests) > 0 {
			t.Errorf("%d to another host: got %v, which got %d requests, want %v and none", status, result.Err,
				len(other.requests), reason.BadFormat)
		}
	}
	f := newFixture(t, "http: {authorization: {credentials: secret}}")
	f.put("app", "", -20, 100, -5, 103)
	handler := f.Server.Config.Handler
	f.Server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/query" {
			http.Redirect(w, r, "/moved/api/v1/query?"+r.URL.RawQuery, http.StatusPermanentRedirect)
			return
		}
		r.URL.Path = strings.TrimPrefix(r.URL.Path, "/moved")
		handler.ServeHTTP(w, r)
	})
	f.mustRefresh()
	f.wantPod("app 200 15s")
	if got := f.requests[0].Header.Get("Authorization"); got != "Bearer secret" {
		t.Errorf("redirected on the same host: got credentials %q", got)
	}
	if err := checkRedirect(newRequest("http://x:1/a"), []*http.Request{newRequest("https://x:1/")}); err == nil {
		t.Error("followed a redirect from https to http")
	}
	if err := checkRedirect(newRequest("http://x:2/a"), []*http.Request{newRequest("http://x:1/")}); err == nil {
		t.Error("followed a redirect to another port")
	}
}

func newRequest(url string) *http.Request { return httptest.NewRequest(http.MethodGet, url, nil) }

// TestRotatedFiles replaces the files that the configuration names, but not the configuration.
func TestRotatedFiles(t *testing.T) {
	f := newFixture(t, "")
	f.put("app", "", -20, 100, -5, 103)
	secure := httptest.NewTLSServer(f.Server.Config.Handler)
	defer secure.Close()
	dir := t.TempDir()
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	certificate := func(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }
	write("token", []byte("one"))
	write("ca.crt", certificate(otherCA(t)))
	write("config.yaml", []byte("http: {authorization: {credentials_file: token}, tls_config: {ca_file: ca.crt}}"))
	client, err := newClient(Config{
		URL: secure.URL, File: filepath.Join(dir, "config.yaml"), Interval: interval,
		Reloaded: func(string, error) { t.Error("the configuration has not changed") },
	}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer client.http.CloseIdleConnections()
	f.client = client
	if result := f.refresh(context.Background()); reason.Of(result.Err) != reason.TLSAuthority {
		t.Errorf("with another CA: got %v, want %v", result.Err, reason.TLSAuthority)
	}
	for _, token := range []string{"one", "two"} {
		write("ca.crt", certificate(secure.Certificate().Raw))
		write("token", []byte(token))
		client.reload()
		f.mustRefresh()
		f.wantPod("app 200 15s")
		if got := f.requests[len(f.requests)-1].Header.Get("Authorization"); got != "Bearer "+token {
			t.Errorf("got credentials %q, want %s", got, token)
		}
	}
}

// otherCA returns a certificate that has signed nothing.
func otherCA(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// TestEngineRestarts closes the connections of a client, which must not notice, and then moves the
// engine to another process.
func TestEngineRestarts(t *testing.T) {
	f := newFixture(t, "")
	if f.WarmedUp() {
		t.Error("warm before the first refresh")
	}
	f.put("app", "", -20, 100, -5, 103)
	for range 10 {
		f.mustRefresh()
		f.CloseClientConnections()
	}
	f.Close()
	result := f.refreshAt(time.Now())
	if reason.Of(result.Err) != reason.ConnectRefused || f.WarmedUp() {
		t.Errorf("while it is down: got %v, warm: %v, want %v", result.Err, f.WarmedUp(), reason.ConnectRefused)
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", f.Listener.Addr().String())
	if err != nil {
		t.Skip("another process has taken the port: ", err)
	}
	next := httptest.NewUnstartedServer(f.Server.Config.Handler)
	_ = next.Listener.Close()
	next.Listener = listener
	next.Start()
	defer next.Close()
	f.put("app", "", -20, 100, -5, 103, -1, 105)
	f.mustRefresh()
	f.wantPod("app 500 4s")
}

// TestSlowEngine bounds a refresh whose queries are all slow, but not too slow for their own timeout.
func TestSlowEngine(t *testing.T) {
	f := newFixture(t, "")
	f.put("app", "", -20, 100, -5, 103)
	f.mustRefresh() // connects
	f.wantPod("app 200 15s")
	f.maxDuration = 50 * time.Millisecond
	f.set(func() {
		f.requests = nil
		f.respond = func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-r.Context().Done():
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"status":"success","data":{"result":[]}}`))
		}
	})
	result := f.refresh(context.Background())
	if reason.Of(result.Err) != reason.Timeout || !strings.Contains(result.Err.Error(), "all queries together") {
		t.Errorf("got %v, want %v", result.Err, reason.Timeout)
	}
	f.set(func() {
		if n := len(f.requests); n >= len(presets()["resource"]) {
			t.Errorf("sent all %d queries", n)
		}
	})
	f.wantPod("app 200 15s")
}
