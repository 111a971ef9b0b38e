package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/transport"

	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// loopbackFlag is a flag that kube-vitals needs to scrape kubelets at loopback addresses. Other
// metrics servers do not have it.
const loopbackFlag = "--kubelet-allow-loopback"

// stopTimeout bounds the shutdown of a Standalone.
const stopTimeout = 15 * time.Second

// slowBuffer is the size of the receive buffer of slow clients for a response.
const slowBuffer = 64 << 10

// Standalone is a metrics server that runs with an administrator's permissions, without a chart and
// without APIServices. It need not be kube-vitals.
type Standalone struct {
	Process *process.Process
	Started time.Time
	URL     string
	Token   string       // the administrator's
	Direct  *http.Client // sends requests of the administrator, as the aggregation layer does
	Slow    *http.Client // as Direct, without a timeout and with a small receive buffer
}

// StartStandalone starts a metrics server and returns at once. The args follow the flags that every
// metrics server needs here.
func (c *Cluster) StartStandalone(executable string, resolution time.Duration, args ...string) (*Standalone, error) {
	ports, err := FreePorts(1)
	if err != nil {
		return nil, err
	}
	if err := c.writePair("server", c.issue("server", "")); err != nil {
		return nil, err
	}
	args = slices.Concat([]string{
		"--authentication-kubeconfig=" + c.Kubeconfig, "--authorization-kubeconfig=" + c.Kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]),
		"--tls-cert-file=" + c.File("server.crt"), "--tls-private-key-file=" + c.File("server.key"),
	}, c.ownFlags(executable, resolution), args)
	proxy, err := tls.LoadX509KeyPair(c.File("front-proxy.crt"), c.File("front-proxy.key"))
	if err != nil {
		return nil, fmt.Errorf("load the certificate of the front proxy: %w", err)
	}
	asAdministrator := func(t *http.Transport) http.RoundTripper {
		t.TLSClientConfig.Certificates = []tls.Certificate{proxy}
		return transport.NewAuthProxyRoundTripper("admin", "", []string{"system:masters"}, nil, t)
	}
	buffered := c.transport()
	buffered.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err == nil {
			err = conn.(*net.TCPConn).SetReadBuffer(slowBuffer)
		}
		return conn, err
	}
	s := &Standalone{
		Started: time.Now(),
		URL:     fmt.Sprintf("https://127.0.0.1:%d", ports[0]),
		Token:   c.token,
		Direct:  &http.Client{Transport: asAdministrator(c.transport()), Timeout: requestTimeout},
		Slow:    &http.Client{Transport: asAdministrator(buffered)},
	}
	s.Process, err = c.StartProcess(executable, args...)
	return s, err
}

// ownFlags returns the flags that not all metrics servers have.
func (c *Cluster) ownFlags(executable string, resolution time.Duration) []string {
	flags := []string{
		"--kubeconfig=" + c.Kubeconfig, "--metric-resolution=" + resolution.String(),
		"--kubelet-certificate-authority=" + c.File("ca.crt"), "--kubelet-use-node-status-port",
		"--kubelet-preferred-address-types=InternalIP",
	}
	//nolint:noctx // it ends at once, for some programs with an error
	if help, _ := exec.Command(executable, "--help").CombinedOutput(); strings.Contains(string(help), loopbackFlag) {
		flags = append(flags, loopbackFlag)
	}
	return flags
}

// transport returns a transport that trusts the cluster's CA.
func (c *Cluster) transport() *http.Transport {
	return &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: c.CA.Pool()},
		ForceAttemptHTTP2:   true, // these are as in client-go
		MaxIdleConnsPerHost: 25,
		DisableCompression:  true,
	}
}

// Stop stops the server, and returns how it ended: nil for exit status 0.
func (s *Standalone) Stop() error { return s.Process.Stop(stopTimeout) }

// Get requests a path.
func (s *Standalone) Get(ctx context.Context, path, accept string) (body []byte, contentType string, err error) {
	return Get(ctx, s.Direct, s.URL+path, accept)
}

// Object is a pointer to a type that can be decoded from protobuf.
type Object[T any] interface {
	*T
	Unmarshal([]byte) error
}

// GetObject requests an object and decodes it as the response's content type says. Both versions of
// metrics.k8s.io decode into the same types.
func GetObject[T any, P Object[T]](ctx context.Context, s *Standalone, path, accept string) (*T, error) {
	body, contentType, err := s.Get(ctx, path, accept)
	if err != nil {
		return nil, err
	}
	object := new(T)
	if contentType == TypeProtobuf {
		err = unmarshal(body, P(object))
	} else {
		err = json.Unmarshal(body, object)
	}
	if err != nil {
		return nil, fmt.Errorf("decode the response to %s: %w", path, err)
	}
	return object, nil
}
