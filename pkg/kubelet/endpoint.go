package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/internal/untrusted"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// PathAnnotation is the annotation of a node with the path of its resource metrics, if it is another one.
const (
	PathAnnotation = "metrics.k8s.io/resource-metrics-path"
	defaultPath    = "/metrics/resource"
)

const (
	maxPathBytes = 1024
	maxHostBytes = 253
	// nameBytes are the characters of host names and of segments of a path.
	nameBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._"
)

// endpoint is where a kubelet listens.
type endpoint struct {
	host string // an IP address, or a name
	port int
	path string // of the resource metrics
}

// address returns the address to dial.
func (e endpoint) address() string { return net.JoinHostPort(e.host, strconv.Itoa(e.port)) }

// endpointOf returns the endpoint of a node's kubelet. A node sets its own status and annotations,
// but it can choose only a host, a port, and a path of metrics.
func (c *Config) endpointOf(node *corev1.Node) (endpoint, error) {
	host, err := c.addressOf(node)
	if err != nil {
		return endpoint{}, err
	}
	port := c.Port
	if status := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port); c.UseNodeStatusPort && status != 0 {
		port = status
	}
	if port < 1 || port > math.MaxUint16 {
		return endpoint{}, &reason.Error{
			Reason: reason.BadEndpoint,
			Err:    fmt.Errorf("invalid kubelet port %d in the node's status", port),
			Cure:   "unset --kubelet-use-node-status-port",
		}
	}
	metrics := cmp.Or(node.Annotations[PathAnnotation], defaultPath)
	if !isMetricsPath(metrics) {
		return endpoint{}, &reason.Error{
			Reason: reason.BadEndpoint,
			Err:    fmt.Errorf("invalid path %.100q in the annotation %s", metrics, PathAnnotation),
			Cure:   "use a path below /metrics of letters, digits, -, . and _, without empty segments, . or ..",
		}
	}
	return endpoint{host, port, metrics}, nil
}

// addressOf returns the first usable address in the order of preference. If all addresses are
// rejected, it returns the error of the first one.
func (c *Config) addressOf(node *corev1.Node) (string, error) {
	var rejected error
	for _, t := range c.AddressTypes {
		for _, a := range node.Status.Addresses {
			if string(a.Type) != t || len(a.Address) > maxHostBytes {
				continue
			}
			ip, err := netip.ParseAddr(a.Address)
			switch {
			case err == nil:
				if err = c.checkAddress(ip); err == nil {
					return a.Address, nil
				}
				rejected = cmp.Or(rejected, err)
			case a.Address != "" && strings.Trim(a.Address, nameBytes) == "":
				return a.Address, nil // a name: checkDial checks what it resolves to
			}
		}
	}
	return "", cmp.Or(rejected, reason.Errorf(reason.NoAddress, "no address of the types %v", c.AddressTypes))
}

// isMetricsPath reports whether s is /metrics or a path below it, in its shortest form and without
// characters that need escaping. A node's address can lead to any server whose certificate is
// signed by the cluster's CA, such as the API server. Since no other path is requested, the token
// can be used there to read metrics only.
func isMetricsPath(s string) bool {
	return len(s) <= maxPathBytes && s == path.Clean(s) && (s == "/metrics" || strings.HasPrefix(s, "/metrics/")) &&
		strings.Trim(s, nameBytes+"/") == ""
}

// checkAddress returns an error if no request may be sent to an address. A node sets its own addresses.
func (c *Config) checkAddress(ip netip.Addr) error {
	if err := untrusted.CheckAddress(ip, c.AllowLoopback); err != nil {
		return reason.Errorf(reason.BadEndpoint, "kubelet %w", err)
	}
	return nil
}

// checkDial returns an error if no request may be sent to a resolved address. A net.Dialer calls it
// for each address of a host name.
func (c *Config) checkDial(_ context.Context, _, dialed string, _ syscall.RawConn) error {
	resolved, err := netip.ParseAddrPort(dialed)
	if err != nil {
		return fmt.Errorf("cannot check the address to connect to: %w", err)
	}
	return c.checkAddress(resolved.Addr())
}
