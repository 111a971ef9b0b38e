package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/transport"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

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
	Direct  *http.Client // sends the administrator's token
	Proxied *http.Client // sends what the aggregation layer sends for an administrator
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
	frontProxy, err := tls.LoadX509KeyPair(c.File("front-proxy.crt"), c.File("front-proxy.key"))
	if err != nil {
		return nil, fmt.Errorf("read the aggregation layer's certificate: %w", err)
	}
	own, err := c.ownFlags(executable, resolution)
	if err != nil {
		return nil, err
	}
	args = slices.Concat([]string{
		"--authentication-kubeconfig=" + c.Kubeconfig, "--authorization-kubeconfig=" + c.Kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]),
		"--tls-cert-file=" + c.File("server.crt"), "--tls-private-key-file=" + c.File("server.key"),
	}, own, args)
	direct := transport.NewBearerAuthRoundTripper(c.token, c.transport())
	buffered := c.transport()
	buffered.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: slowBuffer}
	slow := transport.NewBearerAuthRoundTripper(c.token, buffered)
	proxied := transport.NewAuthProxyRoundTripper("admin", "", []string{"system:masters"}, nil, c.transport(frontProxy))
	s := &Standalone{
		Started: time.Now(),
		URL:     fmt.Sprintf("https://127.0.0.1:%d", ports[0]),
		Direct:  &http.Client{Transport: direct, Timeout: requestTimeout},
		Proxied: &http.Client{Transport: proxied, Timeout: requestTimeout},
		Slow:    &http.Client{Transport: slow},
	}
	s.Process, err = c.StartProcess(executable, args...)
	return s, err
}

// ownFlags returns the flags that not all metrics servers have.
func (c *Cluster) ownFlags(executable string, resolution time.Duration) ([]string, error) {
	help, err := readHelp(executable)
	if err != nil {
		return nil, err
	}
	flags := []string{
		"--kubeconfig=" + c.Kubeconfig, "--metric-resolution=" + resolution.String(),
		"--kubelet-certificate-authority=" + c.File(KubeletCAFile), "--kubelet-use-node-status-port",
		"--kubelet-preferred-address-types=InternalIP",
	}
	if strings.Contains(help, loopbackFlag) {
		flags = append(flags, loopbackFlag)
	}
	return flags, nil
}

func readHelp(executable string) (string, error) {
	help, err := exec.Command(executable, "--help").CombinedOutput() //nolint:noctx // it ends at once
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) { // some programs exit with an error after --help
		return "", fmt.Errorf("%s --help: %w", executable, err)
	}
	return string(help), nil
}

// transport returns a transport that trusts the cluster's CA.
func (c *Cluster) transport(certificates ...tls.Certificate) *http.Transport {
	return &http.Transport{
		TLSClientConfig:    &tls.Config{RootCAs: c.CA.Pool(), Certificates: certificates},
		ForceAttemptHTTP2:  true,
		DisableCompression: true,
	}
}

// Stop stops the server, and returns how it ended: nil for exit status 0.
func (s *Standalone) Stop() error { return s.Process.Stop(stopTimeout) }

// Get requests a path.
func (s *Standalone) Get(ctx context.Context, path, accept string) (body []byte, contentType string, err error) {
	return Get(ctx, s.Direct, s.URL+path, accept)
}

// Pods requests a list of PodMetrics. Both API versions decode into the same type.
func (s *Standalone) Pods(ctx context.Context, path, accept string) (*metricsv1beta1.PodMetricsList, error) {
	return getObject[metricsv1beta1.PodMetricsList](ctx, s, path, accept)
}

// Pod requests one PodMetrics.
func (s *Standalone) Pod(ctx context.Context, path, accept string) (*metricsv1beta1.PodMetrics, error) {
	return getObject[metricsv1beta1.PodMetrics](ctx, s, path, accept)
}

// Nodes requests a list of NodeMetrics.
func (s *Standalone) Nodes(ctx context.Context, path, accept string) (*metricsv1beta1.NodeMetricsList, error) {
	return getObject[metricsv1beta1.NodeMetricsList](ctx, s, path, accept)
}

// Node requests one NodeMetrics.
func (s *Standalone) Node(ctx context.Context, path, accept string) (*metricsv1beta1.NodeMetrics, error) {
	return getObject[metricsv1beta1.NodeMetrics](ctx, s, path, accept)
}

// getObject requests an object and decodes it as the response's content type says. P is the pointer
// to T, which decodes protobuf.
func getObject[T any, P interface {
	*T
	Unmarshal([]byte) error
}](ctx context.Context, s *Standalone, path, accept string) (*T, error) {
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
