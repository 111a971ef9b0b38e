package kubelet

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	asManifests := []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName}

	tests := []struct {
		name       string
		config     Config
		addresses  addresses
		statusPort int32
		path       string
		want       string // the URL, or the error
	}{
		{"default types", Config{}, all, 0, "", "https://n7:10250/metrics/resource"},
		{"preferred type", Config{AddressTypes: asManifests}, all, 0, "", "https://10.0.0.7:10250/metrics/resource"},
		{"second type", Config{AddressTypes: asManifests}, all[:2], 0, "", "https://192.0.2.7:10250/metrics/resource"},
		{"last type", Config{AddressTypes: asManifests}, all[:1], 0, "", "https://n7:10250/metrics/resource"},
		{"IPv6", Config{AddressTypes: asManifests}, all[3:], 0, "", "https://[fd00::7]:10250/metrics/resource"},
		{"a refused address and a good one", Config{AddressTypes: asManifests}, addresses{
			{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fe80::7%eth0"},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.7"},
		}, 0, "", "https://192.0.2.7:10250/metrics/resource"},
		{"a refused address only", Config{}, addresses{
			{Type: corev1.NodeInternalIP, Address: "169.254.169.254"}, {Type: corev1.NodeExternalIP, Address: "127.0.0.1"},
		}, 0, "", `node "n7": its address 169.254.169.254 is refused: it is a link-local address ` +
			`(check the node's addresses, and --kubelet-preferred-address-types)`},
		{"a loopback address that is allowed", Config{AllowLoopback: true}, addresses{
			{Type: corev1.NodeInternalIP, Address: "127.1.2.3"},
		}, 0, "", "https://127.1.2.3:10250/metrics/resource"},
		{"no address", Config{AddressTypes: asManifests}, nil, 0, "",
			`node "n7" has no address of type InternalIP, ExternalIP or Hostname (set --kubelet-preferred-address-types)`},
		{"no address of the only type", Config{AddressTypes: asManifests[:1]}, all[:2], 0, "",
			`node "n7" has no address of type InternalIP (set --kubelet-preferred-address-types)`},
		{"an address that is none is passed over", Config{AddressTypes: asManifests}, addresses{
			{Type: corev1.NodeInternalIP, Address: ""}, {Type: corev1.NodeInternalIP, Address: "evil.example/?x="},
			{Type: corev1.NodeInternalIP, Address: "a@evil.example"}, {Type: corev1.NodeInternalIP, Address: "evil.example:80"},
			{Type: corev1.NodeInternalIP, Address: strings.Repeat("a", 254)},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.7"},
		}, 0, "", "https://192.0.2.7:10250/metrics/resource"},

		{"port", Config{Port: 4194}, internal, 10255, "", "https://10.0.0.7:4194/metrics/resource"},
		{"port of the status", Config{Port: 4194, UseNodeStatusPort: true}, internal, 10255, "",
			"https://10.0.0.7:10255/metrics/resource"},
		{"no port in the status", Config{Port: 4194, UseNodeStatusPort: true}, internal, 0, "",
			"https://10.0.0.7:4194/metrics/resource"},
		{"impossible port in the status", Config{UseNodeStatusPort: true}, internal, -1, "",
			`node "n7" names port -1 for its kubelet in its status (leave out --kubelet-use-node-status-port)`},

		{"path", Config{}, internal, 0, "/metrics/nodes/n7/metrics/resource", "https://10.0.0.7:10250/metrics/nodes/n7/metrics/resource"},
		{"plain HTTP", Config{PlainHTTP: true}, internal, 0, "/metrics/x", "http://10.0.0.7:10250/metrics/x"},
		{"the shortest path", Config{}, internal, 0, "/metrics", "https://10.0.0.7:10250/metrics"},
		{"a URL as path", Config{}, internal, 0, "https://evil.example/metrics", "bad"},
		{"a host as path", Config{}, internal, 0, "//evil.example/metrics", "bad"},
		{"a relative path", Config{}, internal, 0, "metrics", "bad"},
		{"a userinfo as path", Config{}, internal, 0, "@evil.example/metrics", "bad"},
		{"a query in the path", Config{}, internal, 0, "/metrics?y=z", "bad"},
		{"a fragment in the path", Config{}, internal, 0, "/metrics#y", "bad"},
		{"a line end in the path", Config{}, internal, 0, "/metrics HTTP/1.1\r\nHost: y", "bad"},
		{"an escape in the path", Config{}, internal, 0, "/metrics/%2e%2e/api", "bad"},
		{"a backslash in the path", Config{}, internal, 0, `/metrics\evil.example`, "bad"},
		{"a matrix parameter in the path", Config{}, internal, 0, "/metrics/x;y", "bad"},
		{"a path of the API server", Config{}, internal, 0, "/api/v1/namespaces/kube-system/secrets", "bad"},
		{"a path of the API server that ends as the kubelet's", Config{}, internal, 0, "/api/v1/nodes/n8/proxy/metrics/resource", "bad"},
		{"a path of an extension API server", Config{}, internal, 0, "/apis/metrics.k8s.io/v1/nodes", "bad"},
		{"another path of the kubelet", Config{}, internal, 0, "/pods", "bad"},
		{"a path that begins as the right one", Config{}, internal, 0, "/metricsx", "bad"},
		{"two dots in the path", Config{}, internal, 0, "/metrics/../api/v1/secrets", "bad"},
		{"two dots at the end of the path", Config{}, internal, 0, "/metrics/x/..", "bad"},
		{"a dot in the path", Config{}, internal, 0, "/metrics/./x", "bad"},
		{"an empty segment in the path", Config{}, internal, 0, "/metrics//x", "bad"},
		{"an empty segment at the end of the path", Config{}, internal, 0, "/metrics/", "bad"},
		{"a long path", Config{}, internal, 0, "/metrics/" + strings.Repeat("x", 1024), "bad"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n7"}}
			node.Status.Addresses = tt.addresses
			node.Status.DaemonEndpoints.KubeletEndpoint.Port = tt.statusPort
			if tt.path != "" {
				node.Annotations = map[string]string{PathAnnotation: tt.path}
			}
			c, err := NewClient(tt.config)
			if err != nil {
				t.Fatal(err)
			}
			var got string
			switch target, err := c.target(node); {
			case err == nil:
				got = c.resource.request(t.Context(), target.endpoint, nil).URL.String()
			case tt.want == "bad" && Reason(err) == reasonEndpoint && strings.Contains(err.Error(), PathAnnotation):
				return
			default:
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}
