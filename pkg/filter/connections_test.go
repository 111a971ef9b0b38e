package filter

import (
	"bufio"
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
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

// TestConnectionsAreShared opens connections to a listener that has memory for sixteen without requests, and checks
// which are closed.
func TestConnectionsAreShared(t *testing.T) {
	const most = 16
	// dial returns n addresses that begin with a text.
	dial := func(n int, begin string) (addresses []string) {
		for i := range n {
			addresses = append(addresses, fmt.Sprint(begin, i+1))
		}
		return addresses
	}
	addresses := func(n int) (dial []string) { // different ones
		for i := range n {
			dial = append(dial, fmt.Sprintf("10.0.0.%d:1", i+1))
		}
		return dial
	}
	const one, other, third = "10.0.0.1:", "10.0.0.2:", "10.0.0.3:"
	for name, test := range map[string]struct {
		dial   []string // addresses, in this order
		after  int      // so many were dialed, requests is the order of the connections' requests
		starts []int
		size   int64 // of each request, which does not end
		want   []int // those that are closed
	}{
		"one address": {dial: dial(17, one), want: []int{0}},
		"the heaviest": {dial: slices.Concat(dial(6, one), dial(10, other), dial(1, third)),
			want: []int{6}},
		"a /64": {dial: slices.Concat([]string{"[2001:db8::1]:1"}, dial(10, "[2001:db8:0:1::1]:"), dial(6, one)),
			want: []int{1}},
		"the same in IPv6": {dial: slices.Concat(dial(6, one), dial(6, other), dial(4, "[::ffff:10.0.0.2]:"), dial(1, third)),
			want: []int{6}},
		"no request": {dial: dial(17, one), after: 16, starts: []int{0}, want: []int{1}},
		"the earlier request": {dial: dial(5, one), after: 4, starts: []int{3, 2, 0, 1}, size: 3 * connectionMemory,
			want: []int{3}},
		"requests count": {dial: slices.Concat(dial(8, one), dial(7, other)),
			after: 15, starts: []int{0, 0}, size: connectionMemory, want: []int{1}},

		// No address is heavy, so the connections without a request for longest are closed, of whichever address.
		"many addresses": {dial: addresses(18), want: []int{0, 1}},
		"many addresses, and the first has a request": {dial: addresses(17), after: 16, starts: []int{0}, want: []int{1}},
		"a handshake beside many addresses": {dial: addresses(16), after: 16, starts: []int{15}, size: connectionMemory / 2,
			want: []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			dialed := make(chan net.Conn, 1)
			l := NewListener(testenv.Listener(dialed), time.Hour, time.Hour, most*connectionMemory)
			var conns []*conn
			start := func() {
				for _, i := range test.starts {
					conns[i].begin(test.size, 0)
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

// TestNumberOfConnections checks how many connections without requests the default memory has room for, as
// docs/security.md says.
func TestNumberOfConnections(t *testing.T) {
	dialed := make(chan net.Conn, 1)
	l := NewListener(testenv.Listener(dialed), time.Hour, time.Hour, 128<<20)
	first := accept(t, l, dialed, "10.0.0.1:1")
	for range 2047 {
		accept(t, l, dialed, "10.0.0.1:1")
	}
	if first.closed {
		t.Error("one of 2048 connections is closed")
	}
	if accept(t, l, dialed, "10.0.0.1:1"); !first.closed {
		t.Error("all of 2049 connections are open")
	}
}

// TestEqualSharesAreKept checks that requests whose connections are closed, until they end, cause nothing to be closed
// of addresses with an equal share, and that others cannot take more.
func TestEqualSharesAreKept(t *testing.T) {
	dialed := make(chan net.Conn, 1)
	l := NewListener(testenv.Listener(dialed), time.Hour, time.Hour, 32*connectionMemory)
	heavy := accept(t, l, dialed, "10.0.0.1:1")
	end, _ := heavy.begin(80*connectionMemory, 0)
	if !heavy.closed {
		t.Error("the connection of a request that takes too much is open")
	}
	one, other := accept(t, l, dialed, "10.0.0.2:1"), accept(t, l, dialed, "10.0.0.3:1")
	if one.closed || other.closed {
		t.Error("a connection of an address with an equal share was closed")
	}
	for range 9 {
		if accept(t, l, dialed, "10.0.0.3:2"); other.closed {
			t.Error("a connection of an address with an equal share was closed")
		}
	}
	again := accept(t, l, dialed, "10.0.0.3:2")
	if one.closed || !other.closed || again.closed {
		t.Errorf("closed: %t, %t, %t; want the earliest of the address with eleven", one.closed, other.closed, again.closed)
	}
	if end(); accept(t, l, dialed, "10.0.0.3:3").closed || again.closed {
		t.Error("a connection was closed although there is memory")
	}
}

// TestConnectionsAreCounted checks that nothing counts that has ended, or that is of the front proxy.
func TestConnectionsAreCounted(t *testing.T) {
	dialed := make(chan net.Conn, 1)
	l := NewListener(testenv.Listener(dialed), time.Hour, time.Hour, 10*connectionMemory)
	first, second := accept(t, l, dialed, "10.0.0.1:1"), accept(t, l, dialed, "10.0.0.1:2")
	proxy := accept(t, l, dialed, "10.0.0.2:1")
	proxy.trust()
	var ends []func()
	for _, c := range []*conn{first, first, second, proxy} {
		end, isOpen := c.begin(100, 0)
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
	if _, isOpen := first.begin(100, 0); isOpen {
		t.Error("a request starts on a closed connection")
	}
	for _, end := range ends {
		end()
	}
	if l.taken != 0 || len(l.clients) != 0 {
		t.Errorf("got %d bytes of %d addresses at the end", l.taken, len(l.clients))
	}
}

// TestUnansweredBytes checks how the bytes count that clients send before a request.
func TestUnansweredBytes(t *testing.T) {
	const sent = 100
	for name, test := range map[string]struct {
		then func(c *conn)
		want int64 // bytes of them that count
	}{
		"nothing":     {func(*conn) {}, sent},
		"a request":   {func(c *conn) { c.begin(0, 5) }, 5},
		"a response":  {func(c *conn) { c.Write(make([]byte, 2*sent)) }, sent}, // as of a handshake, or to OPTIONS *
		"front proxy": {func(c *conn) { c.trust() }, -connectionMemory / byteMemory},
		"the end":     {func(c *conn) { c.Close() }, -connectionMemory / byteMemory},
	} {
		dialed := make(chan net.Conn, 1)
		l := NewListener(testenv.Listener(dialed), time.Hour, time.Hour, 1<<30)
		client, server := net.Pipe()
		dialed <- server
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			client.Write(make([]byte, sent))
			io.Copy(io.Discard, client)
		}()
		if _, err := io.ReadFull(accepted, make([]byte, sent)); err != nil {
			t.Fatal(err)
		}
		test.then(accepted.(*conn))
		kept := int64(0)
		if name == "a request" {
			kept = bufferMemory * sent
		}
		if want := connectionMemory + byteMemory*test.want + kept; l.taken != want {
			t.Errorf("%s: %d bytes count, want %d", name, l.taken, want)
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

// serveTLS serves as the library does, and returns the address.
func serveTLS(t *testing.T, next http.Handler) (address string, l *Listener) {
	t.Helper()
	return serveTLSWith(t, &genericapiserver.Config{}, next)
}

func serveTLSWith(t *testing.T, config *genericapiserver.Config, next http.Handler) (address string, l *Listener) {
	t.Helper()
	server := &http.Server{
		MaxHeaderBytes: 1 << 20, IdleTimeout: time.Hour, Handler: WithRequestLimits(next, config,
			func() []string { return []string{"/livez"} }, nil),
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{kubelettest.NewCA().Issue(nil, []net.IP{net.IPv4(127, 0, 0, 1)})},
			ClientAuth:   tls.RequestClientCert, NextProtos: []string{"http/1.1"},
		},
	}
	tcp, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = NewListener(tcp, time.Hour, time.Hour, 1<<30)
	go server.Serve(tls.NewListener(l, server.TLSConfig))
	t.Cleanup(func() { server.Close() })
	return tcp.Addr().String(), l
}

// proxyConfig returns a configuration with a front proxy, and the CA of its certificate.
func proxyConfig(t *testing.T) (*genericapiserver.Config, *kubelettest.CA) {
	t.Helper()
	ca := kubelettest.NewCA()
	content, err := dynamiccertificates.NewStaticCAContent("front proxy", ca.PEM())
	if err != nil {
		t.Fatal(err)
	}
	config := &genericapiserver.Config{}
	config.Authentication.RequestHeaderConfig = &authenticatorfactory.RequestHeaderConfig{
		CAContentProvider: content, AllowedClientNames: headerrequest.StaticStringSlice{"front-proxy"},
	}
	return config, ca
}

// TestFrontProxyDoesNotCount sends requests with certificates. Only the connection of the front proxy does not count,
// and is kept.
func TestFrontProxyDoesNotCount(t *testing.T) {
	config, proxies := proxyConfig(t)
	for name, test := range map[string]struct {
		ca      *kubelettest.CA
		subject string
		counts  bool
	}{
		"the front proxy": {proxies, "front-proxy", false},
		"another name":    {proxies, "mallory", true},
		"another CA":      {kubelettest.NewCA(), "front-proxy", true},
	} {
		counts := make(chan bool, 1)
		var l *Listener
		address, l := serveTLSWith(t, config, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			l.mu.Lock()
			defer l.mu.Unlock()
			counts <- len(l.clients) > 0
		}))
		certificate := test.ca.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: test.subject}))
		client := dialTLS(t, address, certificate)
		if _, err := io.WriteString(client, "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if got := <-counts; got != test.counts || response.Close != test.counts {
			t.Errorf("%s: the connection counts: %v, and ends: %v; want %v", name, got, response.Close, test.counts)
		}
	}
}

func dialTLS(t *testing.T, address string, certificates ...tls.Certificate) net.Conn {
	t.Helper()
	client, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, Certificates: certificates})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// TestConnectionMemory opens connections that take as much memory as they can before a request.
func TestConnectionMemory(t *testing.T) {
	const connections = 50
	var headers strings.Builder
	headers.WriteString("GET / HTTP/1.1\r\n")
	for i := range 15 << 10 {
		fmt.Fprintf(&headers, "%c%c%c:\r\n", 'a'+i%26, 'a'+i/26%26, 'a'+i/26/26)
	}
	for name, text := range map[string]string{
		"a handshake": "",
		"headers":     headers.String(),
	} {
		address, l := serveTLS(t, nil)
		before := heap()
		for range connections {
			client := dialTLS(t, address)
			if _, err := io.WriteString(client, text); err != nil {
				t.Fatal(err)
			}
		}
		// All has been read when nearly as much counts: the server writes some bytes meanwhile.
		var took, counted int64
		all := connectionMemory + byteMemory*int64(len(text)-64)
		for deadline := time.Now().Add(testenv.Patience); counted < all; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: counted are %d bytes of each connection, want %d", name, counted, all)
			}
			l.mu.Lock()
			counted = l.taken / connections
			l.mu.Unlock()
		}
		for range 5 { // the last bytes may not have been decoded yet
			took = max(took, (heap()-before)/connections)
		}
		t.Logf("%s: %d bytes take %d, counted are %d", name, len(text), took, counted)
		if took > counted {
			t.Errorf("%s: a connection takes %d bytes, counted are %d", name, took, counted)
		}
	}
}
