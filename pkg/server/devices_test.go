package server

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/device"
	"github.com/kube-vitals/kube-vitals/pkg/engine"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
)

// newDeviceCluster returns a cluster with a node, pods, and an exporter of devices, and the file of
// its configuration.
func newDeviceCluster(t *testing.T) (c *cluster, file string) {
	fake := kubelettest.New("node-a", kubelettest.Config{})
	fake.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
	for _, container := range []string{"main", "proxy"} {
		fake.Run("default", "web", container, kubelettest.Usage{CPU: 0.5, Memory: 64 << 20}, time.Now().Add(-20*time.Second))
	}
	certificate := kubelettest.SelfSigned([]string{"node-a"}, nil)
	address := fake.Start(t, &certificate)
	exporter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the exporter received credentials")
		}
		io.WriteString(w, `u{gpu="0",namespace="default",pod="web",container="main"} 100
u{gpu="1",namespace="default",pod="web",container="main"} 50
u{gpu="2",namespace="default",pod="web",container="none"} 50
u{gpu="3",namespace="default",pod="elsewhere",container="main"} 50
`)
	}))
	t.Cleanup(exporter.Close)
	at := netip.MustParseAddrPort(strings.TrimPrefix(exporter.URL, "http://"))

	c = newCluster(t)
	c.add(nodeAt("node-a", address))
	for _, p := range []struct {
		namespace, name, node string
		containers            []string
	}{
		{"default", "web", "node-a", []string{"main", "proxy"}},
		{"default", "elsewhere", "node-b", []string{"main"}},
		{"gpu", "exporter", "node-a", []string{"exporter"}},
	} {
		pod := runningPod(p.namespace, p.name, p.node)
		pod.Status.PodIP = at.Addr().String()
		pod.Labels = map[string]string{"a": "b"}
		for _, name := range p.containers {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name})
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			})
		}
		c.add(pod)
	}
	return c, writeFile(t, "devices.yaml", fmt.Appendf(nil, `exporters: [{name: test, namespace: gpu, podSelector: a=b,
		port: %d, resources: [{resource: x.org/gpu, series: u, scale: 0.01},
		{resource: x.org/memory, series: v, unit: bytes}]}]`, at.Port()))
}

// TestDevices runs a server beside an exporter of devices. TestServer runs one without.
func TestDevices(t *testing.T) {
	cluster, file := newDeviceCluster(t)
	const path = "/apis/metrics.k8s.io/v1/namespaces/default/pods/web"
	c := cluster.config(t)
	c.Devices = device.Config{File: file}
	client := start(t, c)
	const want = `"x.org/gpu":"1500m"}},{"name":"proxy","usage":{`
	eventually(t, func() string {
		body := client.await(http.StatusOK, path, "alice")
		if strings.Contains(body, want) && strings.HasSuffix(strings.TrimSpace(body), `"x.org/gpu":"0"}}]}`) {
			return ""
		}
		return body
	})
	var page nodez.Report
	client.read(&page, http.StatusOK, nodez.Path+"?format=json")
	e := page.DeviceExporters
	if len(e) != 1 || e[0].Name != "test" || len(e[0].Pods) != 1 {
		t.Fatalf("got device exporters %+v", e)
	}
	if p := e[0].Pods[0]; p.Node != "node-a" || p.State != nodez.Ready || p.Devices != 4 || p.LastSuccess == nil {
		t.Errorf("got %+v", p)
	}
	client.awaitSeries(
		`kube_vitals_device_scrapes_total{exporter="test",reason="",result="success"} `,
		`kube_vitals_device_series_skipped_total{exporter="test",reason="unknown_container"} `,
		`kube_vitals_device_exporter_pods{exporter="test"} 1`,
		`kube_vitals_device_exporter_pods_failing{exporter="test"} 0`,
		`kube_vitals_device_containers{exporter="test",resource="x.org/gpu"} 1`,
		`kube_vitals_device_containers{exporter="test",resource="x.org/memory"} 0`,
		`kube_vitals_device_oldest_age_seconds{exporter="test"} `,
	)
}

// TestDevicesWithEngine checks that exporters are scraped with an engine as the source, also while it
// is unavailable, but not at addresses of this machine unless --kubelet-allow-loopback is set.
func TestDevicesWithEngine(t *testing.T) {
	cluster, file := newDeviceCluster(t)
	for allowLoopback, series := range map[bool]string{
		true:  `kube_vitals_device_containers{exporter="test",resource="x.org/gpu"} 1`,
		false: `kube_vitals_device_scrapes_total{exporter="test",reason="bad-endpoint",result="failure"}`,
	} {
		c := cluster.config(t)
		c.Engine = engine.Config{URL: "http://127.0.0.1:1"}
		c.Devices, c.Kubelet.AllowLoopback = device.Config{File: file}, allowLoopback
		start(t, c).awaitSeries(series)
	}
}
