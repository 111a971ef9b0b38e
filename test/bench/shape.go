package main

import (
	"fmt"

	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

// The usual cluster.
const (
	podsPerNode      = 30
	containersPerPod = len(objects.ContainerNames)
)

// The namespaces that are requested. Each other namespace has 120 pods, four of each app.
const (
	hugeNamespace = "batch" // 10,000 pods: a request for few of them must not be slower for that
	rareApp       = "rare"  // ten of them
	shopNamespace = "shop"  // 600 pods
	webApp        = "web"   // 400 of them, which a HorizontalPodAutoscaler requests
)

// shape is how many nodes a cluster has, and how many pods each of them has. Small clusters have smaller
// namespaces.
type shape struct{ nodes, perNode int }

func (s shape) pods() int { return s.nodes * s.perNode }
func (s shape) huge() int { return min(10000, s.pods()/2) } // pods in hugeNamespace
func (s shape) rare() int { return min(10, s.huge()) }      // pods of rareApp
func (s shape) shop() int { return min(600, s.pods()/4) }   // pods in shopNamespace
func (s shape) web() int  { return s.shop() * 2 / 3 }       // pods of webApp

// pod returns pod i. The pods of a namespace are spread over all nodes.
func (s shape) pod(i int) objects.Pod {
	node := i % s.nodes
	switch {
	case i < s.rare():
		return objects.NewPod(hugeNamespace, rareApp, node, i)
	case i < s.huge():
		return objects.NewPod(hugeNamespace, fmt.Sprintf("job-runner-%d", i/50), node, i)
	case i < s.huge()+s.web():
		return objects.NewPod(shopNamespace, webApp, node, i)
	case i < s.huge()+s.shop():
		return objects.NewPod(shopNamespace, "worker", node, i)
	default:
		rest := i - s.huge() - s.shop()
		return objects.NewPod(teamNamespace(rest/120), fmt.Sprintf("service-%d", rest%120/4), node, i)
	}
}

func teamNamespace(i int) string { return fmt.Sprintf("team-%03d", i) }

func (s shape) namespaces() []string {
	list := []string{hugeNamespace, shopNamespace}
	rest := s.pods() - s.huge() - s.shop()
	for i := range (rest + 119) / 120 {
		list = append(list, teamNamespace(i))
	}
	return list
}
