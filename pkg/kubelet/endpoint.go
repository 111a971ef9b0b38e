package kubelet

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// PathAnnotation is the annotation of a node whose kubelet answers on another path than DefaultPath.
const (
	PathAnnotation = "metrics.k8s.io/resource-metrics-path"
	DefaultPath    = "/metrics/resource"
)

const (
	maxPort      = 1<<16 - 1
	maxPathBytes = 1024
	maxHostBytes = 253
)

// endpoint is where a kubelet answers.
type endpoint struct {
	host string // an IP address, or a name
	port int
	path string // of its resource metrics
}

// endpointOf finds the kubelet of a node. Nothing that a node says of itself can lead elsewhere than to a host, a port and a
// path of it.
func (c *Config) endpointOf(node *corev1.Node) (endpoint, error) {
	host := addressOf(node, c.AddressTypes)
	if host == "" {
		return endpoint{}, &Error{Node: node.Name, reason: reasonNoAddress,
			problem: " has no address of type " + enumerate(c.AddressTypes), hint: "set --kubelet-preferred-address-types"}
	}
	port := c.Port
	if status := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port); c.UseNodeStatusPort && status != 0 {
		port = status
	}
	if port < 1 || port > maxPort {
		return endpoint{}, &Error{Node: node.Name, reason: reasonEndpoint,
			problem: fmt.Sprintf(" names port %d for its kubelet in its status", port), hint: "leave out --kubelet-use-node-status-port"}
	}
	path := DefaultPath
	if annotated := node.Annotations[PathAnnotation]; annotated != "" {
		path = annotated
	}
	if !isPath(path) {
		return endpoint{}, &Error{Node: node.Name, reason: reasonEndpoint,
			problem: fmt.Sprintf(" has %.100q in its annotation %s, which is not a path", path, PathAnnotation),
			hint:    "use one that begins with a single / and has no query, blanks or other characters that need escaping"}
	}
	return endpoint{host, port, path}, nil
}

// addressOf gives the first usable address of the first type that the node has any of.
func addressOf(node *corev1.Node, types []corev1.NodeAddressType) string {
	for _, t := range types {
		for _, a := range node.Status.Addresses {
			if a.Type == t && isHost(a.Address) {
				return a.Address
			}
		}
	}
	return ""
}

// isHost says whether s is an IP address or could be the name of a host.
func isHost(s string) bool {
	if s == "" || len(s) > maxHostBytes {
		return false
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	for i := range len(s) {
		if !isNameByte(s[i]) && s[i] != '-' && s[i] != '.' {
			return false
		}
	}
	return true
}

// isPath says whether s is an absolute path of printable ASCII without a query. A second slash at the start would make a host
// of what follows it.
func isPath(s string) bool {
	if len(s) > maxPathBytes || !strings.HasPrefix(s, "/") || strings.HasPrefix(s, "//") {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || strings.IndexByte(`?#%\`, c) >= 0 {
			return false
		}
	}
	return true
}

// address is what to dial.
func (e endpoint) address() string { return net.JoinHostPort(e.host, strconv.Itoa(e.port)) }

// enumerate gives "A, B or C".
func enumerate[T ~string](items []T) string {
	var b strings.Builder
	for i, item := range items {
		switch {
		case i == 0:
		case i == len(items)-1:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(string(item))
	}
	return b.String()
}
