package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/world"
)

func newWorld(cfg config, progress func(string, ...any)) (*world.World, error) {
	w, err := world.New(world.Config{Bin: cfg.bin, Keep: cfg.keep})
	if err == nil && cfg.keep {
		progress("logs and certificates are kept in %s", w.Dir)
	}
	return w, err
}

// fill starts the control plane with all nodes and pods of a shape, whose kubelets answer on a
// port.
func fill(ctx context.Context, w *world.World, s shape, kubelets uint16, progress func(string, ...any)) error {
	progress("starting etcd, and writing %d pods into it", s.pods())
	if err := w.StartEtcd(ctx); err != nil {
		return err
	}
	if err := writeObjects(ctx, w.Etcd, s, kubelets); err != nil {
		return err
	}
	progress("starting kube-apiserver")
	return w.StartAPIServer(ctx, "/api/v1/nodes?resourceVersion=0&limit=1", "/api/v1/namespaces/"+shopNamespace+"/pods?resourceVersion=0")
}

// startApart starts this executable again, as the kubelets of all nodes: what they use is not
// mistaken for another's.
func startApart(ctx context.Context, cfg config, w *world.World, s shape) (port uint16, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("this program does not know where it is: %w", err)
	}
	p, err := w.Start(self, "fleet", "--nodes="+strconv.Itoa(s.nodes), "--dir="+w.Dir,
		"--on-demand="+strconv.FormatBool(cfg.onDemand), fmt.Sprintf("--idle=%g", cfg.idle))
	if err != nil {
		return 0, err
	}
	return port, world.Await(ctx, p, 2*time.Minute, "the kubelets to answer", func(context.Context) error {
		text, err := os.ReadFile(w.Path(portFile))
		if err != nil {
			return err
		}
		number, err := strconv.ParseUint(string(text), 10, 16)
		port = uint16(number)
		return err
	})
}

// startWithin runs the kubelets of all nodes in this process, where they can be changed.
func startWithin(w *world.World, kubelets []*kubelettest.Kubelet) (*herd, error) {
	ca := kubelettest.NewCA()
	if err := w.TrustKubelets(ca); err != nil {
		return nil, err
	}
	return newHerd(ca, kubelets)
}
