package filter

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// pipeFrom is the server's end of a connection in memory from an address.
type pipeFrom struct {
	net.Conn
	address string
}

func (p pipeFrom) RemoteAddr() net.Addr { return textAddr(p.address) }

type textAddr string

func (textAddr) Network() string  { return "tcp" }
func (a textAddr) String() string { return string(a) }

// accept returns a connection of a listener.
func accept(t *testing.T, l *Listener, dialed chan<- net.Conn, address string) *conn {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close() })
	dialed <- pipeFrom{server, address}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return accepted.(*conn)
}

// TestConnectionsAreShared opens connections to a listener that has memory for four without requests, and checks
// which are closed.
func TestConnectionsAreShared(t *testing.T) {
	const most = 4
	for name, test := range map[string]struct {
		dial   []string // addresses, in this order
		after  int      // so many were dialed, requests is the order in which connections start requests
		starts []int
		size   int64 // of each request, which does not end
		want   []int // those that are closed
	}{
		"one address": {dial: []string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4", "10.0.0.1:5"},
			want: []int{0}},
		"the heaviest": {dial: []string{"10.0.0.1:1", "10.0.0.2:2", "10.0.0.2:3", "10.0.0.2:4", "10.0.0.3:5"},
			want: []int{1}},
		"a /64": {dial: []string{"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", "[2001:db8:0:1::2]:1", "10.0.0.1:1", "10.0.0.2:5"},
			want: []int{1}},
		"the same in IPv6": {dial: []string{"10.0.0.1:1", "10.0.0.2:2", "[::ffff:10.0.0.2]:3", "10.0.0.3:4", "10.0.0.4:5"},
			want: []int{1}},
		"no request": {dial: []string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4", "10.0.0.1:5"},
			after: 4, starts: []int{0}, want: []int{1}},
		"the earlier request": {dial: []string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4", "10.0.0.1:5"},
			after: 4, starts: []int{3, 2, 0, 1}, want: []int{3}},
		"requests count": {dial: []string{"10.0.0.1:1", "10.0.0.2:2", "10.0.0.2:3"},
			after: 3, starts: []int{0, 0},
			size: connectionMemory, want: []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			dialed := make(chan net.Conn, 1)
			l := NewListener(testenv.Listener(dialed), time.Hour, most*connectionMemory)
			var conns []*conn
			start := func() {
				for _, i := range test.starts {
					conns[i].begin(test.size)
				}
			}
			for i, address := range test.dial {
				if i == test.after {
					start()
				}
				conns = append(conns, accept(t, l, dialed, address))
			}
			if test.after == len(test.dial) {
				start()
			}
			var closed []int
			for i, c := range conns {
				if c.closed {
					closed = append(closed, i)
				}
			}
			if fmt.Sprint(closed) != fmt.Sprint(test.want) {
				t.Errorf("closed %v, want %v", closed, test.want)
			}
		})
	}
}

// TestConnectionsAreCounted checks that nothing counts that has ended, or that is of the front proxy.
func TestConnectionsAreCounted(t *testing.T) {
	dialed := make(chan net.Conn, 1)
	l := NewListener(testenv.Listener(dialed), time.Hour, 10*connectionMemory)
	first, second := accept(t, l, dialed, "10.0.0.1:1"), accept(t, l, dialed, "10.0.0.1:2")
	proxy := accept(t, l, dialed, "10.0.0.2:1")
	proxy.trust()
	var ends []func()
	for _, c := range []*conn{first, first, second, proxy} {
		end, isOpen := c.begin(100)
		if !isOpen {
			t.Error("a connection was closed")
		}
		ends = append(ends, end)
	}
	if want := int64(2*connectionMemory + 300); l.taken != want || len(l.clients) != 1 {
		t.Errorf("got %d bytes of %d addresses, want %d of 1", l.taken, len(l.clients), want)
	}
	for range 2 {
		first.Close()
		second.Close()
		proxy.Close()
	}
	if _, isOpen := first.begin(100); isOpen {
		t.Error("a request starts on a closed connection")
	}
	for _, end := range ends {
		end()
	}
	if l.taken != 0 || len(l.clients) != 0 {
		t.Errorf("got %d bytes of %d addresses at the end", l.taken, len(l.clients))
	}
}

// TestUnansweredBytes checks how much clients can send before a request.
func TestUnansweredBytes(t *testing.T) {
	for name, test := range map[string]struct {
		between func(c *conn) // called before the last byte
		want    bool          // the connection stays open
	}{
		"nothing":     {func(*conn) {}, false},
		"a request":   {func(c *conn) { c.begin(0) }, true},
		"a response":  {func(c *conn) { c.Write([]byte("x")) }, true},
		"front proxy": {func(c *conn) { c.trust() }, true},
	} {
		dialed := make(chan net.Conn, 1)
		l := NewListener(testenv.Listener(dialed), time.Hour, 1<<30)
		client, server := net.Pipe()
		dialed <- server
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			client.Write(make([]byte, maxUnanswered))
			io.CopyN(client, client, 1) // what was written comes back
		}()
		if _, err := io.ReadFull(accepted, make([]byte, maxUnanswered)); err != nil {
			t.Fatal(err)
		}
		c := accepted.(*conn)
		test.between(c)
		go client.Write([]byte("x"))
		if _, err := accepted.Read(make([]byte, 1)); (err == nil) != test.want {
			t.Errorf("%s: the next byte: got error %v", name, err)
		}
		client.Close()
	}
}

// heap returns the bytes that are in use.
func heap() int64 {
	var stats runtime.MemStats
	for range 2 { // the second collection empties sync.Pools
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc + stats.StackInuse)
}

// TestConnectionMemory opens connections that take as much memory as the library allows before a request.
func TestConnectionMemory(t *testing.T) {
	const connections = 50
	server := &http.Server{TLSConfig: &tls.Config{
		Certificates: []tls.Certificate{kubelettest.NewCA().Issue(nil, []net.IP{net.IPv4(127, 0, 0, 1)})},
	}}
	//nolint:staticcheck // as the library does
	if err := http2.ConfigureServer(server, &http2.Server{MaxReadFrameSize: 256 << 10}); err != nil {
		t.Fatal(err)
	}
	tcp, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(tls.NewListener(NewListener(tcp, time.Hour, 1<<30), server.TLSConfig))
	defer server.Close()
	before := heap()
	for range connections {
		client, err := tls.Dial("tcp", tcp.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		frame := "\x04\x00\x00\x04\x00\x00\x00\x00\x00" // settings of 256 KiB, which do not come
		if _, err := io.WriteString(client, http2.ClientPreface+frame); err != nil {
			t.Fatal(err)
		}
	}
	var each int64
	for deadline := time.Now().Add(testenv.Patience); each < 256<<10 && time.Now().Before(deadline); {
		each = (heap() - before) / connections
	}
	if each < connectionMemory/2 || each > connectionMemory {
		t.Errorf("a connection takes %d bytes, want %d or a little less", each, connectionMemory)
	}
}
