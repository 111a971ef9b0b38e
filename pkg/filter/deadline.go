package filter

import (
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
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

// Listener returns connections that break if the client does not read from them. A deadline of a stream
// does not help then, because HTTP/2 resets a stream by a frame that the client must read.
type Listener struct {
	net.Listener
	MaxWriteTime time.Duration
}

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &deadlineConn{Conn: c, maxWriteTime: l.MaxWriteTime}, nil
}

// deadlineConn is a connection with a deadline for each write.
type deadlineConn struct {
	net.Conn
	maxWriteTime time.Duration
	other        atomic.Pointer[time.Time] // the deadline that the server has set
}

// SetWriteDeadline implements net.Conn.
func (c *deadlineConn) SetWriteDeadline(t time.Time) error {
	c.other.Store(&t)
	return c.Conn.SetWriteDeadline(t)
}

// Write implements net.Conn.
func (c *deadlineConn) Write(p []byte) (int, error) {
	deadline := time.Now().Add(c.maxWriteTime)
	if other := c.other.Load(); other != nil && !other.IsZero() && other.Before(deadline) {
		deadline = *other
	}
	if err := c.Conn.SetWriteDeadline(deadline); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}
