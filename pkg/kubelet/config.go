package kubelet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Config configures how kubelets are reached and verified. A zero field has its default.
type Config struct {
	// Port is the port of the kubelets; by default DefaultPort. With UseNodeStatusPort, the port in
	// a node's status takes precedence.
	Port              int
	UseNodeStatusPort bool

	// AddressTypes are the types of node addresses to use, the preferred one first; by default
	// DefaultAddressTypes.
	AddressTypes []corev1.NodeAddressType

	// CertificateAuthority is a file of CA certificates in PEM format that verify the kubelets'
	// serving certificates; by default, the system's roots are used.
	CertificateAuthority string

	// ClientCertificate and ClientKey are PEM files that authenticate this client. They replace the
	// bearer token: unlike a token, a certificate cannot be reused by the kubelet that receives it.
	ClientCertificate, ClientKey string

	// Token, if it is not nil, returns the bearer token that authenticates this client. It is
	// called for each request, and must return when the context ends. It replaces BearerTokenFile
	// and Inline.BearerToken.
	Token func(context.Context) (string, error)

	// BearerTokenFile is a file with the bearer token that authenticates this client.
	BearerTokenFile string

	// Inline replaces those of the files above that are not set. A kubeconfig may contain any of
	// them.
	Inline Inline

	// AllowLoopback allows 127.0.0.0/8 and ::1 as addresses of kubelets, for tests and development.
	// A node that has such an address makes this client send requests to other processes on its own
	// machine.
	AllowLoopback bool

	// Clock is our clock, which sets usage.Scrape.Sent and At; by default, one that starts with
	// NewClient.
	Clock usage.Clock

	// Pins, if it is not nil, accepts self-signed certificates whose keys it has pinned for their
	// nodes. Certificates that a CA verifies are accepted as without it.
	Pins Pins

	// InsecureTLS disables the verification of kubelets' certificates. An attacker on the network
	// can then read the bearer token.
	InsecureTLS bool

	// PlainHTTP disables TLS, and therefore also credentials: the bearer token is not sent.
	PlainHTTP bool

	// Timeout bounds one Fetch, from dialing to the last byte; by default DefaultTimeout.
	// FetchSummary takes at most 2 seconds.
	Timeout time.Duration

	// MaxBodyBytes bounds a response after decompression; by default DefaultMaxBodyBytes.
	MaxBodyBytes int64

	// Gzip requests compressed responses, which saves bytes and costs CPU at both ends.
	Gzip bool

	// UserAgent is sent with each request.
	UserAgent string

	// Reloaded, if it is not nil, is called once for each change of the files above: with nil when
	// the new content is in use, or with the error because of which the old content stays in use. A
	// Fetch calls it and waits for it, so it must not use the client.
	Reloaded func(files string, err error)
}

// Inline contains credentials that do not come from files, and therefore do not change. An empty
// field is not set.
type Inline struct {
	CertificateAuthority         []byte // PEM
	ClientCertificate, ClientKey []byte // PEM
	BearerToken                  string
}

// The defaults of Config.
const (
	DefaultPort         = 10250
	DefaultTimeout      = 10 * time.Second
	DefaultMaxBodyBytes = 4 << 20 // 500 pods of 3 containers take a quarter of it
)

// DefaultAddressTypes returns the types of node addresses that are used by default, the preferred
// one first.
func DefaultAddressTypes() []corev1.NodeAddressType {
	return []corev1.NodeAddressType{
		corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeInternalIP, corev1.NodeExternalDNS, corev1.NodeExternalIP,
	}
}

// withDefaults returns c with its zero fields set to their defaults.
func (c Config) withDefaults() Config {
	if c.Port == 0 {
		c.Port = DefaultPort
	}
	if len(c.AddressTypes) == 0 {
		c.AddressTypes = DefaultAddressTypes()
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if c.Clock == (usage.Clock{}) {
		c.Clock = usage.NewClock(time.Now())
	}
	if c.Reloaded == nil {
		c.Reloaded = func(string, error) {}
	}
	return c
}
