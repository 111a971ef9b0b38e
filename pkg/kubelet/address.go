package kubelet

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// checkAddress returns an error if no request may be sent to an address. A node sets its own
// addresses. Addresses outside of the network lead to this client's machine, or to services that
// every machine can reach, such as a cloud's metadata service.
func (c *Config) checkAddress(ip netip.Addr) error {
	bare := ip.Unmap().WithZone("")
	var problem string
	switch {
	case ip.Zone() != "":
		problem = "it has a zone"
	case bare.IsLoopback() && !c.AllowLoopback:
		problem = "loopback addresses require --kubelet-allow-loopback"
	case bare.IsUnspecified():
		problem = "it is the unspecified address"
	case bare.IsMulticast():
		problem = "it is a multicast address"
	case bare.IsLinkLocalUnicast():
		problem = "it is a link-local address"
	default:
		return nil
	}
	return reason.Errorf(reason.BadEndpoint, "kubelet address %s is not allowed: %s", ip, problem)
}

// checkDial returns an error if no request may be sent to a resolved address. A net.Dialer calls it
// for each address of a host name.
func (c *Config) checkDial(_ context.Context, _, address string, _ syscall.RawConn) error {
	resolved, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("cannot check the address to connect to: %w", err)
	}
	return c.checkAddress(resolved.Addr())
}
