package kubelet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestFetch requests resource metrics and summaries in turn. They have the same address, connection
// and credentials, and reuse the memory of the scrape.
func TestFetch(t *testing.T) {
	resource, summary := realResponses(t)
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
					want.Sent, want.At, want.Date, want.Dated = got.Sent, got.At, got.Date, got.Dated
					if got.Sent > got.Dated || got.Dated > got.At {
						t.Errorf("sent at %d, dated at %d, and the body began at %d", got.Sent, got.Dated, got.At)
					}
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
						return (&decode.Text{MaxContainers: 1000}).Decode(dst, resource)
					})
					check(fetchSummary, token, "/stats/summary?only_cpu_and_memory=true", "application/json",
						func(dst *usage.Scrape) error {
							return (&decode.Summary{MaxContainers: 1000}).Decode(dst, summary, "node1")
						})
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
	const nodes, rounds, containers = 8, 40, 20
	c := newTestClient(t, Config{PlainHTTP: true})
	var wg sync.WaitGroup
	for n := range nodes {
		name := strings.Repeat(string(rune('a'+n)), 20) // all names have the same length
		k := kubelettest.New(name, kubelettest.Config{})
		for i := range containers {
			k.SetContainer(name, name, fmt.Sprint(name, i), kubelettest.Usage{})
		}
		node := nodeAt(name, k.Start(t, nil).String())
		wg.Go(func() {
			for i := range rounds {
				fetch := []func(context.Context, *corev1.Node, func(*usage.Scrape)) (usage.Timing, error){
					c.Fetch, c.FetchSummary,
				}[i%2]
				_, err := fetch(t.Context(), node, func(s *usage.Scrape) {
					if got := len(s.Containers); got != containers {
						t.Errorf("scrape %d of %s: got %d containers, want %d", i, name, got, containers)
					}
					for _, got := range s.Containers {
						if string(got.Namespace) != name || string(got.Pod) != name || !strings.HasPrefix(string(got.Name), name) {
							t.Errorf("scrape %d of %s: got container %s/%s/%s", i, name, got.Namespace, got.Pod, got.Name)
						}
					}
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestFetchCannotConnect(t *testing.T) {
	node := nodeAt("n7", "127.0.0.1:1")
	err := fetchError(t, newTestClient(t, Config{}), node)
	checkError(t, err, reason.ConnectRefused, "connection refused (check that the kubelet runs")

	for _, tt := range []struct {
		err    error
		reason reason.Reason
	}{
		{&net.DNSError{Err: "no such host", Name: "n7", IsNotFound: true}, reason.DNS},
		{&net.DNSError{Err: "i/o timeout", Name: "n7", IsTimeout: true}, reason.DNS},
		{errors.New("no route to host"), reason.Unreachable},
		{context.Canceled, reason.Canceled},
	} {
		c := newTestClient(t, Config{})
		c.dialer = func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: tt.err}
		}
		checkError(t, fetchError(t, c, node), tt.reason, tt.err.Error())
	}
}

func TestConnectionsAreClosed(t *testing.T) {
	first, second := newKubelet(t, nil, serveNode), newKubelet(t, nil, serveNode)
	c := newTestClient(t, Config{PlainHTTP: true})
	fetch := func(node *corev1.Node) {
		t.Helper()
		if err := fetchError(t, c, node); err != nil {
			t.Fatal(err)
		}
	}
	open := func(k *fakeKubelet, n int64) {
		t.Helper()
		testenv.Eventually(t, fmt.Sprintf("%d open connections", n), func() bool { return k.open.Load() == n })
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

// TestPanicKeepsNoPermit checks that a panic while a connection is opened again affects no other node.
func TestPanicKeepsNoPermit(t *testing.T) {
	k := newKubelet(t, nil, serveNode)
	c := newTestClient(t, Config{PlainHTTP: true})
	fetch := func() {
		defer func() { _ = recover() }()
		_, _ = c.Fetch(t.Context(), k.node("n7"), func(*usage.Scrape) {})
	}
	fetch()
	if c.nodes["n7"].idle.Load() == nil {
		t.Fatal("the connection was not kept")
	}
	k.CloseClientConnections()
	panicked := false
	c.nodes["n7"].dial = func(context.Context, string, string) (net.Conn, error) { panicked = true; panic("x") }
	if fetch(); !panicked || len(c.connecting) != 0 {
		t.Errorf("panicked: %t, permits: %d", panicked, len(c.connecting))
	}
}

// TestForgetDuringFetch checks that a request that is running leaves no connection.
func TestForgetDuringFetch(t *testing.T) {
	requested, dropped := make(chan struct{}), make(chan struct{})
	k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
		close(requested)
		<-dropped
		serveNode(w, r)
	})
	c := newTestClient(t, Config{PlainHTTP: true})
	result := make(chan error)
	go func() { result <- fetchError(t, c, k.node("node1")) }()
	<-requested
	c.Forget("node1")
	close(dropped)
	if err := <-result; err != nil {
		t.Error(err)
	}
	testenv.Eventually(t, "the connection to be closed", func() bool { return k.open.Load() == 0 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Fetch(ctx, k.node("node1"), func(*usage.Scrape) {}); err == nil || len(c.nodes) != 0 {
		t.Errorf("after its context had ended, a request has added a node: %v", err)
	}
}
