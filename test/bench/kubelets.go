package main

import (
	"context"
	"crypto/x509/pkix"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

const (
	// kubeletsProcess is the helper process with all kubelets. Its CPU does not count.
	kubeletsProcess = "kubelets"
	// portFile has the port of all kubelets. The process writes it when they are ready.
	portFile = "kubelet-port"
	// housekeeping is the interval between two samples of a kubelet.
	housekeeping = 10 * time.Second
)

// kubeletOptions are how the kubelets behave.
type kubeletOptions struct {
	idle     float64 // share of containers that use no CPU
	onDemand string  // which nodes sample containers for each request: "", "odd" or "all"
}

func (o kubeletOptions) isOnDemand(node int) bool {
	return o.onDemand == "all" || o.onDemand == "odd" && node%2 == 1
}

// maxKubelets bounds the kubelets of one process: each needs two file descriptors, of which a process
// may have 20,000 on some machines.
const maxKubelets = 4000

// startKubeletsProcesses starts the kubelets in as many processes as they need.
func (b *bench) startKubeletsProcesses(ctx context.Context) (port uint16, err error) {
	var cas []byte
	for first := 0; first < b.nodes; first += maxKubelets {
		file := portFile
		if first > 0 {
			file = fmt.Sprintf("%s-%d", portFile, first)
		}
		text, err := b.runSelf(ctx, 2*time.Minute, file, kubeletsProcess,
			fmt.Sprintf("-pods=%d", b.perNode), fmt.Sprintf("-containers=%d", b.perPod),
			fmt.Sprintf("-idle=%g", b.idle), "-on-demand="+b.onDemand,
			fmt.Sprintf("-first=%d", first), fmt.Sprintf("-port=%d", port), "-file="+file)
		if err != nil {
			return 0, err
		}
		number, err := strconv.ParseUint(string(text), 10, 16)
		if err != nil {
			return 0, err
		}
		port = uint16(number)
		ca, err := os.ReadFile(b.cluster.File(file + caSuffix))
		if err != nil {
			return 0, err
		}
		cas = append(cas, ca...)
	}
	return port, os.WriteFile(b.cluster.File(cluster.KubeletCAFile), cas, 0o600)
}

// caSuffix is appended to the name of a process's port file, for its CA.
const caSuffix = ".crt"

// runKubelets is the helper process. It returns when the context ends.
func runKubelets(ctx context.Context, args []string) error {
	var o kubeletOptions
	flags := flag.NewFlagSet(kubeletsProcess, flag.ContinueOnError)
	dir := flags.String("dir", "", "the folder of the cluster")
	nodes := flags.Int("nodes", 0, "number of kubelets in the cluster")
	pods := flags.Int("pods", 0, "number of pods on each")
	containers := flags.Int("containers", 0, "number of containers in each pod")
	first := flags.Int("first", 0, "the first node of this process")
	port := flags.Uint("port", 0, "of all kubelets; 0: a free one")
	file := flags.String("file", portFile, "the file to write")
	flags.Float64Var(&o.idle, "idle", 0, "share of containers that use no CPU")
	flags.StringVar(&o.onDemand, "on-demand", "", "which nodes sample containers for each request")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// Subjects that differ make it fast to find the right CA.
	ca := kubelettest.NewCA(kubelettest.Subject(pkix.Name{CommonName: "CA of " + *file}))
	fleet := kubelettest.FleetConfig{CA: ca, Port: uint16(*port)}
	k, err := startKubelets(fleet, newShape(*nodes, *pods, *containers), *first, min(*first+maxKubelets, *nodes), o)
	if err != nil {
		return err
	}
	defer k.Close()
	if err := os.WriteFile(filepath.Join(*dir, *file+caSuffix), ca.PEM(), 0o600); err != nil {
		return err
	}
	if err := writeFile(*dir, *file, []byte(strconv.Itoa(int(k.port)))); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// kubelets are the running kubelets of all nodes.
type kubelets struct {
	*kubelettest.Fleet
	byNode []*kubelettest.Kubelet
	port   uint16
}

// startKubelets starts the kubelets of the nodes from the first one to the one before end.
func startKubelets(cfg kubelettest.FleetConfig, s shape, first, end int, o kubeletOptions) (*kubelets, error) {
	k := &kubelets{Fleet: kubelettest.NewFleet(cfg), byNode: newKubelets(s, first, end, o)}
	for i, one := range k.byNode {
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
// containers have run for an hour. Each kubelet takes its samples at an offset of its own.
func newKubelets(s shape, first, end int, o kubeletOptions) []*kubelettest.Kubelet {
	now := time.Now()
	list := make([]*kubelettest.Kubelet, end-first)
	for j := range list {
		i := first + j
		boot := now.Add(-2*time.Hour - time.Duration(i)*housekeeping/time.Duration(s.nodes))
		list[j] = kubelettest.New(objects.NodeName(i), kubelettest.Config{
			Boot: boot, Housekeeping: housekeeping, ContainersOnDemand: o.isOnDemand(i),
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
			started := now.Add(-time.Hour - time.Duration(n*7919%10000)*time.Millisecond)
			k.Run(p.Namespace, p.Name, name, usage, started)
			// A hash selects the idle containers: a remainder of n would select all containers of a
			// node, as the pods of an app are a multiple of the number of nodes apart.
			if float64(uint32(n)*2654435761>>16%1000) < 1000*o.idle {
				usage.CPU = 0
				k.SetContainer(p.Namespace, p.Name, name, usage)
			}
		}
	}
	return list
}
