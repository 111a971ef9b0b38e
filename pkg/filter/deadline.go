package filter

import (
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/internal/fair"
)

const (
	// MaxWriteTime is the time in which a client must accept pieceSize bytes of a response, and in which
	// a connection must accept a frame or a TLS record. It is also the time by which a response may
	// exceed the timeout of requests, which does not end a write that blocks.
	MaxWriteTime = 10 * time.Second
	pieceSize    = 64 << 10
)

// WithDeadline ends responses that clients do not read, as --request-timeout ends the others.
// Without it, a stream of HTTP/2 whose client grants no window would block its handler for ever.
func WithDeadline(next http.Handler, requestTimeout, maxWriteTime time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(&deadlineWriter{
			ResponseWriter: w, controller: http.NewResponseController(w),
			maxWriteTime: maxWriteTime, end: time.Now().Add(requestTimeout + maxWriteTime),
		}), r)
	})
}

// deadlineWriter is a response with a deadline for each piece and for the end. The last deadline is
// also that of what the server still buffers when the handler returns. The server removes it with the
// end of the response.
type deadlineWriter struct {
	http.ResponseWriter
	controller   *http.ResponseController
	maxWriteTime time.Duration
	end          time.Time
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *deadlineWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements io.Writer.
func (w *deadlineWriter) Write(p []byte) (written int, err error) {
	for {
		deadline := time.Now().Add(w.maxWriteTime)
		if deadline.After(w.end) {
			deadline = w.end
		}
		w.controller.SetWriteDeadline(deadline) //nolint:errcheck,gosec // the writers of tests have none
		n, err := w.ResponseWriter.Write(p[:min(len(p), pieceSize)])
		written += n
		if p = p[n:]; err != nil || len(p) == 0 {
			return written, err
		}
	}
}

// listener returns connections that break if the client does not read from them. A deadline of a stream
// does not help then, because HTTP/2 resets a stream by a frame that the client must read.
//
// Headers take up to ConnectionMemory before any filter sees the request, so clients share connections by address.
// Others wait, up to a number: a client may dial for each of its requests until one dial has negotiated HTTP/2.
type listener struct {
	net.Listener
	maxWriteTime time.Duration
	accepted     *fair.Pool // of all connections
	open         *fair.Pool // of those that are read from
	logRefused   rate.Sometimes
}

const (
	// ConnectionMemory is what the headers of a request take at most (TestConnectionMemory), in bytes.
	ConnectionMemory = 6 << 20
	maxWaiting       = 8 // for each connection that is read from
)

// NewListener returns a listener that reads from at most a number of connections at a time.
func NewListener(l net.Listener, maxWriteTime time.Duration, connections int64) net.Listener {
	return &listener{Listener: l, maxWriteTime: maxWriteTime, accepted: fair.NewPool(connections * (1 + maxWaiting)),
		open: fair.NewPool(connections), logRefused: rate.Sometimes{Interval: time.Minute}}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address, _, _ := net.SplitHostPort(c.RemoteAddr().String()) // "" shares, too
		if l.accepted.Take(address, 1) {
			return &conn{Conn: c, listener: l, address: address}, nil
		}
		l.refuse(c, address)
	}
}

func (l *listener) refuse(c net.Conn, address string) {
	_ = c.Close() // nothing was read or written
	l.logRefused.Do(func() {
		klog.ErrorS(nil, "Refused a connection: too many are open (logged once a minute)", "client", address)
	})
}

// conn is a connection with a deadline for each write.
type conn struct {
	net.Conn
	listener *listener
	address  string
	state    atomic.Int32
	other    atomic.Pointer[time.Time] // the deadline that the server has set
}

const waiting, open, closed int32 = 0, 1, 2 // states of a conn

// Read implements net.Conn. The first one waits until the client may have another open connection.
func (c *conn) Read(p []byte) (int, error) {
	const shortest, longest, most = 10 * time.Millisecond, 640 * time.Millisecond, 10 * time.Second
	start := time.Now()
	for delay := shortest; c.state.Load() == waiting; delay = min(2*delay, longest) {
		switch taken := c.listener.open.Take(c.address, 1); {
		case taken && !c.state.CompareAndSwap(waiting, open):
			c.listener.open.Return(c.address, 1)
		case !taken && time.Since(start) > most:
			c.listener.refuse(c, c.address)
		case !taken:
			time.Sleep(delay)
		}
	}
	return c.Conn.Read(p)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	switch c.state.Swap(closed) {
	case open:
		c.listener.open.Return(c.address, 1)
		fallthrough
	case waiting:
		c.listener.accepted.Return(c.address, 1)
	}
	return c.Conn.Close()
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
	return c.Conn.Write(p)
}
