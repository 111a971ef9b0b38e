package main

import (
	"fmt"
	"hash/fnv"
)

// podsPerNode and containerNames make the simulated nodes: pods of two containers.
const podsPerNode = 30

var containerNames = [...]string{"app", "istio-proxy"}

// The namespaces whose requests are measured. All others have 120 pods, four of an app.
const (
	hugeNamespace = "batch" // 10,000 pods: the cost of a request must not grow with it
	rareApp       = "rare"  // ten of them
	shopNamespace = "shop"  // 600 pods
	webApp        = "web"   // 400 of them: what an HPA asks for
)

// shape is a simulated cluster: which pods there are, and on which node each runs. It is the same in every process that
// is told the number of nodes. Small clusters have smaller namespaces.
type shape struct {
	nodes int
	huge  int // pods in hugeNamespace
	rare  int // pods of rareApp in it
	shop  int // pods in shopNamespace
	web   int // pods of webApp in it
}

// pod is one pod of a shape.
type pod struct {
	namespace, app, deployment, name string
	hash                             string // pod-template-hash of its ReplicaSet
	node                             int
	index                            int // from 0, in the whole cluster
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
func (s shape) pod(i int) pod {
	p := pod{index: i, node: i % s.nodes}
	switch {
	case i < s.rare:
		p.namespace, p.app = hugeNamespace, rareApp
	case i < s.huge:
		p.namespace, p.app = hugeNamespace, fmt.Sprintf("job-runner-%d", i/50)
	case i < s.huge+s.web:
		p.namespace, p.app = shopNamespace, webApp
	case i < s.huge+s.shop:
		p.namespace, p.app = shopNamespace, "worker"
	default:
		rest := i - s.huge - s.shop
		p.namespace = s.teamNamespace(rest / 120)
		p.app = fmt.Sprintf("service-%d", rest%120/4)
	}
	p.deployment = p.app
	p.hash = suffix(10, p.namespace, p.app)
	p.name = p.deployment + "-" + p.hash + "-" + spell(5, uint64(i)*7368787) // not a multiple of 3: all pods have other letters
	return p
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

func nodeName(i int) string { return fmt.Sprintf("node-%05d.pool-a.example.internal", i) }

// suffix makes up a part of a name.
func suffix(length int, from ...string) string {
	h := fnv.New64a()
	for _, s := range from {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	return spell(length, h.Sum64())
}

// spell writes a number in the letters that Kubernetes takes for generated names.
func spell(length int, n uint64) string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	b := make([]byte, length)
	for i := range b {
		b[i] = letters[n%uint64(len(letters))]
		n /= uint64(len(letters))
	}
	return string(b)
}
