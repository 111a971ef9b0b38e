package engine

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/engine/decode"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// TestRedirects follows redirects on the same host, and sends nothing to others.
func TestRedirects(t *testing.T) {
	other := newEngine(t)
	f := newFixture(t, "http: {authorization: {credentials: secret}, http_headers: {X-Scope-OrgID: {values: [tenant]}}}")
	f.put("app", "", -20, 100, -5, 103)
	for _, status := range []int{301, 302, 307, 308} {
		target := strings.Replace(other.URL, "127.0.0.1", "localhost", 1) + "/api/v1/query"
		f.set(func() {
			f.respond = func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, target, status) }
		})
		if result := f.refresh(context.Background()); reason.Of(result.Err) != reason.BadFormat || len(other.requests) > 0 {
			t.Errorf("%d to another host: got %v, which got %d requests, want %v and none", status, result.Err,
				len(other.requests), reason.BadFormat)
		}
	}
	f.set(func() {
		f.respond = func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/api/v1/query" {
				http.Redirect(w, r, "/moved/api/v1/query?"+r.URL.RawQuery, http.StatusPermanentRedirect)
				return
			}
			http.StripPrefix("/moved", http.HandlerFunc(f.serveSeries)).ServeHTTP(w, r)
		}
	})
	f.mustRefresh()
	f.wantPod("app 200 15s")
	if got := f.authorization(); got != "Bearer secret" {
		t.Errorf("redirected on the same host: got credentials %q", got)
	}
	request := func(url string) *http.Request { return httptest.NewRequest(http.MethodGet, url, nil) }
	for _, from := range []string{"https://x:1/", "http://x:2/"} { // another scheme, another port
		if err := checkRedirect(request("http://x:1/a"), []*http.Request{request(from)}); err == nil {
			t.Errorf("followed a redirect from %s to http://x:1", from)
		}
	}
}

// TestSlowOAuth2 has an OAuth2 server that does not respond: a query fails, and no limit of its connections
// applies to those of the engine.
func TestSlowOAuth2(t *testing.T) {
	stuck := make(chan struct{})
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-stuck
		respond(200, jsonType, `{"access_token":"secret","expires_in":3600}`)(w, r)
	}))
	defer tokens.Close()
	recovered := sync.OnceFunc(func() { close(stuck) })
	defer recovered()
	config := "http: {oauth2: {client_id: a, client_secret: b, token_url: '" + tokens.URL + "'}}"
	f := newFixture(t, config)
	f.client.tokenTimeout = time.Millisecond // before it connects: a connection may be made after its refresh
	one := func() error {                    // the library has a race between the first two requests of a client
		_, err := f.client.query(t.Context(), nodeCPU, func(*decode.Series) {})
		return err
	}
	if err := one(); !strings.Contains(fmt.Sprint(err), "i/o timeout") {
		t.Errorf("got %v, want a timeout", err)
	}
	recovered()
	f = newFixture(t, config)
	if err := one(); err != nil {
		t.Fatal(err)
	}
	f.put("app", "", -20, 100, -5, 103)
	f.mustRefresh()
	f.wantPod("app 200 15s")
	if got := f.authorization(); got != "Bearer secret" {
		t.Errorf("got credentials %q", got)
	}
	f = newFixture(t, "")
	f.client.tokenTimeout = 0
	f.put("app", "", -20, 100, -5, 103)
	f.mustRefresh() // its connections have no deadline
}

// TestErrorsOfOAuth2ArePrintable has an OAuth2 server whose response would forge a line of the log.
func TestErrorsOfOAuth2ArePrintable(t *testing.T) {
	tokens := httptest.NewServer(respond(400, "text/plain", "no\nE0101 \x1b[31m"))
	defer tokens.Close()
	f := newFixture(t, "http: {oauth2: {client_id: a, client_secret: b, token_url: '"+tokens.URL+"'}}")
	_, err := f.client.query(t.Context(), nodeCPU, func(*decode.Series) {})
	if text := fmt.Sprint(err); !strings.Contains(text, "no E0101 \ufffd[31m") || strings.Contains(text, "\n") {
		t.Errorf("got %q", text)
	}
}

// TestRotatedFiles replaces the files that the configuration names, but not the configuration.
func TestRotatedFiles(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "token", "one")
	writeFile(t, dir, "ca.crt", string(kubelettest.NewCA().PEM()))
	f := newEngine(t).newFixture(t, writeFile(t, dir, "config.yaml",
		"http: {authorization: {credentials_file: token}, tls_config: {ca_file: ca.crt}}"))
	f.put("app", "", -20, 100, -5, 103)
	secure := httptest.NewTLSServer(f.Server.Config.Handler)
	defer secure.Close()
	f.client.url.Scheme, f.client.url.Host = "https", secure.Listener.Addr().String()
	f.client.Reloaded = func(string, error) { t.Error("the configuration has not changed") }
	if result := f.refresh(context.Background()); reason.Of(result.Err) != reason.TLSAuthority {
		t.Errorf("with another CA: got %v, want %v", result.Err, reason.TLSAuthority)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	writeFile(t, dir, "ca.crt", string(ca))
	for _, token := range []string{"one", "two"} {
		writeFile(t, dir, "token", token)
		f.client.reload()
		f.mustRefresh()
		f.wantPod("app 200 15s")
		if got := f.authorization(); got != "Bearer "+token {
			t.Errorf("got credentials %q, want %s", got, token)
		}
	}
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
	f.client.url.Host = "127.0.0.1:1" // another process may take a port that was closed
	result := f.refreshAt(time.Now())
	if reason.Of(result.Err) != reason.ConnectRefused || f.WarmedUp() {
		t.Errorf("while it is down: got %v, warm: %v, want %v", result.Err, f.WarmedUp(), reason.ConnectRefused)
	}
	next := httptest.NewServer(f.Server.Config.Handler)
	defer next.Close()
	f.client.url.Host = next.Listener.Addr().String()
	f.put("app", "", -20, 100, -5, 103, -1, 105)
	f.mustRefresh()
	f.wantPod("app 500 4s")
}

// TestDeadConnection has an engine that no longer responds on the connections that are open, as if a router had
// forgotten them: refreshes that time out close them, also where the engine offers HTTP/2.
func TestDeadConnection(t *testing.T) {
	e := newEngine(t)
	var mu sync.Mutex
	dead := map[string]bool{} // by address of the client
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		isDead := dead[r.RemoteAddr]
		dead[r.RemoteAddr] = isDead
		mu.Unlock()
		if isDead {
			<-r.Context().Done()
			return
		}
		e.serve(w, r)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	e.Server = server
	f := e.newFixture(t, writeFile(t, t.TempDir(), "config.yaml", "http: {tls_config: {insecure_skip_verify: true}}"))
	f.put("app", "", -20, 100, -5, 103)
	f.mustRefresh()
	mu.Lock()
	for address := range dead {
		dead[address] = true
	}
	mu.Unlock()
	f.client.settings.Timeout = 200 * time.Millisecond
	if result := f.refreshAt(time.Now()); reason.Of(result.Err) != reason.Timeout {
		t.Errorf("got %v, want %v", result.Err, reason.Timeout)
	}
	for range 100 { // each closes one dead connection or more; there are a few
		if f.refreshAt(time.Now()).Err == nil {
			return
		}
	}
	t.Error("no refresh succeeded")
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
			time.Sleep(20 * time.Millisecond)
			respond(200, jsonType, success+"]}}")(w, r)
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
