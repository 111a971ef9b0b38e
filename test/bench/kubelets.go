package main

import (
	"cmp"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

const (
	// housekeeping is the usual interval between two samples of a kubelet.
	housekeeping = 10 * time.Second
	// idlePercent is the share of containers that use no CPU.
	idlePercent = 10
)

// newKubelets returns the kubelets of all nodes. Their containers have run for an hour, and a share of
// them is idle. Each kubelet samples them at intervals with an offset of its own or, without an interval, on demand.
func newKubelets(s shape, interval time.Duration) []*kubelettest.Kubelet {
	now := time.Now()
	list := make([]*kubelettest.Kubelet, s.nodes)
	for i := range list {
		boot := now.Add(-2*time.Hour - time.Duration(i)*housekeeping/time.Duration(s.nodes))
		list[i] = kubelettest.New(objects.NodeName(i), kubelettest.Config{
			Boot: boot, Housekeeping: cmp.Or(interval, housekeeping), ContainersOnDemand: interval == 0,
		})
		list[i].SetNode(kubelettest.Usage{CPU: 3.5 + float64(i%7)/10, Memory: 24<<30 + uint64(i)<<12})
	}
	for i := range s.pods() {
		p := s.pod(i)
		k := list[p.Node]
		for j := range p.Containers {
			name, n := objects.ContainerName(j), p.Containers*i+j
			usage := kubelettest.Usage{CPU: 0.001 + float64(n%2003)/10007, Memory: 20<<20 + uint64(n%5003)<<14}
			k.Run(p.Namespace, p.Name, name, usage, now.Add(-time.Hour-time.Duration(n*7919%10000)*time.Millisecond))
			// A hash selects the idle containers: a remainder of n would select all containers of a
			// node, as the pods of an app are a multiple of the number of nodes apart.
			if uint32(n)*2654435761>>16%100 < idlePercent {
				usage.CPU = 0
				k.SetContainer(p.Namespace, p.Name, name, usage)
			}
		}
	}
	return list
}
