package kubelet

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const textType = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"

// fakeKubelet is a TLS server that counts its connections.
type fakeKubelet struct {
	*httptest.Server
	opened, open atomic.Int64
}

// newKubelet starts a kubelet that shows the given certificate, or speaks plain HTTP without one.
func newKubelet(t testing.TB, certificate *tls.Certificate, handler http.HandlerFunc) *fakeKubelet {
	t.Helper()
	k := &fakeKubelet{Server: httptest.NewUnstartedServer(handler)}
	k.Config.ErrorLog = log.New(io.Discard, "", 0)
	k.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			k.opened.Add(1)
			k.open.Add(1)
		case http.StateClosed, http.StateHijacked:
			k.open.Add(-1)
		}
	}
	if certificate == nil {
		k.Start()
	} else {
		k.TLS = &tls.Config{Certificates: []tls.Certificate{*certificate}, ClientAuth: tls.RequestClientCert}
		k.StartTLS()
	}
	t.Cleanup(k.Close)
	return k
}

// node gives a node whose kubelet this is.
func (k *fakeKubelet) node(name string) *corev1.Node { return nodeAt(name, k.Listener.Addr().String()) }

func nodeAt(name, address string) *corev1.Node {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		panic(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		panic(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
	return node
}

func newTestClient(t testing.TB, config Config) *Client {
	t.Helper()
	config.UseNodeStatusPort, config.AllowLoopback = true, true
	c, err := NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func answer(w http.ResponseWriter, text []byte) {
	w.Header().Set("Content-Type", textType)
	_, _ = w.Write(text)
}

// alwaysConnects keeps the client's timeout from ending the attempt to connect, so that a short
// timeout ends what comes after it, however busy the machine is.
func alwaysConnects(c *Client) *Client {
	c.dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(context.WithoutCancel(ctx), network, address)
	}
	return c
}

// eventually polls until what the servers see has come about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in vain waited for %s", what)
		}
	}
}

func TestFetch(t *testing.T) {
	sample := realSample(t)
	ca := newAuthority(t)
	certificate := ca.leaf(t, x509.ExtKeyUsageServerAuth, "n7")
	dir := t.TempDir()
	for _, gzipped := range []bool{false, true} {
		t.Run(fmt.Sprintf("gzip=%v", gzipped), func(t *testing.T) {
			requests := make(chan *http.Request, 1)
			k := newKubelet(t, &certificate, func(w http.ResponseWriter, r *http.Request) {
				requests <- r
				if gzipped {
					w.Header().Set("Content-Encoding", "gzip")
					w.Header().Set("Content-Type", textType)
					z := gzip.NewWriter(w)
					_, _ = z.Write(sample)
					_ = z.Close()
					return
				}
				answer(w, sample)
			})
			c := newTestClient(t, Config{
				CertificateAuthority: writeFile(t, dir, "ca", ca.pem()),
				BearerTokenFile:      writeFile(t, dir, "token", []byte(" abc.def\n")),
				UserAgent:            "kube-vitals/test",
				Gzip:                 gzipped,
			})
			var got, want usage.Scrape
			for range 3 { // the memory is used again
				before := usage.At(time.Now())
				if err := c.Fetch(t.Context(), k.node("n7"), &got); err != nil {
					t.Fatal(err)
				}
				if after := usage.At(time.Now()); got.At < before || got.At > after {
					t.Errorf("At = %v, want it between %v and %v", got.At.Time(), before.Time(), after.Time())
				}
				if err := new(decode.Text).Decode(&want, sample, decode.Times{Sent: got.Sent, At: got.At, Date: got.Date}); err != nil {
					t.Fatal(err)
				}
				got.Queued = 0
				if !reflect.DeepEqual(got, want) {
					t.Errorf(" got %+v\nwant %+v", got, want)
				}
				r := <-requests
				if r.Method != http.MethodGet || r.URL.Path != DefaultPath || r.ProtoMajor != 1 {
					t.Errorf("asked by %s %s %s", r.Method, r.URL, r.Proto)
				}
				encoding := map[bool]string{false: "identity", true: "gzip"}[gzipped]
				wantHeader := http.Header{"Accept": {"text/plain;version=0.0.4"}, "Accept-Encoding": {encoding},
					"Authorization": {"Bearer abc.def"}, "User-Agent": {"kube-vitals/test"}}
				if !reflect.DeepEqual(r.Header, wantHeader) {
					t.Errorf("asked with %v, want %v", r.Header, wantHeader)
				}
			}
			if n := k.opened.Load(); n != 1 {
				t.Errorf("%d connections for 3 requests", n)
			}
		})
	}
}

// TestFetchOwnsItsNames checks that two scrapes share no memory, though the client reuses its
// buffers.
func TestFetchOwnsItsNames(t *testing.T) {
	k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
		answer(w, []byte(strings.ReplaceAll("container_cpu_usage_seconds_total{container=\"X\",namespace=\"X\",pod=\"X\"} 1\n", "X",
			strings.TrimPrefix(r.URL.Path, "/metrics/"))))
	})
	c := newTestClient(t, Config{PlainHTTP: true})
	const n = 20
	scrapes := make([]usage.Scrape, n)
	var wg sync.WaitGroup
	for i := range scrapes {
		wg.Go(func() {
			name := fmt.Sprintf("n%d", i)
			node := k.node(name)
			node.Annotations = map[string]string{PathAnnotation: "/metrics/" + name}
			for range 5 {
				if err := c.Fetch(t.Context(), node, &scrapes[i]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range scrapes {
		want := fmt.Sprintf("n%d", i)
		if s := scrapes[i].Containers; len(s) != 1 || string(s[0].Name) != want || string(s[0].Namespace) != want || string(s[0].Pod) != want {
			t.Errorf("scrape %d has %+v", i, s)
		}
	}
}

// TestFetchFails goes through all that a kubelet or what poses as one can answer, after which the
// next answer must be read as if nothing had been.
func TestFetchFails(t *testing.T) {
	sample := realSample(t)
	const limit = 64 << 10
	plain := func(content string, encoding string, body func(w http.ResponseWriter)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if content != "" {
				w.Header().Set("Content-Type", content)
			}
			if encoding != "" {
				w.Header().Set("Content-Encoding", encoding)
			}
			body(w)
		}
	}
	write := func(b []byte) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { _, _ = w.Write(b) }
	}
	status := func(code int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, code) }
	}
	endless := func(w io.Writer, what []byte) {
		for {
			if _, err := w.Write(what); err != nil {
				return
			}
		}
	}
	hijack := func(what string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, what)
				_ = conn.Close()
			}
		}
	}

	tests := []struct {
		name    string
		handler http.HandlerFunc
		gzip    bool
		reason  string
		text    string // a part of the error
	}{
		{"401", status(401, "Unauthorized"), false, reasonUnauthorized, "webhook authentication"},
		{"403", status(403, "Forbidden (user=x, verb=get, resource=nodes, subresource=metrics)"), false, reasonForbidden,
			`status 403 Forbidden, "Forbidden (user=x, verb=get, resource=nodes, subresource=metrics)" (grant the verb get on nodes/metrics`},
		{"404", status(404, "404 page not found"), false, reasonNotFound, PathAnnotation},
		{"500", status(500, "boom"), false, reasonServer, `"boom"`},
		{"503 with a long text", status(503, strings.Repeat("long ", 1000)), false, reasonServer, "status 503"},
		{"204", status(204, ""), false, reasonStatus, "status 204"},
		{"redirection", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://evil.example/", http.StatusFound)
		}, false, reasonStatus, `a redirection to "https://evil.example/", which is not followed`},

		{"endless", plain(textType, "", func(w http.ResponseWriter) { endless(w, sample) }), false, reasonTooLarge, "65536 bytes"},
		{"long by its own word", plain(textType, "", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "99999999")
			w.WriteHeader(http.StatusOK)
		}), false, reasonTooLarge, "65536 bytes"},
		{"half of it", plain(textType, "", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", strconv.Itoa(len(sample)))
			_, _ = w.Write(sample[:len(sample)/2])
		}), false, reasonTruncated, "cut off"},
		{"half of it in chunks", plain(textType, "", func(w http.ResponseWriter) {
			_, _ = w.Write(sample[:len(sample)/2])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}), false, reasonTruncated, "cut off"},
		{"HTML", plain("text/html; charset=utf-8", "", write([]byte("<html>\n"))), false, reasonContentType, "text/html"},
		{"JSON", plain("application/json", "", write([]byte("{}"))), false, reasonContentType, "application/json"},
		{"OpenMetrics", plain("application/openmetrics-text; version=1.0.0", "", write(sample)), false, reasonContentType, "openmetrics"},
		{"another version", plain("text/plain; version=1.0.0", "", write(sample)), false, reasonContentType, "1.0.0"},
		{"HTML by another name", plain("text/plain", "", write([]byte("<html>\n</html>\n"))), false, reasonNoSamples, "no sample"},
		{"nothing", plain(textType, "", write(nil)), false, reasonNoSamples, "no sample"},
		{"containers unread", plain(textType, "", write([]byte("node_cpu_usage_seconds_total 1\nresource_scrape_error 1\n"))), false,
			reasonUnread, "could not read its containers"},

		{"gzip that was not asked for", plain(textType, "gzip", write([]byte("x"))), false, reasonContentEncoding, `"gzip"`},
		{"zstd", plain(textType, "zstd", write([]byte("x"))), true, reasonContentEncoding, `"zstd"`},
		{"no gzip", plain(textType, "gzip", write([]byte("no gzip at all"))), true, reasonContentEncoding, "invalid header"},
		{"broken gzip", plain(textType, "gzip", func(w http.ResponseWriter) {
			_, _ = w.Write([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff"))
		}), true, reasonContentEncoding, "corrupt"},
		{"gzip bomb", plain(textType, "gzip", func(w http.ResponseWriter) {
			z := gzip.NewWriter(w)
			_, _ = z.Write(make([]byte, 100*limit))
			_ = z.Close()
		}), true, reasonTooLarge, "65536 bytes"},
		{"endless gzip of nothing", plain(textType, "gzip", func(w http.ResponseWriter) {
			var empty bytes.Buffer
			_ = gzip.NewWriter(&empty).Close()
			endless(w, empty.Bytes())
		}), true, reasonTooLarge, "while compressed"},
		{"half a gzip", plain(textType, "gzip", func(w http.ResponseWriter) {
			z := gzip.NewWriter(w)
			_, _ = z.Write(sample)
			_ = z.Flush()
		}), true, reasonTruncated, "cut off"},

		{"not HTTP", hijack("SSH-2.0-OpenSSH_9.2\r\n"), false, reasonProtocol, "no kubelet"},
		{"closed without a word", hijack(""), false, reasonConnection, "broke"},
		{"endless headers", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 2000 {
				w.Header().Set(fmt.Sprintf("X-%d", i), "0123456789")
			}
			answer(w, sample)
		}, false, reasonProtocol, "headers exceeded"},
	}
	ca := newAuthority(t)
	certificate := ca.leaf(t, x509.ExtKeyUsageServerAuth, "n7")
	authorityFile := writeFile(t, t.TempDir(), "ca", ca.pem())
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var healthy atomic.Bool
			k := newKubelet(t, &certificate, func(w http.ResponseWriter, r *http.Request) {
				if healthy.Load() {
					answer(w, sample)
					return
				}
				tt.handler(w, r)
			})
			c := newTestClient(t, Config{CertificateAuthority: authorityFile, MaxBodyBytes: limit, Gzip: tt.gzip})
			var dst usage.Scrape
			err := c.Fetch(t.Context(), k.node("n7"), &dst)
			checkError(t, err, tt.reason, tt.text)
			healthy.Store(true)
			if err := c.Fetch(t.Context(), k.node("n7"), &dst); err != nil {
				t.Errorf("the next request fails too: %v", err)
			}
		})
	}
}

// checkError compares the class of an error with reason, and looks for a part of its text.
func checkError(t *testing.T, err error, reason, text string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one of class %s", reason)
	}
	if got := Reason(err); got != reason {
		t.Errorf("class %s, want %s, of: %v", got, reason, err)
	}
	if !slices.Contains(Reasons(), Reason(err)) {
		t.Errorf("%s is not one of Reasons", Reason(err))
	}
	if s := err.Error(); !strings.HasPrefix(s, `node "n7"`) || !strings.Contains(s, text) || strings.Contains(s, "\n") || len(s) > 1000 {
		t.Errorf("the error does not name the node, or say %q, in one line: %s", text, s)
	}
}

func TestFetchTimesOut(t *testing.T) {
	sample := realSample(t)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	hang := func(r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}
	for name, handler := range map[string]http.HandlerFunc{
		"no answer": func(_ http.ResponseWriter, r *http.Request) { hang(r) },
		"half an answer": func(w http.ResponseWriter, r *http.Request) {
			answer(w, sample[:100])
			_ = http.NewResponseController(w).Flush()
			hang(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKubelet(t, nil, handler)
			c := alwaysConnects(newTestClient(t, Config{PlainHTTP: true, Timeout: 50 * time.Millisecond}))
			err := c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{})
			checkError(t, err, reasonTimeout, "no complete answer from the kubelet at 127.0.0.1:")
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v does not wrap context.DeadlineExceeded", err)
			}
			eventually(t, "the connection to be closed", func() bool { return k.open.Load() == 0 })
		})
	}

	t.Run("TLS handshake", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		c := alwaysConnects(newTestClient(t, Config{InsecureTLS: true, Timeout: 50 * time.Millisecond}))
		err = c.Fetch(t.Context(), nodeAt("n7", listener.Addr().String()), &usage.Scrape{})
		checkError(t, err, reasonTimeout, "no complete answer")
	})

	t.Run("connecting", func(t *testing.T) {
		c := newTestClient(t, Config{Timeout: 50 * time.Millisecond})
		target, err := c.target(nodeAt("n7", "127.0.0.1:1"))
		if err != nil {
			t.Fatal(err)
		}
		target.transport.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			target.connecting.Store(true)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		err = c.Fetch(t.Context(), nodeAt("n7", "127.0.0.1:1"), &usage.Scrape{})
		checkError(t, err, reasonConnectTimeout, "no connection to the kubelet at 127.0.0.1:1 within")
	})

	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		k := newKubelet(t, nil, func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			hang(r)
		})
		c := newTestClient(t, Config{PlainHTTP: true})
		err := c.Fetch(ctx, k.node("n7"), &usage.Scrape{})
		checkError(t, err, reasonCanceled, "given up")
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v does not wrap context.Canceled", err)
		}
	})
}

func TestFetchCannotConnect(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	_ = listener.Close()
	c := newTestClient(t, Config{})
	checkError(t, c.Fetch(t.Context(), nodeAt("n7", closed), &usage.Scrape{}), reasonRefused, "connection refused (check that")

	for _, tt := range []struct {
		err    error
		reason string
	}{
		{&net.DNSError{Err: "no such host", Name: "n7", IsNotFound: true}, reasonDNS},
		{&net.DNSError{Err: "i/o timeout", Name: "n7", IsTimeout: true}, reasonDNS},
		{errors.New("no route to host"), reasonUnreachable},
	} {
		target, err := c.target(nodeAt("n7", closed))
		if err != nil {
			t.Fatal(err)
		}
		target.transport.dial = func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: tt.err}
		}
		checkError(t, c.Fetch(t.Context(), nodeAt("n7", closed), &usage.Scrape{}), tt.reason, tt.err.Error())
	}
}

func TestReason(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("something else"), reasonOther},
		{explain("n7", context.Canceled), reasonCanceled},
		{fmt.Errorf("wrapped: %w", explain("n7", decode.ErrNoSamples)), reasonNoSamples},
	} {
		if got := Reason(tt.err); got != tt.want {
			t.Errorf("Reason(%v) = %q, want %q", tt.err, got, tt.want)
		}
	}
}

func TestConnectionsAreClosed(t *testing.T) {
	sample := realSample(t)
	serve := func(w http.ResponseWriter, _ *http.Request) { answer(w, sample) }
	first, second := newKubelet(t, nil, serve), newKubelet(t, nil, serve)
	c := newTestClient(t, Config{PlainHTTP: true})
	fetch := func(node *corev1.Node) {
		t.Helper()
		if err := c.Fetch(t.Context(), node, &usage.Scrape{}); err != nil {
			t.Fatal(err)
		}
	}
	open := func(k *fakeKubelet, n int64) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d open connections", n), func() bool { return k.open.Load() == n })
	}
	fetch(first.node("n7"))
	fetch(first.node("n8"))
	open(first, 2)

	fetch(second.node("n7")) // its kubelet has moved
	open(first, 1)
	open(second, 1)

	c.Forget("n7")
	open(second, 0)
	open(first, 1)
	c.Forget("n7") // has no effect
	c.Forget("never heard of")

	moved := first.node("n8")
	moved.Annotations = map[string]string{PathAnnotation: "/metrics/elsewhere"}
	fetch(moved)
	open(first, 1)

	c.Close()
	open(first, 0)
	if n := len(c.nodes); n != 0 {
		t.Errorf("%d nodes are kept after Close", n)
	}
	checkError(t, c.Fetch(t.Context(), first.node("n7"), &usage.Scrape{}), reasonCanceled, "closed")
}

// TestForgetDuringFetch checks that a request that was under way leaves no connection.
func TestForgetDuringFetch(t *testing.T) {
	resource, summary := realSample(t), readSummary(t, shortSummary)
	for name, ask := range askings() {
		for what, drop := range map[string]func(*Client){
			"Forget": func(c *Client) { c.Forget("node1") },
			"Close":  (*Client).Close,
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				asked, dropped := make(chan struct{}), make(chan struct{})
				k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
					close(asked)
					<-dropped
					answerBoth(w, r, resource, summary)
				})
				c := newTestClient(t, Config{PlainHTTP: true})
				result := make(chan error)
				go func() { result <- ask(c, t.Context(), k.node("node1"), &usage.Scrape{}) }()
				<-asked
				drop(c)
				close(dropped)
				if err := <-result; err != nil {
					t.Error(err)
				}
				eventually(t, "the connection to be closed", func() bool { return k.open.Load() == 0 })
			})
		}
	}
}

// TestBuffersAreBounded checks that large answers do not stay in memory.
func TestBuffersAreBounded(t *testing.T) {
	if _, err := readAll(nil, strings.NewReader(strings.Repeat("x", 101)), 100); Reason(explain("n7", err)) != reasonTooLarge {
		t.Errorf("101 bytes are read where 100 are allowed: %v", err)
	}
	text, err := readAll(make([]byte, 0, 10), strings.NewReader(strings.Repeat("x", 100)), 100)
	if err != nil || len(text) != 100 || cap(text) > 101 {
		t.Errorf("reading 100 bytes gives %d in a buffer of %d: %v", len(text), cap(text), err)
	}
	c := newTestClient(t, Config{PlainHTTP: true})
	w := &workspace{text: make([]byte, 0, maxPooledBytes+1)}
	c.release(w)
	if c.workspaces.Get().(*workspace) == w {
		t.Error("a large buffer is kept")
	}
}

func BenchmarkFetch(b *testing.B) {
	text := largeAnswer(30, 2)
	ca := newAuthority(b)
	certificate := ca.leaf(b, x509.ExtKeyUsageServerAuth, "n7")
	k := newKubelet(b, &certificate, func(w http.ResponseWriter, _ *http.Request) { answer(w, text) })
	c := newTestClient(b, Config{CertificateAuthority: writeFile(b, b.TempDir(), "ca", ca.pem())})
	node := k.node("n7")
	var dst usage.Scrape
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Fetch(b.Context(), node, &dst); err != nil {
			b.Fatal(err)
		}
	}
}
