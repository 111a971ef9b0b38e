// Package balancer plays kube-proxy: it gives a Service an address, and leads each connection to
// that address to one of the Service's endpoints. As with kube-proxy, a change of the endpoints
// leaves connections alone that are there already.
package balancer

import (
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
)

// Balancer leads connections to endpoints, in turn. Close ends it.
type Balancer struct {
	listener net.Listener
	work     sync.WaitGroup

	mu        sync.Mutex
	endpoints []string // host and port of each
	turn      int
	open      map[net.Conn]struct{}
	closed    bool
}

// Start starts a Balancer without endpoints on a free port of 127.0.0.1.
func Start() (*Balancer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait
	if err != nil {
		return nil, fmt.Errorf("there is no port for a balancer: %w", err)
	}
	b := &Balancer{listener: listener, open: make(map[net.Conn]struct{})}
	b.work.Go(b.accept)
	return b, nil
}

// Port is where clients connect to, on 127.0.0.1.
func (b *Balancer) Port() int { return b.listener.Addr().(*net.TCPAddr).Port }

// Add makes an endpoint take part.
func (b *Balancer) Add(endpoint string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endpoints = append(b.endpoints, endpoint)
}

// Remove leads no more connections to an endpoint. Those that lead there stay.
func (b *Balancer) Remove(endpoint string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endpoints = slices.DeleteFunc(b.endpoints, func(e string) bool { return e == endpoint })
}

// Close cuts all connections.
func (b *Balancer) Close() {
	b.mu.Lock()
	b.closed = true
	b.listener.Close()
	for conn := range b.open {
		conn.Close() //nolint:errcheck // nothing follows
	}
	b.mu.Unlock()
	b.work.Wait()
}

func (b *Balancer) accept() {
	for {
		client, err := b.listener.Accept()
		if err != nil {
			return // closed
		}
		b.work.Go(func() { b.serve(client.(*net.TCPConn)) })
	}
}

// serve forwards one connection. Without an endpoint the client reads EOF.
func (b *Balancer) serve(client *net.TCPConn) {
	defer b.forget(client)
	if !b.keep(client) {
		return
	}
	conn, err := net.Dial("tcp", b.pick()) //nolint:noctx // on this machine, so it does not wait
	if err != nil {
		// Closing a socket whose input was not read resets the connection: the client would read
		// EOF or an error, by chance.
		_ = client.CloseWrite()
		_, _ = io.Copy(io.Discard, client) // until the client closes it, or Close does
		return
	}
	endpoint := conn.(*net.TCPConn)
	defer b.forget(endpoint)
	if !b.keep(endpoint) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { forward(endpoint, client) })
	both.Go(func() { forward(client, endpoint) })
	both.Wait()
}

// forward copies until the source has no more to say, and says so to the other side.
func forward(to, from *net.TCPConn) {
	_, _ = io.Copy(to, from) // either side may go at any time
	_ = to.CloseWrite()
}

// pick gives the endpoint whose turn it is; "" where there is none.
func (b *Balancer) pick() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.endpoints) == 0 {
		return ""
	}
	b.turn++
	return b.endpoints[b.turn%len(b.endpoints)]
}

// keep notes a connection that Close has to end. It says whether there still is a Balancer.
func (b *Balancer) keep(conn net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[conn] = struct{}{}
	return !b.closed
}

func (b *Balancer) forget(conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, conn)
	conn.Close() //nolint:errcheck // nothing follows
}
