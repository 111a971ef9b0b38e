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
)

// Files in a cluster's folder by which the processes tell each other what they need to know.
const (
	kubeletCAFile = "kubelet-ca.crt" // who signs the kubelets' certificates
	portFile      = "kubelet-port"   // the port of all kubelets; written last, when they answer
)

// fleet is a process of its own: the kubelets of all nodes, until it is ended.
func fleet(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	nodes := flags.Int("nodes", 0, "how many kubelets")
	dir := flags.String("dir", "", "the cluster's folder")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ca := kubelettest.NewCA()
	f := kubelettest.NewFleet(kubelettest.FleetConfig{CA: ca})
	defer f.Close()
	var port uint16
	for i, k := range kubelets(newShape(*nodes), time.Now()) {
		at, err := f.Add(k, kubelettest.Address(i))
		if err != nil {
			return err
		}
		port = at.Port()
	}
	if err := os.WriteFile(filepath.Join(*dir, kubeletCAFile), ca.PEM(), 0o644); err != nil {
		return fmt.Errorf("the kubelets' CA cannot be told: %w", err)
	}
	if err := writeWhole(filepath.Join(*dir, portFile), []byte(strconv.Itoa(int(port)))); err != nil {
		return fmt.Errorf("the kubelets' port cannot be told: %w", err)
	}
	<-ctx.Done()
	return nil
}

// kubelets are those of all nodes. Their containers have run for an hour, and are sampled every 10 s, each node and each
// container at a moment of its own.
func kubelets(s shape, now time.Time) []*kubelettest.Kubelet {
	const housekeeping = 10 * time.Second
	list := make([]*kubelettest.Kubelet, s.nodes)
	for i := range list {
		boot := now.Add(-2*time.Hour - time.Duration(i)*housekeeping/time.Duration(s.nodes))
		list[i] = kubelettest.New(nodeName(i), kubelettest.Config{Boot: boot, Housekeeping: housekeeping})
		list[i].SetNode(kubelettest.Usage{CPU: 3.5 + float64(i%7)/10, Memory: 24<<30 + uint64(i)<<12})
	}
	for i := range s.pods() {
		p := s.pod(i)
		for j, name := range containerNames {
			n := len(containerNames)*i + j
			started := now.Add(-time.Hour - time.Duration(n*7919%10000)*time.Millisecond)
			list[p.node].Run(p.namespace, p.name, name, kubelettest.Usage{
				CPU: 0.001 + float64(n%2003)/10007, Memory: 20<<20 + uint64(n%5003)<<14,
			}, started)
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
