package server

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
)

const nodesPath = "/apis/metrics.k8s.io/v1/nodes"

const podsPath = "/api/v1/pods"

// cluster is an API server over HTTP. A bearer token is the name of its user, except if it starts with
// invalidToken. The user "alice" has all permissions, "tenant" those for metrics.k8s.io, all other
// users that for /openapi/v2 only. The user "root" is in the group system:masters. Access reviews of the user
// "sleepy" get no response.
type cluster struct {
	*sim.API
	server      *httptest.Server
	url         string
	down        atomic.Bool   // all requests get status 503
	reviewsBusy atomic.Bool   // reviews get status 429
	asleep      chan struct{} // receives an element for each access review of "sleepy"
}

const invalidToken = "invalid"

func newCluster(t testing.TB) *cluster {
	c := &cluster{API: sim.NewAPI(), asleep: make(chan struct{}, 1)}
	c.Latency, c.Authenticate, c.Authorize = 0, authenticate, c.authorize
	c.RefuseBy(func(_, path string) *sim.Refusal {
		switch {
		case c.down.Load():
			return sim.Refuse(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "down")
		case c.reviewsBusy.Load() && (path == sim.TokenReviews || path == sim.AccessReviews):
			return sim.Refuse(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "busy")
		}
		return nil
	})
	c.setCAs(kubelettest.NewCA(), kubelettest.NewCA())
	c.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isList := r.Method == http.MethodGet && (r.URL.Path == podsPath || r.URL.Path == "/api/v1/nodes")
		if isList && !strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
			t.Error("JSON would take more CPU")
		}
		c.ServeHTTP(w, r)
	}))
	c.url = c.server.URL
	t.Cleanup(func() {
		c.server.CloseClientConnections()
		c.server.Close()
	})
	return c
}

// add adds nodes and pods.
func (c *cluster) add(objects ...metav1.Object) {
	for _, o := range objects {
		path := "/api/v1/nodes/" + o.GetName()
		if namespace := o.GetNamespace(); namespace != "" {
			path = "/api/v1/namespaces/" + namespace + "/pods/" + o.GetName()
		}
		c.Put(path, o)
	}
}

// goDown makes the API server unavailable.
func (c *cluster) goDown() {
	c.down.Store(true)
	c.server.CloseClientConnections()
}

func authenticate(token string) *authenticationv1.UserInfo {
	switch {
	case strings.HasPrefix(token, invalidToken):
		return nil
	case token == "root":
		return &authenticationv1.UserInfo{Username: token, Groups: []string{"system:masters"}}
	}
	return &authenticationv1.UserInfo{Username: token}
}

func (c *cluster) authorize(ctx context.Context, spec *authorizationv1.SubjectAccessReviewSpec) bool {
	if spec.User == "sleepy" {
		select {
		case c.asleep <- struct{}{}:
			<-ctx.Done()
		case <-ctx.Done():
		}
	}
	a := spec.ResourceAttributes
	return spec.User == "alice" || spec.User == "tenant" && a.Group == metrics.GroupName ||
		a == nil && spec.NonResourceAttributes.Path == "/openapi/v2"
}

// hasEvent reports whether there is a warning about a node with the reason and the texts.
func (c *cluster) hasEvent(node, reason, text, url string) bool {
	return slices.ContainsFunc(c.List("/api/v1/namespaces/default/events"), func(m map[string]any) bool {
		about, _ := m["involvedObject"].(map[string]any)
		message, _ := m["message"].(string)
		return about["kind"] == "Node" && about["name"] == node && m["type"] == corev1.EventTypeWarning &&
			m["reason"] == reason && strings.Contains(message, text) && strings.Contains(message, url)
	})
}

// setCAs publishes the client CA and the request-header CA. The front proxy's certificate must have
// the name front-proxy.
func (c *cluster) setCAs(clients, proxies *kubelettest.CA) {
	c.Put("/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", corev1.ConfigMap{
		Data: map[string]string{
			"client-ca-file":                     string(clients.PEM()),
			"requestheader-client-ca-file":       string(proxies.PEM()),
			"requestheader-allowed-names":        `["front-proxy"]`,
			"requestheader-username-headers":     `["X-Remote-User"]`,
			"requestheader-group-headers":        `["X-Remote-Group"]`,
			"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
		},
	})
}

// servingCertificate is that of all servers: to generate one for each is slow.
var servingCertificate = kubelettest.SelfSigned([]string{"localhost"}, nil)

// config returns a configuration for the cluster. The objects that flags name are in the namespace monitoring.
func (c *cluster) config(t testing.TB) Config {
	t.Helper()
	kubeconfig := writeFile(t, "kubeconfig", fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config",
		"clusters": [{"name": "c", "cluster": {"server": %q}}], "users": [{"name": "u"}], "current-context": "c",
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "monitoring"}}]}`, c.url))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := Config{
		Version:      "v1.2.3",
		Commit:       "0123abc",
		Kubeconfig:   kubeconfig,
		Resolution:   15 * time.Second,
		MaxSampleAge: time.Minute,
		Kubelet: kubelet.Config{
			UseNodeStatusPort: true, AllowLoopback: true, TLS: rest.TLSClientConfig{Insecure: true},
			Port: kubelet.DefaultPort, AddressTypes: kubelet.DefaultAddressTypes(),
			Timeout: testenv.Patience, MaxBodyBytes: kubelet.DefaultMaxBodyBytes,
		},
		Generic: genericoptions.NewServerRunOptionsForComponent("kube-vitals",
			compatibility.NewComponentGlobalsRegistry()),
		Serving:        genericoptions.NewSecureServingOptions(),
		Authentication: genericoptions.NewDelegatingAuthenticationOptions(),
		Authorization:  genericoptions.NewDelegatingAuthorizationOptions(),
		Audit:          genericoptions.NewAuditOptions(),
		Features:       genericoptions.NewFeatureOptions(),
		lookupTimeout:  testenv.Patience,
	}
	config.Generic.RequestTimeout = testenv.Patience
	config.Authentication.TokenRequestTimeout = testenv.Patience
	config.Authorization.ClientTimeout = testenv.Patience
	config.Authentication.CacheTTL = time.Hour // or a busy machine would need reviews again
	config.Authorization.AllowCacheTTL, config.Authorization.DenyCacheTTL = time.Hour, time.Hour
	config.Serving.Listener = listener
	config.Serving.ServerCert.CertDirectory = ""
	certificate, key := kubelettest.PEM(servingCertificate)
	config.Serving.ServerCert.CertKey = genericoptions.CertKey{
		CertFile: writeFile(t, "tls.crt", certificate), KeyFile: writeFile(t, "tls.key", key),
	}
	config.Authentication.RemoteKubeConfigFile = kubeconfig
	config.Authorization.RemoteKubeConfigFile = kubeconfig
	if err := config.Generic.ComponentGlobalsRegistry.Set(); err != nil {
		t.Fatal(err)
	}
	return config
}

// writeFile writes a new file and returns its path.
func writeFile(t testing.TB, name string, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// start runs a Server until the test ends, and returns a client of it.
func start(t testing.TB, c Config) *client {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, s)
}

// startReady returns a client of a Server that is ready.
func startReady(t testing.TB, c Config) *client {
	t.Helper()
	client := start(t, c)
	client.await(http.StatusOK, "/readyz", "")
	return client
}

func run(t testing.TB, s *Server) *client {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	c := newClient(t, "https://"+s.assembly.Serving.Listener.Addr().String())
	c.handler = s.assembly.api.Handler
	c.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(testenv.Patience):
			t.Error("Run has not returned")
		}
	})
	t.Cleanup(c.stop)
	return c
}

// eventually repeats a check until it returns no problem.
func eventually(t testing.TB, check func() (problem string)) {
	t.Helper()
	for deadline := time.Now().Add(testenv.Patience); ; time.Sleep(20 * time.Millisecond) {
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(problem)
		}
	}
}

// get sends a GET to a handler, without credentials if user is "". Metrics come as a table.
func get(h http.Handler, path, user string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	if strings.HasPrefix(path, "/apis/") {
		r.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
	}
	if user != "" {
		r.Header.Set("Authorization", "Bearer "+user)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// serve returns the status of a GET.
func serve(h http.Handler, path, user string) int { return get(h, path, user).Code }

// client sends requests to a Server over the network. It does not verify the serving certificate.
type client struct {
	t         testing.TB
	url       string
	handler   http.Handler // of the server
	stop      func()       // stops the server and waits for Run to return
	transport *http.Transport
	header    http.Header            // of every request
	trace     *httptrace.ClientTrace // of every request; may be nil
}

func newClient(t testing.TB, url string) *client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{t: t, url: url, transport: transport}
}

// another returns a client of the same server with connections of its own.
func (c *client) another() *client { return newClient(c.t, c.url) }

// withCertificate sets a client certificate for the user, and returns the client.
func (c *client) withCertificate(ca *kubelettest.CA, user string) *client {
	certificate := ca.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: user}))
	c.transport.TLSClientConfig.Certificates = []tls.Certificate{certificate}
	return c
}

// get sends a GET, with a bearer token if user is not "". The status is 0 if there is no response.
func (c *client) get(path, user string) (*http.Response, string) {
	c.t.Helper()
	return c.send(http.MethodGet, path, user, "")
}

func (c *client) send(method, path, user, content string) (*http.Response, string) {
	c.t.Helper()
	ctx := c.t.Context()
	if c.trace != nil {
		ctx = httptrace.WithClientTrace(ctx, c.trace)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(content))
	if err != nil {
		c.t.Fatal(err)
	}
	maps.Copy(r.Header, c.header)
	if user != "" {
		r.Header.Set("Authorization", "Bearer "+user)
	}
	response, err := (&http.Client{Transport: c.transport}).Do(r)
	if err != nil {
		return &http.Response{}, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return response, string(body)
}

// await repeats a request until the response has the status, and returns the body.
func (c *client) await(status int, path, user string) string {
	c.t.Helper()
	var body string
	eventually(c.t, func() string {
		var response *http.Response
		if response, body = c.get(path, user); response.StatusCode == status {
			return ""
		}
		return fmt.Sprintf("GET %s as %q: got status %d, want %d: %s", path, user, response.StatusCode, status, body)
	})
	return body
}

// read awaits a response to "alice" with the status, and decodes it.
func (c *client) read(into any, status int, path string) {
	c.t.Helper()
	if err := json.Unmarshal([]byte(c.await(status, path, "alice")), into); err != nil {
		c.t.Fatal(err)
	}
}

// awaitSeries waits until /metrics has all of these series.
func (c *client) awaitSeries(series ...string) {
	c.t.Helper()
	eventually(c.t, func() string {
		body := c.await(http.StatusOK, "/metrics", "alice")
		missing := slices.DeleteFunc(slices.Clone(series), func(s string) bool { return strings.Contains(body, "\n"+s) })
		if len(missing) == 0 {
			return ""
		}
		return "/metrics has no series " + strings.Join(missing, ", ")
	})
}

// nodeAt returns a node whose kubelet listens at the address.
func nodeAt(name string, address netip.AddrPort) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.Addr().String()}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(address.Port())}},
		},
	}
}

// runningPod returns a pod that was created a minute ago.
func runningPod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Minute)),
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}
