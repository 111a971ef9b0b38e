package kubelet

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/internal/leaktest"
	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/reason/reasontest"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const textType = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"

var loopback = []net.IP{net.IPv4(127, 0, 0, 1)}

// fakeKubelet is a server that counts its connections.
type fakeKubelet struct {
	*httptest.Server
	opened, open atomic.Int64
}

// newKubelet starts a server with the given certificate, or without TLS if it is nil.
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

// node returns a node whose kubelet is this server.
func (k *fakeKubelet) node(name string) *corev1.Node { return nodeAt(name, k.Listener.Addr().String()) }

// nodeAt returns a node whose kubelet has the given address.
func nodeAt(name, address string) *corev1.Node {
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		panic(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at.IP.String()}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(at.Port)
	return node
}

// newTestClient returns a Client for kubelets of this machine. Without a configured timeout, it has
// none that a test could meet.
func newTestClient(t testing.TB, config Config) *Client {
	t.Helper()
	config.UseNodeStatusPort, config.AllowLoopback = true, true
	config.Timeout = cmp.Or(config.Timeout, testenv.Patience)
	c, err := NewClient(withDefaults(config))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { forgetAll(c) })
	return c
}

// withDefaults returns c with its zero fields set to the defaults of the flags.
func withDefaults(c Config) Config {
	c.Port = cmp.Or(c.Port, DefaultPort)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.MaxBodyBytes = cmp.Or(c.MaxBodyBytes, DefaultMaxBodyBytes)
	c.Clock = cmp.Or(c.Clock, usage.NewClock(time.Now()))
	if len(c.AddressTypes) == 0 {
		c.AddressTypes = DefaultAddressTypes()
	}
	if c.Reloaded == nil {
		c.Reloaded = func(string, error) {}
	}
	return c
}

// forgetAll closes all idle connections.
func forgetAll(c *Client) {
	for _, t := range c.nodes {
		c.Forget(t.node)
	}
}

// fetchFunc is one of the methods of Client that fetch. It copies the scrape to dst.
type fetchFunc func(c *Client, ctx context.Context, node *corev1.Node, dst *usage.Scrape) error

var (
	fetchResource = copying((*Client).Fetch)
	fetchSummary  = copying((*Client).FetchSummary)
	fetchStorage  = copying((*Client).FetchStorage)
)

func copying(
	method func(*Client, context.Context, *corev1.Node, func(*usage.Scrape)) (usage.Timing, error),
) fetchFunc {
	return func(c *Client, ctx context.Context, node *corev1.Node, dst *usage.Scrape) error {
		_, err := method(c, ctx, node, func(s *usage.Scrape) { *dst = cloneScrape(s) })
		return err
	}
}

func fetchFuncs() map[string]fetchFunc {
	return map[string]fetchFunc{"Fetch": fetchResource, "FetchSummary": fetchSummary}
}

// fetchError fetches the resource metrics of a node, and returns only the error.
func fetchError(t *testing.T, c *Client, node *corev1.Node) error {
	return fetchResource(c, t.Context(), node, &usage.Scrape{})
}

// cloneScrape returns a copy that shares no memory with s.
func cloneScrape(s *usage.Scrape) usage.Scrape {
	clone := *s
	clone.Containers, clone.Storage = slices.Clone(s.Containers), slices.Clone(s.Storage)
	var names []*[]byte
	for i := range clone.Containers {
		c := &clone.Containers[i]
		names = append(names, &c.Namespace, &c.Pod, &c.Name)
	}
	for i := range clone.Storage {
		c := &clone.Storage[i]
		names = append(names, &c.Namespace, &c.Pod, &c.Container, &c.UID)
	}
	for _, name := range names {
		*name = bytes.Clone(*name)
	}
	return clone
}

// respond sends the text of /metrics/resource.
func respond(w http.ResponseWriter, text []byte) {
	w.Header().Set("Content-Type", textType)
	_, _ = w.Write(text)
}

// serveNode responds with a sample of the node.
func serveNode(w http.ResponseWriter, _ *http.Request) {
	respond(w, []byte("node_cpu_usage_seconds_total 1\n"))
}

// respondTo sends the response that is requested.
func respondTo(w http.ResponseWriter, r *http.Request, resource, summary []byte) {
	if r.URL.Path == summaryQuery.path {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(summary)
		return
	}
	respond(w, resource)
}

// checkError checks the reason of an error of the node n7 and its text, and the form of the text.
func checkError(t *testing.T, err error, want reason.Reason, text string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want reason %s", want)
	}
	if got := reason.Of(err); got != want || !slices.Contains(reasontest.Scrapes(), got) {
		t.Errorf("got reason %s, want %s: %v", got, want, err)
	}
	s := explained(err)
	if !strings.Contains(s, text) || strings.Contains(s, "\n") || len(s) > 1500 {
		t.Errorf("got error %s, want one line with %q", s, text)
	}
	if cure := want.Describe().Cure; cure != "" && strings.Contains(err.Error(), cure) {
		t.Errorf("the error %v has the cure", err)
	}
}

// explained returns what users read about an error.
func explained(err error) string { return reason.Of(err).Describe().Explain(err).Error() }

// alwaysConnects makes the client connect without a timeout, so that a short timeout ends what
// follows, even on a busy machine.
func alwaysConnects(c *Client) *Client {
	c.dialer = dialWithoutTimeout
	return c
}

func dialWithoutTimeout(ctx context.Context, network, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(context.WithoutCancel(ctx), network, address)
}

// listen serves each connection to a port of this machine until the test ends.
func listen(t testing.TB, serve func(net.Conn)) *net.TCPAddr {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	return listener.Addr().(*net.TCPAddr)
}

// compress returns a text as gzip.
func compress(text []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(text)
	_ = z.Close()
	return b.Bytes()
}

// forServerAuth returns a certificate for the node's name and 127.0.0.1.
func forServerAuth(ca *kubelettest.CA, node string) *tls.Certificate {
	certificate := ca.Issue([]string{node}, loopback)
	return &certificate
}

// writeFile writes a file, and returns its path.
func writeFile(t testing.TB, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// realResponses returns the responses of a real kubelet to /metrics/resource and
// /stats/summary?only_cpu_and_memory=true.
func realResponses(t testing.TB) (resource, summary []byte) {
	t.Helper()
	read := func(file string) []byte {
		content, err := os.ReadFile("decode/testdata/kubelet-1.36-" + file)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	return read("resource.txt"), read("summary-cpu-memory.json")
}
