package kubelettest

import (
	"crypto/ecdsa"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// FleetConfig says how a fleet is reached.
type FleetConfig struct {
	// Port is the same for all kubelets; 0 takes one that is free.
	Port uint16

	// CA issues to each kubelet a certificate for its node's name and address, when it is first
	// needed. Nil serves plain HTTP, unless there is a Certificate.
	CA *CA

	// Certificate gives the certificate of a kubelet instead, at each handshake.
	Certificate func(k *Kubelet, address netip.Addr) (*tls.Certificate, error)
}

// Fleet serves many kubelets in one process, each on a loopback address of its own. It speaks
// HTTP/1.1 and, over TLS, HTTP/2, and asks clients for a certificate without wanting one, as a
// kubelet does.
//
// There is one listening socket for each kubelet, and one HTTP server for all of them, which tells
// them apart by the local address of the connection. Addresses beyond 127.0.0.1 are there by
// themselves on Linux only.
type Fleet struct {
	cfg    FleetConfig
	key    *ecdsa.PrivateKey // of all certificates: a fleet is one process
	server *http.Server
	conns  chan net.Conn // accepted by any of the listeners
	done   chan struct{} // closed by Close
	close  func()
	work   sync.WaitGroup

	mu      sync.RWMutex
	members map[netip.Addr]*member
	names   map[string]netip.Addr // kubelet's name → its address
	port    uint16
}

// member is a kubelet and where it is served.
type member struct {
	kubelet     *Kubelet
	listener    net.Listener
	certificate func() (*tls.Certificate, error)
}

// Address is the address that the i-th kubelet of a fleet is meant to have: 127.1.0.1 and on. Who
// writes Node objects before the fleet runs knows it from here.
func Address(i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], 127<<24|1<<16|1+uint32(i))
	return netip.AddrFrom4(b)
}

// NewFleet starts a fleet without kubelets. It is ended with Close.
func NewFleet(cfg FleetConfig) *Fleet {
	f := &Fleet{
		cfg:     cfg,
		key:     newKey(),
		conns:   make(chan net.Conn),
		done:    make(chan struct{}),
		members: make(map[netip.Addr]*member),
		names:   make(map[string]netip.Addr),
		port:    cfg.Port,
	}
	f.close = sync.OnceFunc(func() { close(f.done) })
	f.server = &http.Server{
		Handler:           http.HandlerFunc(f.serve),
		TLSConfig:         &tls.Config{GetCertificate: f.certificate, ClientAuth: tls.RequestClientCert},
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // clients that do not trust a certificate are part of many tests
	}
	f.work.Go(func() {
		// Both return when the server is closed, and for no other reason: accepting does not fail.
		if cfg.CA != nil || cfg.Certificate != nil {
			_ = f.server.ServeTLS(fleetListener{f}, "", "")
		} else {
			_ = f.server.Serve(fleetListener{f})
		}
	})
	return f
}

// Add serves a kubelet on an address, and says where.
func (f *Fleet) Add(k *Kubelet, address netip.Addr) (netip.AddrPort, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, taken := f.names[k.name]; taken {
		return netip.AddrPort{}, fmt.Errorf("the fleet has a kubelet named %q already", k.name)
	}
	if _, taken := f.members[address]; taken {
		return netip.AddrPort{}, fmt.Errorf("the fleet has a kubelet on %s already", address)
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(address, f.port).String()) //nolint:noctx // an address needs no look-up
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("kubelet %q cannot be served: %w", k.name, err)
	}
	at := listener.Addr().(*net.TCPAddr).AddrPort()
	f.port = at.Port()
	f.members[address] = &member{kubelet: k, listener: listener, certificate: f.issue(k, address)}
	f.names[k.name] = address
	f.work.Go(func() { f.accept(listener) })
	return at, nil
}

// issue gives the function that gives a kubelet's certificate.
func (f *Fleet) issue(k *Kubelet, address netip.Addr) func() (*tls.Certificate, error) {
	if f.cfg.Certificate != nil {
		return func() (*tls.Certificate, error) { return f.cfg.Certificate(k, address) }
	}
	return sync.OnceValues(func() (*tls.Certificate, error) {
		c := f.cfg.CA.issue(f.key, []string{k.name}, []net.IP{address.AsSlice()})
		return &c, nil
	})
}

// Remove takes a kubelet away: its address refuses connections, and those that are open are closed
// at the next request.
func (f *Fleet) Remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	address, ok := f.names[name]
	if !ok {
		return
	}
	_ = f.members[address].listener.Close() // cannot fail: it is open
	delete(f.members, address)
	delete(f.names, name)
}

// Close ends all kubelets and their connections, and waits until all is ended but handlers that
// notice it.
func (f *Fleet) Close() {
	f.close()
	f.mu.Lock()
	for _, m := range f.members {
		_ = m.listener.Close() // cannot fail: it is open
	}
	clear(f.members)
	clear(f.names)
	f.mu.Unlock()
	_ = f.server.Close() // what it closes is loopback connections
	f.work.Wait()
}

// serve hands a request to the kubelet that is meant.
func (f *Fleet) serve(w http.ResponseWriter, r *http.Request) {
	local := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	m := f.member(local)
	if m == nil {
		panic(http.ErrAbortHandler)
	}
	m.kubelet.ServeHTTP(w, r)
}

func (f *Fleet) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	m := f.member(hello.Conn.LocalAddr())
	if m == nil {
		return nil, errors.New("there is no kubelet on this address any more")
	}
	return m.certificate()
}

// member is whose address this is, or nil.
func (f *Fleet) member(local net.Addr) *member {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.members[local.(*net.TCPAddr).AddrPort().Addr().Unmap()]
}

// accept hands the connections of one listener to the server, until the listener is closed.
func (f *Fleet) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file descriptors left: clients wait until there are
			time.Sleep(10 * time.Millisecond)
			continue
		}
		select {
		case f.conns <- conn:
		case <-f.done:
			_ = conn.Close() // nobody is interested any more
		}
	}
}

// fleetListener is all listeners of a fleet in one.
type fleetListener struct{ *Fleet }

func (l fleetListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close does nothing: the fleet closes its listeners itself.
func (l fleetListener) Close() error { return nil }

// Addr is asked for by net/http, which only passes it on.
func (l fleetListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// TB is the part of *testing.T, *testing.B and *testing.F that Start needs.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// Start serves the kubelet on a free port of 127.0.0.1 until the test ends, and says where. Without
// a certificate, it serves plain HTTP.
func (k *Kubelet) Start(tb TB, certificate *tls.Certificate) netip.AddrPort {
	tb.Helper()
	return k.StartOn(tb, netip.AddrFrom4([4]byte{127, 0, 0, 1}), certificate)
}

// StartOn is Start on another address, such as ::1.
func (k *Kubelet) StartOn(tb TB, address netip.Addr, certificate *tls.Certificate) netip.AddrPort {
	tb.Helper()
	var cfg FleetConfig
	if certificate != nil {
		cfg.Certificate = func(*Kubelet, netip.Addr) (*tls.Certificate, error) { return certificate, nil }
	}
	f := NewFleet(cfg)
	tb.Cleanup(f.Close)
	at, err := f.Add(k, address)
	if err != nil {
		tb.Fatalf("starting a fake kubelet: %v", err)
	}
	return at
}
