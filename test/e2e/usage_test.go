package e2e

import (
	"fmt"
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
)

// freshness is how old a figure may be in a healthy cluster: two scrapes and a sample's age, and a
// machine that is busy with other tests.
const freshness = 20 * time.Second

// TestFigures compares both versions of the API, as the HorizontalPodAutoscaler's client reads it,
// with what the simulated kubelets were told.
func TestFigures(t *testing.T) {
	t.Parallel()
	useStill(t)
	client := metricsClient(t)
	t.Run("v1beta1 pods", func(t *testing.T) {
		list, err := client.MetricsV1beta1().PodMetricses(still).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		checkPods(t, list.Items)
	})
	t.Run("v1 pods", func(t *testing.T) {
		list, err := client.MetricsV1().PodMetricses(still).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var items []metricsv1beta1.PodMetrics
		for i := range list.Items {
			items = append(items, podFromV1(&list.Items[i]))
		}
		checkPods(t, items)
	})
	for _, name := range []string{swapNode, noSwapNode} {
		t.Run("v1beta1 "+name, func(t *testing.T) {
			node, err := client.MetricsV1beta1().NodeMetricses().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			checkNode(t, name, node.Usage, node.Timestamp.Time, node.Window.Duration)
		})
		t.Run("v1 "+name, func(t *testing.T) {
			node, err := client.MetricsV1().NodeMetricses().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			checkNode(t, name, node.Usage, node.Timestamp.Time, node.Window.Duration)
		})
	}
}

func podFromV1(pod *metricsv1.PodMetrics) metricsv1beta1.PodMetrics {
	converted := metricsv1beta1.PodMetrics{ObjectMeta: pod.ObjectMeta, Timestamp: pod.Timestamp, Window: pod.Window}
	for _, c := range pod.Containers {
		converted.Containers = append(converted.Containers, metricsv1beta1.ContainerMetrics{Name: c.Name, Usage: c.Usage})
	}
	return converted
}

// checkPods compares the pods of the still life with what was told of them.
func checkPods(t *testing.T, pods []metricsv1beta1.PodMetrics) {
	t.Helper()
	told := shared.Simulation.Pods(still)
	if len(pods) != len(told) {
		t.Fatalf("there are %d pods, want %d", len(pods), len(told))
	}
	for i := range pods {
		pod := &pods[i]
		if err := checkTime(pod.Timestamp.Time, pod.Window.Duration); err != nil {
			t.Errorf("pod %s: %v", pod.Name, err)
		}
		if len(pod.Containers) != len(told[pod.Name]) {
			t.Errorf("pod %s has %d containers, want %d", pod.Name, len(pod.Containers), len(told[pod.Name]))
		}
		if pod.Labels["app"] != "still" {
			t.Errorf("pod %s has labels %v, want app=still among them", pod.Name, pod.Labels)
		}
		for _, c := range pod.Containers {
			if err := checkUsage(c.Usage, told[pod.Name][c.Name], pod.Name != "beta"); err != nil {
				t.Errorf("pod %s, container %s: %v", pod.Name, c.Name, err)
			}
		}
	}
}

func checkNode(t *testing.T, name string, usage corev1.ResourceList, at time.Time, window time.Duration) {
	t.Helper()
	if err := checkTime(at, window); err != nil {
		t.Error(err)
	}
	if err := checkUsage(usage, shared.Simulation.Nodes()[name], name == swapNode); err != nil {
		t.Error(err)
	}
}

func checkTime(at time.Time, window time.Duration) error {
	if age := time.Since(at); age < -time.Second || age > freshness {
		return fmt.Errorf("its figures are %s old, want at most %s", age, freshness)
	}
	if window <= 0 || window > time.Minute {
		return fmt.Errorf("its window is %s", window)
	}
	return nil
}

// checkUsage compares a usage with what was told, of swap too where the node has any.
func checkUsage(got corev1.ResourceList, want kubelettest.Usage, swap bool) error {
	figures := map[corev1.ResourceName]float64{
		corev1.ResourceCPU:    want.CPU,
		corev1.ResourceMemory: float64(want.Memory),
	}
	if swap {
		figures["swap"] = float64(want.Swap)
	}
	if len(got) != len(figures) {
		return fmt.Errorf("its usage is of %d resources: %v, want %d", len(got), got, len(figures))
	}
	for name, figure := range figures {
		quantity, ok := got[name]
		if value := quantity.AsApproximateFloat64(); !ok || math.Abs(value-figure) > figure/100 {
			return fmt.Errorf("it uses %s of %s, want %g within 1 %%", quantity.String(), name, figure)
		}
	}
	return nil
}
