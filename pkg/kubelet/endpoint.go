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
	"sync/atomic"
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
	hosts hosts
	port  int
	path  string // of the resource metrics
}

// hosts are IP addresses or names of one node, all of the same type. The second one is used if the first has
// no route: the nodes of a cluster with two address families may list the family first that the pod of
// kube-vitals does not have. It is empty if there is none.
type hosts [2]string

// address returns the address to dial for a host.
func (e endpoint) address(host string) string { return net.JoinHostPort(host, strconv.Itoa(e.port)) }

// endpointOf returns the endpoint of a node's kubelet. A node sets its own status and annotations,
// but it can choose only a host, a port, and a path of metrics.
func (c *Config) endpointOf(node *corev1.Node) (endpoint, error) {
	hosts, err := c.hostsOf(node)
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
	return endpoint{hosts, port, metrics}, nil
}

// hostsOf returns the first usable address of the first type that has one, in the order of preference, and a second
// one of the same type: the next of the other family or, if there is none, the next one. If all addresses are
// rejected, it returns the error of the first one.
func (c *Config) hostsOf(node *corev1.Node) (hosts, error) {
	var rejected error
	for _, t := range c.AddressTypes {
		var found hosts
		for _, a := range node.Status.Addresses {
			if string(a.Type) != t {
				continue
			}
			usable, err := c.checkHost(a.Address)
			rejected = cmp.Or(rejected, err)
			switch {
			case !usable || a.Address == found[0]:
			case found[0] == "":
				found[0] = a.Address
			case isIPv6(a.Address) != isIPv6(found[0]):
				found[1] = a.Address
				return found, nil
			case found[1] == "":
				found[1] = a.Address
			}
		}
		if found[0] != "" {
			return found, nil
		}
	}
	return hosts{}, cmp.Or(rejected, reason.Errorf(reason.NoAddress, "no address of the types %v", c.AddressTypes))
}

// checkHost reports whether requests may be sent to a host. The error is nil if it is neither an IP address nor a
// name.
func (c *Config) checkHost(host string) (bool, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		err = c.checkAddress(ip)
		return err == nil, err
	}
	// checkDials checks what a name resolves to.
	return host != "" && len(host) <= maxHostBytes && strings.Trim(host, nameBytes) == "", nil
}

func isIPv6(host string) bool { return strings.Contains(host, ":") }

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

// maxDials is the number of addresses of a host name that are tried. A node chooses its name, and a name server may
// return thousands.
const maxDials = 4

// checkDials returns what a net.Dialer calls for each address of one host name: it returns an error if no request
// may be sent to that address, or if it is one too many.
func (c *Config) checkDials() func(_ context.Context, network, address string, _ syscall.RawConn) error {
	var dials atomic.Int32
	return func(_ context.Context, _, address string, _ syscall.RawConn) error {
		resolved, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("cannot check the address to connect to: %w", err)
		}
		if dials.Add(1) > maxDials {
			return reason.Errorf(reason.BadEndpoint, "kubelet name has more than %d addresses", maxDials)
		}
		return c.checkAddress(resolved.Addr())
	}
}
