package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// TestActiveNodes checks that only nodes are scraped more often whose metrics are read by label
// selector or by name.
func TestActiveNodes(t *testing.T) {
	t.Parallel()
	const (
		namespace, node             = "active-nodes", "node-03"
		namespaceByName, nodeByName = "active-nodes-by-name", "node-02"
	)
	shared.createNamespaces(t, namespace, namespaceByName)
	shared.createPods(t, namespace, node, "web")
	shared.createPods(t, namespaceByName, nodeByName, "web")
	s := shared.replica(t, shared.server, "--metric-resolution=30s", "--active-resolution=2s", "--active-budget=50",
		"--kubelet-request-timeout=5s", "--max-sample-age=2m")
	admin := shared.asAdmin(t, s)
	const pods = cluster.V1 + "/namespaces/" + namespace + "/pods"

	// Lists of everything make no node active.
	for _, path := range []string{cluster.V1 + "/pods", pods, nodesPath} {
		if _, err := admin.getOK(t.Context(), path); err != nil {
			t.Error(err)
		}
	}
	read := func(ctx context.Context) (nodes, scrapes float64, err error) {
		telemetry, err := admin.telemetry(ctx)
		return telemetry["kube_vitals_active_nodes"], telemetry["kube_vitals_active_scrapes_total"], err
	}
	if nodes, scrapes, err := read(t.Context()); err != nil || nodes != 0 || scrapes != 0 {
		t.Errorf("got %v active nodes, %v scrapes, %v, want none", nodes, scrapes, err)
	}

	// An autoscaler reads by label selector, and somebody a pod by name. Their nodes are scraped again and again within
	// 30 seconds.
	eventually(t, "scrapes of active nodes", func(ctx context.Context) error {
		err := errors.Join(admin.ok(ctx, pods+"?labelSelector="+url.QueryEscape("app=web")),
			admin.ok(ctx, cluster.V1+"/namespaces/"+namespaceByName+"/pods/web"))
		if err != nil {
			return err
		}
		nodes, scrapes, err := read(ctx)
		if err == nil && (nodes != 2 || scrapes < 10) {
			err = fmt.Errorf("got %v active nodes, %v scrapes", nodes, scrapes)
		}
		return err
	})
	body, err := admin.getOK(t.Context(), nodezPath)
	must(t, err)
	nodes := decodeNodez(t, body).Nodes
	if len(nodes) < 3 {
		t.Fatalf("got %v, want several nodes", nodes)
	}
	for _, n := range nodes {
		if n.Active != (n.Name == node || n.Name == nodeByName) {
			t.Errorf("got %+v, want only %s and %s to be active", n, node, nodeByName)
		}
	}
}
