package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

func newWorld(ctx context.Context, cfg config, progress func(string, ...any)) (*cluster.Cluster, error) {
	w, err := cluster.New(ctx, cluster.Config{Binaries: cfg.bin, Keep: cfg.keep, Progress: os.Stderr})
	if err == nil && cfg.keep {
		progress("logs and certificates are kept in %s", w.Dir)
	}
	return w, err
}

// fill starts the control plane with all nodes and pods of a shape, whose kubelets answer on a
// port.
func fill(ctx context.Context, w *cluster.Cluster, s shape, kubelets uint16, progress func(string, ...any)) error {
	if err := w.StartEtcd(ctx); err != nil {
		return err
	}
	progress("writing %d pods into etcd", s.pods())
	if err := writeObjects(ctx, w.Etcd, s, kubelets); err != nil {
		return err
	}
	return w.StartAPIServer(ctx, "/api/v1/nodes?resourceVersion=0&limit=1", "/api/v1/namespaces/"+shopNamespace+"/pods?resourceVersion=0")
}

// startApart starts this executable again, as the kubelets of all nodes: what they use is not
// mistaken for another's.
func startApart(ctx context.Context, cfg config, w *cluster.Cluster, s shape) (port uint16, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("this program does not know where it is: %w", err)
	}
	p, err := w.StartProcess(self, "fleet", "--nodes="+strconv.Itoa(s.nodes), "--dir="+w.Dir,
		"--on-demand="+strconv.FormatBool(cfg.onDemand), fmt.Sprintf("--idle=%g", cfg.idle))
	if err != nil {
		return 0, err
	}
	return port, p.Poll(ctx, 2*time.Minute, "the kubelets to answer", func(context.Context) error {
		text, err := os.ReadFile(w.File(portFile))
		if err != nil {
			return err
		}
		number, err := strconv.ParseUint(string(text), 10, 16)
		port = uint16(number)
		return err
	})
}

// startWithin runs the kubelets of all nodes in this process, where they can be changed.
func startWithin(w *cluster.Cluster, kubelets []*kubelettest.Kubelet) (*herd, error) {
	return newHerd(w.CA, kubelets)
}
