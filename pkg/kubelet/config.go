package kubelet

import (
	"context"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Config configures how kubelets are reached and verified.
type Config struct {
	// Port is the port of the kubelets. With UseNodeStatusPort, the port in a node's status takes
	// precedence.
	Port              int
	UseNodeStatusPort bool

	// AddressTypes are the types of node addresses to use, the preferred one first.
	AddressTypes []string

	// TLS has the CA certificates that verify the kubelets' serving certificates, by default the
	// system's roots, and the client certificate. That replaces the bearer token: unlike a token, it
	// cannot be reused by the kubelet that receives it. A file replaces its data, which a kubeconfig
	// may contain. Insecure disables the verification: an attacker on the network can then read the
	// token. Names and protocols in TLS are ignored.
	TLS rest.TLSClientConfig

	// BearerTokenFile is a file with the bearer token that authenticates this client. It replaces
	// BearerToken.
	BearerTokenFile, BearerToken string

	// Token, if it is not nil, returns the bearer token instead. It is called for each request, and
	// must return when the context ends.
	Token func(context.Context) (string, error)

	// AllowLoopback allows 127.0.0.0/8 and ::1 as addresses of kubelets, for tests and development.
	// A node that has such an address makes this client send requests to other processes on its own
	// machine.
	AllowLoopback bool

	// Clock is our clock, which sets usage.Scrape.Sent and At.
	Clock usage.Clock

	// Pins, if it is not nil, accepts self-signed certificates whose keys it has pinned for their
	// nodes. Certificates that a CA verifies are accepted as without it.
	Pins Pins

	// PlainHTTP disables TLS, and therefore also credentials: the bearer token is not sent.
	PlainHTTP bool

	// Timeout bounds one Fetch, from dialing to the last byte. Two waits come before: for a token, at most as long
	// again, and for a permit to connect. If the kubelet has closed the idle connection, the second one is within it.
	Timeout time.Duration

	// SlowTimeout replaces Timeout after a slow request to the node, if it is longer, for 2 × SlowTimeout. A request is
	// slow if it took as long as Timeout or DefaultTimeout, whichever is less. A kubelet works on a request that was
	// given up, too, and the next one would add to that.
	SlowTimeout time.Duration

	// MaxBodyBytes bounds a response after decompression.
	MaxBodyBytes int64

	// Gzip requests compressed responses, which saves bytes and costs CPU at both ends.
	Gzip bool

	// UserAgent is sent with each request.
	UserAgent string

	// Reloaded is called when one of the files above has changed: with nil when the new content is in use,
	// or with the error that keeps the old content in use. An error that stays the same is
	// reported once. A Fetch calls Reloaded and waits for it, so it must not use the client.
	Reloaded func(files string, err error)
}

// The defaults of flags.
const (
	DefaultPort         = 10250
	DefaultTimeout      = 10 * time.Second
	DefaultMaxBodyBytes = 4 << 20 // 500 pods of 3 containers take a quarter of it
)

// DefaultAddressTypes returns the types of node addresses that are used by default, the preferred
// one first.
func DefaultAddressTypes() []string {
	return []string{"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"}
}
