// Package flaky is an HTTP proxy in front of a server, as bad as some networks: some responses break
// in the middle, and some never end. A seed decides which.
package flaky

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
)

// Proxy forwards requests to a server.
type Proxy struct {
	Seed     uint64
	BreakOne int // one response in so many breaks in the middle; 0: none
	HangOne  int // one in so many stops in the middle; 0: none

	Requests, Broken, Hung atomic.Int64

	target  *httputil.ReverseProxy
	mu      sync.Mutex
	repeats map[string]int // by the path of a request
}

// New returns a proxy in front of the server at a URL.
func New(target *url.URL) *Proxy {
	return &Proxy{
		target: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Range") // for the number of bytes
		}},
		repeats: map[string]int{},
	}
}

// ServeHTTP forwards a request. What happens to it depends on the seed, the path and how often it was requested
// before, not on the order of requests for other paths.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.Requests.Add(1)
	p.mu.Lock()
	n := p.repeats[r.URL.Path]
	p.repeats[r.URL.Path]++
	p.mu.Unlock()
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", p.Seed, r.URL.Path, n)
	random := h.Sum64() >> 8 // the low bits of similar texts are similar
	isOne := func(in int) bool { return in > 0 && random%uint64(in) == 0 }
	switch {
	case isOne(p.HangOne):
		p.Hung.Add(1)
		p.target.ServeHTTP(&cut{ResponseWriter: w, at: r.Context().Done()}, r)
	case isOne(p.BreakOne):
		p.Broken.Add(1)
		broken := make(chan struct{})
		close(broken)
		p.target.ServeHTTP(&cut{ResponseWriter: w, at: broken}, r)
	default:
		p.target.ServeHTTP(w, r)
	}
}

// cut writes the first half of the first part of a body, and breaks the connection when at is closed.
type cut struct {
	http.ResponseWriter
	at <-chan struct{}
}

func (c *cut) Write(body []byte) (int, error) {
	_, _ = c.ResponseWriter.Write(body[:len(body)/2])
	_ = http.NewResponseController(c.ResponseWriter).Flush()
	<-c.at
	panic(http.ErrAbortHandler)
}
