package kubelet

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
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

	const notAllowed = "the address, port or path of the kubelet is not allowed: "
	const noAddress = "the node has no address of a preferred type: no address of the types "
	tests := []struct {
		name       string
		config     Config
		addresses  addresses
		statusPort int32
		want       string // the address and path, or the error
	}{
		{"default types", Config{}, all, 0, "//n7:10250/metrics/resource"},
		{"preferred type", Config{AddressTypes: preferred}, all, 0, "//10.0.0.7:10250/metrics/resource"},
		{"second type", Config{AddressTypes: preferred}, all[:2], 0, "//192.0.2.7:10250/metrics/resource"},
		{"last type", Config{AddressTypes: preferred}, all[:1], 0, "//n7:10250/metrics/resource"},
		{"IPv6", Config{AddressTypes: preferred}, all[3:], 0, "//[fd00::7]:10250/metrics/resource"},
		{"first addresses not allowed", Config{AddressTypes: preferred}, addresses{
			{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fe80::7%eth0"},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.7"},
		}, 0, "//192.0.2.7:10250/metrics/resource"},
		{"no address allowed", Config{}, addresses{
			{Type: corev1.NodeInternalIP, Address: "169.254.169.254"}, {Type: corev1.NodeExternalIP, Address: "127.0.0.1"},
		}, 0, notAllowed + `kubelet address 169.254.169.254 is not allowed: it is a link-local address ` +
			`(check the node's addresses, the node's annotation metrics.k8s.io/resource-metrics-path ` +
			`and --kubelet-preferred-address-types)`},
		{"loopback address", Config{AllowLoopback: true}, addresses{
			{Type: corev1.NodeInternalIP, Address: "127.1.2.3"},
		}, 0, "//127.1.2.3:10250/metrics/resource"},
		{"no address", Config{AddressTypes: preferred}, nil, 0,
			noAddress + `[InternalIP ExternalIP Hostname] (set --kubelet-preferred-address-types)`},
		{"no address of the only type", Config{AddressTypes: preferred[:1]}, all[:2], 0,
			noAddress + `[InternalIP] (set --kubelet-preferred-address-types)`},
		{"invalid addresses are skipped", Config{AddressTypes: preferred}, addresses{
			{Type: corev1.NodeInternalIP, Address: ""}, {Type: corev1.NodeInternalIP, Address: "evil.example/?x="},
			{Type: corev1.NodeInternalIP, Address: "a@evil.example"}, {Type: corev1.NodeInternalIP, Address: "evil.example:80"},
			{Type: corev1.NodeInternalIP, Address: strings.Repeat("a", 254)},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.7"},
		}, 0, "//192.0.2.7:10250/metrics/resource"},

		{"port", Config{Port: 4194}, internal, 10255, "//10.0.0.7:4194/metrics/resource"},
		{"port of the status", Config{Port: 4194, UseNodeStatusPort: true}, internal, 10255,
			"//10.0.0.7:10255/metrics/resource"},
		{"no port in the status", Config{Port: 4194, UseNodeStatusPort: true}, internal, 0,
			"//10.0.0.7:4194/metrics/resource"},
		{"invalid port in the status", Config{UseNodeStatusPort: true}, internal, -1,
			notAllowed + `invalid kubelet port -1 in the node's status (unset --kubelet-use-node-status-port)`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n7"}}
			node.Status.Addresses = tt.addresses
			node.Status.DaemonEndpoints.KubeletEndpoint.Port = tt.statusPort
			config := withDefaults(tt.config)
			e, err := config.endpointOf(node)
			got := "//" + e.address(e.hosts[0]) + e.path
			if err != nil {
				got = explained(err)
			}
			if got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
		})
	}
	for want, paths := range map[reason.Reason][]string{
		"": {"/metrics", "/metrics/nodes/n7/metrics"},
		reason.BadEndpoint: {
			"https://evil.example/metrics", "//evil.example/metrics", "metrics", "@evil.example/metrics", // other hosts
			"/metrics?y=z", "/metrics#y", "/metrics HTTP/1.1\r\nHost: y", "/metrics/%2e%2e/api", `/metrics\evil.example`,
			"/metrics/x;y", "/metrics/../api/v1/secrets", "/metrics/x/..", "/metrics/./x", "/metrics//x", "/metrics/",
			// Of the API server and its proxy, of an extension API server, and of the kubelet.
			"/api/v1/namespaces/kube-system/secrets", "/api/v1/nodes/n8/proxy/metrics/resource",
			"/apis/metrics.k8s.io/v1/nodes", "/pods", "/metricsx", "/metrics/" + strings.Repeat("x", 1024),
		},
	} {
		for _, path := range paths {
			node := nodeAt("n7", "10.0.0.7:10250")
			node.Annotations = map[string]string{PathAnnotation: path}
			config := withDefaults(Config{})
			e, err := config.endpointOf(node)
			isBad := reason.Of(err) != want || err == nil && e.path != path
			if isBad || err != nil && !strings.Contains(err.Error(), PathAnnotation) {
				t.Errorf("%q: got %q, error %v, want reason %q", path, e.path, err, want)
			}
		}
	}
}

func TestHostsOf(t *testing.T) {
	for name, tt := range map[string]struct {
		addresses []string // internal, in this order
		want      hosts
	}{
		"one":                          {[]string{"10.0.0.7"}, hosts{"10.0.0.7"}},
		"IPv4 first":                   {[]string{"10.0.0.7", "fd00::7"}, hosts{"10.0.0.7", "fd00::7"}},
		"IPv6 first":                   {[]string{"fd00::7", "10.0.0.7"}, hosts{"fd00::7", "10.0.0.7"}},
		"two of one family":            {[]string{"10.0.0.7", "10.0.1.7", "10.0.2.7"}, hosts{"10.0.0.7", "10.0.1.7"}},
		"other family last":            {[]string{"10.0.0.7", "10.0.1.7", "fd00::7"}, hosts{"10.0.0.7", "fd00::7"}},
		"listed twice":                 {[]string{"10.0.0.7", "10.0.0.7"}, hosts{"10.0.0.7"}},
		"second not allowed":           {[]string{"10.0.0.7", "fe80::7", "::1", "fd00::7"}, hosts{"10.0.0.7", "fd00::7"}},
		"second invalid":               {[]string{"10.0.0.7", "", "a@evil.example:80"}, hosts{"10.0.0.7"}},
		"first not allowed":            {[]string{"127.0.0.1", "10.0.0.7", "fd00::7"}, hosts{"10.0.0.7", "fd00::7"}},
		"second is never another type": {[]string{"fd00::7"}, hosts{"fd00::7"}},
	} {
		node := &corev1.Node{}
		for _, address := range tt.addresses {
			node.Status.Addresses = append(node.Status.Addresses,
				corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
		}
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.7"})
		config := Config{AddressTypes: []string{"InternalIP", "ExternalIP"}}
		if got, err := config.hostsOf(node); got != tt.want || err != nil {
			t.Errorf("%s: got %q, error %v, want %q", name, got, err, tt.want)
		}
	}
}

func TestCheckAddress(t *testing.T) {
	strict, lenient := Config{}, Config{AllowLoopback: true}
	for _, tt := range []struct {
		strict, lenient bool // whether an address is allowed without and with AllowLoopback
		addresses       []string
	}{
		{true, true, []string{"10.0.0.7", "192.0.2.7", "fd00::7", "2001:db8::7", "::ffff:10.0.0.7"}},
		{false, true, []string{"127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1"}},
		{false, false, []string{
			"0.0.0.0", "::", "::ffff:0.0.0.0", "169.254.169.254", "::ffff:169.254.169.254", "fe80::7", "224.0.0.1",
			"239.1.2.3", "ff02::1", "::ffff:224.0.0.1", "fe80::7%eth0", "fd00::7%eth0", "::1%lo",
		}},
	} {
		for _, address := range tt.addresses {
			ip := netip.MustParseAddr(address)
			for config, allowed := range map[*Config]bool{&strict: tt.strict, &lenient: tt.lenient} {
				err := config.checkAddress(ip)
				dialErr := config.checkDials()(t.Context(), "tcp", netip.AddrPortFrom(ip, 10250).String(), nil)
				if (err == nil) != allowed || (dialErr == nil) != allowed {
					t.Errorf("%s with AllowLoopback %v: got errors %v and %v", address, config.AllowLoopback, err, dialErr)
				}
			}
		}
	}
}

// TestAddressesOfAName checks that only the first few addresses of a host name are tried.
func TestAddressesOfAName(t *testing.T) {
	check := (&Config{}).checkDials()
	for i := range 2 * maxDials {
		err := check(t.Context(), "tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 10250).String(), nil)
		if (err != nil) != (i >= maxDials) {
			t.Errorf("address %d: got error %v", i, err)
		}
	}
}

// TestHostNamesCannotResolveToLoopback has a node with a host name that resolves to a loopback
// address, on which a server listens.
func TestHostNamesCannotResolveToLoopback(t *testing.T) {
	k := newKubelet(t, nil, func(http.ResponseWriter, *http.Request) {})
	node := k.node("n7")
	node.Status.Addresses[0] = corev1.NodeAddress{Type: corev1.NodeHostName, Address: "localhost"}
	for name, fetch := range fetchFuncs() {
		t.Run(name, func(t *testing.T) {
			c, err := NewClient(withDefaults(Config{PlainHTTP: true, UseNodeStatusPort: true, Timeout: testenv.Patience}))
			if err != nil {
				t.Fatal(err)
			}
			err = fetch(c, t.Context(), node, &usage.Scrape{})
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
