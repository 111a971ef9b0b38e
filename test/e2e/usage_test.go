package e2e

import (
	"fmt"
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
)

// checkPods compares PodMetrics with the usage of the fixture's pods.
func checkPods(t *testing.T, pods []metricsv1beta1.PodMetrics) {
	t.Helper()
	want := shared.Simulation.Pods(fixture)
	if len(pods) != len(want) {
		t.Fatalf("got %d pods, want %d", len(pods), len(want))
	}
	for i := range pods {
		pod := &pods[i]
		if err := checkTime(pod.Timestamp.Time, pod.Window.Duration); err != nil {
			t.Errorf("pod %s: %v", pod.Name, err)
		}
		if len(pod.Containers) != len(want[pod.Name]) {
			t.Errorf("pod %s: got %d containers, want %d", pod.Name, len(pod.Containers), len(want[pod.Name]))
		}
		if pod.Labels["app"] != fixture {
			t.Errorf("pod %s: got labels %v, want app=%s among them", pod.Name, pod.Labels, fixture)
		}
		for _, c := range pod.Containers {
			if err := checkUsage(c.Usage, want[pod.Name][c.Name], pod.Name != "beta"); err != nil {
				t.Errorf("pod %s, container %s: %v", pod.Name, c.Name, err)
			}
		}
	}
}

func checkNode(t *testing.T, name string, usage corev1.ResourceList, at time.Time, window time.Duration) {
	t.Helper()
	if err := checkTime(at, window); err != nil {
		t.Errorf("node %s: %v", name, err)
	}
	if err := checkUsage(usage, shared.Simulation.Nodes()[name], name == swapNode); err != nil {
		t.Errorf("node %s: %v", name, err)
	}
}

func checkTime(at time.Time, window time.Duration) error {
	// How old they are depends on the machine, too.
	if age := time.Since(at); age < -time.Second || age > timeout {
		return fmt.Errorf("metrics are %s old", age)
	}
	if window <= 0 || window > time.Minute {
		return fmt.Errorf("window is %s", window)
	}
	return nil
}

// checkUsage compares a usage, which has swap only if the node has swap.
func checkUsage(got corev1.ResourceList, want kubelettest.Usage, swap bool) error {
	quantities := map[corev1.ResourceName]float64{
		corev1.ResourceCPU:    want.CPU,
		corev1.ResourceMemory: float64(want.Memory),
	}
	if swap {
		quantities["swap"] = float64(want.Swap)
	}
	if len(got) != len(quantities) {
		return fmt.Errorf("got usage of %d resources: %v, want %d", len(got), got, len(quantities))
	}
	for name, want := range quantities {
		quantity, ok := got[name]
		if value := quantity.AsApproximateFloat64(); !ok || math.Abs(value-want) > want/100 {
			return fmt.Errorf("got %s of %s, want %g within 1%%", quantity.String(), name, want)
		}
	}
	return nil
}
