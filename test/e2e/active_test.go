package e2e

import (
	"context"
	"fmt"
	"net/url"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// activeTelemetry is what a server exposes about active nodes.
type activeTelemetry struct{ nodes, scrapes float64 }

func readActive(ctx context.Context, admin *client) (w activeTelemetry, err error) {
	body, err := admin.getOK(ctx, "/metrics")
	if err != nil {
		return w, err
	}
	t, err := cluster.ParseTelemetry(body)
	return activeTelemetry{t["kube_vitals_active_nodes"], t["kube_vitals_active_scrapes_total"]}, err
}

// TestActiveNodes checks that only nodes are scraped more often whose metrics are read by label
// selector or by name.
func TestActiveNodes(t *testing.T) {
	t.Parallel()
	const namespace, node = "active-nodes", "node-03"
	shared.createNamespaces(t, namespace)
	shared.createPods(t, namespace, node, "web")
	s := shared.replica(t, shared.server, "--metric-resolution=30s", "--active-resolution=2s", "--active-budget=50",
		"--kubelet-request-timeout=5s", "--max-sample-age=2m")
	admin := shared.asAdmin(t, s)
	pods := "/apis/metrics.k8s.io/v1/namespaces/" + namespace + "/pods"

	// Lists of everything make no node active.
	for _, path := range []string{"/apis/metrics.k8s.io/v1/pods", pods, nodesPath} {
		if _, err := admin.getOK(t.Context(), path); err != nil {
			t.Error(err)
		}
	}
	if w, err := readActive(t.Context(), admin); err != nil || w != (activeTelemetry{}) {
		t.Errorf("got %+v, %v, want no active nodes", w, err)
	}

	// An autoscaler reads by label selector. The node is scraped again and again within 30 seconds.
	selected := pods + "?labelSelector=" + url.QueryEscape("app=web")
	before, err := readActive(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "scrapes of an active node", func(ctx context.Context) error {
		if _, err := admin.getOK(ctx, selected); err != nil {
			return err
		}
		w, err := readActive(ctx, admin)
		if err == nil && w.scrapes < before.scrapes+5 {
			err = fmt.Errorf("got %+v, and %+v before", w, before)
		}
		return err
	})
	body, err := admin.getOK(t.Context(), nodezPath)
	if err != nil {
		t.Fatal(err)
	}
	nodes := decodeNodez(t, body).Nodes
	if len(nodes) < 2 {
		t.Fatalf("got %v, want several nodes", nodes)
	}
	for _, n := range nodes {
		if n.Active != (n.Name == node) {
			t.Errorf("got %+v, want only %s to be active", n, node)
		}
	}
	if w, err := readActive(t.Context(), admin); err != nil || w.nodes != 1 {
		t.Errorf("got %+v, %v, want one active node", w, err)
	}
}
