package kubelettest

import (
	"bytes"
	"compress/gzip"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// defaultChunkSize is the buffer size of the library that encodes the responses of kubelets.
const defaultChunkSize = 4096

// Response is what a kubelet is about to send. A Fault alters it.
type Response struct {
	Request *http.Request // read-only
	Now     time.Time     // the node's clock
	Status  int
	Header  http.Header
	Body    []byte // before compression; a fault may alter it in place
	Gzip    bool   // compress the body: the client accepts it, and the endpoint supports it

	// Readings are those in the body before any fault; only with Config.Readings.
	Readings []Reading

	Delay      time.Duration // before the response starts
	ChunkDelay time.Duration // before each chunk of the body
	ChunkSize  int           // bytes; 0 means that of a kubelet
	Abort      bool          // close the connection without a response
	Hang       bool          // send nothing until the client gives up
	Truncate   bool          // declare the body's length, send half of it, and close the connection
	Endless    bool          // repeat the body until the client gives up

	format format
}

// format is what the body of a response is.
type format int

const (
	other    format = iota
	resource        // the text of /metrics/resource
	summary         // the JSON of /stats/summary
)

// setStatus makes the response a line of text with a status.
func (r *Response) setStatus(status int, line string) {
	r.Status = status
	r.Header.Set("Content-Type", "text/plain; charset=utf-8")
	r.Header.Set("X-Content-Type-Options", "nosniff")
	r.Body = []byte(line + "\n")
	r.Gzip, r.format = false, other
}

// send sends the response.
func (r *Response) send(w http.ResponseWriter) {
	ctx := r.Request.Context()
	if r.Hang {
		<-ctx.Done()
	}
	if r.Hang || r.Abort || !sleep(ctx, r.Delay) {
		panic(http.ErrAbortHandler)
	}
	if r.Gzip {
		r.Body = compress(r.Body)
		r.Header.Set("Content-Encoding", "gzip")
	}
	body := r.Body
	if r.Truncate {
		r.Header.Set("Content-Length", strconv.Itoa(len(body)))
		body = body[:len(body)/2]
	}
	w.WriteHeader(r.Status)
	for r.write(ctx, w, body) && r.Endless && len(body) > 0 {
	}
	if r.Truncate {
		_ = http.NewResponseController(w).Flush() // fails only if the client is gone
		panic(http.ErrAbortHandler)
	}
}

// write sends the body once, and reports whether the client is still there.
func (r *Response) write(ctx context.Context, w http.ResponseWriter, body []byte) bool {
	size := r.ChunkSize
	if size <= 0 {
		size = defaultChunkSize
	}
	for len(body) > 0 {
		if r.ChunkDelay > 0 {
			_ = http.NewResponseController(w).Flush() // fails only if the client is gone
			if !sleep(ctx, r.ChunkDelay) {
				return false
			}
		}
		n, err := w.Write(body[:min(size, len(body))])
		if err != nil {
			return false
		}
		body = body[n:]
	}
	return ctx.Err() == nil
}

// sleep waits, and reports whether the context is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return ctx.Err() == nil
}

func acceptsGzip(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

// gzipWriters keeps compressors of 800 KB each for the next response of any kubelet.
var gzipWriters = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

func compress(body []byte) []byte {
	var b bytes.Buffer
	b.Grow(len(body) / 4)
	z := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(z)
	z.Reset(&b)
	// Writing to a bytes.Buffer does not fail.
	_, _ = z.Write(body)
	_ = z.Close()
	return b.Bytes()
}
