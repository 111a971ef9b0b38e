package server

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-vitals/kube-vitals/internal/leaktest"
	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/device"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
)

func TestMain(m *testing.M) {
	os.Setenv("GOGC", "200") // or else each server would set a lower one, to save memory
	debug.SetGCPercent(200)
	leaktest.Main(m,
		// The library starts its queues when it creates them, also if New fails later.
		goleak.IgnoreAnyFunction("k8s.io/client-go/util/workqueue.(*delayingType[...]).waitingLoop"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/util/workqueue.(*Typed[...]).updateUnfinishedWorkLoop"),
		// The library's log check starts with the first probe and never ends.
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"),
		// Nor does that of old audit logs.
		goleak.IgnoreAnyFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"),
	)
}

// TestServer runs a server in a cluster of one node and one pod, from an unavailable API server to
// an unavailable API server. The container is old enough for its mean since the start.
func TestServer(t *testing.T) {
	fake := kubelettest.New("node-a", kubelettest.Config{})
	fake.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
	fake.Run("default", "web", "main", kubelettest.Usage{CPU: 0.5, Memory: 64 << 20}, time.Now().Add(-20*time.Second))
	certificate := kubelettest.SelfSigned([]string{"node-a"}, nil)
	address := fake.Start(t, &certificate)

	cluster := newCluster(t)
	cluster.down.Store(true)
	web, waiting := runningPod("default", "web", "node-a"), runningPod("default", "waiting", "")
	web.Labels = map[string]string{"app": "web"}
	waiting.Status.Phase = corev1.PodPending
	cluster.add(nodeAt("node-a", address), web, waiting)

	c := cluster.config(t)
	c.Serving.ServerCert.CertKey = genericoptions.CertKey{} // the server makes a certificate
	client := start(t, c)

	const list = "/apis/metrics.k8s.io/v1/pods?labelSelector=app%3Dweb"
	client.await(http.StatusOK, "/livez", "")
	body := client.await(http.StatusInternalServerError, "/readyz", "")
	for _, check := range []string{"nodes", "pods", "authentication", "metrics"} {
		if !strings.Contains(body, "[-]"+check+" failed") {
			t.Errorf("before the API server is available: check %s has not failed: %s", check, body)
		}
	}
	response, body := client.get(list, "alice")
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" {
		t.Errorf("before the API server is available: got %s, Retry-After %q: %s",
			response.Status, response.Header.Get("Retry-After"), body)
	}

	cluster.down.Store(false)
	client.await(http.StatusOK, "/readyz", "")
	client.await(http.StatusOK, "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/web", "alice")
	if body := client.await(http.StatusOK, list, "alice"); !strings.Contains(body, `"name":"web"`) {
		t.Errorf("the list does not have the pod: %s", body)
	}
	client.await(http.StatusForbidden, list, "mallory")
	client.await(http.StatusUnauthorized, list, "")
	client.await(http.StatusUnauthorized, "/metrics", "")
	client.await(http.StatusForbidden, "/metrics", "mallory")
	client.awaitSeries(`kube_vitals_points{kind="container"} 1`, `kube_vitals_known_objects{kind="pod"} 1`)
	// Nothing of what is off by default:
	body = client.await(http.StatusOK, list, "alice") + client.await(http.StatusOK, "/metrics", "alice")
	if strings.Contains(body, "ephemeral") || strings.Contains(body, "vitals_device") || strings.Contains(body, "x.org") {
		t.Errorf("there are traces of ephemeral storage or devices: %s", body)
	}
	if n := fake.Requests(kubelettest.CompleteSummary); n != 0 {
		t.Errorf("got %d requests for complete summaries, want 0", n)
	}

	cluster.goDown()
	client.await(http.StatusOK, list, "alice") // from the caches of authentication and authorization
	client.await(http.StatusOK, "/readyz", "")
}

func TestNewErrors(t *testing.T) {
	const missing = "/does/not/exist"
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"not in a cluster": {func(c *Config) { c.Kubeconfig = "" }, `--kubeconfig=""`},
		"kubeconfig":       {func(c *Config) { c.Kubeconfig = missing }, `--kubeconfig="` + missing + `"`},
		"kubelet CA": {func(c *Config) {
			c.Kubelet.TLS.Insecure = false
			c.Kubelet.TLS.CAFile = missing
		}, missing},
		"serving certificate": {func(c *Config) {
			c.Serving.ServerCert.CertKey.CertFile, c.Serving.ServerCert.CertKey.KeyFile = missing, missing
		}, missing},
		"client CA": {func(c *Config) { c.Authentication.ClientCert.ClientCA = missing }, missing},
		"devices": {func(c *Config) { c.Devices = device.Config{File: missing} },
			"configuration of device exporters"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t).config(t)
			defer c.Serving.Listener.Close()
			test.change(&c)
			if _, err := New(c); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestKubeletsGetOnlyTheirToken checks which credentials kubelets get: by default those of this process, but
// none of these if there are tokens for kubelets.
func TestKubeletsGetOnlyTheirToken(t *testing.T) {
	inCluster := &rest.Config{
		BearerToken: "own", BearerTokenFile: "token", TLSClientConfig: rest.TLSClientConfig{CAFile: "ca"},
	}
	outside := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: "ca", CertFile: "cert", KeyFile: "key"}}
	inline := &rest.Config{TLSClientConfig: rest.TLSClientConfig{
		CAData: []byte("CA"), CertData: []byte("CERT"), KeyData: []byte("KEY"),
	}}
	theirs := func(context.Context) (string, error) { return "", nil }
	flags := func(c rest.TLSClientConfig) kubelet.Config { return kubelet.Config{TLS: c} }
	for name, test := range map[string]struct {
		flags  kubelet.Config
		client *rest.Config
		want   string // all credentials
	}{
		"in the cluster":     {kubelet.Config{}, inCluster, "ca own token"},
		"outside":            {kubelet.Config{}, outside, "ca cert key"},
		"inline":             {kubelet.Config{}, inline, "CA CERT KEY"},
		"other CA":           {flags(rest.TLSClientConfig{CAFile: "o"}), inCluster, "o own token"},
		"other certificate":  {flags(rest.TLSClientConfig{CertFile: "c", KeyFile: "k"}), outside, "ca c k"},
		"insecure TLS":       {flags(rest.TLSClientConfig{Insecure: true}), inCluster, "own token"},
		"plain HTTP":         {kubelet.Config{PlainHTTP: true}, outside, ""},
		"token, in cluster":  {kubelet.Config{Token: theirs}, inCluster, "ca"},
		"token, certificate": {kubelet.Config{Token: theirs}, outside, "ca"},
		"token, inline":      {kubelet.Config{Token: theirs}, inline, "CA"},
	} {
		c := kubeletConfig(test.flags, test.client)
		got := strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %s %s %s %s %s", c.TLS.CAFile, c.TLS.CAData,
			c.TLS.CertFile, c.TLS.CertData, c.TLS.KeyFile, c.TLS.KeyData, c.BearerToken, c.BearerTokenFile)), " ")
		if got != test.want || (c.Token == nil) != (test.flags.Token == nil) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestCredentialsThatKubeletsCannotGet checks which credentials of the API server are missing for kubelets.
func TestCredentialsThatKubeletsCannotGet(t *testing.T) {
	theirs := kubelet.Config{Token: func(context.Context) (string, error) { return "", nil }}
	own := kubelet.Config{TLS: rest.TLSClientConfig{CertFile: "c"}}
	for name, client := range map[string]*rest.Config{
		"plugin":   {ExecProvider: &clientcmdapi.ExecConfig{Command: "x"}},
		"provider": {AuthProvider: &clientcmdapi.AuthProviderConfig{Name: "oidc"}},
		"password": {Username: "u", Password: "p"},
	} {
		for _, flags := range []kubelet.Config{theirs, own, {PlainHTTP: true}} {
			if !passesCredentials(kubeletConfig(flags, client), client) {
				t.Errorf("%s: kubelets get others", name)
			}
		}
		if passesCredentials(kubeletConfig(kubelet.Config{}, client), client) {
			t.Errorf("%s: kubelets get none", name)
		}
	}
	if !passesCredentials(kubelet.Config{}, &rest.Config{}) {
		t.Error("the API server gets none")
	}
}

// managedCert returns the configuration of a certificate that the server creates.
func managedCert() servingcert.Config {
	return servingcert.Config{
		Secret: "serving", Names: []string{"a.b.svc"}, Service: "a.b.svc:443",
		Lifetime: servingcert.DefaultLifetime, Settle: servingcert.DefaultSettle,
	}
}

func TestNewServingCert(t *testing.T) {
	for name, test := range map[string]struct {
		config        servingcert.Config
		cert, monitor bool
	}{
		"managed certificate":                {managedCert(), true, true},
		"other certificate":                  {servingcert.Config{Service: "a.b.svc:443"}, false, true},
		"other certificate, unknown Service": {servingcert.Config{}, false, false},
	} {
		a := assembly{
			Config: Config{ServingCert: test.config}, client: &rest.Config{Host: "http://api"},
			instruments: newTestInstruments(),
		}
		err := a.addServingCert()
		if err != nil || (a.cert != nil) != test.cert || len(a.loops) > 0 != test.monitor {
			t.Errorf("%s: got %v, %d loops, %v", name, a.cert, len(a.loops), err)
		}
	}
}

// TestUntrustedAPIServerGetsNoRequests checks that an API server whose certificate the cluster's CA
// did not sign gets no request, and so no credentials.
func TestUntrustedAPIServerGetsNoRequests(t *testing.T) {
	var requests, closed atomic.Int64
	count := func(http.ResponseWriter, *http.Request) { requests.Add(1) }
	untrusted := httptest.NewUnstartedServer(http.HandlerFunc(count))
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0)
	untrusted.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed.Add(1)
		}
	}
	untrusted.StartTLS()
	defer untrusted.Close()

	cluster := newCluster(t)
	cluster.url = untrusted.URL // the kubeconfig has no CA for it
	start(t, cluster.config(t))
	eventually(t, func() string {
		if n := closed.Load(); n < 3 {
			return fmt.Sprintf("got %d connections", n)
		}
		return ""
	})
	if n := requests.Load(); n != 0 {
		t.Errorf("got %d requests, want 0", n)
	}
}
