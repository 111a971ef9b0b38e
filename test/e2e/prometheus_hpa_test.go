package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// TestPrometheusHPA scales Deployments with the real HorizontalPodAutoscaler and metrics that come
// through a real Prometheus. An outage of Prometheus must not change the number of replicas.
func TestPrometheusHPA(t *testing.T) {
	c := newPrometheusCluster(t, "resource")
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

// awaitInactive waits until the autoscaler reports that it has no metrics. The number of replicas must
// not change.
func (a autoscaling) awaitInactive(t *testing.T, c *testCluster, replicas int) {
	t.Helper()
	err := process.Poll(t.Context(), 3*time.Minute, "an autoscaler without metrics", func(ctx context.Context) error {
		status, err := c.Kubectl(ctx, "get", "hpa", "web", "--namespace", a.namespace, "--output=jsonpath="+
			"{.status.currentReplicas} {.status.desiredReplicas} "+
			`{range .status.conditions[?(@.type=="ScalingActive")]}{.status} {.reason}{end}`)
		if err != nil {
			return err
		}
		if want := fmt.Sprintf("%d %[1]d ", replicas); !strings.HasPrefix(status, want) {
			t.Errorf("current replicas, desired replicas, ScalingActive: got %s, want %s", status, want)
			return nil
		}
		if !strings.Contains(status, "False FailedGet") {
			return errors.New(status)
		}
		t.Logf("current replicas, desired replicas, ScalingActive: %s", status)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPrometheusCadvisor reads the series of the kubelets' /metrics/cadvisor from Prometheus: they
// must lead to the same metrics as /metrics/resource, also after a container has restarted.
func TestPrometheusCadvisor(t *testing.T) {
	c := newPrometheusCluster(t, "cadvisor")
	c.createNamespaces(t, "shop", "depot")
	c.createPods(t, "shop", "node-01", "cart", "web")
	c.createPods(t, "depot", "node-02", "search") // its kubelet reports sandboxes differently
	c.checkAgreement(t, false)
	t.Logf("kubectl top pods --containers:\n%s", c.kubectl(t, "top", "pods", "--namespace=shop", "--containers"))

	c.Simulation.Kubelet("node-01").Restart("shop", "cart", "main")
	restarted := time.Now()
	eventually(t, "metrics of a restarted container", func(ctx context.Context) error {
		var pod metricsv1beta1.PodMetrics
		if err := c.decode(ctx, "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods/cart", &pod); err != nil {
			return err
		}
		for _, container := range pod.Containers {
			cores := container.Usage.Cpu().AsApproximateFloat64()
			if container.Name == "main" && math.Abs(cores-0.25) > 0.0025 { // before, at, and after the restart
				t.Errorf("got %v cores", cores)
			}
		}
		// A window that starts after the restart has nothing of the container that ended.
		if start := pod.Timestamp.Add(-pod.Window.Duration); len(pod.Containers) != 2 || start.Before(restarted) {
			return fmt.Errorf("got %d containers and the window from %v to %v, the restart was at %v", len(pod.Containers),
				start, pod.Timestamp, restarted)
		}
		return nil
	})
}
