package kubelet

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// unroutable is the first address of the nodes in these tests.
const unroutable = "fd00::7"

// dualStack returns a node that lists unroutable before the address of the kubelet.
func dualStack(k *fakeKubelet) *corev1.Node {
	node := k.node("n7")
	node.Status.Addresses = slices.Insert(node.Status.Addresses, 0,
		corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: unroutable})
	return node
}

// failFirst makes dials to unroutable fail with an error, and returns the addresses that were dialed.
func failFirst(c *Client, failure error) *[]string {
	dialed := new([]string)
	c.dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		*dialed = append(*dialed, address)
		if strings.HasPrefix(address, "["+unroutable+"]") {
			return nil, &net.OpError{Op: "dial", Net: network, Addr: textAddr(address), Err: failure}
		}
		return dialWithoutTimeout(ctx, network, address)
	}
	return dialed
}

// textAddr is an address of TCP.
type textAddr string

func (a textAddr) Network() string { return "tcp" }
func (a textAddr) String() string  { return string(a) }

// TestSecondAddress has a node whose first address cannot be connected to.
func TestSecondAddress(t *testing.T) {
	for name, tt := range map[string]struct {
		failure error
		reason  reason.Reason // empty: the second address is used
	}{
		"no route to the network":   {os.NewSyscallError("connect", syscall.ENETUNREACH), ""},
		"no route to the host":      {os.NewSyscallError("connect", syscall.EHOSTUNREACH), ""},
		"no address of the family":  {os.NewSyscallError("connect", syscall.EADDRNOTAVAIL), ""},
		"family is not supported":   {os.NewSyscallError("socket", syscall.EAFNOSUPPORT), ""},
		"refused":                   {os.NewSyscallError("connect", syscall.ECONNREFUSED), reason.ConnectRefused},
		"timeout":                   {os.NewSyscallError("connect", syscall.ETIMEDOUT), reason.ConnectTimeout},
		"too many open files":       {os.NewSyscallError("socket", syscall.EMFILE), reason.InternalFailure},
		"address is not allowed":    {reason.Errorf(reason.BadEndpoint, "no"), reason.BadEndpoint},
		"canceled":                  {context.Canceled, reason.Canceled},
		"deadline of the operation": {os.ErrDeadlineExceeded, reason.ConnectTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			var host string
			k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
				host = r.Host
				serveNode(w, r)
			})
			node := dualStack(k)
			c := newTestClient(t, Config{PlainHTTP: true})
			dialed := failFirst(c, tt.failure)
			first, second := "["+unroutable+"]:"+k.port(), k.Listener.Addr().String()
			if got := c.Address(node); got != first {
				t.Errorf("the address before the first request is %s, want %s", got, first)
			}
			err := fetchError(t, c, node)
			want := []string{first}
			if tt.reason != "" {
				checkError(t, err, tt.reason, "")
			} else {
				want = append(want, second)
				if err != nil || host != second {
					t.Errorf("got error %v, a request for %q", err, host)
				}
				if err = fetchError(t, c, node); err != nil { // on the same connection
					t.Error(err)
				}
			}
			if !slices.Equal(*dialed, want) {
				t.Errorf("got dials to %v, want %v", *dialed, want)
			}
			if got := c.Address(node); got != want[len(want)-1] {
				t.Errorf("got address %s, want the one that was dialed last, %s", got, want[len(want)-1])
			}
		})
	}
}

func (k *fakeKubelet) port() string {
	_, port, _ := net.SplitHostPort(k.Listener.Addr().String())
	return port
}

// TestSecondAddressFails checks that the error names both addresses, with the reason of the second one, and
// that one timeout bounds both.
func TestSecondAddressFails(t *testing.T) {
	noRoute := os.NewSyscallError("connect", syscall.ENETUNREACH)
	for name, tt := range map[string]struct {
		failure error // of the second address; nil: it hangs
		reason  reason.Reason
		text    string
	}{
		"no route, too": {noRoute, reason.Unreachable, "dial tcp 10.0.0.7:10250: connect: network is unreachable, and " +
			"dial tcp [fd00::7]:10250: connect: network is unreachable"},
		"refused": {os.NewSyscallError("connect", syscall.ECONNREFUSED), reason.ConnectRefused,
			"dial tcp 10.0.0.7:10250: connect: connection refused, and dial tcp [fd00::7]:10250: connect: network is"},
		"hangs": {nil, reason.ConnectTimeout, "no connection to the kubelet at 10.0.0.7:10250 within 10s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newTestClient(t, Config{PlainHTTP: true, Timeout: DefaultTimeout})
				c.dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
					err := tt.failure
					switch {
					case strings.HasPrefix(address, "["):
						time.Sleep(3 * time.Second) // as ARP does
						err = noRoute
					case err == nil:
						<-ctx.Done()
						err = ctx.Err()
					}
					return nil, &net.OpError{Op: "dial", Net: network, Addr: textAddr(address), Err: err}
				}
				node := nodeAt("n7", "[fd00::7]:10250")
				node.Status.Addresses = append(node.Status.Addresses,
					corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.7"})
				start := time.Now()
				checkError(t, fetchError(t, c, node), tt.reason, tt.text)
				if took := time.Since(start); took > DefaultTimeout {
					t.Errorf("got an error after %v", took)
				}
			})
		})
	}
}

// TestSecondAddressIsVerified checks that a certificate must be for the address that was dialed, or for the
// node, and that pins do not depend on the address.
func TestSecondAddressIsVerified(t *testing.T) {
	ca := kubelettest.NewCA()
	first := []net.IP{net.ParseIP(unroutable)}
	self := kubelettest.KubeletSigned("n7")
	for name, tt := range map[string]struct {
		certificate tls.Certificate
		pins        *fakePins
		reason      reason.Reason
	}{
		"second address":          {ca.Issue(nil, loopback), nil, ""},
		"name of the node":        {ca.Issue([]string{"n7"}, nil), nil, ""},
		"first address":           {ca.Issue(nil, first), nil, reason.TLSName},
		"first address, pins":     {ca.Issue(nil, first), newPins(), reason.TLSName},
		"pinned at first sight":   {self, newPins(), ""},
		"pinned key":              {self, pinned(keyOf(self.Leaf)), ""},
		"key that was not pinned": {self, pinned("sha256:other"), reason.TLSKeyChanged},
	} {
		t.Run(name, func(t *testing.T) {
			requests := 0
			k := newKubelet(t, &tt.certificate, func(w http.ResponseWriter, r *http.Request) {
				requests++
				serveNode(w, r)
			})
			config := Config{TLS: rest.TLSClientConfig{CAData: ca.PEM()}, BearerToken: "secret"}
			if tt.pins != nil {
				config.Pins = tt.pins
			}
			c := newTestClient(t, config)
			failFirst(c, syscall.ENETUNREACH)
			err := fetchResource(c, t.Context(), dualStack(k), &usage.Scrape{})
			switch {
			case tt.reason != "":
				checkError(t, err, tt.reason, "")
				if requests > 0 {
					t.Error("the kubelet got a request")
				}
			case err != nil:
				t.Error(err)
			}
		})
	}
}

// pinned returns Pins with the key of the node n7.
func pinned(key string) *fakePins {
	pins := newPins()
	pins.set("n7", "", key)
	return pins
}
