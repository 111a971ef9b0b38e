package kubelet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"testing/iotest"
)

// stream is a connection that is read from only.
type stream struct {
	net.Conn
	io.Reader
}

func (s stream) Read(p []byte) (int, error) { return s.Reader.Read(p) }

// TestRecordConn: what comes is the same bytes, and never of two records at once, however the
// socket cuts them.
func TestRecordConn(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var sent []byte
	ends := map[int]bool{} // where headers and bodies end
	for range 200 {
		body := make([]byte, random.IntN(3)*random.IntN(9000))
		for i := range body {
			body[i] = byte(random.Uint32())
		}
		sent = append(sent, 23, 3, 3)
		sent = binary.BigEndian.AppendUint16(sent, uint16(len(body)))
		ends[len(sent)] = true
		sent = append(sent, body...)
		ends[len(sent)] = true
	}
	for name, cut := range map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader, "bytes": iotest.OneByteReader, "an error with the data": iotest.DataErrReader,
	} {
		t.Run(name, func(t *testing.T) {
			c := &recordConn{Conn: stream{Reader: cut(bytes.NewReader(sent))}, buffers: newSocketBufferPool()}
			var got []byte
			for {
				before := len(got)
				p := make([]byte, 1+random.IntN(20000))
				n, err := c.Read(p)
				got = append(got, p[:n]...)
				for i := before + 1; i < len(got); i++ {
					if ends[i] {
						t.Fatalf("bytes %d to %d were read at once, over the end at %d", before, len(got), i)
					}
				}
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(got, sent) {
				t.Errorf("%d bytes came, not the %d that were sent", len(got), len(sent))
			}
			if c.buffer != nil {
				t.Error("a buffer is kept, though nothing is left in it")
			}
		})
	}
}
