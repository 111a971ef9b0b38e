package e2e

import (
	"context"
	"fmt"
	"testing"
)

// hoarders is a Deployment whose pods use 120 MiB of ephemeral storage each, of which a volume has 90,
// and an autoscaler with a target of 60 MiB a pod, which leads to the maximum of replicas.
const hoarders = `apiVersion: apps/v1
kind: Deployment
metadata: {name: hoarder, namespace: storage}
spec:
  replicas: 1
  selector: {matchLabels: {app: hoarder}}
  template:
    metadata:
      labels: {app: hoarder}
      annotations:
        simulation.kube-vitals/ephemeral-storage: app=10Mi,proxy=20Mi
        simulation.kube-vitals/volumes: 90Mi
    spec:
      containers: [{name: app, image: simulated}, {name: proxy, image: simulated}]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: storage}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: hoarder}
  minReplicas: 1
  maxReplicas: 3
  metrics: [{type: Resource, resource: {name: ephemeral-storage, target: {type: AverageValue, averageValue: 60Mi}}}]
`

// TestEphemeralStorage serves ephemeral-storage with the values and permissions of the chart: to
// kubectl, which shows a volume that grows, and to the real HorizontalPodAutoscaler.
func TestEphemeralStorage(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.installWith(t, []string{"ephemeralStorage.enabled=true", "ephemeralStorage.interval=10s"})
	const ofContainers = "{.items[*].containers[*].usage.ephemeral-storage}"
	kubelet := c.Simulation.Kubelet("node")
	kubelet.SetStorage("", "", "", 20<<30)
	c.createNamespaces(t, "storage", "default-pods")
	c.createPods(t, "default-pods", "node", "plain")
	if err := c.Apply(t.Context(), hoarders); err != nil {
		t.Fatal(err)
	}
	c.awaitStorage(t, "nodemetrics", "--all-namespaces", "{.items[*].usage.ephemeral-storage}", "20Gi")
	c.awaitStorage(t, "podmetrics", "--namespace=default-pods", ofContainers, "0 0")

	c.awaitAutoscaler(t, "storage", "{.status.currentMetrics[0].resource.current.averageValue}",
		func(current, _ int, usage string) bool {
			return current == 3 && (usage == "120Mi" || usage == "125829120")
		})
	c.awaitStorage(t, "podmetrics", "--namespace=storage", ofContainers,
		"100Mi 20Mi 100Mi 20Mi 100Mi 20Mi")

	c.kubectl(t, "annotate", "pod", "plain", "--namespace=default-pods", "simulation.kube-vitals/volumes=1Gi")
	c.awaitStorage(t, "podmetrics", "--namespace=default-pods", ofContainers, "1Gi 0")
}

// awaitStorage waits until a JSONPath of a list from kubectl get has a value.
func (c *testCluster) awaitStorage(t *testing.T, resource, namespace, path, want string) {
	t.Helper()
	eventually(t, "ephemeral-storage of "+resource, func(ctx context.Context) error {
		got, err := c.Kubectl(ctx, "get", resource, namespace, "--output=jsonpath="+path)
		if err == nil && got != want {
			err = fmt.Errorf("got %q, want %q", got, want)
		}
		return err
	})
}
