package kubelet

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// fakePins are Pins in memory.
type fakePins struct {
	mu     sync.Mutex
	keys   map[string]string // by node and UID; "ca" if a CA verified the certificate
	before func() error      // is called by Pin without the lock; nil: nothing
}

func newPins() *fakePins { return &fakePins{keys: map[string]string{}} }

func (p *fakePins) Check(node string, uid types.UID, key string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch known := p.keys[node+"/"+string(uid)]; known {
	case "":
		return false, nil
	case key:
		return true, nil
	default:
		return false, reason.Errorf(reason.TLSKeyChanged, "its key is pinned as %s", known)
	}
}

func (p *fakePins) Pin(_ context.Context, node string, uid types.UID, key string) error {
	if p.before != nil {
		if err := p.before(); err != nil {
			return err
		}
	}
	if pinned, err := p.Check(node, uid, key); pinned || err != nil {
		return err
	}
	p.set(node, uid, key)
	return nil
}

func (p *fakePins) Verified(node string, uid types.UID) { p.set(node, uid, "ca") }

// set sets the key of a node; "" removes it.
func (p *fakePins) set(node string, uid types.UID, key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[node+"/"+string(uid)] = key
}

func (p *fakePins) get(node string, uid types.UID) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[node+"/"+string(uid)]
}

// impostor is a server at the address of a kubelet that shows a certificate and records what it gets.
type impostor struct {
	address     string
	certificate atomic.Pointer[tls.Certificate]
	ended       chan struct{} // receives an element for each end of a connection

	mu       sync.Mutex
	accepted int // number of handshakes that succeeded
	got      string
}

func newImpostor(t *testing.T, certificate tls.Certificate) *impostor {
	i := &impostor{ended: make(chan struct{}, 100)}
	i.certificate.Store(&certificate)
	i.address = listen(t, i.serve).String()
	return i
}

func (i *impostor) serve(socket net.Conn) {
	defer func() { i.ended <- struct{}{} }()
	conn := tls.Server(socket, &tls.Config{Certificates: []tls.Certificate{*i.certificate.Load()}})
	if conn.Handshake() != nil {
		return
	}
	i.record(1, "")
	buffer := make([]byte, 4<<10)
	n, _ := conn.Read(buffer) // a request, or the end
	i.record(0, string(buffer[:n]))
	_, _ = io.WriteString(conn, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

// record adds to what the impostor got, and returns all of it.
func (i *impostor) record(handshakes int, text string) (accepted int, got string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.accepted += handshakes
	i.got += text
	return i.accepted, i.got
}

// TestManInTheMiddle has an impostor take the place of a kubelet after first sight. It gets nothing,
// whatever certificate it shows.
func TestManInTheMiddle(t *testing.T) {
	ca := kubelettest.NewCA()
	kubelet := kubelettest.KubeletSigned("n7")
	for name, certificate := range map[string]tls.Certificate{
		"other key":             kubelettest.KubeletSigned("n7"),
		"other self-signed key": kubelettest.SelfSigned([]string{"n7"}, loopback),
		"other CA":              kubelettest.NewCA().Issue([]string{"n7"}, loopback),
		"certificate of the kubelet": {
			Certificate: kubelet.Certificate, PrivateKey: kubelettest.SelfSigned(nil, nil).PrivateKey,
		},
	} {
		for _, first := range []string{keyOf(kubelet.Leaf), "ca"} {
			t.Run(name+", pinned as "+first[:2], func(t *testing.T) {
				pins := newPins()
				pins.set("n7", "u", first)
				i := newImpostor(t, certificate)
				c := newTestClient(t, Config{TLS: rest.TLSClientConfig{CAData: ca.PEM()}, BearerToken: "secret", Pins: pins})
				node := nodeAt("n7", i.address)
				node.UID = "u"
				err := fetchError(t, c, node)
				want := reason.TLSKeyChanged
				switch {
				case name == "other CA":
					want = reason.TLSAuthority
				case name == "certificate of the kubelet" && first != "ca":
					want = reason.TLSHandshake // it cannot sign for that key
				}
				checkError(t, err, want, "")
				<-i.ended
				if accepted, text := i.record(0, ""); text != "" || accepted > 0 {
					t.Errorf("the impostor got %q in %d connections", text, accepted)
				}
				if got := pins.get("n7", "u"); got != first {
					t.Errorf("%s is pinned", got)
				}
			})
		}
	}
}

// TestManInTheMiddleAtFirstSight shows what pins do not prevent: the impostor gets the token, and
// then the kubelet is refused. docs/security.md says so.
func TestManInTheMiddleAtFirstSight(t *testing.T) {
	pins := newPins()
	i := newImpostor(t, kubelettest.KubeletSigned("n7"))
	c := newTestClient(t, Config{BearerToken: "secret", Pins: pins})
	checkError(t, fetchError(t, c, nodeAt("n7", i.address)), reason.ServerError, "")
	<-i.ended
	if _, text := i.record(0, ""); !strings.Contains(text, "Bearer secret") {
		t.Errorf("the impostor got %q", text)
	}
	kubelet := kubelettest.KubeletSigned("n7")
	i.certificate.Store(&kubelet)
	checkError(t, fetchError(t, c, nodeAt("n7", i.address)), reason.TLSKeyChanged,
		"the kubelet does not have the pinned key: its key is pinned as sha256:")
}

// TestNothingIsSentBeforeThePin checks that a kubelet gets no request until its key is stored, or if
// it cannot be stored.
func TestNothingIsSentBeforeThePin(t *testing.T) {
	for name, tt := range map[string]struct {
		failure error
		other   string // is pinned by another replica meanwhile
		reason  reason.Reason
		text    string
	}{
		"stored":            {nil, "", reason.ServerError, ""}, // which the impostor sends
		"unavailable":       {errors.New("the API server is unavailable"), "", reason.TLSNotPinned, "is unavailable"},
		"API server hangs":  {os.ErrDeadlineExceeded, "", reason.TLSNotPinned, ""}, // a net.Error
		"context of a loop": {context.Canceled, "", reason.TLSNotPinned, ""},
		"another replica":   {nil, "sha256:other", reason.TLSKeyChanged, "its key is pinned as sha256:other"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newImpostor(t, kubelettest.KubeletSigned("n7"))
			pins := newPins()
			pins.before = func() error {
				testenv.Eventually(t, "the handshake", func() bool {
					accepted, _ := i.record(0, "")
					return accepted == 1
				})
				if _, text := i.record(0, ""); text != "" {
					t.Errorf("the kubelet got %q before its key was stored", text)
				}
				pins.set("n7", "", tt.other)
				return tt.failure
			}
			c := newTestClient(t, Config{BearerToken: "secret", Pins: pins})
			checkError(t, fetchError(t, c, nodeAt("n7", i.address)), tt.reason, tt.text)
			<-i.ended
			_, text := i.record(0, "")
			if sent := strings.Contains(text, "Bearer secret"); sent != (tt.reason == reason.ServerError) {
				t.Errorf("the kubelet got %q", text)
			}
		})
	}
}

// TestPinEnds changes the pin between requests: an open connection is used only as long as its key
// is pinned for the same Node.
func TestPinEnds(t *testing.T) {
	certificate := kubelettest.KubeletSigned("n7")
	requests := 0
	k := newKubelet(t, &certificate, func(w http.ResponseWriter, r *http.Request) {
		requests++
		serveNode(w, r)
	})
	pins := newPins()
	c := newTestClient(t, Config{Pins: pins})
	node := k.node("n7")
	node.UID = "u1"
	fetch := func(what string, connections int64) {
		t.Helper()
		if err := fetchError(t, c, node); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := k.opened.Load(); got != connections {
			t.Errorf("%s: %d connections, want %d", what, got, connections)
		}
	}
	key := keyOf(certificate.Leaf)
	fetch("first sight", 1)
	fetch("pinned", 1)
	pins.set("n7", "u1", "")
	fetch("pin removed", 2)
	fetch("pinned again", 2)
	pins.set("n7", "u1", "sha256:other")
	before := requests
	checkError(t, fetchError(t, c, node), reason.TLSKeyChanged, "sha256:other")
	if requests != before {
		t.Error("a request was sent on a connection whose key is no longer pinned")
	}
	pins.set("n7", "u1", key)
	fetch("accepted", 4)

	node = node.DeepCopy()
	node.UID = "u2"
	fetch("new Node", 5)
	if got := pins.get("n7", "u2"); got != key {
		t.Errorf("%q is pinned for the new Node", got)
	}
	testenv.Eventually(t, "old connections to be closed", func() bool { return k.open.Load() == 1 })
}

// TestPinsDoNotDelayOthers blocks the pin of one node: it holds no permit.
func TestPinsDoNotDelayOthers(t *testing.T) {
	first, second := kubelettest.KubeletSigned("n7"), kubelettest.NewCA()
	k1, k2 := newKubelet(t, &first, serveNode), newKubelet(t, forServerAuth(second, "n8"), serveNode)
	pins := newPins()
	entered, blocked := make(chan struct{}), make(chan struct{})
	pins.before = func() error {
		close(entered)
		<-blocked
		return nil
	}
	c := newTestClient(t, Config{TLS: rest.TLSClientConfig{CAData: second.PEM()}, Pins: pins})
	c.connecting = make(permits, 1)
	done := make(chan error)
	go func() { done <- fetchError(t, c, k1.node("n7")) }()
	<-entered
	if err := fetchError(t, c, k2.node("n8")); err != nil {
		t.Error(err)
	}
	close(blocked)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
