package kubelet

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
)

// addressError reports an address to which no request is sent.
type addressError struct {
	address string
	problem string // what kind of address it is
}

func (e *addressError) Error() string {
	return fmt.Sprintf("its address %s is refused: %s", e.address, e.problem)
}

// checkAddress returns an error if no kubelet can be at an address. A node sets its addresses
// itself. Addresses that are not of the network lead to this client's own machine or to services
// that every machine has beside it, such as a cloud's metadata service.
func (c *Config) checkAddress(ip netip.Addr) error {
	refuse := func(problem string) error { return &addressError{ip.String(), problem} }
	bare := ip.Unmap().WithZone("")
	switch {
	case ip.Zone() != "":
		return refuse("it has a zone")
	case bare.IsLoopback():
		if c.AllowLoopback {
			return nil
		}
		return refuse("it is a loopback address, which only --kubelet-allow-loopback allows")
	case bare.IsUnspecified():
		return refuse("it is the unspecified address")
	case bare.IsMulticast():
		return refuse("it is a multicast address")
	case bare.IsLinkLocalUnicast():
		return refuse("it is a link-local address")
	}
	return nil
}

// checkDial returns an error if the address to be connected to is refused. A net.Dialer calls it
// for each address that a host name resolves to, so that no name leads around checkAddress.
func (c *Config) checkDial(_ context.Context, _, address string, _ syscall.RawConn) error {
	resolved, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("cannot check the address to connect to: %w", err)
	}
	return c.checkAddress(resolved.Addr())
}
