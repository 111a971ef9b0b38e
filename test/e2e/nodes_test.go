package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// addNode registers a node for the time of the test.
func addNode(t *testing.T, name string) {
	t.Helper()
	if err := shared.Simulation.AddNode(t.Context(), simulation.Node{Name: name, Swap: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if shared.Simulation.Kubelet(name) == nil {
			return // the test has removed it
		}
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if err := shared.Simulation.RemoveNode(ctx, name); err != nil {
			t.Error(err)
		}
	})
}

func hasNode(ctx context.Context, name string) error {
	_, err := shared.Kubectl(ctx, "get", "nodemetrics", name)
	return err
}

// ownMetrics is what kube-vitals says of itself.
func ownMetrics(t *testing.T) string {
	t.Helper()
	token := strings.TrimSpace(kubectl(t, "create", "token", "kube-vitals-e2e-reader", "-n", "kube-system"))
	status, text := direct(t, "/metrics", http.Header{"Authorization": {"Bearer " + token}})
	if status != http.StatusOK {
		t.Fatalf("/metrics: status %d: %s", status, text)
	}
	return text
}

// allowMetrics makes the account that ownMetrics uses.
func allowMetrics(t *testing.T) {
	t.Helper()
	if err := shared.Apply(t.Context(), `
apiVersion: v1
kind: ServiceAccount
metadata: {name: kube-vitals-e2e-reader, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: kube-vitals-e2e-reader}
rules: [{nonResourceURLs: [/metrics], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kube-vitals-e2e-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kube-vitals-e2e-reader}
subjects: [{kind: ServiceAccount, name: kube-vitals-e2e-reader, namespace: kube-system}]
`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		for _, object := range []string{"clusterrolebinding", "clusterrole"} {
			if _, err := shared.Kubectl(ctx, "delete", object, "kube-vitals-e2e-reader"); err != nil {
				t.Error(err)
			}
		}
		if _, err := shared.Kubectl(ctx, "delete", "serviceaccount", "kube-vitals-e2e-reader", "-n", "kube-system"); err != nil {
			t.Error(err)
		}
	})
}

func TestANodeComesAndGoes(t *testing.T) {
	const name = "passing"
	allowMetrics(t)
	addNode(t, name)
	eventually(t, "figures of the new node", func(ctx context.Context) error { return hasNode(ctx, name) })
	series := fmt.Sprintf("node=%q", name)
	if !strings.Contains(ownMetrics(t), series) {
		t.Errorf("/metrics has no series with %s", series)
	}
	if err := shared.Simulation.RemoveNode(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node to go", func(ctx context.Context) error {
		if hasNode(ctx, name) == nil {
			return fmt.Errorf("it still has figures")
		}
		return nil
	})
	if strings.Contains(ownMetrics(t), series) {
		t.Errorf("/metrics still has series with %s", series)
	}
}

func TestOwnMetricsAreOneValidExposition(t *testing.T) {
	allowMetrics(t)
	text := ownMetrics(t)
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ = strings.Cut(name, " ")
			if seen[name] {
				t.Errorf("%s is declared twice", name)
			}
			seen[name] = true
		}
	}
	for _, name := range []string{
		"kube_vitals_scrapes_total", "kube_vitals_scrape_duration_seconds", "kube_vitals_samples_skipped_total", "kube_vitals_points",
		"kube_vitals_oldest_point_age_seconds", "kube_vitals_build_info", "apiserver_request_total", "process_resident_memory_bytes", "go_goroutines",
	} {
		if !seen[name] {
			t.Errorf("%s is missing", name)
		}
	}
	if strings.Contains(text, "pod=") {
		t.Error("there are series for each pod")
	}
}

// TestKubeletsThatMisbehave tries every fault on a node of its own, and sees that the other nodes'
// figures stay fresh and that the node is back when the fault has gone.
func TestKubeletsThatMisbehave(t *testing.T) {
	const bad, good = "misbehaving", "node-01"
	addNode(t, bad)
	eventually(t, "figures of the node", func(ctx context.Context) error { return hasNode(ctx, bad) })
	before := timestamp(t, bad)
	for _, fault := range []kubelettest.Fault{
		kubelettest.Hang, kubelettest.Refuse, kubelettest.Status(http.StatusInternalServerError), kubelettest.HTML,
		kubelettest.EndlessBody, kubelettest.GzipBomb, kubelettest.HalfBody, kubelettest.ScrapeError,
	} {
		shared.Simulation.Kubelet(bad).SetFaults(fault)
		asked := timestamp(t, good)
		eventually(t, "fresh figures of another node", func(context.Context) error {
			if now := timestamp(t, good); !now.After(asked) {
				return fmt.Errorf("still those of %v", now)
			}
			return nil
		})
	}
	shared.Simulation.Kubelet(bad).SetFaults()
	eventually(t, "the node to be back", func(ctx context.Context) error {
		if err := hasNode(ctx, bad); err != nil {
			return err
		}
		if now := timestamp(t, bad); !now.After(before) {
			return fmt.Errorf("its figures are of %v", now)
		}
		return nil
	})
	if err := shared.Running(); err != nil {
		t.Error(err)
	}
}

// timestamp is that of a node's figures.
func timestamp(t *testing.T, node string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, kubectl(t, "get", "nodemetrics", node, "-o", "jsonpath={.timestamp}"))
	if err != nil {
		t.Fatal(err)
	}
	return at
}
