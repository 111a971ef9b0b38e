package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/prometheus"
)

// TestEngineBlamesNoKubelet checks what a server that reads an engine says about missing metrics to
// users who may not know more: nothing about scrapes of kubelets, of which it knows nothing.
func TestEngineBlamesNoKubelet(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
	}))
	t.Cleanup(engine.Close)
	cluster := newCluster(t)
	cluster.pods = []corev1.Pod{orphan}
	c, _ := cluster.config(t)
	c.Prometheus = &prometheus.Config{URL: engine.URL}
	c.MissingMetricsWarnings = true
	h := startHandler(t, c)

	const pods = "/apis/metrics.k8s.io/v1/namespaces/shop/pods"
	w := getTable(h, pods+"/web", "tenant")
	var status metav1.Status
	if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || w.Code != http.StatusNotFound {
		t.Fatalf("got %d, %v: %s", w.Code, err, w.Body)
	}
	want := `pod "web" is running in namespace "shop", but there are no current metrics of it ` +
		`in the engine that kube-vitals reads`
	if !strings.HasSuffix(status.Message, want) || len(status.Details.Causes) > 0 {
		t.Errorf("got %+v, want %s without a cause", status, want)
	}
	if w := getTable(h, pods, "tenant"); w.Code != http.StatusOK || w.Header()["Warning"] != nil {
		t.Errorf("got %d with warnings %q, want none", w.Code, w.Header()["Warning"])
	}
	metrics := getTable(h, "/metrics", "alice").Body.String()
	for _, name := range []string{"memory_limit_bytes ", "engine_last_success_timestamp_seconds "} {
		if !strings.Contains(metrics, "\nkube_vitals_"+name) {
			t.Errorf("%s is not in /metrics", name)
		}
	}
}

// TestStartOf has pods whose kubelet has not accepted them, has started some of their containers, or
// sets no times.
func TestStartOf(t *testing.T) {
	containers := []inventory.ContainerState{{Name: "side"}, {Name: "app", StartedAt: 20, Running: true}}
	for name, tc := range map[string]struct {
		pod  *inventory.Object
		want prometheus.Start
		ok   bool
	}{
		"no pod":       {},
		"not accepted": {pod: &inventory.Object{CreatedAt: 5, Phase: inventory.PodPending}},
		"accepted": {
			&inventory.Object{CreatedAt: 5, StartedAt: 10, Phase: inventory.PodPending},
			prometheus.Start{At: 10, PodCreatedAt: 5}, true,
		},
		"running": {
			&inventory.Object{CreatedAt: 5, StartedAt: 10, Phase: inventory.PodRunning, Containers: containers},
			prometheus.Start{At: 20, PodCreatedAt: 5, IsRunning: true}, true,
		},
		"mirror pod of a restarted kubelet": {
			&inventory.Object{CreatedAt: 5, StartedAt: 30, Phase: inventory.PodRunning, Containers: containers},
			prometheus.Start{At: 20, PodCreatedAt: 5, IsRunning: true}, true,
		},
		"ephemeral container": {
			&inventory.Object{CreatedAt: 5, StartedAt: 10, Phase: inventory.PodRunning},
			prometheus.Start{At: 10, PodCreatedAt: 5}, true,
		},
		"no times": {&inventory.Object{Phase: inventory.PodRunning}, prometheus.Start{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := startOf(tc.pod, "app"); got != tc.want || ok != tc.ok {
				t.Errorf("got %+v, %v, want %+v, %v", got, ok, tc.want, tc.ok)
			}
		})
	}
}
