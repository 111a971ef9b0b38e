package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// client sends requests directly to a kube-vitals, not through the API server.
type client struct {
	address   string
	transport *http.Transport
	header    http.Header
}

// newClient returns a client without credentials.
func newClient(t *testing.T, s *cluster.Server) *client {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.CA) {
		t.Fatal("the caBundle has no certificate")
	}
	c := &client{
		address: s.Address,
		transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: roots, ServerName: s.Host},
			ForceAttemptHTTP2: true,
		},
		header: http.Header{},
	}
	t.Cleanup(c.transport.CloseIdleConnections)
	return c
}

// as returns a client with the client certificate of a user. The group may be empty.
func (c *testCluster) as(t *testing.T, s *cluster.Server, user, group string) *client {
	t.Helper()
	subject := pkix.Name{CommonName: user}
	if group != "" {
		subject.Organization = []string{group}
	}
	client := newClient(t, s)
	client.transport.TLSClientConfig.Certificates = []tls.Certificate{c.CA.Issue(nil, nil, kubelettest.Subject(subject))}
	return client
}

// asAdmin returns a client that is authorized without a SubjectAccessReview.
func (c *testCluster) asAdmin(t *testing.T, s *cluster.Server) *client {
	t.Helper()
	return c.as(t, s, "admin", "system:masters")
}

// withToken sets the bearer token.
func (c *client) withToken(token string) *client {
	c.header.Set("Authorization", "Bearer "+token)
	return c
}

func (c *client) get(ctx context.Context, path string) (status int, body []byte, err error) {
	response, body, err := c.fetch(ctx, path)
	if response == nil {
		return 0, nil, err
	}
	return response.StatusCode, body, err
}

// fetch returns a response, whose body has been read. It is nil if there is none.
func (c *client) fetch(ctx context.Context, path string) (response *http.Response, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+c.address+path, nil)
	if err != nil {
		return nil, nil, err
	}
	request.Header = c.header.Clone()
	response, err = c.transport.RoundTrip(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response, body, err
}

// getOK returns the body, or an error if the status is not 200.
func (c *client) getOK(ctx context.Context, path string) ([]byte, error) {
	status, body, err := c.get(ctx, path)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: got status %d, want 200: %s", path, status, body)
	}
	return body, err
}

// telemetry returns the content of /metrics.
func (c *client) telemetry(ctx context.Context) (cluster.Telemetry, error) {
	body, err := c.getOK(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	return cluster.ParseTelemetry(body)
}

func (c *client) ok(ctx context.Context, path string) error {
	_, err := c.getOK(ctx, path)
	return err
}

// wantStatus fails the test if the response has another status.
func (c *client) wantStatus(t *testing.T, path string, want int) {
	t.Helper()
	if status, body, err := c.get(t.Context(), path); err != nil || status != want {
		t.Errorf("%s: got status %d, %v, want %d:\n%s", path, status, err, want, body)
	}
}

// load is a number of clients that send requests until stop is called.
type load struct {
	requests atomic.Int64
	stop     func()
}

// startLoad calls each function repeatedly and concurrently, and fails the test if one returns an
// error. On a busy machine it calls less often, for the servers need the CPU.
func startLoad(t *testing.T, calls map[string]func(context.Context) error) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var failed atomic.Int64
	l := &load{}
	for what, call := range calls {
		clients.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				err := call(ctx)
				pause := min(max(50*time.Millisecond, 10*time.Since(began)), 500*time.Millisecond)
				if err != nil && ctx.Err() == nil && failed.Add(1) <= 5 {
					t.Errorf("%s: %s: %v", time.Now().Format(time.StampMilli), what, err)
				}
				l.requests.Add(1)
				time.Sleep(pause)
			}
		})
	}
	l.stop = sync.OnceFunc(func() {
		cancel()
		clients.Wait()
		t.Logf("%d of %d requests failed", failed.Load(), l.requests.Load())
	})
	t.Cleanup(l.stop)
	return l
}
