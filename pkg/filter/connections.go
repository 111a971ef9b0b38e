package filter

import (
	"container/list"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"
)

const (
	// connectionMemory is what an open connection takes after the handshake, in bytes, and byteMemory what each byte does
	// that the client sent after that, until a request starts (TestConnectionMemory). The latter is also what each byte of
	// the client's certificates takes, when they are parsed.
	connectionMemory, byteMemory = 64 << 10, 64
	// bufferMemory is what TLS keeps of each byte that the client sent until its request, such as the name of the server
	// and the buffer for messages (TestHandshakeMemory).
	bufferMemory = 3
	// maxLight is the memory of an address from which on its connections are closed first. A kubelet that probes takes
	// less, and the front proxy during its handshake.
	maxLight = 8 * connectionMemory
)

// Listener bounds the memory of connections and of the requests on them:
//
//   - It counts them by the client's address, and by the /64 of an IPv6 address, from the first byte on.
//   - When all take more than a limit, it closes connections of the address that takes most: those that have not
//     started a request for longest. If no address takes more than maxLight, it closes those of all addresses. So
//     others always get a place, such as probes, also if an attacker has many addresses.
//   - The front proxy does not count: see WithRequestLimits.
//   - What a client sends until its request starts counts, too. What is kept of the handshake, such as the client's
//     certificates, counts until the connection ends.
//   - It closes a connection whose client does not accept what is written, or sends nothing.
//
// It is for HTTP/1 only, with one request on a connection: see WithRequestLimits. net/http itself responds to
// OPTIONS *, and then keeps the connection: such requests count until it ends. The library ends a handshake after
// 32 seconds, and the headers of a request, too.
type Listener struct {
	net.Listener
	maxReadTime, maxWriteTime time.Duration

	limit     int64 // in bytes
	logClosed rate.Sometimes

	mu          sync.Mutex
	taken       int64
	clients     map[netip.Prefix]*client
	connections list.List // of *conn, of all clients, in the order of client.connections
}

// client is what one address has.
type client struct {
	taken       int64
	connections list.List // of *conn; the one that has not started a request for longest is first
}

// NewListener returns a listener whose connections and requests take at most limit bytes. A connection breaks if a
// write takes longer than maxWriteTime. A read without another limit takes at most maxReadTime. net/http also reads
// while it serves a request, and cancels the request when that read ends, so maxReadTime must be longer than requests
// last.
func NewListener(l net.Listener, maxReadTime, maxWriteTime time.Duration, limit int64) *Listener {
	return &Listener{
		Listener: l, maxReadTime: maxReadTime, maxWriteTime: maxWriteTime, limit: limit,
		logClosed: rate.Sometimes{Interval: time.Minute}, clients: map[netip.Prefix]*client{},
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, listener: l, address: addressOf(accepted.RemoteAddr().String())}
	l.mu.Lock()
	if c.client = l.clients[c.address]; c.client == nil {
		c.client = &client{}
		l.clients[c.address] = c.client
	}
	c.place, c.placeOfAll = c.client.connections.PushBack(c), l.connections.PushBack(c)
	c.takeAndUnlock(connectionMemory)
	return c, nil
}

// addressOf returns the part of an address with a port that one client has: an address of IPv4, or a network of IPv6
// with 64 bits. Texts without an address are equal.
func addressOf(text string) netip.Prefix {
	at, _ := netip.ParseAddrPort(text)
	address := at.Addr().Unmap().WithZone("")
	prefix, _ := address.Prefix(min(64, address.BitLen()))
	return prefix
}

// conn is a connection with a deadline for each write.
type conn struct {
	net.Conn
	listener *Listener
	address  netip.Prefix
	client   *client
	other    atomic.Pointer[time.Time] // the deadline that the server has set
	trusted  atomic.Bool

	// Protected by the listener's mutex:
	place      *list.Element // among those of the client; nil: it does not count
	placeOfAll *list.Element
	unanswered int64 // bytes that were read since the connection was accepted, or since its request started
	kept       int64 // memory of the handshake and of what was read until the request started
	closed     bool
}

// takeAndUnlock counts n bytes. If all take too much then, it closes connections until they do not, or until those that
// it has closed took n bytes. The listener's mutex must be locked, and is unlocked.
func (c *conn) takeAndUnlock(n int64) {
	l := c.listener
	l.taken += n
	c.client.taken += n
	var victims []*conn
	for victim := l.victim(); victim != nil && n > 0; victim = l.victim() {
		n -= victim.leave()
		victims = append(victims, victim)
	}
	l.mu.Unlock()
	for _, victim := range victims {
		_ = victim.Close()
		l.logClosed.Do(func() {
			klog.ErrorS(nil, "Closed a connection: all connections and requests take too much memory (logged once a minute)",
				"client", victim.address)
		})
	}
}

// victim returns the connection to close; nil: none. There is none while no address takes more than an equal share,
// since requests whose connections are closed may take the rest until they end. The mutex must be locked.
func (l *Listener) victim() *conn {
	if l.taken <= l.limit {
		return nil
	}
	most := &client{}
	for _, c := range l.clients {
		if c.connections.Len() > 0 && c.taken > most.taken {
			most = c
		}
	}
	if most.taken*int64(len(l.clients)) <= l.limit {
		return nil
	}
	connections := &most.connections
	if most.taken <= maxLight {
		connections = &l.connections
	}
	victim, _ := connections.Front().Value.(*conn)
	return victim
}

// give ends what takeAndUnlock has begun. The listener's mutex must be locked.
func (c *conn) give(n int64) {
	c.listener.taken -= n
	if c.client.taken -= n; c.client.taken == 0 && c.listener.clients[c.address] == c.client {
		delete(c.listener.clients, c.address)
	}
}

// leave ends the counting of a connection, and returns what it took. The listener's mutex must be locked.
func (c *conn) leave() (n int64) {
	if c.place != nil {
		c.client.connections.Remove(c.place)
		c.listener.connections.Remove(c.placeOfAll)
		c.place, c.placeOfAll = nil, nil
		n = connectionMemory + byteMemory*c.unanswered + c.kept
		c.give(n)
	}
	return n
}

// receive counts n bytes that were read.
func (c *conn) receive(n int64) {
	if c.trusted.Load() { // without the lock: most bytes are the front proxy's
		return
	}
	c.listener.mu.Lock()
	if c.place == nil {
		c.listener.mu.Unlock()
		return
	}
	c.unanswered += n
	c.takeAndUnlock(byteMemory * n)
}

// begin counts a request of n bytes until end is called, and until the connection ends what is kept of the handshake,
// given the bytes of the client's certificates. It reports whether the connection was still open.
func (c *conn) begin(n, certificates int64) (end func(), open bool) {
	c.listener.mu.Lock()
	if c.place == nil {
		defer c.listener.mu.Unlock()
		return func() {}, !c.closed
	}
	c.client.connections.MoveToBack(c.place)
	c.listener.connections.MoveToBack(c.placeOfAll)
	c.give(byteMemory * c.unanswered)
	kept := bufferMemory*c.unanswered + byteMemory*certificates
	c.unanswered = 0
	c.kept += kept
	c.takeAndUnlock(n + kept)
	return func() {
		c.listener.mu.Lock()
		defer c.listener.mu.Unlock()
		c.give(n)
	}, true
}

// trust ends all limits of a connection but that of writes.
func (c *conn) trust() {
	c.trusted.Store(true)
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.leave()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	c.closed = true
	c.leave()
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.receive(int64(n))
	return n, err
}

// SetReadDeadline implements net.Conn. The library sets none for bodies, also not for those of requests that net/http
// responds to itself.
func (c *conn) SetReadDeadline(t time.Time) error {
	if t.IsZero() {
		t = time.Now().Add(c.listener.maxReadTime)
	}
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.other.Store(&t)
	return c.Conn.SetWriteDeadline(t)
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	deadline := time.Now().Add(c.listener.maxWriteTime)
	if other := c.other.Load(); other != nil && !other.IsZero() && other.Before(deadline) {
		deadline = *other
	}
	if err := c.Conn.SetWriteDeadline(deadline); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	if err != nil { // else TLS would wait for 5 seconds to send its last alert
		_ = c.Close()
	}
	return n, err
}

// localAddr is the local address of a conn, and refers to it: servers have it in the context of each request.
type localAddr struct {
	net.Addr
	conn *conn
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return localAddr{c.Conn.LocalAddr(), c} }

// connOf returns the connection of a request; nil: it is not from a Listener.
func connOf(r *http.Request) *conn {
	address, _ := r.Context().Value(http.LocalAddrContextKey).(localAddr)
	return address.conn
}
