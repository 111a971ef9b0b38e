package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/observability"
)

// TestDashboardAndAlertsAskForWhatIsThere compares every query of the chart's dashboard and of its
// alerts with /metrics, after there have been scrapes that fail, and requests.
func TestDashboardAndAlertsAskForWhatIsThere(t *testing.T) {
	queries, err := observability.Queries(shared.Chart)
	if err != nil {
		t.Fatal(err)
	}
	references, err := observability.Parse(t.Context(), filepath.Join(shared.Chart, "..", ".."), queries)
	if err != nil {
		t.Fatal(err)
	}
	const failing = "failing"
	allowMetrics(t)
	addNode(t, failing)
	shared.Simulation.Kubelet(failing).SetFaults(kubelettest.Refuse)
	for _, what := range []string{"nodes", "pods"} {
		eventually(t, "an answer", func(ctx context.Context) error {
			_, err := shared.Kubectl(ctx, "get", "--raw", "/apis/metrics.k8s.io/v1beta1/"+what)
			return err
		})
	}
	eventually(t, "series for every query", func(context.Context) error {
		series := observability.ParseSeries(ownMetrics(t))
		var missing []error
		for i, q := range queries {
			if complaints := series.Missing(q, references[i]); len(complaints) > 0 {
				missing = append(missing, fmt.Errorf("%s: %s:\n%s", q.Place, strings.Join(complaints, "; "), q.Expr))
			}
		}
		return errors.Join(missing...)
	})
}
