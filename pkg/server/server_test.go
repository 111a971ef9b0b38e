package server

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/device"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The library starts its queues when it creates them, also if New fails later.
		goleak.IgnoreAnyFunction("k8s.io/client-go/util/workqueue.(*delayingType[...]).waitingLoop"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/util/workqueue.(*Typed[...]).updateUnfinishedWorkLoop"),
		// The library's log check starts with the first probe and never ends.
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"),
	)
}

// TestServer runs a server in a cluster of one node and one pod, from an unavailable API server to
// an unavailable API server. The container has the age at which its mean since the start is served.
func TestServer(t *testing.T) {
	fake := kubelettest.New("node-a", kubelettest.Config{})
	fake.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
	fake.Run("default", "web", "main", kubelettest.Usage{CPU: 0.5, Memory: 64 << 20}, time.Now().Add(-20*time.Second))
	certificate := kubelettest.SelfSigned([]string{"node-a"}, nil)
	address := fake.Start(t, &certificate)

	cluster := newCluster(t)
	cluster.down.Store(true)
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

	c, url := cluster.config(t)
	start(t, c)
	client := newClient(t, url)

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
	body = client.await(http.StatusOK, "/metrics", "alice")
	for _, series := range []string{`kube_vitals_points{kind="container"} 1`, `kube_vitals_known_objects{kind="pod"} 1`} {
		if !strings.Contains(body, series) {
			t.Errorf("/metrics does not have %s", series)
		}
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
		"devices": {func(c *Config) { c.Devices = &device.Config{File: missing} },
			"configuration of device exporters"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := newCluster(t).config(t)
			defer c.Serving.Listener.Close()
			test.change(&c)
			if _, err := New(c); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestKubeletConfig(t *testing.T) {
	inCluster := &rest.Config{BearerTokenFile: "token", TLSClientConfig: rest.TLSClientConfig{CAFile: "ca"}}
	outside := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: "ca", CertFile: "cert", KeyFile: "key"}}
	for name, test := range map[string]struct {
		flags     rest.TLSClientConfig
		plainHTTP bool
		client    *rest.Config
		want      [4]string // CA, certificate, key, token
	}{
		"in the cluster":    {rest.TLSClientConfig{}, false, inCluster, [4]string{"ca", "", "", "token"}},
		"outside":           {rest.TLSClientConfig{}, false, outside, [4]string{"ca", "cert", "key", ""}},
		"other CA":          {rest.TLSClientConfig{CAFile: "o"}, false, inCluster, [4]string{"o", "", "", "token"}},
		"other certificate": {rest.TLSClientConfig{CertFile: "c", KeyFile: "k"}, false, outside, [4]string{"ca", "c", "k"}},
		"insecure TLS":      {rest.TLSClientConfig{Insecure: true}, false, inCluster, [4]string{"", "", "", "token"}},

		"without credentials": {rest.TLSClientConfig{}, true, outside, [4]string{}},
	} {
		c := kubeletConfig(kubelet.Config{TLS: test.flags, PlainHTTP: test.plainHTTP}, test.client)
		got := [4]string{c.TLS.CAFile, c.TLS.CertFile, c.TLS.KeyFile, c.BearerTokenFile}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

func TestNewServingCert(t *testing.T) {
	const service = "a.b.svc:443"
	managed := servingcert.Config{
		Secret: "serving", Names: []string{"a.b.svc"}, Service: service,
		Lifetime: servingcert.DefaultLifetime, Settle: servingcert.DefaultSettle,
	}
	for name, test := range map[string]struct {
		config        servingcert.Config
		cert, monitor bool
	}{
		"managed certificate":                {managed, true, true},
		"other certificate":                  {servingcert.Config{Service: service}, false, true},
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

// TestRateWindow checks that the configuration reaches the store.
func TestRateWindow(t *testing.T) {
	clock := usage.NewClock(time.Now())
	for rateWindow, want := range map[time.Duration]time.Duration{0: 5 * time.Second, 15 * time.Second: 15 * time.Second} {
		metrics := newView(Config{MaxSampleAge: time.Minute, RateWindow: rateWindow}, clock).Store
		start := clock.At(time.Now())
		end := start.Add(30 * time.Second)
		for at := start; at <= end; at = at.Add(5 * time.Second) {
			metrics.Put("n1", &usage.Scrape{At: at, Node: usage.Sample{At: at, Has: usage.HasCPU | usage.HasMemory}})
		}
		if n := metrics.Node("n1", end); n == nil || n.Window != want {
			t.Errorf("--rate-window=%v: got %+v, want a window of %v", rateWindow, n, want)
		}
	}
}

// TestReplacedPodHasNoOldUsage checks that the store has no usage of a pod once the inventory has a
// pod of the same name with another UID.
func TestReplacedPodHasNoOldUsage(t *testing.T) {
	clock := usage.NewClock(time.Now())
	v := newView(Config{MaxSampleAge: time.Minute}, clock)
	metrics, pods := v.Store, v.Pods
	pod := func(uid types.UID) any {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web-0", UID: uid},
			Spec:       corev1.PodSpec{NodeName: "n1"},
		}
	}
	scrape := func(ago time.Duration, core float64) {
		at := clock.At(time.Now()).Add(-ago)
		s := usage.Sample{At: at, CPUSeconds: core, Memory: 1, Has: usage.HasCPU | usage.HasMemory}
		metrics.Put("n1", &usage.Scrape{At: at, Sent: at, Containers: []usage.ContainerSample{
			{Namespace: []byte("n"), Pod: []byte("web-0"), Name: []byte("a"), Sample: s},
		}})
	}
	served := func() bool { return metrics.Pod("n1", "n", "web-0", clock.At(time.Now())) != nil }
	for name, change := range map[string]func() error{
		"replaced by an update": func() error { return pods.Update(pod("2")) },
		"deleted":               func() error { return pods.Delete(pod("1")) },
		"replaced in a list":    func() error { return pods.Replace([]any{pod("2")}, "7") },
	} {
		if err := pods.Replace([]any{pod("1")}, "1"); err != nil {
			t.Fatal(err)
		}
		metrics.Forget("n1")
		scrape(20*time.Second, 10)
		scrape(5*time.Second, 11.5)
		if !served() {
			t.Fatalf("%s: not served before", name)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if served() {
			t.Errorf("%s: the old usage is served", name)
		}
	}
}

// TestUntrustedAPIServerGetsNoRequests checks that an API server whose certificate the cluster's CA
// did not sign gets no request, and so no credentials.
func TestUntrustedAPIServerGetsNoRequests(t *testing.T) {
	const tries = 3
	closed := make(chan struct{}, tries)
	var requests atomic.Int64
	count := func(http.ResponseWriter, *http.Request) { requests.Add(1) }
	untrusted := httptest.NewUnstartedServer(http.HandlerFunc(count))
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0)
	untrusted.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state != http.StateClosed {
			return
		}
		select {
		case closed <- struct{}{}:
		default:
		}
	}
	untrusted.StartTLS()
	defer untrusted.Close()

	cluster := newCluster(t)
	cluster.URL = untrusted.URL // the kubeconfig has no CA for it
	c, _ := cluster.config(t)
	stop := start(t, c)
	defer stop()
	for range tries {
		<-closed
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("got %d requests, want 0", n)
	}
}

// TestForceDeletedPodHasNoUsage checks that samples of a force-deleted pod that still runs are not
// those of the next pod of the name: the inventory shows the store when that one started.
func TestForceDeletedPodHasNoUsage(t *testing.T) {
	clock := usage.NewClock(time.Now())
	v := newView(Config{MaxSampleAge: time.Minute}, clock)
	metrics, pods := v.Store, v.Pods
	now := clock.At(time.Now())
	const lived = time.Hour
	for bound, want := range map[string]bool{"n1": false, "n2": true} { // n2: nothing is known of the pod on n1
		err := pods.Replace([]any{&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web-0", UID: "2"},
			Spec:       corev1.PodSpec{NodeName: bound},
			Status:     corev1.PodStatus{StartTime: new(metav1.NewTime(now.Time()))},
		}}, "1")
		if err != nil {
			t.Fatal(err)
		}
		metrics.Forget("n1")
		for i := range 2 {
			at := now.Add(time.Duration(15*i) * time.Second)
			s := usage.Sample{At: at, StartedAt: now.Add(-lived), CPUSeconds: 100 + float64(i), Memory: 1}
			s.Has = usage.HasCPU | usage.HasMemory
			metrics.Put("n1", &usage.Scrape{At: at, Sent: at, Containers: []usage.ContainerSample{
				{Namespace: []byte("n"), Pod: []byte("web-0"), Name: []byte("a"), Sample: s},
			}})
		}
		if got := metrics.Pod("n1", "n", "web-0", now.Add(15*time.Second)) != nil; got != want {
			t.Errorf("bound to %s: got %t, want %t", bound, got, want)
		}
	}
}
