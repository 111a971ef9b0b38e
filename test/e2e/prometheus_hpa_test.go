package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestPrometheusHPA scales Deployments with the real HorizontalPodAutoscaler and metrics that come
// through a real Prometheus. An outage of Prometheus must not change the number of replicas.
func TestPrometheusHPA(t *testing.T) {
	t.Parallel()
	c := newPrometheusCluster(t)
	each := func(name string, step func(*testing.T, autoscaling)) {
		t.Helper()
		if !t.Run(name, func(t *testing.T) {
			for _, a := range autoscalings() {
				t.Run(a.namespace, func(t *testing.T) {
					t.Parallel()
					step(t, a)
				})
			}
		}) {
			t.FailNow()
		}
	}
	for _, a := range autoscalings() {
		c.createNamespaces(t, a.namespace)
	}
	each("scale up", func(t *testing.T, a autoscaling) {
		a.create(t, c.testCluster)
		a.awaitReplicas(t, c.testCluster, a.idle, 1)
		a.awaitReplicas(t, c.testCluster, a.busy, 4)
		a.awaitEqualUsage(t, c.testCluster, 4)
	})
	c.prometheus.Kill()
	each("outage", func(t *testing.T, a autoscaling) {
		a.setLoad(t, c.testCluster, a.idle) // the metrics that stand do not have it
		a.awaitInactive(t, c.testCluster, 4)
	})
	c.startPrometheus(t)
	each("scale down", func(t *testing.T, a autoscaling) {
		a.awaitReplicas(t, c.testCluster, a.idle, 1)
		a.checkRescales(t, c.testCluster)
	})
}

// awaitEqualUsage waits until the metrics of all pods are the same: they do not include a time with
// fewer replicas anymore. From then on the autoscaler has no reason to scale.
func (a autoscaling) awaitEqualUsage(t *testing.T, c *testCluster, replicas int) {
	t.Helper()
	eventually(t, "equal usage of all replicas", func(ctx context.Context) error {
		pods, err := c.Kubectl(ctx, "top", "pods", "--namespace", a.namespace, "--containers", "--no-headers")
		if err != nil {
			return err
		}
		counts := map[string]int{} // of containers, by name and usage
		for line := range strings.Lines(pods) {
			if fields := strings.Fields(line); len(fields) > 2 {
				counts[fields[1]+" "+fields[2]]++
			}
		}
		if len(counts) != 2 || slices.Min(slices.Collect(maps.Values(counts))) != replicas {
			return fmt.Errorf("got\n%s", pods)
		}
		return nil
	})
}

// awaitInactive waits until the autoscaler reports that it has no metrics. The number of replicas must
// not change.
func (a autoscaling) awaitInactive(t *testing.T, c *testCluster, replicas int) {
	t.Helper()
	c.awaitAutoscaler(t, a.namespace, `{range .status.conditions[?(@.type=="ScalingActive")]}{.status}{.reason}{end}`,
		func(current, desired int, active string) bool {
			if current != replicas || desired != replicas {
				t.Errorf("got %d replicas, and %d are desired, want %d", current, desired, replicas)
				return true
			}
			return strings.HasPrefix(active, "FalseFailedGet")
		})
}
