package kubelet

import (
	"encoding/binary"
	"net"
	"sync"
)

const (
	recordHeaderBytes = 5
	socketBufferBytes = 16 << 10
)

// recordConn hands crypto/tls one record at a time. A tls.Conn keeps the largest buffer that it
// ever filled, and fills what it has from the socket: without this, some 10 KB for each connection,
// with it, a record's size: kubelets send 4 KB in each.
//
// It reads from the socket into memory that it has only while there is something to be read.
type recordConn struct {
	net.Conn
	buffers *sync.Pool // of *socketBuffer; shared by all connections
	permit  *permit    // of the handshake; nil afterwards

	buffer *socketBuffer // nil: nothing has been read ahead
	header [recordHeaderBytes]byte
	seen   int // bytes of the header
	left   int // bytes of the record's body
}

// socketBuffer is what was read from a socket and not handed on yet: data[from:to].
type socketBuffer struct {
	data     [socketBufferBytes]byte
	from, to int
}

func newSocketBufferPool() *sync.Pool {
	return &sync.Pool{New: func() any { return new(socketBuffer) }}
}

// Read gives bytes of one record's header, or of one record's body.
func (c *recordConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if c.buffer == nil {
		b := c.buffers.Get().(*socketBuffer)
		c.permit.pause()
		n, err := c.Conn.Read(b.data[:])
		c.permit.resume()
		if n == 0 {
			c.buffers.Put(b)
			return 0, err
		}
		b.from, b.to = 0, n // an error comes again with the next read
		c.buffer = b
	}
	return c.next(p), nil
}

func (c *recordConn) next(p []byte) int {
	b := c.buffer
	n := c.left
	if n == 0 {
		n = recordHeaderBytes - c.seen
	}
	n = copy(p[:min(n, len(p))], b.data[b.from:b.to])
	c.follow(b.data[b.from : b.from+n])
	if b.from += n; b.from == b.to {
		c.buffer = nil
		c.buffers.Put(b)
	}
	return n
}

// follow notes where in a record the stream is after so many bytes of a header or of a body.
func (c *recordConn) follow(bytes []byte) {
	if c.left > 0 {
		c.left -= len(bytes)
		return
	}
	c.seen += copy(c.header[c.seen:], bytes)
	if c.seen == recordHeaderBytes {
		c.seen, c.left = 0, int(binary.BigEndian.Uint16(c.header[3:]))
	}
}
