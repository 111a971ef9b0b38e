package e2e

import (
	"io"
	"net"
	"slices"
	"sync"
	"testing"
)

// balancer does what kube-proxy does for a Service: it forwards each connection to one of the
// endpoints. Removing an endpoint does not affect existing connections.
type balancer struct {
	listener net.Listener

	mu        sync.Mutex
	endpoints []string // host and port
	next      int
}

// startBalancer starts a balancer without endpoints on a port of 127.0.0.1.
func startBalancer(t *testing.T) *balancer {
	t.Helper()
	return startBalancerAt(t, "127.0.0.1:0")
}

// startBalancerAt starts a balancer without endpoints at an address.
func startBalancerAt(t *testing.T, address string) *balancer {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	must(t, err)
	b := &balancer{listener: listener}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go b.forward(client.(*net.TCPConn))
		}
	}()
	return b
}

func (b *balancer) port() int { return b.listener.Addr().(*net.TCPAddr).Port }

func (b *balancer) add(endpoints ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endpoints = append(b.endpoints, endpoints...)
}

func (b *balancer) set(endpoints []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endpoints = endpoints
}

func (b *balancer) list() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.endpoints)
}

func (b *balancer) remove(endpoint string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endpoints = slices.DeleteFunc(b.endpoints, func(e string) bool { return e == endpoint })
}

// pick returns the endpoints in turn, or an invalid one if there are none.
func (b *balancer) pick() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.endpoints) == 0 {
		return ""
	}
	b.next++
	return b.endpoints[b.next%len(b.endpoints)]
}

func (b *balancer) forward(client *net.TCPConn) {
	defer client.Close()
	conn, err := net.Dial("tcp", b.pick())
	if err != nil {
		return
	}
	defer conn.Close()
	server := conn.(*net.TCPConn)
	var both sync.WaitGroup
	for to, from := range map[*net.TCPConn]*net.TCPConn{server: client, client: server} {
		both.Go(func() {
			_, _ = io.Copy(to, from) // either side may close at any time
			_ = to.CloseWrite()
		})
	}
	both.Wait()
}
