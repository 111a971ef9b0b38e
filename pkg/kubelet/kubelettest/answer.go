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

// pieceSize is in how large pieces a kubelet writes its answer: the buffer of the library that
// encodes it.
const pieceSize = 4096

// Answer is what a kubelet is about to send. A Fault alters it.
type Answer struct {
	Request *http.Request // what is being answered; read-only
	Now     time.Time     // the node's clock
	Status  int
	Header  http.Header
	Body    []byte // before compression; the fault may alter it in place
	Gzip    bool   // the body is to be compressed: the client asked for it, and the endpoint can

	Delay   time.Duration // before the answer begins
	Pause   time.Duration // before each piece of the body
	Piece   int           // bytes of a piece; 0: as a kubelet does
	Abort   bool          // close the connection instead of answering
	Hang    bool          // never answer, until the client gives up
	Half    bool          // declare the body's length, send half of it, and close the connection
	Endless bool          // send the body again and again, until the client gives up

	text    bool // the body is the text of /metrics/resource
	summary bool // the body is the JSON of /stats/summary
}

// plain makes the answer a line of text.
func (a *Answer) plain(status int, line string) {
	a.Status = status
	a.Header.Set("Content-Type", "text/plain; charset=utf-8")
	a.Header.Set("X-Content-Type-Options", "nosniff")
	a.Body = []byte(line + "\n")
	a.Gzip, a.text, a.summary = false, false, false
}

// send sends the answer.
func (a *Answer) send(w http.ResponseWriter) {
	ctx := a.Request.Context()
	if a.Hang {
		<-ctx.Done()
	}
	if a.Hang || a.Abort || !sleep(ctx, a.Delay) {
		panic(http.ErrAbortHandler)
	}
	if a.Gzip {
		a.Body = compress(a.Body)
		a.Header.Set("Content-Encoding", "gzip")
	}
	body := a.Body
	if a.Half {
		a.Header.Set("Content-Length", strconv.Itoa(len(body)))
		body = body[:len(body)/2]
	}
	w.WriteHeader(a.Status)
	for a.write(ctx, w, body) && a.Endless && len(body) > 0 {
	}
	if a.Half {
		_ = http.NewResponseController(w).Flush() // fails only where the client is gone
		panic(http.ErrAbortHandler)
	}
}

// write sends the body once, and says whether the client is still there.
func (a *Answer) write(ctx context.Context, w http.ResponseWriter, body []byte) bool {
	size := a.Piece
	if size <= 0 {
		size = pieceSize
	}
	for len(body) > 0 {
		n := min(size, len(body))
		if a.Pause > 0 {
			_ = http.NewResponseController(w).Flush() // fails only where the client is gone
			if !sleep(ctx, a.Pause) {
				return false
			}
		}
		if _, err := w.Write(body[:n]); err != nil {
			return false
		}
		body = body[n:]
	}
	return ctx.Err() == nil
}

// sleep waits, and says whether the context is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if part = strings.TrimSpace(part); part == "gzip" || strings.HasPrefix(part, "gzip;") {
			return true
		}
	}
	return false
}

// gzipWriters keeps compressors, which are 800 KB each, for the next answer of any kubelet.
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
