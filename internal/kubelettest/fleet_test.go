package kubelettest

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"
)

// newClient returns a client that trusts the CA. Its connections are closed when the test ends.
func newClient(t *testing.T, ca *CA, protocols ...func(*http.Protocols)) *http.Client {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig:    &tls.Config{RootCAs: ca.Pool()},
		DisableCompression: true,
		Protocols:          new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(true)
	for _, set := range protocols {
		set(transport.Protocols)
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// fetch returns the body of a response with status 200.
func fetch(client *http.Client, url string) (string, error) {
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 10<<20))
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d: %s", response.StatusCode, body)
	}
	return string(body), nil
}

func TestFleet(t *testing.T) {
	ca := NewCA()
	f := NewFleet(FleetConfig{CA: ca})
	defer f.Close()
	client := newClient(t, ca)
	http2 := newClient(t, ca, func(p *http.Protocols) { p.SetHTTP1(false); p.SetHTTP2(true) })
	var urls []string
	for i := range 5 {
		k := New(fmt.Sprintf("node-%d", i), Config{})
		k.SetContainer("ns", fmt.Sprintf("pod-on-%d", i), "c", Usage{})
		at, err := f.Add(k, Address(i))
		if err != nil {
			t.Fatal(err)
		}
		urls = append(urls, "https://"+at.String()+ResourcePath)
	}
	for i, url := range urls {
		for _, client := range []*http.Client{client, http2} {
			body, err := fetch(client, url)
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf(`pod="pod-on-%d"`, i); !strings.Contains(body, want) {
				t.Errorf("%s: got\n%s\nwant %s", url, body, want)
			}
		}
	}

	if _, err := f.Add(New("node-1", Config{}), Address(9)); err == nil {
		t.Error("got no error for a name that exists")
	}
	if _, err := f.Add(New("node-9", Config{}), Address(1)); err == nil {
		t.Error("got no error for an address that is in use")
	}

	f.Remove("node-2")
	f.Remove("missing")
	if body, err := fetch(client, urls[2]); err == nil {
		t.Errorf("got a response of a removed kubelet on an open connection: %s", body)
	}
	if _, err := fetch(client, urls[2]); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got error %v from the address of a removed kubelet, want connection refused", err)
	}
	if _, err := fetch(client, urls[3]); err != nil {
		t.Errorf("got error %v from another kubelet", err)
	}
	if _, err := f.Add(New("node-2", Config{}), Address(2)); err != nil {
		t.Errorf("cannot add a removed kubelet again: %v", err)
	}
	if _, err := fetch(client, urls[2]); err != nil {
		t.Errorf("got error %v from a kubelet that was added again", err)
	}
}

func TestAddress(t *testing.T) {
	for i, want := range map[int]string{0: "127.1.0.1", 254: "127.1.0.255", 255: "127.1.1.0", 70000: "127.2.17.113"} {
		if got := Address(i); got != netip.MustParseAddr(want) {
			t.Errorf("Address(%d) = %s, want %s", i, got, want)
		}
	}
}

func TestPlainHTTPAndIPv6(t *testing.T) {
	at := New("n", Config{}).Start(t, nil)
	client := newClient(t, NewCA())
	if _, err := fetch(client, "http://"+at.String()+ResourcePath); err != nil {
		t.Error(err)
	}
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("IPv6 is not available: %v", err)
	} else if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	at = New("n", Config{}).StartOn(t, netip.IPv6Loopback(), nil)
	if _, err := fetch(client, "http://"+at.String()+ResourcePath); err != nil {
		t.Error(err)
	}
}

func TestCertificates(t *testing.T) {
	ca := NewCA()
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	tests := []struct {
		name        string
		certificate tls.Certificate
		accepted    func(error) bool
	}{
		{"good", ca.Issue(nil, loopback), func(err error) bool { return err == nil }},
		{"expired", ca.Issue(nil, loopback, Expired), invalid(x509.Expired)},
		{"not yet valid", ca.Issue(nil, loopback, NotYetValid), invalid(x509.Expired)},
		{"wrong name", ca.Issue([]string{"node"}, nil), func(err error) bool {
			return errors.As(err, new(x509.HostnameError))
		}},
		{"another CA", NewCA().Issue(nil, loopback), unknownAuthority},
		{"self-signed", SelfSigned(nil, loopback), unknownAuthority},
		{"intermediate CA", ca.Intermediate().Issue(nil, loopback), func(err error) bool { return err == nil }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			at := New("n", Config{}).Start(t, &test.certificate)
			if _, err := fetch(newClient(t, ca), "https://"+at.String()+ResourcePath); !test.accepted(err) {
				t.Errorf("got error %v", err)
			}
		})
	}
	if !x509.NewCertPool().AppendCertsFromPEM(ca.PEM()) {
		t.Error("cannot parse the CA's PEM")
	}
	if _, err := tls.X509KeyPair(PEM(ca.Issue(nil, loopback))); err != nil {
		t.Errorf("cannot parse the PEM of a certificate: %v", err)
	}
}

func invalid(reason x509.InvalidReason) func(error) bool {
	return func(err error) bool {
		var invalid x509.CertificateInvalidError
		return errors.As(err, &invalid) && invalid.Reason == reason
	}
}

func unknownAuthority(err error) bool { return errors.As(err, new(x509.UnknownAuthorityError)) }

// TestConnectionFaults checks the faults that do not edit the body.
func TestConnectionFaults(t *testing.T) {
	ca := NewCA()
	certificate := ca.Issue(nil, []net.IP{net.IPv4(127, 0, 0, 1)})
	k := New("n", Config{})
	for i := range 30 {
		k.SetContainer("ns", fmt.Sprintf("p%d", i), "c", Usage{})
	}
	url := "https://" + k.Start(t, &certificate).String() + ResourcePath
	correct, err := fetch(newClient(t, ca), url)
	if err != nil {
		t.Fatal(err)
	}
	complete := func(body string, err error) bool { return err == nil && len(body) == len(correct) }
	slow := func(r *Response) { r.ChunkSize, r.ChunkDelay = 1000, time.Microsecond }
	tests := []struct {
		name  string
		fault Fault
		check func(body string, err error) bool
	}{
		{"refuse", Refuse, func(_ string, err error) bool { return errors.Is(err, io.EOF) }},
		{"hang", Hang, func(_ string, err error) bool {
			var timeout net.Error
			return errors.As(err, &timeout) && timeout.Timeout()
		}},
		{"late", Late(time.Millisecond), complete},
		{"slow", slow, complete},
		{"half", HalfBody, func(_ string, err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
		{"endless", EndlessBody, func(body string, err error) bool { return err == nil && len(body) == 10<<20 }},
		{"status", Status(403), func(_ string, err error) bool {
			return err != nil && err.Error() == "status 403: Forbidden\n"
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			client := newClient(t, ca)
			if test.name == "hang" {
				client.Timeout = 50 * time.Millisecond
			}
			k.SetFaults(test.fault)
			if body, err := fetch(client, url); !test.check(body, err) {
				t.Errorf("got %d bytes, error %v", len(body), err)
			}
		})
	}

	t.Run("gzip bomb", func(t *testing.T) {
		k.SetFaults(GzipBomb)
		client := newClient(t, ca)
		client.Transport.(*http.Transport).DisableCompression = false
		if body, err := fetch(client, url); err != nil || len(body) != 10<<20 {
			t.Errorf("got %d bytes, error %v; want %d bytes", len(body), err, 10<<20)
		}
	})
}
