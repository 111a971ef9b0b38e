package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/observability"
)

// readTelemetry returns what the server exposes at /metrics.
func readTelemetry(t *testing.T) string {
	t.Helper()
	body, err := shared.asAdmin(t, shared.server).getOK(t.Context(), "/metrics")
	must(t, err)
	return string(body)
}

// TestTelemetry checks that /metrics is valid, has no series for each pod, and that a server that is
// ready has the lower GOGC: the higher one is for the start only.
func TestTelemetry(t *testing.T) {
	t.Parallel()
	admin := shared.asAdmin(t, shared.server)
	eventually(t, "a GOGC of 35", func(ctx context.Context) error {
		telemetry, err := admin.telemetry(ctx)
		if gogc := telemetry["go_gc_gogc_percent"]; err == nil && gogc != 35 {
			err = fmt.Errorf("got %v", gogc)
		}
		return err
	})
	text := readTelemetry(t)
	declared := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^# TYPE (\w+) `).FindAllStringSubmatch(text, -1) {
		if declared[match[1]] {
			t.Errorf("%s is declared twice", match[1])
		}
		declared[match[1]] = true
	}
	for _, name := range []string{
		"kube_vitals_build_info", "apiserver_request_total", "process_resident_memory_bytes", "go_goroutines",
	} {
		if !declared[name] {
			t.Errorf("%s is missing", name)
		}
	}
	if strings.Contains(text, "pod=") {
		t.Error("there are series for each pod")
	}
}

// awaitQueries waits until all series and labels exist that the selected queries of the chart name.
func (c *testCluster) awaitQueries(t *testing.T, isSelected func(expr string) bool) {
	t.Helper()
	queries, err := observability.Queries(c.Chart)
	must(t, err)
	queries = slices.DeleteFunc(queries, func(q observability.Query) bool { return !isSelected(q.Expr) })
	if len(queries) == 0 {
		t.Error("there are no such queries")
	}
	references, err := observability.Parse(queries)
	must(t, err)
	eventually(t, "the series of every query", func(ctx context.Context) error {
		text, err := c.asAdmin(t, c.server).getOK(ctx, "/metrics")
		if err != nil {
			return err
		}
		series := observability.ParseSeries(string(text))
		var errs []error
		for i, q := range queries {
			if missing := series.Missing(q, references[i]); len(missing) > 0 {
				errs = append(errs, fmt.Errorf("%s: %s:\n%s", q.Place, strings.Join(missing, "; "), q.Expr))
			}
		}
		return errors.Join(errs...)
	})
}

// isEngineQuery reports whether a query names series that a server has only with an engine.
func isEngineQuery(expr string) bool { return strings.Contains(expr, "kube_vitals_engine_") }

// isDeviceQuery reports whether a query names series that a server has only with devices.
func isDeviceQuery(expr string) bool { return strings.Contains(expr, "kube_vitals_device_") }

// TestDashboardAndAlertQueries checks that all series and labels in the queries of the chart's
// dashboard and alerts exist, after failed scrapes and requests. TestPrometheus and
// TestDevices check the queries that need an engine or devices.
func TestDashboardAndAlertQueries(t *testing.T) {
	t.Parallel()
	const failing = "failing"
	addNode(t, failing)
	shared.Simulation.Kubelet(failing).SetFaults(kubelettest.Refuse)
	for _, path := range []string{nodesPath, "/apis/metrics.k8s.io/v1beta1/pods"} {
		if _, err := shared.get(t.Context(), path); err != nil {
			t.Error(err)
		}
	}
	shared.awaitQueries(t, func(expr string) bool { return !isEngineQuery(expr) && !isDeviceQuery(expr) })
}
