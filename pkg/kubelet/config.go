package kubelet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Config says how to reach kubelets and how to trust them. A field that is zero stands for its
// default.
type Config struct {
	// Port is where kubelets listen; by default DefaultPort. With UseNodeStatusPort, the port that
	// a node's status names goes before.
	Port              int
	UseNodeStatusPort bool

	// AddressTypes are the types of a node's addresses, the preferred one first; by default
	// DefaultAddressTypes.
	AddressTypes []corev1.NodeAddressType

	// CertificateAuthority is a file of PEM certificates, one of which must have signed a kubelet's
	// serving certificate; by default the roots of the system are taken.
	CertificateAuthority string

	// ClientCertificate and ClientKey are PEM files that identify this client to kubelets. They
	// replace the bearer token: a kubelet that is shown a certificate cannot use it elsewhere, and
	// is never sent a token.
	ClientCertificate, ClientKey string

	// Token, if it is not nil, returns the bearer token that identifies this client to kubelets. It
	// is called for each request, and must return when the context ends. It replaces
	// BearerTokenFile and Inline.BearerToken.
	Token func(context.Context) (string, error)

	// BearerTokenFile is a file with the bearer token that identifies this client to kubelets.
	BearerTokenFile string

	// Inline replaces those of the files above that are not named. A kubeconfig may have all of
	// them in its text.
	Inline Inline

	// AllowLoopback allows 127.0.0.0/8 and ::1 as addresses of kubelets, for tests and development.
	// Kubelets at loopback addresses run beside this client, so that a node could have it send
	// requests to other processes there.
	AllowLoopback bool

	// Clock is our clock, which usage.Scrape.Sent and At are read from; by default one that begins
	// with NewClient.
	Clock usage.Clock

	// InsecureTLS takes any certificate from a kubelet. Whoever can get between can then take the
	// bearer token.
	InsecureTLS bool

	// PlainHTTP does without TLS, and therefore without credentials: the bearer token is not sent.
	PlainHTTP bool

	// Timeout bounds one Fetch, from the dialling to the last byte; by default DefaultTimeout.
	// FetchSummary takes 2 seconds at the most.
	Timeout time.Duration

	// MaxBodyBytes bounds an answer, after decompression; by default DefaultMaxBodyBytes.
	MaxBodyBytes int64

	// Limits bound what is kept of a response. By default, MaxContainers follows from MaxBodyBytes.
	Limits decode.Limits

	// Gzip asks kubelets to compress their answers, which saves bytes and costs CPU at both ends.
	Gzip bool

	// UserAgent is how this client introduces itself.
	UserAgent string

	// Reloaded, if it is not nil, is told of the files above, which are read again when they
	// change: with a nil error when the new content is in use, and otherwise why it is not, in
	// which case the old content stays in use. It is called once for each change, by a Fetch, which
	// it holds up, and must not use the client.
	Reloaded func(files string, err error)
}

// Inline is trust that does not come from files, and therefore does not change. What is empty is
// not there.
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

// DefaultAddressTypes gives the types of addresses that are tried when none are configured, in
// their order.
func DefaultAddressTypes() []corev1.NodeAddressType {
	return []corev1.NodeAddressType{
		corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeInternalIP, corev1.NodeExternalDNS, corev1.NodeExternalIP,
	}
}

// withDefaults gives c with its zero fields filled in.
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
	if c.Limits.MaxContainers == 0 {
		c.Limits.MaxContainers = int(max(1, min(c.MaxBodyBytes/decode.MinContainerBytes, math.MaxInt32)))
	}
	if c.Clock == (usage.Clock{}) {
		c.Clock = usage.NewClock(time.Now())
	}
	if c.Reloaded == nil {
		c.Reloaded = func(string, error) {}
	}
	return c
}

func (c *Config) scheme() string {
	if c.PlainHTTP {
		return "http"
	}
	return "https"
}

// Validate reports all that is wrong with c, in the words of the flags.
func (c Config) Validate() error {
	var errs []error
	mistake := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	mistake(c.Port < 0 || c.Port > maxPort, "--kubelet-port is %d, but must be from 1 to %d", c.Port, maxPort)
	mistake(c.Timeout < 0, "--kubelet-request-timeout is %v, but must be above 0", c.Timeout)
	mistake(c.MaxBodyBytes < 0, "the bound on a kubelet's answer is %d bytes, but must be above 0", c.MaxBodyBytes)
	mistake((c.ClientCertificate == "") != (c.ClientKey == ""),
		"--kubelet-client-certificate and --kubelet-client-key are needed together")
	for _, other := range []struct {
		flag string
		set  bool
	}{
		{"--kubelet-insecure-tls", c.InsecureTLS},
		{"--kubelet-certificate-authority", c.CertificateAuthority != ""},
		{"--kubelet-client-certificate", c.ClientCertificate != ""},
		{"--kubelet-client-key", c.ClientKey != ""},
	} {
		mistake(c.PlainHTTP && other.set,
			"%s has no meaning with --deprecated-kubelet-completely-insecure: leave one of them out", other.flag)
	}
	mistake(c.InsecureTLS && c.CertificateAuthority != "",
		"--kubelet-insecure-tls verifies nothing by --kubelet-certificate-authority: leave one of them out")
	return errors.Join(errs...)
}
