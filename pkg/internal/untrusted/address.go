package untrusted

import (
	"fmt"
	"net/netip"
)

// CheckAddress returns an error if no request may be sent to an address that a node or its kubelet chooses.
// Addresses outside of the network lead to this machine, or to services that every machine can reach, such as a
// cloud's metadata service.
func CheckAddress(ip netip.Addr, allowLoopback bool) error {
	bare := ip.Unmap().WithZone("")
	var problem string
	switch {
	case ip.Zone() != "":
		problem = "it has a zone"
	case bare.IsLoopback() && !allowLoopback:
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
	return fmt.Errorf("address %s is not allowed: %s", bare, problem) // the zone can be any text
}
