package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	metrics "k8s.io/metrics/pkg/client/clientset/versioned"

	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// The still life: nodes and pods on which nothing changes, so that all their figures are known. Its
// nodes take no other pods.
const (
	still      = "still"  // its namespace
	swapNode   = "node-s" // where pods may swap
	noSwapNode = "node-n"
	stillLabel = "kube-vitals.test/still" // of both nodes
	stillPods  = 3

	stillManifest = `apiVersion: v1
kind: Pod
metadata:
  name: alpha
  namespace: still
  labels: {app: still, tier: front}
  annotations:
    simulation.kube-vitals/cpu: app=250m,proxy=50m
    simulation.kube-vitals/memory: app=128Mi,proxy=64Mi
    simulation.kube-vitals/swap: app=32Mi,proxy=0
spec:
  nodeName: node-s
  containers: [{name: app, image: simulated}, {name: proxy, image: simulated}]
---
apiVersion: v1
kind: Pod
metadata:
  name: beta
  namespace: still
  labels: {app: still, tier: back}
  annotations: {simulation.kube-vitals/cpu: 400m, simulation.kube-vitals/memory: 256Mi}
spec:
  nodeName: node-n
  containers: [{name: app, image: simulated}]
---
apiVersion: v1
kind: Pod
metadata:
  name: gamma
  namespace: still
  labels: {app: still, tier: back}
  annotations:
    simulation.kube-vitals/cpu: app=100m,mesh=30m
    simulation.kube-vitals/memory: app=512Mi,mesh=16Mi
    simulation.kube-vitals/swap: app=8Mi,mesh=0
spec:
  nodeName: node-s
  initContainers: [{name: mesh, image: simulated, restartPolicy: Always}, {name: migrate, image: simulated}]
  containers: [{name: app, image: simulated}]
`
)

// setStill sets the still life up, once, and waits until all of it has been measured since its last
// change.
var setStill = sync.OnceValue(func() error {
	ctx := context.Background() // it outlives the test that is first to need it
	for _, node := range []simulation.Node{
		{Name: swapNode, Swap: true, Closed: true, Labels: map[string]string{stillLabel: "swap"}},
		{Name: noSwapNode, Closed: true, Labels: map[string]string{stillLabel: "none"}},
	} {
		if err := shared.Simulation.AddNode(ctx, node); err != nil {
			return err
		}
	}
	if err := shared.CreateNamespace(ctx, still); err != nil {
		return err
	}
	if err := shared.Apply(ctx, stillManifest); err != nil {
		return err
	}
	return process.Poll(ctx, soon, "figures of the still life", func(ctx context.Context) error {
		pods, err := shared.Kubectl(ctx, "top", "pods", "--namespace", still, "--no-headers")
		if err != nil {
			return err
		}
		nodes, err := shared.Kubectl(ctx, "top", "nodes", "--selector", stillLabel, "--no-headers")
		if err != nil {
			return err
		}
		// The nodes were there before the pods: their figures are right when no sample of the time
		// before counts any more.
		if strings.Count(pods, "\n") != stillPods || !equalTables(nodes, []string{"node-n 500m 6% 768Mi 2%", "node-s 530m 6% 1232Mi 3%"}) {
			return fmt.Errorf("there are only these:\n%s%s", pods, nodes)
		}
		return nil
	})
})

// useStill makes sure that the still life is there.
func useStill(t *testing.T) {
	t.Helper()
	if err := setStill(); err != nil {
		t.Fatal(err)
	}
}

// metricsClient is a client of metrics.k8s.io that speaks protobuf, as the
// HorizontalPodAutoscaler's does.
func metricsClient(t *testing.T) metrics.Interface {
	t.Helper()
	config := rest.CopyConfig(shared.REST)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := metrics.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
