package kubelet

import (
	"fmt"
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// PathAnnotation is the annotation of a node whose kubelet answers on another path than
// DefaultPath.
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

// endpointOf finds the kubelet of a node. Nothing that a node says of itself can lead elsewhere
// than to a host, a port and a path of it.
func (c *Config) endpointOf(node *corev1.Node) (endpoint, error) {
	host, refused := c.addressOf(node)
	if refused != nil {
		return endpoint{}, explain(node.Name, refused)
	}
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
	metrics := DefaultPath
	if annotated := node.Annotations[PathAnnotation]; annotated != "" {
		metrics = annotated
	}
	if !isMetricsPath(metrics) {
		return endpoint{}, &Error{Node: node.Name, reason: reasonEndpoint,
			problem: fmt.Sprintf(" has %.100q in its annotation %s, which is not a path of metrics", metrics, PathAnnotation),
			hint:    "use a path below /metrics of letters, digits and the characters -, . and _, without empty segments, . or .."}
	}
	return endpoint{host, port, metrics}, nil
}

// addressOf returns the first usable address of the first type that the node has a usable one of.
// If there is none because all were refused, it returns why the first one was.
func (c *Config) addressOf(node *corev1.Node) (host string, refused error) {
	for _, t := range c.AddressTypes {
		for _, a := range node.Status.Addresses {
			if a.Type != t || !isHost(a.Address) {
				continue
			}
			ip, err := netip.ParseAddr(a.Address)
			if err == nil {
				err = c.checkAddress(ip)
			} else {
				err = nil // a name; it is checked when it is resolved
			}
			if err == nil {
				return a.Address, nil
			}
			if refused == nil {
				refused = err
			}
		}
	}
	return "", refused
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

// isMetricsPath reports whether s is /metrics or a path below it, in its shortest form and without
// characters that need escaping. A node can have any server whose certificate is signed by the
// cluster's CA take the place of its kubelet, such as the API server. No other path is requested,
// so that the token is of no use there: below /metrics are only metrics.
func isMetricsPath(s string) bool {
	if len(s) > maxPathBytes || s != path.Clean(s) || s != "/metrics" && !strings.HasPrefix(s, "/metrics/") {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isNameByte(c) && c != '/' && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

// isNameByte reports whether c is a letter, a digit or an underscore.
func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
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
