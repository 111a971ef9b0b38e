package kubelet

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestFetch requests resource metrics and summaries in turn. They have the same address, connection
// and credentials, and reuse the memory of the scrape.
func TestFetch(t *testing.T) {
	resource, summary := realResource(t), realSummary(t)
	ca := kubelettest.NewCA()
	for _, path := range []string{defaultPath, "/metrics/elsewhere"} {
		for encoding, encode := range map[string]func([]byte) []byte{"identity": bytes.Clone, "gzip": compress} {
			t.Run(encoding+path, func(t *testing.T) {
				dir := t.TempDir()
				requests := make(chan *http.Request, 1)
				k := newKubelet(t, forServerAuth(ca, "node1"), func(w http.ResponseWriter, r *http.Request) {
					requests <- r
					w.Header().Set("Content-Encoding", encoding)
					respondTo(w, r, encode(resource), encode(summary))
				})
				c := newTestClient(t, Config{
					TLS:             rest.TLSClientConfig{CAFile: writeFile(t, dir, "ca", ca.PEM())},
					BearerTokenFile: writeFile(t, dir, "token", []byte(" abc.def\n")),
					UserAgent:       "kube-vitals/test",
					Gzip:            encoding == "gzip",
				})
				node := k.node("node1")
				if path != defaultPath {
					node.Annotations = map[string]string{PathAnnotation: path}
				}
				var got, want usage.Scrape
				check := func(fetch fetchFunc, token, uri, accept string, decode func(dst *usage.Scrape) error) {
					t.Helper()
					before := usage.At(time.Now())
					if err := fetch(c, t.Context(), node, &got); err != nil {
						t.Fatal(err)
					}
					if after := usage.At(time.Now()); got.At < before || got.At > after {
						t.Errorf("got At %v, want from %v to %v", got.At.Time(), before.Time(), after.Time())
					}
					want.Sent, want.At, want.Date = got.Sent, got.At, got.Date
					if err := decode(&want); err != nil {
						t.Fatal(err)
					}
					if !reflect.DeepEqual(got, want) {
						t.Errorf("\n got %+v\nwant %+v", got, want)
					}
					r := <-requests
					if r.Method != http.MethodGet || r.RequestURI != uri || r.Host != k.Listener.Addr().String() || r.ProtoMajor != 1 {
						t.Errorf("got request %s %s %s to %s, want GET %s", r.Method, r.RequestURI, r.Proto, r.Host, uri)
					}
					wantHeader := http.Header{"Accept": {accept}, "Accept-Encoding": {encoding},
						"Authorization": {"Bearer " + token}, "User-Agent": {"kube-vitals/test"}}
					if !reflect.DeepEqual(r.Header, wantHeader) {
						t.Errorf("got headers %v, want %v", r.Header, wantHeader)
					}
				}
				for _, token := range []string{"abc.def", "new"} {
					writeFile(t, dir, "token", []byte(token))
					expire(c.credentials.tokenFile)
					check(fetchResource, token, path, "text/plain;version=0.0.4", func(dst *usage.Scrape) error {
						return new(decode.Text).Decode(dst, resource)
					})
					check(fetchSummary, token, "/stats/summary?only_cpu_and_memory=true", "application/json",
						func(dst *usage.Scrape) error { return new(decode.Summary).Decode(dst, summary, "node1") })
				}
				if n := k.opened.Load(); n != 1 {
					t.Errorf("got %d connections for 4 requests, want 1", n)
				}
			})
		}
	}
}

// TestScrapesShareNoMemory scrapes many kubelets at the same time. Each scrape must have the names
// of its own node, although buffers are reused.
func TestScrapesShareNoMemory(t *testing.T) {
	const nodes, rounds, containers = 8, 30, 50
	c := newTestClient(t, Config{PlainHTTP: true})
	var wg sync.WaitGroup
	for n := range nodes {
		name := strings.Repeat(string(rune('a'+n)), 20) // all names have the same length
		k := kubelettest.New(name, kubelettest.Config{})
		for i := range containers {
			k.SetContainer(name, name, fmt.Sprint(name, i), kubelettest.Usage{})
		}
		node := nodeAt(name, k.Start(t, nil).String())
		scrapes := make([]usage.Scrape, 2*rounds)
		wg.Go(func() {
			for i := range scrapes {
				fetch := []fetchFunc{fetchResource, fetchSummary}[i%2]
				if err := fetch(c, t.Context(), node, &scrapes[i]); err != nil {
					t.Error(err)
				}
			}
			for i := range scrapes {
				if got := len(scrapes[i].Containers); got != containers {
					t.Errorf("scrape %d of %s: got %d containers, want %d", i, name, got, containers)
				}
				for _, got := range scrapes[i].Containers {
					if string(got.Namespace) != name || string(got.Pod) != name || !strings.HasPrefix(string(got.Name), name) {
						t.Errorf("scrape %d of %s: got container %s/%s/%s", i, name, got.Namespace, got.Pod, got.Name)
					}
				}
			}
		})
	}
	wg.Wait()
}

// TestFetchErrors has a kubelet send invalid responses that TestFaults does not have. The next
// response must not be affected.
func TestFetchErrors(t *testing.T) {
	resource := realResource(t)
	status := func(code int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, code) }
	}
	zipped := func(body func(w io.Writer)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Type", textType)
			body(w)
		}
	}
	tests := []struct {
		name    string
		handler http.HandlerFunc
		reason  reason.Reason
		text    string // of the error
	}{
		{"503 with a long text", status(503, strings.Repeat("long ", 1000)), reason.ServerError, "status 503"},
		{"204", status(204, ""), reason.BadStatus, "status 204"},
		{"truncated chunks", func(w http.ResponseWriter, _ *http.Request) {
			respond(w, resource[:len(resource)/2])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, reason.Truncated, "the kubelet's response is incomplete"},
		{"invalid gzip header", zipped(func(w io.Writer) { _, _ = w.Write([]byte("no gzip at all")) }),
			reason.BadFormat, "invalid header"},
		{"corrupt gzip", zipped(func(w io.Writer) {
			_, _ = w.Write([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff"))
		}), reason.BadFormat, "corrupt"},
		{"truncated gzip", zipped(func(w io.Writer) {
			z := gzip.NewWriter(w)
			_, _ = z.Write(resource)
			_ = z.Flush()
		}), reason.Truncated, "the kubelet's response is incomplete"},
		{"large headers", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 2000 {
				w.Header().Set(fmt.Sprintf("X-%d", i), "0123456789")
			}
			respond(w, resource)
		}, reason.BadHTTP, "more than 16384 bytes of headers"},
	}
	ca := kubelettest.NewCA()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var healthy atomic.Bool
			k := newKubelet(t, forServerAuth(ca, "n7"), func(w http.ResponseWriter, r *http.Request) {
				if healthy.Load() {
					respond(w, resource)
				} else {
					tt.handler(w, r)
				}
			})
			c := newTestClient(t, Config{TLS: rest.TLSClientConfig{CAData: ca.PEM()}, Gzip: true})
			var dst usage.Scrape
			checkError(t, fetchResource(c, t.Context(), k.node("n7"), &dst), tt.reason, tt.text)
			healthy.Store(true)
			if err := fetchResource(c, t.Context(), k.node("n7"), &dst); err != nil {
				t.Errorf("the next response is affected: %v", err)
			}
		})
	}
}

func TestFetchTimesOut(t *testing.T) {
	const short = 50 * time.Millisecond
	listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	silent := nodeAt("n7", listener.Addr().String())
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

	t.Run("TLS handshake", func(t *testing.T) {
		c := alwaysConnects(newTestClient(t, Config{TLS: rest.TLSClientConfig{Insecure: true}, Timeout: short}))
		checkError(t, fetchResource(c, t.Context(), silent, &usage.Scrape{}), reason.Timeout, "no complete response")
	})
	t.Run("dial", func(t *testing.T) {
		c := newTestClient(t, Config{Timeout: short})
		c.dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
		}
		err := fetchResource(c, t.Context(), silent, &usage.Scrape{})
		checkError(t, err, reason.ConnectTimeout, "no connection to the kubelet at 127.0.0.1:")
	})
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
			cancel()
			hang(w, r)
		})
		err := fetchResource(newTestClient(t, Config{PlainHTTP: true}), ctx, k.node("n7"), &usage.Scrape{})
		checkError(t, err, reason.Canceled, "the scrape was canceled")
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v, want one that wraps context.Canceled", err)
		}
	})
}

func TestFetchCannotConnect(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	node := nodeAt("n7", listener.Addr().String())
	_ = listener.Close()
	err = fetchResource(newTestClient(t, Config{}), t.Context(), node, &usage.Scrape{})
	checkError(t, err, reason.ConnectRefused, "connection refused (check that the kubelet runs")

	for _, tt := range []struct {
		err    error
		reason reason.Reason
	}{
		{&net.DNSError{Err: "no such host", Name: "n7", IsNotFound: true}, reason.DNS},
		{&net.DNSError{Err: "i/o timeout", Name: "n7", IsTimeout: true}, reason.DNS},
		{errors.New("no route to host"), reason.Unreachable},
	} {
		c := newTestClient(t, Config{})
		c.dialer = func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: tt.err}
		}
		checkError(t, fetchResource(c, t.Context(), node, &usage.Scrape{}), tt.reason, tt.err.Error())
	}
}

func TestConnectionsAreClosed(t *testing.T) {
	resource := realResource(t)
	serve := func(w http.ResponseWriter, _ *http.Request) { respond(w, resource) }
	first, second := newKubelet(t, nil, serve), newKubelet(t, nil, serve)
	c := newTestClient(t, Config{PlainHTTP: true})
	fetch := func(node *corev1.Node) {
		t.Helper()
		if err := fetchResource(c, t.Context(), node, &usage.Scrape{}); err != nil {
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

	fetch(second.node("n7")) // the address has changed
	open(first, 1)
	open(second, 1)

	c.Forget("n7")
	open(second, 0)
	open(first, 1)
	c.Forget("n7")
	c.Forget("missing")

	moved := first.node("n8")
	moved.Annotations = map[string]string{PathAnnotation: "/metrics/elsewhere"}
	fetch(moved)
	open(first, 1)

	c.Forget("n8")
	open(first, 0)
	if n := len(c.nodes); n != 0 {
		t.Errorf("got %d nodes, want 0", n)
	}
}

// TestForgetDuringFetch checks that a request that is running leaves no connection.
func TestForgetDuringFetch(t *testing.T) {
	resource, summary := realResource(t), realSummary(t)
	for name, fetch := range fetchFuncs() {
		t.Run(name, func(t *testing.T) {
			requested, dropped := make(chan struct{}), make(chan struct{})
			k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
				close(requested)
				<-dropped
				respondTo(w, r, resource, summary)
			})
			c := newTestClient(t, Config{PlainHTTP: true})
			result := make(chan error)
			go func() { result <- fetch(c, t.Context(), k.node("node1"), &usage.Scrape{}) }()
			<-requested
			c.Forget("node1")
			close(dropped)
			if err := <-result; err != nil {
				t.Error(err)
			}
			eventually(t, "the connection to be closed", func() bool { return k.open.Load() == 0 })
		})
	}
}

func BenchmarkFetch(b *testing.B) {
	text, _ := largeResponses(30, 2)
	ca := kubelettest.NewCA()
	k := newKubelet(b, forServerAuth(ca, "n7"), func(w http.ResponseWriter, _ *http.Request) { respond(w, text) })
	c := newTestClient(b, Config{TLS: rest.TLSClientConfig{CAData: ca.PEM()}})
	node := k.node("n7")
	ignore := func(*usage.Scrape) {}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Fetch(b.Context(), node, ignore); err != nil {
			b.Fatal(err)
		}
	}
}
