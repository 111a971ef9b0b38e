package server

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
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
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
)

const nodesPath = "/apis/metrics.k8s.io/v1/nodes"

// cluster is a fake API server. A bearer token is the name of its user, except if it starts with
// invalidToken. The user "alice" has all permissions, "tenant" those for metrics.k8s.io, all other
// users that for /openapi/v2 only. Access reviews of the user "sleepy" get no response.
type cluster struct {
	*httptest.Server
	nodes []corev1.Node
	pods  []corev1.Pod
	pins  corev1.ConfigMap // in the namespace monitoring; it cannot be written
	down  atomic.Bool      // all requests get status 503

	tokenReviews, accessReviews atomic.Int64  // number of requests
	lookups                     atomic.Int64  // number of lists of one pod
	reviewsBusy                 atomic.Bool   // reviews get status 429
	asleep                      chan struct{} // receives an element for each access review of "sleepy"

	mu        sync.Mutex
	requests  map[string]int   // by path, also those with status 503
	events    []corev1.Event   // in the order in which they were created
	cas       corev1.ConfigMap // extension-apiserver-authentication
	caChanged chan struct{}    // closed when cas changes
}

const invalidToken = "invalid"

func newCluster(t testing.TB) *cluster {
	c := &cluster{asleep: make(chan struct{}, 1), requests: map[string]int{}}
	c.setCAs(kubelettest.NewCA(), kubelettest.NewCA())
	c.Server = httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
	})
	return c
}

// goDown makes the API server unavailable.
func (c *cluster) goDown() {
	c.down.Store(true)
	c.CloseClientConnections()
}

// requested returns how often a path was requested.
func (c *cluster) requested(path string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests[path]
}

func (c *cluster) serve(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.requests[r.URL.Path]++
	c.mu.Unlock()
	query := r.URL.Query()
	list := func(kind string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: "v1", Kind: kind + "List"} }
	version := metav1.ListMeta{ResourceVersion: "1"}
	switch path := r.URL.Path; {
	case c.down.Load():
		http.Error(w, "down", http.StatusServiceUnavailable)
	case path == "/apis/authentication.k8s.io/v1/tokenreviews":
		c.reviewToken(w, r)
	case path == "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		c.reviewAccess(w, r)
	case r.Method == http.MethodPost && path == "/api/v1/namespaces/default/events":
		c.createEvent(w, r)
	case query.Get("watch") != "":
		c.watch(w, r)
	case path == "/api/v1/namespaces/shop/pods":
		c.lookups.Add(1)
		respond(w, corev1.PodList{TypeMeta: list("Pod"), ListMeta: version})
	case path == "/api/v1/namespaces/gpu/pods":
		pods := slices.DeleteFunc(slices.Clone(c.pods), func(p corev1.Pod) bool { return p.Namespace != "gpu" })
		respond(w, corev1.PodList{TypeMeta: list("Pod"), ListMeta: version, Items: pods})
	case path == "/api/v1/nodes":
		respond(w, corev1.NodeList{TypeMeta: list("Node"), ListMeta: version, Items: c.nodes})
	case path == "/api/v1/pods":
		respond(w, corev1.PodList{TypeMeta: list("Pod"), ListMeta: version, Items: c.pods})
	case path == "/api/v1/namespaces/monitoring/configmaps":
		respond(w, corev1.ConfigMapList{TypeMeta: list("ConfigMap"), ListMeta: version, Items: []corev1.ConfigMap{c.pins}})
	case path == "/api/v1/namespaces/kube-system/configmaps":
		c.mu.Lock()
		defer c.mu.Unlock()
		respond(w, corev1.ConfigMapList{TypeMeta: list("ConfigMap"), ListMeta: version, Items: []corev1.ConfigMap{c.cas}})
	default:
		http.NotFound(w, r)
	}
}

// watch does not support streamed lists. The only events are those of setCAs.
func (c *cluster) watch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("sendInitialEvents") != "" {
		w.WriteHeader(http.StatusUnprocessableEntity)
		json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
		})
		return
	}
	w.(http.Flusher).Flush()
	for strings.HasSuffix(r.URL.Path, "/configmaps") {
		c.mu.Lock()
		changed := c.caChanged
		c.mu.Unlock()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
		c.mu.Lock()
		json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": c.cas})
		c.mu.Unlock()
		w.(http.Flusher).Flush()
	}
	<-r.Context().Done()
}

func (c *cluster) reviewToken(w http.ResponseWriter, r *http.Request) {
	c.tokenReviews.Add(1)
	if c.reviewsBusy.Load() {
		http.Error(w, "busy", http.StatusTooManyRequests)
		return
	}
	var review authenticationv1.TokenReview
	unmarshal(r, &review)
	review.Status = authenticationv1.TokenReviewStatus{
		Authenticated: !strings.HasPrefix(review.Spec.Token, invalidToken),
		User:          authenticationv1.UserInfo{Username: review.Spec.Token},
	}
	respond(w, review)
}

func (c *cluster) reviewAccess(w http.ResponseWriter, r *http.Request) {
	c.accessReviews.Add(1)
	if c.reviewsBusy.Load() {
		http.Error(w, "busy", http.StatusTooManyRequests)
		return
	}
	var review authorizationv1.SubjectAccessReview
	unmarshal(r, &review)
	if review.Spec.User == "sleepy" {
		c.asleep <- struct{}{}
		<-r.Context().Done()
		return
	}
	a := review.Spec.ResourceAttributes
	review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: review.Spec.User == "alice" ||
		review.Spec.User == "tenant" && a.Group == metrics.GroupName ||
		a == nil && review.Spec.NonResourceAttributes.Path == "/openapi/v2"}
	respond(w, review)
}

func (c *cluster) createEvent(w http.ResponseWriter, r *http.Request) {
	var event corev1.Event
	unmarshal(r, &event)
	c.mu.Lock()
	c.events = append(c.events, event)
	c.mu.Unlock()
	respond(w, event)
}

// hasEvent reports whether there is a warning about a node with the reason and the texts.
func (c *cluster) hasEvent(node, reason string, texts ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.events, func(e corev1.Event) bool {
		return e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == node && e.Type == corev1.EventTypeWarning &&
			e.Reason == reason &&
			!slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(e.Message, text) })
	})
}

// setCAs publishes the client CA and the request-header CA. The front proxy's certificate must have
// the name front-proxy.
func (c *cluster) setCAs(clients, proxies *kubelettest.CA) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.caChanged != nil {
		close(c.caChanged)
	}
	c.caChanged = make(chan struct{})
	c.cas = corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: "extension-apiserver-authentication", ResourceVersion: "2",
		},
		Data: map[string]string{
			"client-ca-file":                     string(clients.PEM()),
			"requestheader-client-ca-file":       string(proxies.PEM()),
			"requestheader-allowed-names":        `["front-proxy"]`,
			"requestheader-username-headers":     `["X-Remote-User"]`,
			"requestheader-group-headers":        `["X-Remote-Group"]`,
			"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
		},
	}
}

// unmarshal decodes a body in JSON or protobuf.
func unmarshal(r *http.Request, into runtime.Object) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, into)
	}
	if err != nil {
		panic(err)
	}
}

func respond(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

// config returns a configuration for the cluster, and the URL of the server.
func (c *cluster) config(t testing.TB) (Config, string) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u"}]}`, c.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	generic := genericoptions.NewServerRunOptionsForComponent("kube-vitals", compatibility.NewComponentGlobalsRegistry())
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
		Generic:        generic,
		Serving:        genericoptions.NewSecureServingOptions(),
		Authentication: genericoptions.NewDelegatingAuthenticationOptions(),
		Authorization:  genericoptions.NewDelegatingAuthorizationOptions(),
		Audit:          genericoptions.NewAuditOptions(),
		Features:       genericoptions.NewFeatureOptions(),
	}
	config.Generic.RequestTimeout = testenv.Patience
	config.Authentication.TokenRequestTimeout = testenv.Patience
	config.Authorization.ClientTimeout = testenv.Patience
	config.Serving.Listener = listener
	config.Serving.ServerCert.CertDirectory = ""
	config.Authentication.RemoteKubeConfigFile = kubeconfig
	config.Authorization.RemoteKubeConfigFile = kubeconfig
	if err := config.Generic.ComponentGlobalsRegistry.Set(); err != nil {
		t.Fatal(err)
	}
	return config, "https://" + listener.Addr().String()
}

// run runs a Server until the test ends or stop is called. stop waits for Run to return.
func run(t testing.TB, s *Server) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
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
	t.Cleanup(stop)
	return stop
}

// start runs a Server, with the shutdown delay of the configuration.
func start(t testing.TB, c Config) (stop func()) {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, s)
}

// startHandler runs a Server and returns its chain of handlers once it is ready.
func startHandler(t testing.TB, c Config) http.Handler {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	eventually(t, func() string {
		_, reasons := s.assembly.ready.missing()
		return strings.Join(reasons, "; ")
	})
	return s.assembly.api.Handler
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

// get sends a GET to a handler, without credentials if user is "".
func get(h http.Handler, path, user string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
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
	t         *testing.T
	url       string
	transport *http.Transport
	header    http.Header // of every request
}

func newClient(t *testing.T, url string) *client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{t: t, url: url, transport: transport}
}

// withCertificate sets a client certificate for the user, and returns the client.
func (c *client) withCertificate(ca *kubelettest.CA, user string) *client {
	certificate := ca.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: user}))
	c.transport.TLSClientConfig.Certificates = []tls.Certificate{certificate}
	return c
}

// get sends a request, with a bearer token if user is not "".
func (c *client) get(path, user string) (*http.Response, string) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.url+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	for name, values := range c.header {
		r.Header[name] = values
	}
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

// awaitSeries waits until /metrics has a series.
func (c *client) awaitSeries(series string) {
	c.t.Helper()
	eventually(c.t, func() string {
		if body := c.await(http.StatusOK, "/metrics", "alice"); !strings.Contains(body, "\n"+series) {
			return "/metrics has no series " + series
		}
		return ""
	})
}

// nodeAt returns a node whose kubelet listens at the address.
func nodeAt(name string, address netip.AddrPort) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.Addr().String()}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(address.Port())}},
		},
	}
}
