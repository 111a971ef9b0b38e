package kubelet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

const (
	// maxHeaderBytes bounds the headers of a response. Kubelets send about 200 bytes.
	maxHeaderBytes = 16 << 10
	// maxInformational bounds the 1xx responses before the final response.
	maxInformational = 5
	readBufferBytes  = 4 << 10
)

var errHeaders = fmt.Errorf("more than %d bytes of headers", maxHeaderBytes)

// buffers is the memory of a request until its response has been read.
type buffers struct {
	source io.LimitedReader // the connection; its limit is maxHeaderBytes until the headers have been read
	in     *bufio.Reader    // of source
	out    bytes.Buffer
}

var bufferPool = sync.Pool{New: func() any {
	b := new(buffers)
	b.in = bufio.NewReaderSize(&b.source, readBufferBytes)
	return b
}}

// roundTrip sends a request without a body on a connection, and returns its response. If the connection
// is nil, or if the kubelet has closed it, it opens another one: it uses and releases the permit, or
// acquires one of the permits if it is nil, and increases queued by that wait. It sets the host of the
// request to that of the connection. The response's body must be closed; if it was read to its end, the
// connection is kept.
func (t *transport) roundTrip(
	request *http.Request, idle *conn, permits permits, permit *permit, queued *time.Duration,
) (*http.Response, error) {
	ctx := request.Context()
	for c := idle; ; c = nil {
		if c == nil {
			var err error
			if permit == nil {
				permit, err = permits.acquire(ctx)
				*queued += permit.queued
			}
			if err == nil {
				c, err = t.connect(ctx, permit)
			}
			if err != nil {
				return nil, asLost(err)
			}
		}
		request.Host = t.endpoint.address(c.host)
		x := t.newExchange(ctx, c)
		response, err := x.run(request)
		if err == nil {
			return response, nil
		}
		responded := x.buffers.source.N < maxHeaderBytes
		x.end(false)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if c != idle || responded {
			return nil, asLost(err)
		} // else the kubelet had closed the idle connection, or its keepalive has failed
	}
}

// asLost returns an error that occurred before the end of a response's headers. It has the reason that
// the connection was lost if it was closed.
func asLost(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &reason.Error{Reason: reason.ConnectionLost, Err: err}
	}
	return err
}

// exchange is one request and its response. It is also the response's body.
type exchange struct {
	transport *transport
	ctx       context.Context
	conn      *conn
	buffers   *buffers
	stopWatch func() bool // stops watching the context, and reports whether it had not ended yet

	sent     time.Time // when the request was sent
	begun    time.Time // when the response's headers had been read
	body     io.ReadCloser
	complete bool // the body was read to its end
	reusable bool // the connection may be kept after the response
}

func (t *transport) newExchange(ctx context.Context, conn *conn) *exchange {
	x := &exchange{transport: t, ctx: ctx, conn: conn, buffers: bufferPool.Get().(*buffers)}
	x.buffers.source = io.LimitedReader{R: conn, N: maxHeaderBytes}
	x.buffers.in.Reset(&x.buffers.source)
	x.buffers.out.Reset()
	// A deadline of the connection could pass before that of the context. What was read so far would
	// then be an invalid response, not a timeout.
	x.stopWatch = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return x
}

// run sends the request, and reads the response up to its body.
func (x *exchange) run(request *http.Request) (*http.Response, error) {
	if err := request.Write(&x.buffers.out); err != nil {
		return nil, fmt.Errorf("cannot encode the request: %w", err)
	}
	x.sent = time.Now()
	if _, err := x.conn.Write(x.buffers.out.Bytes()); err != nil {
		return nil, err
	}
	for range maxInformational + 1 {
		response, err := http.ReadResponse(x.buffers.in, request)
		switch {
		case err != nil && x.buffers.source.N <= 0:
			return nil, errHeaders
		case err != nil:
			return nil, err
		case response.StatusCode >= 200 || response.StatusCode == http.StatusSwitchingProtocols:
			x.buffers.source.N = math.MaxInt64 // the caller limits the body
			x.begun, x.body = time.Now(), response.Body
			x.reusable = !response.Close && response.StatusCode != http.StatusSwitchingProtocols
			response.Body = x
			return response, nil
		}
	}
	return nil, fmt.Errorf("more than %d informational responses", maxInformational)
}

// Read reads from the response's body.
func (x *exchange) Read(p []byte) (int, error) {
	n, err := x.body.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		x.complete = true
	case err != nil && x.ctx.Err() != nil:
		err = x.ctx.Err()
	}
	return n, err
}

// Close ends the exchange. It must be called once.
func (x *exchange) Close() error {
	x.end(x.complete && x.reusable && x.buffers.in.Buffered() == 0)
	return nil
}

// end returns the buffers to their pool, and keeps or closes the connection.
func (x *exchange) end(keep bool) {
	x.buffers.source.R = nil // the pool must not keep the connection alive
	bufferPool.Put(x.buffers)
	x.conn.socket.permit = nil
	if x.stopWatch() && keep {
		x.transport.keep(x.conn)
	} else {
		_ = x.conn.Close() // nothing more is read or written
	}
}

func isTimeout(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) && netErr.Timeout()
}
