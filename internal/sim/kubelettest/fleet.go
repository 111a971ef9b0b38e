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

// FleetConfig configures how a fleet is served.
type FleetConfig struct {
	// Port is the same for all kubelets; 0 selects a free one.
	Port uint16

	// CA issues a certificate for each kubelet's node name and address when it is first needed.
	// Without a CA and a Certificate, the fleet serves plain HTTP.
	CA *CA

	// Certificate, if it is not nil, replaces CA. It is called at each handshake.
	Certificate func(k *Kubelet, address netip.Addr) (*tls.Certificate, error)
}

// Fleet serves many kubelets in one process, each on its own loopback address. It supports HTTP/1.1
// and, over TLS, HTTP/2. Like a kubelet, it requests client certificates but does not require them.
//
// Each kubelet has its own listener. One HTTP server serves them all, and identifies the kubelet by
// the local address of the connection. Addresses other than 127.0.0.1 exist by default on Linux
// only.
type Fleet struct {
	cfg    FleetConfig
	key    *ecdsa.PrivateKey // of all certificates
	server *http.Server
	work   sync.WaitGroup // of the listeners

	mu      sync.RWMutex
	members map[netip.Addr]*member
	names   map[string]netip.Addr // address by kubelet name
	port    uint16
}

// member is a kubelet and how it is served.
type member struct {
	kubelet     *Kubelet
	listener    net.Listener
	certificate func() (*tls.Certificate, error)
}

// Address returns the address for the i-th kubelet of a fleet: 127.1.0.1 and following. It can be
// written into Node objects before the fleet runs.
func Address(i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], 127<<24|1<<16|1+uint32(i))
	return netip.AddrFrom4(b)
}

// NewFleet starts a fleet without kubelets. It must be closed.
func NewFleet(cfg FleetConfig) *Fleet {
	f := &Fleet{
		cfg:     cfg,
		key:     newKey(),
		members: make(map[netip.Addr]*member),
		names:   make(map[string]netip.Addr),
		port:    cfg.Port,
	}
	f.server = &http.Server{
		Handler:           http.HandlerFunc(f.serveHTTP),
		TLSConfig:         &tls.Config{GetCertificate: f.certificate, ClientAuth: tls.RequestClientCert},
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // many tests have clients that reject a certificate
	}
	return f
}

// Add serves a kubelet on an address, and returns the address with the port.
func (f *Fleet) Add(k *Kubelet, address netip.Addr) (netip.AddrPort, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, exists := f.names[k.name]; exists {
		return netip.AddrPort{}, fmt.Errorf("the fleet already has a kubelet named %q", k.name)
	}
	if _, exists := f.members[address]; exists {
		return netip.AddrPort{}, fmt.Errorf("the fleet already has a kubelet on %s", address)
	}
	//nolint:noctx // an IP address needs no lookup
	listener, err := net.Listen("tcp", netip.AddrPortFrom(address, f.port).String())
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("cannot serve kubelet %q: %w", k.name, err)
	}
	at := listener.Addr().(*net.TCPAddr).AddrPort()
	f.port = at.Port()
	f.members[address] = &member{kubelet: k, listener: listener, certificate: f.certificateFunc(k, address)}
	f.names[k.name] = address
	f.work.Go(func() { f.serve(listener) })
	return at, nil
}

// serve returns when the listener or the server is closed.
func (f *Fleet) serve(listener net.Listener) {
	if f.cfg.CA != nil || f.cfg.Certificate != nil {
		_ = f.server.ServeTLS(listener, "", "")
	} else {
		_ = f.server.Serve(listener)
	}
}

// certificateFunc returns the function that returns a kubelet's certificate.
func (f *Fleet) certificateFunc(k *Kubelet, address netip.Addr) func() (*tls.Certificate, error) {
	if f.cfg.Certificate != nil {
		return func() (*tls.Certificate, error) { return f.cfg.Certificate(k, address) }
	}
	return sync.OnceValues(func() (*tls.Certificate, error) {
		c := f.cfg.CA.issue(f.key, []string{k.name}, []net.IP{address.AsSlice()})
		return &c, nil
	})
}

// Remove removes a kubelet. Its address refuses connections, and open ones are closed at their next
// request.
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

// Close closes all listeners and connections. Handlers may still run when it returns.
func (f *Fleet) Close() {
	_ = f.server.Close() // errors of loopback connections do not matter
	f.work.Wait()
}

func (f *Fleet) serveHTTP(w http.ResponseWriter, r *http.Request) {
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
		return nil, errors.New("the kubelet on this address was removed")
	}
	return m.certificate()
}

// member returns the member with a local address, or nil.
func (f *Fleet) member(local net.Addr) *member {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.members[local.(*net.TCPAddr).AddrPort().Addr().Unmap()]
}

// TB is the part of testing.TB that Start needs.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// Start serves the kubelet on a free port of 127.0.0.1 until the test ends, and returns its
// address. Without a certificate, it serves plain HTTP.
func (k *Kubelet) Start(tb TB, certificate *tls.Certificate) netip.AddrPort {
	tb.Helper()
	var cfg FleetConfig
	if certificate != nil {
		cfg.Certificate = func(*Kubelet, netip.Addr) (*tls.Certificate, error) { return certificate, nil }
	}
	f := NewFleet(cfg)
	tb.Cleanup(f.Close)
	at, err := f.Add(k, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if err != nil {
		tb.Fatalf("cannot start a fake kubelet: %v", err)
	}
	return at
}
