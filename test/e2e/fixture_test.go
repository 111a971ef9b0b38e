package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// The fixture has pods and nodes whose usage does not change, so that every value is known. Its
// nodes are unschedulable for other pods.
const (
	fixture      = "fixture" // its namespace
	swapNode     = "node-s"
	noSwapNode   = "node-n"
	fixtureLabel = "kube-vitals.test/fixture" // of both nodes

	fixtureManifest = `apiVersion: v1
kind: Pod
metadata:
  name: alpha
  namespace: fixture
  labels: {app: fixture, tier: front}
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
  namespace: fixture
  labels: {app: fixture, tier: back}
  annotations: {simulation.kube-vitals/cpu: 400m, simulation.kube-vitals/memory: 256Mi}
spec:
  nodeName: node-n
  containers: [{name: app, image: simulated}]
---
apiVersion: v1
kind: Pod
metadata:
  name: gamma
  namespace: fixture
  labels: {app: fixture, tier: back}
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

// createFixture creates the fixture once, and waits until all its metrics are right.
var createFixture = sync.OnceValue(func() error {
	ctx := context.Background() // the fixture outlives the test that creates it
	for _, node := range []simulation.Node{
		{Name: swapNode, Swap: true, Unschedulable: true, Labels: map[string]string{fixtureLabel: "swap"}},
		{Name: noSwapNode, Unschedulable: true, Labels: map[string]string{fixtureLabel: "none"}},
	} {
		if err := shared.Simulation.AddNode(ctx, node); err != nil {
			return err
		}
	}
	if err := shared.CreateNamespace(ctx, fixture); err != nil {
		return err
	}
	if err := shared.Apply(ctx, fixtureManifest); err != nil {
		return err
	}
	return process.Poll(ctx, timeout, "metrics of the fixture", func(ctx context.Context) error {
		pods, err := shared.Kubectl(ctx, "top", "pods", "--namespace", fixture, "--no-headers")
		if err != nil {
			return err
		}
		nodes, err := shared.Kubectl(ctx, "top", "nodes", "--selector", fixtureLabel, "--no-headers")
		if err != nil {
			return err
		}
		// The nodes are older than the pods: at first, their usage is that of a time before the
		// pods.
		want := []string{"node-n 500m 6% 768Mi 2%", "node-s 530m 6% 1232Mi 3%"}
		if strings.Count(pods, "\n") != 3 || !equalTables(nodes, want) {
			return fmt.Errorf("got\n%s%s", pods, nodes)
		}
		return nil
	})
})

// useFixture creates the fixture unless another test has.
func useFixture(t *testing.T) {
	t.Helper()
	must(t, createFixture())
}
