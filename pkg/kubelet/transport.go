package kubelet

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// maxHeaderBytes bounds the headers of an answer. Kubelets send some 200 bytes of them.
	maxHeaderBytes = 16 << 10
	// maxInformational bounds the 1xx answers before the answer proper.
	maxInformational = 5
	readBufferBytes  = 4 << 10
)

var errHeaders = fmt.Errorf("its headers exceeded %d bytes", maxHeaderBytes)

// transport asks one kubelet by HTTP/1.1, and keeps one connection for the next time.
//
// It does for a kubelet what http.Transport does for the world. That one has two goroutines and
// three buffers for each connection, some 20 KB, whether it is used or not; here what a request
// needs is there for as long as the request. What the kubelet sends is read by http.ReadResponse
// all the same.
type transport struct {
	address string
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	tls     *tls.Config // nil: without TLS
	permits permits     // for dialing and handshakes; shared by all transports
	scratch *sync.Pool  // of *scratch; shared by all transports
	buffers *sync.Pool  // of *socketBuffer; so, too

	mu   sync.Mutex
	idle net.Conn // nil: there is none
}

// scratch is the memory that a request needs until its answer has been read.
type scratch struct {
	in  *bufio.Reader
	out bytes.Buffer
}

func newScratchPool() *sync.Pool {
	return &sync.Pool{New: func() any { return &scratch{in: bufio.NewReaderSize(nil, readBufferBytes)} }}
}

// RoundTrip implements http.RoundTripper for requests without a body. The answer's body must be
// closed; if it was read to its end, the connection is kept.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	return t.roundTrip(request, nil)
}

// roundTrip is RoundTrip with a permit that was acquired in advance, or nil.
func (t *transport) roundTrip(request *http.Request, permit *permit) (*http.Response, error) {
	ctx := request.Context()
	for {
		conn := t.take()
		reused := conn != nil
		if !reused {
			var err error
			if conn, err = t.connect(ctx, permit); err != nil {
				return nil, err
			}
			permit = nil
		}
		x := t.newExchange(ctx, conn)
		response, err := x.run(request)
		if err == nil {
			return response, nil
		}
		x.end(false)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !reused || x.answered || isTimeout(err) {
			return nil, err
		} // else the kubelet had closed the connection that was kept
	}
}

// CloseIdleConnections closes the connection that is kept, if there is one.
func (t *transport) CloseIdleConnections() {
	if conn := t.take(); conn != nil {
		_ = conn.Close() // nothing is under way on it
	}
}

func (t *transport) take() net.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	conn := t.idle
	t.idle = nil
	return conn
}

// keep keeps a connection for the next request. It says no if there is one already.
func (t *transport) keep(conn net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.idle != nil {
		return false
	}
	t.idle = conn
	return true
}

// connected reports whether a connection is kept.
func (t *transport) connected() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.idle != nil
}

// connect opens a connection. It releases the permit, or acquires one if that is nil.
func (t *transport) connect(ctx context.Context, permit *permit) (net.Conn, error) {
	var err error
	if permit == nil {
		if permit, err = t.permits.acquire(ctx); err != nil {
			return nil, err
		}
	}
	defer permit.release()
	permit.pause()
	conn, err := t.dial(ctx, "tcp", t.address)
	permit.resume()
	if err != nil || t.tls == nil {
		return conn, err
	}
	records := &recordConn{Conn: conn, buffers: t.buffers, permit: permit}
	defer func() { records.permit = nil }()
	secure := tls.Client(records, t.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // the handshake's error says more
		return nil, err
	}
	return secure, nil
}

// exchange is one request and its answer. It is the answer's body, too.
type exchange struct {
	transport *transport
	conn      net.Conn
	scratch   *scratch
	watched   func() bool // ends the watch over the context, and says whether the context was still going on
	ctx       context.Context

	sent     time.Time // when the request was sent
	head     int64     // bytes of it that may still come
	answered bool      // whether a byte of the answer came
	body     io.ReadCloser
	whole    bool // whether the body was read to its end
	last     bool // whether the connection is not to be kept
}

func (t *transport) newExchange(ctx context.Context, conn net.Conn) *exchange {
	x := &exchange{transport: t, conn: conn, ctx: ctx, scratch: t.scratch.Get().(*scratch), head: maxHeaderBytes}
	x.scratch.in.Reset(source{x})
	x.scratch.out.Reset()
	deadline, _ := ctx.Deadline() // the zero time: none
	_ = conn.SetDeadline(deadline)
	x.watched = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return x
}

// run sends the request, and reads the answer up to its body.
func (x *exchange) run(request *http.Request) (*http.Response, error) {
	if err := request.Write(&x.scratch.out); err != nil {
		return nil, fmt.Errorf("cannot write the request: %w", err)
	}
	x.sent = time.Now()
	if _, err := x.conn.Write(x.scratch.out.Bytes()); err != nil {
		return nil, err
	}
	for range maxInformational + 1 {
		response, err := http.ReadResponse(x.scratch.in, request)
		if err != nil && x.head == 0 {
			return nil, errHeaders
		}
		if err != nil {
			return nil, err
		}
		if response.StatusCode >= 200 || response.StatusCode == http.StatusSwitchingProtocols {
			x.body, x.last = response.Body, response.Close || response.StatusCode == http.StatusSwitchingProtocols
			x.head = -1
			response.Body = x
			return response, nil
		}
	}
	return nil, fmt.Errorf("more than %d informational answers", maxInformational)
}

// source is what an exchange reads from its connection.
type source struct{ x *exchange }

func (s source) Read(p []byte) (int, error) {
	x := s.x
	if x.head == 0 {
		return 0, errHeaders
	}
	if x.head > 0 && int64(len(p)) > x.head {
		p = p[:x.head]
	}
	n, err := x.conn.Read(p)
	if n > 0 {
		x.answered = true
	}
	if x.head > 0 {
		x.head -= int64(n)
	}
	return n, err
}

// Read reads from the answer's body.
func (x *exchange) Read(p []byte) (int, error) {
	n, err := x.body.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		x.whole = true
	case err != nil && x.ctx.Err() != nil:
		err = x.ctx.Err()
	}
	return n, err
}

// Close ends the exchange.
func (x *exchange) Close() error {
	if x.scratch != nil {
		x.end(x.whole && !x.last && x.scratch.in.Buffered() == 0)
	}
	return nil
}

// end gives back the memory, and keeps the connection if that is sound.
func (x *exchange) end(sound bool) {
	x.scratch.in.Reset(strings.NewReader("")) // or the pool would hold on to the connection
	x.transport.scratch.Put(x.scratch)
	x.scratch = nil
	if x.watched() && sound && x.transport.keep(x.conn) {
		return
	}
	_ = x.conn.Close() // what was to be read has been read, or failed
}

func isTimeout(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) && netErr.Timeout()
}
