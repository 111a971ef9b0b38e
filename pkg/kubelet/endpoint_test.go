package kubelet

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestEndpointOf(t *testing.T) {
	type addresses = []corev1.NodeAddress
	internal := addresses{{Type: corev1.NodeInternalIP, Address: "10.0.0.7"}}
	all := addresses{
		{Type: corev1.NodeHostName, Address: "n7"},
		{Type: corev1.NodeExternalIP, Address: "192.0.2.7"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.7"},
		{Type: corev1.NodeInternalIP, Address: "fd00::7"},
	}
	preferred := []string{"InternalIP", "ExternalIP", "Hostname"}

	tests := []struct {
		name       string
		config     Config
		addresses  addresses
		statusPort int32
		path       string
		want       string // the address and path, the error, or "bad" for an invalid path
	}{
		{"default types", Config{}, all, 0, "", "//n7:10250/metrics/resource"},
		{"preferred type", Config{AddressTypes: preferred}, all, 0, "", "//10.0.0.7:10250/metrics/resource"},
		{"second type", Config{AddressTypes: preferred}, all[:2], 0, "", "//192.0.2.7:10250/metrics/resource"},
		{"last type", Config{AddressTypes: preferred}, all[:1], 0, "", "//n7:10250/metrics/resource"},
		{"IPv6", Config{AddressTypes: preferred}, all[3:], 0, "", "//[fd00::7]:10250/metrics/resource"},
		{"first addresses not allowed", Config{AddressTypes: preferred}, addresses{
			{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fe80::7%eth0"},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.7"},
		}, 0, "", "//192.0.2.7:10250/metrics/resource"},
		{"no address allowed", Config{}, addresses{
			{Type: corev1.NodeInternalIP, Address: "169.254.169.254"}, {Type: corev1.NodeExternalIP, Address: "127.0.0.1"},
		}, 0, "", `node "n7": kubelet address 169.254.169.254 is not allowed: it is a link-local address ` +
			`(check the node's addresses and --kubelet-preferred-address-types)`},
		{"loopback address", Config{AllowLoopback: true}, addresses{
			{Type: corev1.NodeInternalIP, Address: "127.1.2.3"},
		}, 0, "", "//127.1.2.3:10250/metrics/resource"},
		{"no address", Config{AddressTypes: preferred}, nil, 0, "",
			`node "n7": no address of the types [InternalIP ExternalIP Hostname] (set --kubelet-preferred-address-types)`},
		{"no address of the only type", Config{AddressTypes: preferred[:1]}, all[:2], 0, "",
			`node "n7": no address of the types [InternalIP] (set --kubelet-preferred-address-types)`},
		{"invalid addresses are skipped", Config{AddressTypes: preferred}, addresses{
			{Type: corev1.NodeInternalIP, Address: ""}, {Type: corev1.NodeInternalIP, Address: "evil.example/?x="},
			{Type: corev1.NodeInternalIP, Address: "a@evil.example"}, {Type: corev1.NodeInternalIP, Address: "evil.example:80"},
			{Type: corev1.NodeInternalIP, Address: strings.Repeat("a", 254)},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.7"},
		}, 0, "", "//192.0.2.7:10250/metrics/resource"},

		{"port", Config{Port: 4194}, internal, 10255, "", "//10.0.0.7:4194/metrics/resource"},
		{"port of the status", Config{Port: 4194, UseNodeStatusPort: true}, internal, 10255, "",
			"//10.0.0.7:10255/metrics/resource"},
		{"no port in the status", Config{Port: 4194, UseNodeStatusPort: true}, internal, 0, "",
			"//10.0.0.7:4194/metrics/resource"},
		{"invalid port in the status", Config{UseNodeStatusPort: true}, internal, -1, "",
			`node "n7": invalid kubelet port -1 in the node's status (unset --kubelet-use-node-status-port)`},

		{"path", Config{}, internal, 0, "/metrics/nodes/n7/metrics", "//10.0.0.7:10250/metrics/nodes/n7/metrics"},
		{"shortest path", Config{}, internal, 0, "/metrics", "//10.0.0.7:10250/metrics"},
		{"URL as path", Config{}, internal, 0, "https://evil.example/metrics", "bad"},
		{"host as path", Config{}, internal, 0, "//evil.example/metrics", "bad"},
		{"relative path", Config{}, internal, 0, "metrics", "bad"},
		{"userinfo as path", Config{}, internal, 0, "@evil.example/metrics", "bad"},
		{"query in the path", Config{}, internal, 0, "/metrics?y=z", "bad"},
		{"fragment in the path", Config{}, internal, 0, "/metrics#y", "bad"},
		{"line feed in the path", Config{}, internal, 0, "/metrics HTTP/1.1\r\nHost: y", "bad"},
		{"escape in the path", Config{}, internal, 0, "/metrics/%2e%2e/api", "bad"},
		{"backslash in the path", Config{}, internal, 0, `/metrics\evil.example`, "bad"},
		{"matrix parameter in the path", Config{}, internal, 0, "/metrics/x;y", "bad"},
		{"path of the API server", Config{}, internal, 0, "/api/v1/namespaces/kube-system/secrets", "bad"},
		{"path of the API server's proxy", Config{}, internal, 0, "/api/v1/nodes/n8/proxy/metrics/resource", "bad"},
		{"path of an extension API server", Config{}, internal, 0, "/apis/metrics.k8s.io/v1/nodes", "bad"},
		{"another path of the kubelet", Config{}, internal, 0, "/pods", "bad"},
		{"prefix of a segment", Config{}, internal, 0, "/metricsx", "bad"},
		{"two dots in the path", Config{}, internal, 0, "/metrics/../api/v1/secrets", "bad"},
		{"two dots at the end of the path", Config{}, internal, 0, "/metrics/x/..", "bad"},
		{"dot in the path", Config{}, internal, 0, "/metrics/./x", "bad"},
		{"empty segment in the path", Config{}, internal, 0, "/metrics//x", "bad"},
		{"empty segment at the end of the path", Config{}, internal, 0, "/metrics/", "bad"},
		{"long path", Config{}, internal, 0, "/metrics/" + strings.Repeat("x", 1024), "bad"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n7"}}
			node.Status.Addresses = tt.addresses
			node.Status.DaemonEndpoints.KubeletEndpoint.Port = tt.statusPort
			if tt.path != "" {
				node.Annotations = map[string]string{PathAnnotation: tt.path}
			}
			c, err := NewClient(withDefaults(tt.config))
			if err != nil {
				t.Fatal(err)
			}
			var got string
			switch transport, err := c.transportOf(node); {
			case err == nil:
				got = c.resource.request(t.Context(), transport.endpoint, nil).URL.String()
			case tt.want == "bad" && reason.Of(err) == reason.BadEndpoint && strings.Contains(err.Error(), PathAnnotation):
				return
			default:
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestCheckAddress(t *testing.T) {
	for _, tt := range []struct {
		address                  string
		rejected, allowedLenient bool // without and with AllowLoopback
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
			if err := check(&strict); (err != nil) != tt.rejected {
				t.Errorf("%s: got error %v, want one: %v", tt.address, err, tt.rejected)
			}
			if err := check(&lenient); (err == nil) != tt.allowedLenient {
				t.Errorf("%s with AllowLoopback: got error %v, want one: %v", tt.address, err, !tt.allowedLenient)
			}
		}
	}
}

// TestHostNamesCannotResolveToLoopback has a node with a host name that resolves to a loopback
// address, on which a server listens.
func TestHostNamesCannotResolveToLoopback(t *testing.T) {
	k := newKubelet(t, nil, func(http.ResponseWriter, *http.Request) {})
	_, port, _ := net.SplitHostPort(k.Listener.Addr().String())
	node := nodeAt("n7", net.JoinHostPort("localhost", port))
	node.Status.Addresses[0].Type = corev1.NodeHostName
	for name, fetch := range fetchFuncs() {
		t.Run(name, func(t *testing.T) {
			c := newTestClient(t, Config{PlainHTTP: true})
			c.config.AllowLoopback = false
			c.dialer = newDialer(&c.config)
			err := fetch(c, t.Context(), node, &usage.Scrape{})
			checkError(t, err, reason.BadEndpoint, "loopback addresses require --kubelet-allow-loopback")
			if !strings.Contains(err.Error(), "dial tcp") {
				t.Errorf("got error %v, want one of the dialer", err)
			}
			if n := k.opened.Load(); n != 0 {
				t.Errorf("got %d connections, want 0", n)
			}
		})
	}
}
