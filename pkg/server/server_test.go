package server

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/component-base/compatibility"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The library's queues run from when they are made, also where New fails afterwards and
		// nothing shuts them down.
		goleak.IgnoreAnyFunction("k8s.io/client-go/util/workqueue.(*delayingType[...]).waitingLoop"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/util/workqueue.(*Typed[...]).updateUnfinishedWorkLoop"),
		// The library's check of the log runs for ever from the first probe on.
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"),
	)
}

// cluster is the part of a cluster's API server that a Server talks to.
type cluster struct {
	*httptest.Server
	nodes []corev1.Node
	pods  []corev1.Pod
	away  atomic.Bool // refuses everything

	reviews reviewer

	mu       sync.Mutex
	trusts   corev1.ConfigMap // whom extension API servers are to trust
	retrusts chan struct{}    // closed when that changes
}

func newCluster(t testing.TB) *cluster {
	c := &cluster{reviews: newReviewer()}
	c.setTrust(kubelettest.NewCA(), kubelettest.NewCA())
	c.Server = httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
	})
	return c
}

func (c *cluster) serve(w http.ResponseWriter, r *http.Request) {
	if c.away.Load() {
		http.Error(w, "away", http.StatusServiceUnavailable)
		return
	}
	query := r.URL.Query()
	if c.reviews.serve(w, r) {
		return
	}
	if query.Get("watch") != "" {
		c.watch(w, r)
		return
	}
	switch r.URL.Path {
	case "/api/v1/nodes":
		answer(w, corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: version, Items: c.nodes})
	case "/api/v1/pods":
		if query.Get("fieldSelector") != notEnded {
			http.Error(w, "pods that have ended were asked for", http.StatusForbidden)
			return
		}
		answer(w, corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: version, Items: c.pods})
	case "/api/v1/namespaces/kube-system/configmaps":
		c.mu.Lock()
		defer c.mu.Unlock()
		answer(w, corev1.ConfigMapList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}, ListMeta: version, Items: []corev1.ConfigMap{c.trusts},
		})
	default:
		http.NotFound(w, r)
	}
}

// watch knows no streamed lists, and nothing ever happens but a change of trust.
func (c *cluster) watch(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("sendInitialEvents") != "" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnprocessableEntity)
		json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
		})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	for strings.HasSuffix(r.URL.Path, "/configmaps") {
		c.mu.Lock()
		retrusts := c.retrusts
		c.mu.Unlock()
		select {
		case <-r.Context().Done():
			return
		case <-retrusts:
		}
		c.mu.Lock()
		json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": c.trusts})
		c.mu.Unlock()
		w.(http.Flusher).Flush()
	}
	<-r.Context().Done()
}

var version = metav1.ListMeta{ResourceVersion: "1"}

// notEnded is the field selector of the pods that are watched, the same as the scheduler's.
const notEnded = "status.phase!=Succeeded,status.phase!=Failed"

// setTrust publishes CAs as the cluster's: that of users' certificates, and that of its front
// proxy, which is called front-proxy.
func (c *cluster) setTrust(users, proxies *kubelettest.CA) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retrusts != nil {
		close(c.retrusts)
	}
	c.retrusts = make(chan struct{})
	c.trusts = corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: trustNamespace, Name: trustName, ResourceVersion: "2"},
		Data: map[string]string{
			"client-ca-file":                     string(users.PEM()),
			"requestheader-client-ca-file":       string(proxies.PEM()),
			"requestheader-allowed-names":        `["front-proxy"]`,
			"requestheader-username-headers":     `["X-Remote-User"]`,
			"requestheader-group-headers":        `["X-Remote-Group"]`,
			"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
		},
	}
}

// read decodes JSON or protobuf.
func read(r *http.Request, into runtime.Object) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, into)
	}
	if err != nil {
		panic(err)
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

// kubeconfig writes a file that leads to the cluster.
func (c *cluster) kubeconfig(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u"}]}`, c.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// config gives what the flags would.
func config(t testing.TB, c *cluster) (Config, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := c.kubeconfig(t)
	config := Config{
		Version:        "v1.2.3",
		Commit:         "0123abc",
		Kubeconfig:     kubeconfig,
		Resolution:     15 * time.Second,
		MaxSampleAge:   time.Minute,
		Kubelet:        kubelet.Config{UseNodeStatusPort: true, AllowLoopback: true, InsecureTLS: true, Timeout: 5 * time.Second},
		Generic:        genericoptions.NewServerRunOptionsForComponent("kube-vitals", compatibility.NewComponentGlobalsRegistry()),
		Serving:        genericoptions.NewSecureServingOptions(),
		Authentication: genericoptions.NewDelegatingAuthenticationOptions(),
		Authorization:  genericoptions.NewDelegatingAuthorizationOptions(),
		Audit:          genericoptions.NewAuditOptions(),
		Features:       genericoptions.NewFeatureOptions(),
	}
	config.Serving.Listener = listener
	config.Serving.ServerCert.CertDirectory = ""
	config.Authentication.RemoteKubeConfigFile = kubeconfig
	config.Authorization.RemoteKubeConfigFile = kubeconfig
	if err := config.Generic.ComponentGlobalsRegistry.Set(); err != nil {
		t.Fatal(err)
	}
	return config, "https://" + listener.Addr().String()
}

// start runs a Server. The function that it gives ends it and checks that it ends well.
func start(t *testing.T, c Config) (stop func()) {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Run does not end")
		}
	}
}

// client asks a Server; it trusts whatever certificate that has made for itself.
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

// show makes the client show a certificate.
func (c *client) show(certificate tls.Certificate) {
	c.transport.TLSClientConfig.Certificates = []tls.Certificate{certificate}
}

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

// until asks until the answer has the code.
func (c *client) until(code int, path, user string) string {
	c.t.Helper()
	var response *http.Response
	var body string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if response, body = c.get(path, user); response.StatusCode == code {
			return body
		}
	}
	c.t.Fatalf("GET %s as %q never gives %d, but %d: %s", path, user, code, response.StatusCode, body)
	return ""
}

// nodeAt is a node whose kubelet listens at the address.
func nodeAt(name string, address netip.AddrPort) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.Addr().String()}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(address.Port())}},
		},
	}
}

// A cluster of one node with one pod, whose container is of the age at which its rate since its
// start is served.
func TestServer(t *testing.T) {
	fake := kubelettest.New("node-a", kubelettest.Config{})
	fake.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
	fake.Run("default", "web", "main", kubelettest.Usage{CPU: 0.5, Memory: 64 << 20}, time.Now().Add(-20*time.Second))
	certificate := kubelettest.SelfSigned([]string{"node-a"}, nil)
	address := fake.Start(t, &certificate)

	cluster := newCluster(t)
	cluster.away.Store(true)
	cluster.nodes = []corev1.Node{nodeAt("node-a", address)}
	cluster.pods = []corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", Labels: map[string]string{"app": "web"},
			CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Minute)),
		},
		Spec:   corev1.PodSpec{NodeName: "node-a"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}, {
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "waiting"},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}}

	c, url := config(t, cluster)
	stop := start(t, c)
	defer stop()
	client := newClient(t, url)

	const list = "/apis/metrics.k8s.io/v1/pods?labelSelector=app%3Dweb"
	client.until(http.StatusOK, "/livez", "")
	body := client.until(http.StatusInternalServerError, "/readyz", "")
	for _, missing := range []string{"nodes", "pods", "authentication", "figures"} {
		if !strings.Contains(body, "[-]"+missing+" failed") {
			t.Errorf("ready without %s: %s", missing, body)
		}
	}
	response, body := client.get(list, "alice")
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" {
		t.Errorf("before the caches are there: %d, Retry-After %q: %s", response.StatusCode, response.Header.Get("Retry-After"), body)
	}

	cluster.away.Store(false)
	client.until(http.StatusOK, "/readyz", "")
	client.until(http.StatusOK, "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/web", "alice")
	if body := client.until(http.StatusOK, list, "alice"); !strings.Contains(body, `"name":"web"`) {
		t.Errorf("the pod is not in the list: %s", body)
	}
	client.until(http.StatusForbidden, list, "mallory")
	client.until(http.StatusUnauthorized, list, "")
	client.until(http.StatusUnauthorized, "/metrics", "")
	client.until(http.StatusForbidden, "/metrics", "mallory")
	if body := client.until(http.StatusOK, "/metrics", "alice"); !strings.Contains(body, `kube_vitals_points{kind="container"} 1`) {
		t.Errorf("the container is not in the telemetry")
	} else if !strings.Contains(body, `kube_vitals_known_objects{kind="pod"} 1`) {
		t.Errorf("the telemetry does not count the running pods only")
	}

	cluster.away.Store(true)
	cluster.CloseClientConnections()
	client.until(http.StatusOK, list, "alice") // also from the caches of authentication and authorization
	client.until(http.StatusOK, "/readyz", "")
}

func TestNewFailsWithAReason(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no cluster":    {func(c *Config) { c.Kubeconfig = "" }, "--kubeconfig"},
		"no kubeconfig": {func(c *Config) { c.Kubeconfig = "/does/not/exist" }, `cannot use the kubeconfig file "/does/not/exist"`},
		"no kubelet CA": {func(c *Config) {
			c.Kubelet.InsecureTLS = false
			c.Kubelet.CertificateAuthority = "/does/not/exist"
		}, "/does/not/exist"},
		"no certificate": {func(c *Config) {
			c.Serving.ServerCert.CertKey.CertFile, c.Serving.ServerCert.CertKey.KeyFile = "/does/not/exist", "/does/not/exist"
		}, "/does/not/exist"},
		"no client CA": {func(c *Config) { c.Authentication.ClientCert.ClientCA = "/does/not/exist" }, "--client-ca-file"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := config(t, newCluster(t))
			defer c.Serving.Listener.Close()
			test.change(&c)
			_, err := New(c)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v does not say %q", err, test.want)
			}
		})
	}
}
