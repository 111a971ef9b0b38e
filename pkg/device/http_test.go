package device

import (
	"compress/gzip"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// fetchFrom scrapes a URL with an exporter whose fields f may change.
func fetchFrom(t *testing.T, address string, f func(*Exporter)) (*response, error) {
	t.Helper()
	return fetcherOf(t, address, f)()
}

// fetcherOf returns a function that scrapes a URL as fetchFrom does, each time as the same target.
func fetcherOf(t *testing.T, address string, f func(*Exporter)) func() (*response, error) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	e := parse(t, testConfig).Exporters[0]
	e.Timeout, e.Scheme, e.Port, e.Path = testenv.Patience, u.Scheme, u.Port(), u.Path
	if f != nil {
		f(&e)
	}
	transport, err := newTransport(&e)
	if err != nil {
		t.Fatal(err)
	}
	source := newSource(Config{IsKnown: func(_, _, _, _ string) bool { return true }, AllowLoopback: true})
	group := source.newGroup(&e, transport)
	exporter := &target{pod: &corev1.Pod{Status: corev1.PodStatus{PodIP: u.Hostname()}}}
	return func() (*response, error) { return group.fetch(t.Context(), exporter) }
}

// TestResponseWithoutEnd has an exporter whose responses have no length and no chunks, so one that was cut at the end
// of a line looks complete. One with fewer series than the one before does not count, unless it is repeated.
func TestResponseWithoutEnd(t *testing.T) {
	one, two := series("p", 100), series("p", 100, 100)
	for _, tc := range []struct {
		head   string // "": that of package net/http, with a length
		bodies []string
		want   []reason.Reason
	}{
		{"HTTP/1.0 200 OK", []string{two, one, two, one, one, two},
			[]reason.Reason{"", reason.Truncated, "", reason.Truncated, "", ""}},
		{"HTTP/1.1 200 OK\r\nConnection: close", []string{two, one}, []reason.Reason{"", reason.Truncated}},
		{"", []string{two, one}, []reason.Reason{"", ""}},
	} {
		var body string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if tc.head == "" {
				io.WriteString(w, body)
				return
			}
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			io.WriteString(conn, tc.head+"\r\n\r\n"+body)
		}))
		fetch := fetcherOf(t, server.URL, nil)
		for i, text := range tc.bodies {
			body = text
			if _, err := fetch(); reason.Of(err) != tc.want[i] {
				t.Errorf("%q, response %d: got the reason %q of %v, want %q", tc.head, i, reason.Of(err), err, tc.want[i])
			}
		}
		server.Close()
	}
}

// TestRequest checks what an exporter receives.
func TestRequest(t *testing.T) {
	transport, err := newTransport(&Exporter{})
	if plain, ok := transport.(*http.Transport); err != nil || !ok || plain.Proxy != nil {
		t.Errorf("got %T, error %v, want one without a proxy", transport, err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.String() != "/metrics" ||
			r.Header.Get("Accept") != "text/plain;version=0.0.4" {
			t.Errorf("got %s %s with %v", r.Method, r.URL, r.Header)
		}
		for _, name := range []string{"Authorization", "Cookie", "Proxy-Authorization", "Accept-Encoding"} {
			if r.Header.Get(name) != "" {
				t.Errorf("got the header %s", name)
			}
		}
		io.WriteString(w, series("p", 1))
	}))
	defer server.Close()
	if r, err := fetchFrom(t, server.URL+"/metrics", nil); err != nil || len(r.containers) != 2 {
		t.Errorf("got %+v, %v", r, err)
	}
}

// TestHostileExporters checks that faults of exporters have their reasons, and that responses
// without an end use bounded memory.
func TestHostileExporters(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	hijack := func(write func(net.Conn)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			write(conn)
		}
	}
	endlessly := func(head, text string) http.HandlerFunc {
		return hijack(func(conn net.Conn) {
			_, err := io.WriteString(conn, head)
			for part := []byte(text); err == nil; { // one copy, because the test limits allocations
				_, err = conn.Write(part)
			}
		})
	}
	once := func(text string) http.HandlerFunc {
		return hijack(func(conn net.Conn) { io.WriteString(conn, text) })
	}
	const ok = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    reason.Reason
	}{
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusFound)
		}, reason.BadStatus},
		"endless headers": {endlessly("HTTP/1.1 200 OK\r\n", "X: "+strings.Repeat("y", 1000)+"\r\n"), reason.BadHTTP},
		"endless body":    {endlessly(ok+"\r\n", strings.Repeat("w 1\n", 1000)), reason.BodyTooLarge},
		"an endless line": {endlessly(ok+"\r\n", strings.Repeat("w", 1000)), reason.BodyTooLarge},
		"endless series":  {endlessly(ok+"\r\n", strings.Repeat("u 1\n", 1000)), reason.BodyTooLarge},

		"truncated":                    {once(ok + "Content-Length: 1000\r\n\r\n" + series("p", 1)), reason.Truncated},
		"no HTTP":                      {once("SSH-2.0\r\n"), reason.BadHTTP},
		"a long line that is not HTTP": {once(strings.Repeat("\x00", 10_000) + "\r\n"), reason.BadHTTP},
		"closed":                       {once(""), reason.ConnectionLost},
		"gzip": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			io.WriteString(z, series("p", 1))
			z.Close()
		}, reason.BadFormat},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(c.handler)
			defer server.Close()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := fetchFrom(t, server.URL, nil)
			runtime.ReadMemStats(&after)
			if got := reason.Of(err); got != c.want {
				t.Errorf("got the reason %q of %v, want %q", got, err, c.want)
			}
			if err != nil && len(err.Error()) > 1500 {
				t.Errorf("the error to be logged has %d bytes", len(err.Error()))
			}
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 32<<20 {
				t.Errorf("allocated %d bytes", allocated)
			}
		})
	}
	if elsewhere.Load() != 0 {
		t.Error("a redirect was followed")
	}
}

// TestSilentExporter has an exporter that accepts connections, but does not answer a TLS handshake. Package
// net/http does not end it with the request; goleak would find its goroutines.
func TestSilentExporter(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	accepted := make(chan net.Conn)
	go func() {
		if conn, err := listener.Accept(); err == nil {
			accepted <- conn
		}
	}()
	var conn net.Conn
	for conn == nil { // on a busy machine, a request may end before it connects
		_, err = fetchFrom(t, "https://"+listener.Addr().String(), func(e *Exporter) { e.Timeout = 50 * time.Millisecond })
		if reason.Of(err) != reason.Timeout {
			t.Fatalf("got the reason %q of %v", reason.Of(err), err)
		}
		select {
		case conn = <-accepted:
		default:
		}
	}
	defer conn.Close()
	if _, err := io.Copy(io.Discard, conn); err != nil { // the ClientHello
		t.Errorf("the connection was not closed: %v", err)
	}
}

func TestUnreachableExporter(t *testing.T) {
	if _, err := fetchFrom(t, "http://127.0.0.1:1", nil); reason.Of(err) != reason.ConnectRefused {
		t.Errorf("got the reason %q of %v", reason.Of(err), err)
	}
}

func TestVerification(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, series("p", 1))
	}))
	defer server.Close()
	server.Config.ErrorLog = nil
	ca := filepath.Join(t.TempDir(), "ca.crt")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		tls  TLS
		want reason.Reason
	}{
		"system roots": {TLS{}, reason.TLSAuthority},
		"ca":           {TLS{CAFile: ca}, ""},
		"another name": {TLS{CAFile: ca, ServerName: "exporter.gpu.svc"}, reason.TLSName},
		"its name":     {TLS{CAFile: ca, ServerName: "example.com"}, ""},
		"insecure":     {TLS{InsecureSkipVerify: true}, ""},
	} {
		_, err := fetchFrom(t, server.URL, func(e *Exporter) { e.TLS = c.tls })
		if got := reason.Of(err); got != c.want {
			t.Errorf("%s: got the reason %q of %v, want %q", name, got, err, c.want)
		}
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	if _, err := fetchFrom(t, strings.Replace(plain.URL, "http:", "https:", 1), nil); reason.Of(err) == "" {
		t.Error("plain HTTP was accepted as HTTPS")
	}
}

func TestEndpoint(t *testing.T) {
	plain := &Exporter{Scheme: "http", Port: "5000", Path: "/metrics"}
	secure := &Exporter{Scheme: "https", Port: "9400", Path: "/a"}
	for _, c := range []struct {
		exporter      *Exporter
		ip            string
		allowLoopback bool
		want          string // of the URL, or of the error
	}{
		{plain, "10.1.2.3", false, "http://10.1.2.3:5000/metrics"},
		{secure, "10.1.2.3", false, "https://10.1.2.3:9400/a"},
		{secure, "fd00::1", false, "https://[fd00::1]:9400/a"},
		{plain, "127.0.0.1", true, "http://127.0.0.1:5000/metrics"},
		{plain, "127.0.0.1", false, "127.0.0.1 is not allowed"},
		{plain, "::1", false, "not allowed"},
		{plain, "::ffff:127.0.0.1", false, "not allowed"},
		{plain, "::ffff:169.254.169.254", false, "not allowed"},
		{plain, "169.254.169.254", true, "not allowed"},
		{plain, "fe80::1", false, "not allowed"},
		{plain, "fd00::1%eth0", false, "not allowed"},
		{plain, "0.0.0.0", true, "not allowed"},
		{plain, "224.0.0.1", false, "not allowed"},
		{plain, "example.com", false, "invalid address"},
	} {
		got, err := c.exporter.endpoint(&corev1.Pod{Status: corev1.PodStatus{PodIP: c.ip}}, c.allowLoopback)
		if err != nil {
			got = err.Error()
		}
		if (err == nil) != strings.Contains(c.want, "://") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %s", c.ip, got, c.want)
		}
	}
}
