package main

import (
	"fmt"

	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

// podsPerNode is the number of pods on each simulated node.
const podsPerNode = 30

// The namespaces whose requests are measured. All others have 120 pods, four of an app.
const (
	hugeNamespace = "batch" // 10,000 pods: the cost of a request must not grow with it
	rareApp       = "rare"  // ten of them
	shopNamespace = "shop"  // 600 pods
	webApp        = "web"   // 400 of them: what an HPA asks for
)

// shape is a simulated cluster: which pods there are, and on which node each runs. It is the same
// in every process that is told the number of nodes. Small clusters have smaller namespaces.
type shape struct {
	nodes int
	huge  int // pods in hugeNamespace
	rare  int // pods of rareApp in it
	shop  int // pods in shopNamespace
	web   int // pods of webApp in it
}

func newShape(nodes int) shape {
	total := nodes * podsPerNode
	s := shape{nodes: nodes, huge: min(10000, total/2), shop: min(600, total/4)}
	s.rare = min(10, s.huge)
	s.web = s.shop * 2 / 3
	return s
}

func (s shape) pods() int { return s.nodes * podsPerNode }

// pod is the i-th pod. The pods of a namespace are spread over all nodes.
func (s shape) pod(i int) objects.Pod {
	node := i % s.nodes
	switch {
	case i < s.rare:
		return objects.NewPod(hugeNamespace, rareApp, node, i)
	case i < s.huge:
		return objects.NewPod(hugeNamespace, fmt.Sprintf("job-runner-%d", i/50), node, i)
	case i < s.huge+s.web:
		return objects.NewPod(shopNamespace, webApp, node, i)
	case i < s.huge+s.shop:
		return objects.NewPod(shopNamespace, "worker", node, i)
	default:
		rest := i - s.huge - s.shop
		return objects.NewPod(s.teamNamespace(rest/120), fmt.Sprintf("service-%d", rest%120/4), node, i)
	}
}

func (s shape) teamNamespace(i int) string { return fmt.Sprintf("team-%03d", i) }

// namespaces lists all of them.
func (s shape) namespaces() []string {
	list := []string{hugeNamespace, shopNamespace}
	rest := s.pods() - s.huge - s.shop
	for i := range (rest + 119) / 120 {
		list = append(list, s.teamNamespace(i))
	}
	return list
}
