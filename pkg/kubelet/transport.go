package kubelet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// transport sends requests to the kubelet of a node over HTTP/1.1, and keeps one idle connection.
//
// http.Transport has two goroutines and three buffers for each connection, even an idle one: about
// 20 KB. Here, the memory of a request exists only during the request. net/http still writes the
// requests and parses the responses. Proxies in the environment are ignored.
type transport struct {
	*credentials
	node     string
	uid      types.UID // of the node
	endpoint endpoint
	dial     dialer
	secure   bool // false for plain HTTP

	idle    atomic.Pointer[conn] // nil if there is none
	retired atomic.Bool          // connections must not be kept
	second  atomic.Bool          // the last dial was to the second host

	// Until when requests may last as long as a slow one, by our clock (usage.Time). Those for storage may run beside
	// the others.
	slowUntil, storageSlowUntil atomic.Int64
}

func (c *Client) newTransport(node string, uid types.UID, e endpoint) *transport {
	t := &transport{credentials: c.credentials, node: strings.Clone(node), uid: uid, endpoint: e, dial: c.dialer}
	t.secure = !c.config.PlainHTTP
	return t
}

// address returns the address that was dialed last, or the one to dial.
func (t *transport) address() string {
	if t.second.Load() {
		return t.endpoint.address(t.endpoint.hosts[1])
	}
	return t.endpoint.address(t.endpoint.hosts[0])
}

// conn is a connection to a kubelet.
type conn struct {
	net.Conn // of TLS, or the socket
	socket   *socket
	host     string // that was dialed
	version  int    // of the credentials that verified it
	key      string // that admitted it; "": a CA verified the certificate
}

// socket pauses a permit while it waits for the kubelet.
type socket struct {
	net.Conn
	permit *permit
}

// Read implements io.Reader.
func (s *socket) Read(b []byte) (int, error) {
	s.permit.pause()
	defer s.permit.resume()
	return s.Conn.Read(b)
}

// dialer opens connections. It is net.Dialer.DialContext except in tests.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// newDialer returns a dialer whose connections detect a dead peer within a scrape or two, so that
// requests do not time out on them.
func newDialer(c *Config) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		d := net.Dialer{
			Timeout:         c.Timeout,
			ControlContext:  c.checkDials(),
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
		}
		return d.DialContext(ctx, network, address)
	}
}

// takeIdle returns the idle connection, or nil if there is none that may be used: if it was opened with
// other credentials, or if its key is not pinned any more, it is closed.
func (t *transport) takeIdle() *conn {
	c := t.idle.Swap(nil)
	if c == nil {
		return nil
	}
	admitted := c.version == t.version()
	if admitted && c.key != "" {
		admitted, _ = t.pins.Check(t.node, t.uid, c.key)
	}
	if !admitted {
		_ = c.Close() // no request uses it
		return nil
	}
	return c
}

// keep keeps a connection for the next request, or closes it.
func (t *transport) keep(c *conn) {
	if !t.idle.CompareAndSwap(nil, c) {
		_ = c.Close() // no request uses it
	}
	if t.retired.Load() {
		t.closeIdle()
	}
}

// retire closes the connection, now or at the end of the request that uses it.
func (t *transport) retire() {
	if t != nil {
		t.retired.Store(true)
		t.closeIdle()
	}
}

func (t *transport) closeIdle() {
	if c := t.idle.Swap(nil); c != nil {
		_ = c.Close() // no request uses it
	}
}

// connect opens a connection. It pauses the permit while it waits, and releases it.
func (t *transport) connect(ctx context.Context, permit *permit) (*conn, error) {
	defer permit.release()
	version := t.version()
	permit.pause()
	dialed, host, err := t.dialHosts(ctx)
	permit.resume()
	if err != nil {
		return nil, err
	}
	s := &socket{dialed, permit}
	defer func() { s.permit = nil }()
	c := &conn{Conn: s, socket: s, host: host, version: version}
	if !t.secure {
		return c, nil
	}
	secured := tls.Client(s, t.tlsConfig(host))
	err = secured.HandshakeContext(ctx)
	if err == nil && t.pins != nil {
		c.key, err = t.admit(ctx, host, secured, permit)
	}
	if reason.Of(err) == reason.BadHTTP { // such as an invalid signature
		err = &reason.Error{Reason: reason.TLSHandshake, Err: err}
	}
	if err != nil {
		_ = dialed.Close() // nothing was sent
		return nil, err
	}
	c.Conn = secured
	return c, nil
}

// dialHosts opens a connection to the first host or, if there is no route to it, to the second. It returns the host.
// Other failures, such as a timeout, are those of the node, and not of an address family.
func (t *transport) dialHosts(ctx context.Context) (c net.Conn, host string, err error) {
	first, second := t.endpoint.hosts[0], t.endpoint.hosts[1]
	c, err = t.dial(ctx, "tcp", t.endpoint.address(first))
	useSecond := second != "" && hasNoRoute(err)
	t.second.Store(useSecond)
	if !useSecond {
		return c, first, err
	}
	c, secondErr := t.dial(ctx, "tcp", t.endpoint.address(second))
	if secondErr != nil {
		return nil, "", fmt.Errorf("%w, and %w", secondErr, err)
	}
	return c, second, nil
}

// asTimeout replaces the timeout of a request by an error that reports what took how long, and whether it was our
// fault: queued is the time of it that the request waited for permits. It returns other errors unchanged.
func (t *transport) asTimeout(err error, took, queued time.Duration) error {
	if _, isDNS := errors.AsType[*net.DNSError](err); isDNS || !isTimeout(err) {
		return err
	}
	took = took.Round(time.Millisecond)
	if queued > took/2 {
		return &reason.Error{
			Reason: reason.InternalFailure,
			Err:    fmt.Errorf("the request waited for kube-vitals, for %v of %v", queued.Round(time.Millisecond), took),
			Cure:   "give kube-vitals more CPU: raise its request, and remove its limit",
		}
	}
	r, missing := reason.Timeout, "complete response from"
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		r, missing = reason.ConnectTimeout, "connection to"
	}
	return reason.Errorf(r, "no %s the kubelet at %s within %v", missing, t.address(), took)
}
