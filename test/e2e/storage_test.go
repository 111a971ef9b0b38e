package e2e

import (
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// hoarders is a Deployment whose pods use 120 MiB of ephemeral storage each, 90 of them in a volume,
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

// testStorage serves ephemeral-storage with the values and permissions of the chart: to kubectl, which
// shows a volume that grows, and to the real HorizontalPodAutoscaler.
func (c *testCluster) testStorage(t *testing.T) {
	is := func(want string) func(string) bool { return func(got string) bool { return got == want } }
	const ofContainers = "--output=jsonpath={.items[*].containers[*].usage.ephemeral-storage}"
	c.Simulation.Kubelet(nodeName(0)).SetStorage("", "", "", 20<<30)
	c.createNamespaces(t, "storage", "default-pods")
	c.createPods(t, "default-pods", nodeName(0), "plain")
	must(t, c.Apply(t.Context(), hoarders))
	c.awaitOutput(t, is("20Gi"), "get", "nodemetrics", nodeName(0), "--output=jsonpath={.usage.ephemeral-storage}")
	c.awaitOutput(t, is("0 0"), "get", "podmetrics", "--namespace=default-pods", ofContainers)

	c.awaitAutoscaler(t, "storage", func(s *autoscalingv2.HorizontalPodAutoscalerStatus) bool {
		value := seen(s).AverageValue
		return s.CurrentReplicas == 3 && value != nil && value.Value() == 120<<20
	})
	c.awaitOutput(t, is("100Mi 20Mi 100Mi 20Mi 100Mi 20Mi"), "get", "podmetrics", "--namespace=storage", ofContainers)

	c.kubectl(t, "annotate", "pod", "plain", "--namespace=default-pods", "simulation.kube-vitals/volumes=1Gi")
	c.awaitOutput(t, is("1Gi 0"), "get", "podmetrics", "--namespace=default-pods", ofContainers)
}
