package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

// portFile is how a fleet's process tells the port of all its kubelets; it is written last, when
// they answer.
const portFile = "kubelet-port"

// fleet is a process of its own: the kubelets of all nodes, until it is ended.
func fleet(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	nodes := flags.Int("nodes", 0, "how many kubelets")
	onDemand := flags.Bool("on-demand", false, "take the containers' samples on demand")
	idle := flags.Float64("idle", 0, "share of containers that do nothing")
	dir := flags.String("dir", "", "the cluster's folder")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ca := kubelettest.NewCA()
	h, err := newHerd(ca, kubelets(newShape(*nodes), *idle, func(int) bool { return *onDemand }))
	if err != nil {
		return err
	}
	defer h.Close()
	if err := os.WriteFile(filepath.Join(*dir, cluster.KubeletCAFile), ca.PEM(), 0o644); err != nil {
		return fmt.Errorf("the kubelets' CA cannot be told: %w", err)
	}
	if err := writeWhole(filepath.Join(*dir, portFile), []byte(strconv.Itoa(int(h.port)))); err != nil {
		return fmt.Errorf("the kubelets' port cannot be told: %w", err)
	}
	<-ctx.Done()
	return nil
}

// herd is the kubelets of all nodes, in this process.
type herd struct {
	*kubelettest.Fleet
	kubelets []*kubelettest.Kubelet // by the node's index
	port     uint16                 // of all
}

func newHerd(ca *kubelettest.CA, kubelets []*kubelettest.Kubelet) (*herd, error) {
	h := &herd{Fleet: kubelettest.NewFleet(kubelettest.FleetConfig{CA: ca}), kubelets: kubelets}
	for i, k := range kubelets {
		at, err := h.Add(k, kubelettest.Address(i))
		if err != nil {
			h.Close()
			return nil, err
		}
		h.port = at.Port()
	}
	return h, nil
}

// housekeeping is the time between two of a kubelet's samples.
const housekeeping = 10 * time.Second

// kubelets are those of all nodes. Their containers have run for an hour; a share of them, 0 to 1,
// have done something once and do nothing now. Each node and each container is sampled every 10 s
// at a moment of its own; of some nodes, containers are sampled on demand.
func kubelets(s shape, idle float64, onDemand func(node int) bool) []*kubelettest.Kubelet {
	now := time.Now()
	list := make([]*kubelettest.Kubelet, s.nodes)
	for i := range list {
		boot := now.Add(-2*time.Hour - time.Duration(i)*housekeeping/time.Duration(s.nodes))
		list[i] = kubelettest.New(objects.NodeName(i), kubelettest.Config{
			Boot: boot, Housekeeping: housekeeping, ContainersOnDemand: onDemand(i),
		})
		list[i].SetNode(kubelettest.Usage{CPU: 3.5 + float64(i%7)/10, Memory: 24<<30 + uint64(i)<<12})
	}
	for i := range s.pods() {
		p := s.pod(i)
		for j, name := range objects.ContainerNames {
			n := len(objects.ContainerNames)*i + j
			usage := kubelettest.Usage{CPU: 0.001 + float64(n%2003)/10007, Memory: 20<<20 + uint64(n%5003)<<14}
			started := now.Add(-time.Hour - time.Duration(n*7919%10000)*time.Millisecond)
			list[p.Node].Run(p.Namespace, p.Name, name, usage, started)
			// Pods of one app lie a whole number of nodes apart: a simple remainder would make all
			// of a node's containers idle.
			if float64(uint32(n)*2654435761>>16%1000) < 1000*idle {
				usage.CPU = 0
				list[p.Node].SetContainer(p.Namespace, p.Name, name, usage)
			}
		}
	}
	return list
}

// writeWhole writes a file that others wait for: when it is there, it is whole.
func writeWhole(path string, content []byte) error {
	if err := os.WriteFile(path+".part", content, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}
