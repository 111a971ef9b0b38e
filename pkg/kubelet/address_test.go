package kubelet

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestCheckAddress(t *testing.T) {
	for _, tt := range []struct {
		address          string
		refused, allowed bool // whether it is refused, and whether AllowLoopback allows it
	}{
		{"10.0.0.7", false, true},
		{"192.0.2.7", false, true},
		{"fd00::7", false, true},
		{"2001:db8::7", false, true},
		{"::ffff:10.0.0.7", false, true},
		{"127.0.0.1", true, true},
		{"127.255.255.254", true, true},
		{"::1", true, true},
		{"::ffff:127.0.0.1", true, true},
		{"0.0.0.0", true, false},
		{"::", true, false},
		{"::ffff:0.0.0.0", true, false},
		{"169.254.169.254", true, false},
		{"::ffff:169.254.169.254", true, false},
		{"fe80::7", true, false},
		{"224.0.0.1", true, false},
		{"239.1.2.3", true, false},
		{"ff02::1", true, false},
		{"::ffff:224.0.0.1", true, false},
		{"fe80::7%eth0", true, false},
		{"fd00::7%eth0", true, false},
		{"::1%lo", true, false},
	} {
		ip := netip.MustParseAddr(tt.address)
		strict, lenient := Config{}, Config{AllowLoopback: true}
		for _, check := range []func(*Config) error{
			func(c *Config) error { return c.checkAddress(ip) },
			func(c *Config) error {
				return c.checkDial(t.Context(), "tcp", netip.AddrPortFrom(ip, 10250).String(), nil)
			},
		} {
			if err := check(&strict); (err != nil) != tt.refused {
				t.Errorf("%s: error %v, want one: %v", tt.address, err, tt.refused)
			}
			if err := check(&lenient); (err == nil) != tt.allowed {
				t.Errorf("%s: error %v although loopback addresses are allowed, want one: %v", tt.address, err, !tt.allowed)
			}
		}
	}
}

// TestNoNameLeadsToLoopback has a node claim a host name that resolves to a loopback address, on
// which a server listens.
func TestNoNameLeadsToLoopback(t *testing.T) {
	resource, summary := realSample(t), readSummary(t, shortSummary)
	k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) { answerBoth(w, r, resource, summary) })
	_, port, _ := net.SplitHostPort(k.Listener.Addr().String())
	node := nodeAt("n7", net.JoinHostPort("localhost", port))
	node.Status.Addresses[0].Type = corev1.NodeHostName
	for name, fetch := range askings() {
		t.Run(name, func(t *testing.T) {
			c := newTestClient(t, Config{PlainHTTP: true})
			c.config.AllowLoopback = false
			c.dialer = newDialer(&c.config)
			err := fetch(c, t.Context(), node, &usage.Scrape{})
			checkError(t, err, reasonEndpoint, "it is a loopback address, which only --kubelet-allow-loopback allows")
			var refused *addressError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), "dial tcp") {
				t.Errorf("the error is not that of the dialler: %v", err)
			}
			if n := k.opened.Load(); n != 0 {
				t.Errorf("%d connections were made", n)
			}
		})
	}
}
