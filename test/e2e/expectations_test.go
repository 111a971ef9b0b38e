package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// The pods of metrics-server's end-to-end tests (test/e2e_test.go of version 0.9): consumers of 50m and
// of 50 MiB, and pods with an init container, a second container, and a sidecar.
const expectationsManifest = `apiVersion: v1
kind: Pod
metadata:
  name: cpu-consumer
  namespace: expectations
  labels: {app: consumer, team: a}
  annotations: {simulation.kube-vitals/cpu: 50m, simulation.kube-vitals/memory: 4Mi}
spec:
  nodeName: expectations
  containers: [{name: cpu-consumer, image: simulated}]
---
apiVersion: v1
kind: Pod
metadata:
  name: memory-consumer
  namespace: expectations
  labels: {app: consumer, example.com/tier: back}
  annotations: {simulation.kube-vitals/cpu: "0", simulation.kube-vitals/memory: 50Mi}
spec:
  nodeName: expectations
  containers: [{name: memory-consumer, image: simulated}]
---
apiVersion: v1
kind: Pod
metadata:
  name: cmwithinitcontainer-consumer
  namespace: expectations
  annotations: {simulation.kube-vitals/cpu: 50m, simulation.kube-vitals/memory: 50Mi}
spec:
  nodeName: expectations
  initContainers: [{name: init-container, image: simulated}]
  containers: [{name: cmwithinitcontainer-consumer, image: simulated}]
---
apiVersion: v1
kind: Pod
metadata:
  name: sidecarpod-consumer
  namespace: expectations
  annotations: {simulation.kube-vitals/cpu: 50m, simulation.kube-vitals/memory: 50Mi}
spec:
  nodeName: expectations
  containers: [{name: sidecarpod-consumer, image: simulated}, {name: sidecar-container, image: simulated}]
---
apiVersion: v1
kind: Pod
metadata:
  name: initsidecarpod-consumer
  namespace: expectations
  annotations: {simulation.kube-vitals/cpu: 50m, simulation.kube-vitals/memory: 50Mi}
spec:
  nodeName: expectations
  initContainers: [{name: init-container, image: simulated, restartPolicy: Always}]
  containers: [{name: initsidecarpod-consumer, image: simulated}]
`

// TestMetricsServerExpectations expects of kube-vitals what the end-to-end tests of metrics-server
// expect of it, over several scrapes and while the load changes. It leaves out the names of probes and
// telemetry, which are metrics-server's own.
func TestMetricsServerExpectations(t *testing.T) {
	t.Parallel()
	const namespace = "expectations" // and node
	node := simulation.Node{Name: namespace, Unschedulable: true, Labels: map[string]string{"example.com/disk": "ssd"}}
	if err := shared.Simulation.AddNode(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	cleanUp(t, func(ctx context.Context) error { return shared.Simulation.RemoveNode(ctx, namespace) })
	shared.createNamespaces(t, namespace)
	if err := shared.Apply(t.Context(), expectationsManifest); err != nil {
		t.Fatal(err)
	}
	// A kubelet reports an init container until shortly after it has ended.
	const initPod, initContainer = "cmwithinitcontainer-consumer", "init-container"
	kubelet := shared.Simulation.Kubelet(namespace)
	kubelet.SetContainer(namespace, initPod, initContainer, kubelettest.Usage{CPU: 0.05, Memory: 50 << 20})

	api := metricsClient(t).MetricsV1beta1()
	var list listFunc = func(ctx context.Context) (map[string]*metricsv1beta1.PodMetrics, error) {
		pods, err := api.PodMetricses(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		byName := map[string]*metricsv1beta1.PodMetrics{}
		for i := range pods.Items {
			byName[pods.Items[i].Name] = &pods.Items[i]
		}
		return byName, nil
	}
	eventually(t, "metrics of all pods", func(ctx context.Context) error {
		pods, err := list(ctx)
		if err == nil && len(pods) != 5 {
			err = fmt.Errorf("got %d pods, want 5", len(pods))
		}
		return err
	})
	kubelet.RemoveContainer(namespace, initPod, initContainer)

	t.Run("containers", func(t *testing.T) {
		var pods map[string]*metricsv1beta1.PodMetrics
		eventually(t, "the init container to be dropped", func(ctx context.Context) (err error) {
			pods, err = list(ctx)
			if m := pods[initPod]; err == nil && (m == nil || len(m.Containers) != 1) {
				err = fmt.Errorf("got %+v", m)
			}
			return err
		})
		for name, want := range map[string][]string{
			"cpu-consumer":            {"cpu-consumer"},
			"memory-consumer":         {"memory-consumer"},
			initPod:                   {initPod},
			"sidecarpod-consumer":     {"sidecar-container", "sidecarpod-consumer"},
			"initsidecarpod-consumer": {initContainer, "initsidecarpod-consumer"},
		} {
			m := pods[name]
			if m == nil {
				t.Errorf("pod %s has no metrics", name)
				continue
			}
			var got []string
			for _, c := range m.Containers {
				got = append(got, c.Name)
				if name == "cpu-consumer" || name == "memory-consumer" {
					continue // below
				}
				if err := (consumption{50, 50}).check(c.Usage); err != nil {
					t.Errorf("pod %s, container %s: %v", name, c.Name, err)
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("pod %s: got containers %v, want %v", name, got, want)
			}
			if err := checkTime(m.Timestamp.Time, m.Window.Duration); err != nil {
				t.Errorf("pod %s: %v", name, err)
			}
		}
	})

	t.Run("labels", func(t *testing.T) {
		metrics, err := list(t.Context())
		if err != nil || len(metrics) != 5 {
			t.Fatalf("got %d pods, %v", len(metrics), err)
		}
		pods, err := shared.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; !maps.Equal(metrics[p.Name].Labels, p.Labels) {
				t.Errorf("pod %s: got labels %v, want %v", p.Name, metrics[p.Name].Labels, p.Labels)
			}
		}
		node, err := shared.Client.CoreV1().Nodes().Get(t.Context(), namespace, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m, err := api.NodeMetricses().Get(t.Context(), namespace, metav1.GetOptions{})
		if err != nil || !maps.Equal(m.Labels, node.Labels) {
			t.Errorf("node: got %v, labels %v, want %v", err, m.Labels, node.Labels)
		}
	})

	low, high := consumption{50, 50}, consumption{250, 150}
	for i, loads := range [][2]consumption{{low, low}, {low, high}, {high, low}} {
		from, to := loads[0], loads[1]
		t.Run(fmt.Sprintf("from %gm to %gm", from.cpu, to.cpu), func(t *testing.T) {
			if i > 0 {
				annotate := func(pod, annotation string) {
					shared.kubectl(t, "annotate", "pod", pod, "--namespace="+namespace, "--overwrite", annotation)
				}
				annotate("cpu-consumer", fmt.Sprintf("%s=%gm", simulation.CPUAnnotation, to.cpu))
				annotate("memory-consumer", fmt.Sprintf("%s=%gMi", simulation.MemoryAnnotation, to.memory))
			}
			follow(t, list, map[string][2]consumption{
				"cpu-consumer":    {{from.cpu, 4}, {to.cpu, 4}},
				"memory-consumer": {{0, from.memory}, {0, to.memory}},
			})
			for name, row := range map[string]string{
				"cpu-consumer":    fmt.Sprintf("cpu-consumer %gm 4Mi", to.cpu),
				"memory-consumer": fmt.Sprintf("memory-consumer 0m %gMi", to.memory),
			} {
				eventually(t, "kubectl top to print "+row, func(ctx context.Context) error { // the window may have the step
					got, err := shared.Kubectl(ctx, "top", "pod", name, "--namespace="+namespace, "--no-headers")
					if err == nil && !equalRows(got, row) {
						err = errors.New(got)
					}
					return err
				})
			}
		})
	}
}

// consumption is a usage in millicores and MiB.
type consumption struct{ cpu, memory float64 }

// check compares a usage with the consumption, within the tolerances of metrics-server's tests.
func (c consumption) check(usage corev1.ResourceList) error { return checkBetween(usage, c, c) }

func checkBetween(usage corev1.ResourceList, a, b consumption) error {
	const cpuTolerance, memoryTolerance = 10, 5
	cpu, memory := usage.Cpu().AsApproximateFloat64()*1000, usage.Memory().AsApproximateFloat64()/(1<<20)
	if cpu < min(a.cpu, b.cpu)-cpuTolerance || cpu > max(a.cpu, b.cpu)+cpuTolerance {
		return fmt.Errorf("got %.1fm, want %g to %g ± %d", cpu, a.cpu, b.cpu, cpuTolerance)
	}
	if memory < min(a.memory, b.memory)-memoryTolerance || memory > max(a.memory, b.memory)+memoryTolerance {
		return fmt.Errorf("got %.1f MiB, want %g to %g ± %d", memory, a.memory, b.memory, memoryTolerance)
	}
	return nil
}

// listFunc lists the metrics of pods by name.
type listFunc func(context.Context) (map[string]*metricsv1beta1.PodMetrics, error)

// follow reads the metrics of pods with one container each while their load changes, until two
// successive samples of each have the new load. Every sample must be between both loads, and newer than
// the one before.
func follow(t *testing.T, list listFunc, loads map[string][2]consumption) {
	t.Helper()
	const enough = 2
	last, settled := map[string]time.Time{}, map[string]int{}
	eventually(t, "samples with the new load", func(ctx context.Context) error {
		pods, err := list(ctx)
		if err != nil {
			return err
		}
		var errs []error
		for name, l := range loads {
			m := pods[name]
			if m == nil || len(m.Containers) != 1 || m.Timestamp.Time.Before(last[name]) {
				t.Fatalf("pod %s: got %+v, want one container and a timestamp of %s or later", name, m, last[name])
			}
			used := m.Containers[0].Usage
			if err := checkBetween(used, l[0], l[1]); err != nil {
				t.Fatalf("pod %s: %v", name, err)
			}
			if m.Timestamp.After(last[name]) {
				last[name] = m.Timestamp.Time
				settled[name]++
				if l[1].check(used) != nil {
					settled[name] = 0
				}
			}
			if settled[name] < enough {
				errs = append(errs, fmt.Errorf("pod %s: %d of %d samples have the load; the last one is %v",
					name, settled[name], enough, used))
			}
		}
		return errors.Join(errs...)
	})
}
