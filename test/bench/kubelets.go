package main

import (
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

const (
	// kubeletsProcess is a helper process with some of the kubelets.
	kubeletsProcess = "kubelets"
	// maxKubelets bounds the kubelets of one process: each needs two file descriptors, of which a
	// process may have 20,000 on some machines.
	maxKubelets = 4000
	// housekeeping is the interval between two samples of a kubelet.
	housekeeping = 10 * time.Second
	// idlePercent is the share of containers that use no CPU.
	idlePercent = 10
)

// kubeletsConfig is the argument of the helper process, as JSON.
type kubeletsConfig struct {
	First, End  int    // the nodes from First to the one before End
	Nodes, Pods int    // of the cluster, of each node
	Port        uint16 // of all kubelets; 0: a free one
	File        string // for the result
}

// servedKubelets is the result: the port of all kubelets and the CA of those of this process.
type servedKubelets struct {
	Port uint16
	CA   []byte
}

// startKubeletsProcesses starts the kubelets in as many processes as they need.
func (b *bench) startKubeletsProcesses(ctx context.Context) (port uint16, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	var cas []byte
	for first := 0; first < b.nodes; first += maxKubelets {
		argument, err := json.Marshal(kubeletsConfig{
			First: first, End: min(first+maxKubelets, b.nodes), Nodes: b.nodes, Pods: b.perNode,
			Port: port, File: b.cluster.File(fmt.Sprintf("kubelets-%d", first)),
		})
		if err != nil {
			return 0, err
		}
		p, err := b.cluster.StartProcess(self, kubeletsProcess, string(argument))
		if err != nil {
			return 0, err
		}
		var served servedKubelets
		err = p.Poll(ctx, 2*time.Minute, "the kubelets", func(context.Context) error {
			text, err := os.ReadFile(b.cluster.File(fmt.Sprintf("kubelets-%d", first)))
			if err != nil {
				return err
			}
			return json.Unmarshal(text, &served)
		})
		if err != nil {
			return 0, err
		}
		port, cas = served.Port, append(cas, served.CA...)
	}
	return port, os.WriteFile(b.cluster.File(cluster.KubeletCAFile), cas, 0o600)
}

// runKubelets is the helper process. It returns when the context ends.
func runKubelets(ctx context.Context, argument string) error {
	var c kubeletsConfig
	if err := json.Unmarshal([]byte(argument), &c); err != nil {
		return err
	}
	// Subjects that differ make it fast to find the right CA.
	ca := kubelettest.NewCA(kubelettest.Subject(pkix.Name{CommonName: fmt.Sprintf("CA from %d", c.First)}))
	list := newKubelets(newShape(c.Nodes, c.Pods), c.First, c.End, false)
	k, err := startKubelets(kubelettest.FleetConfig{CA: ca, Port: c.Port}, list, c.First)
	if err != nil {
		return err
	}
	defer k.Close()
	text, err := json.Marshal(servedKubelets{k.port, ca.PEM()})
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.File, text, 0o600); err != nil { // half of it is not valid JSON
		return err
	}
	<-ctx.Done()
	return nil
}

// kubelets are running kubelets.
type kubelets struct {
	*kubelettest.Fleet
	byNode []*kubelettest.Kubelet
	port   uint16
}

// startKubelets serves kubelets, the first of which is that of a node.
func startKubelets(cfg kubelettest.FleetConfig, list []*kubelettest.Kubelet, first int) (*kubelets, error) {
	k := &kubelets{Fleet: kubelettest.NewFleet(cfg), byNode: list}
	for i, one := range list {
		at, err := k.Add(one, kubelettest.Address(first+i))
		if err != nil {
			k.Close()
			return nil, err
		}
		k.port = at.Port()
	}
	return k, nil
}

// newKubelets returns the kubelets of the nodes from the first one to the one before end. Their
// containers have run for an hour, and a share of them is idle. Each kubelet takes its samples at an
// offset of its own.
func newKubelets(s shape, first, end int, onDemand bool) []*kubelettest.Kubelet {
	now := time.Now()
	list := make([]*kubelettest.Kubelet, end-first)
	for j := range list {
		i := first + j
		boot := now.Add(-2*time.Hour - time.Duration(i)*housekeeping/time.Duration(s.nodes))
		list[j] = kubelettest.New(objects.NodeName(i), kubelettest.Config{
			Boot: boot, Housekeeping: housekeeping, ContainersOnDemand: onDemand,
		})
		list[j].SetNode(kubelettest.Usage{CPU: 3.5 + float64(i%7)/10, Memory: 24<<30 + uint64(i)<<12})
	}
	for i := range s.pods() {
		if node := i % s.nodes; node < first || node >= end {
			continue
		}
		p := s.pod(i)
		k := list[p.Node-first]
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
