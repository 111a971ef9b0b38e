package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

const (
	// goneNodes are taken away for longer than figures last.
	goneNodes = 5
	// defaultAges is how many intervals figures last, unless the server's arguments say otherwise.
	defaultAges = 4
	// pauseLook is the pause between two looks at what is served.
	pauseLook = 250 * time.Millisecond
)

// failures is a server being measured while its kubelets fail.
type failures struct {
	cfg      config
	shape    shape
	server   *cluster.Standalone
	herd     *herd
	progress func(string, ...any)

	answers, failed atomic.Int64 // of the kubelets

	served []float64 // share of pods, each time that it was looked at
	oldest float64   // seconds of the oldest figure that was served

	vanishedAt []float64 // ages of figures of a node that is gone, when they were not served any more, in seconds
	back       []float64 // seconds from a node's return until it and its pods were served
}

// measureFailures measures what is served while a share of all scrapes fails, and what becomes of
// nodes that are gone.
func measureFailures(ctx context.Context, cfg config, nodes int, out io.Writer, progress func(string, ...any)) error {
	shape := newShape(nodes)
	w, err := newWorld(ctx, cfg, progress)
	if err != nil {
		return err
	}
	defer w.Stop()
	h, err := startWithin(w, kubelets(shape, cfg.idle, func(int) bool { return cfg.onDemand }))
	if err != nil {
		return err
	}
	defer h.Close()
	if err := fill(ctx, w, shape, h.port, progress); err != nil {
		return err
	}
	progress("starting %s", cfg.server)
	s, err := w.StartStandalone(cfg.server, cfg.resolution, cfg.serverArgs...)
	if err != nil {
		return err
	}
	if _, err := (startWatch{server: s, shape: shape}).watch(ctx); err != nil {
		return err
	}
	f := &failures{cfg: cfg, shape: shape, server: s, herd: h, progress: progress}
	for _, step := range []func(context.Context) error{f.fail, f.gone} {
		if err := step(ctx); err != nil {
			return errors.Join(err, s.Process.Running())
		}
	}
	return f.print(out)
}

// fail lets scrapes fail at random, and looks at what is served.
func (f *failures) fail(ctx context.Context) error {
	f.progress("letting %.0f %% of all scrapes fail for %s", 100*f.cfg.failing, f.cfg.duration)
	for i, k := range f.herd.kubelets {
		seed := uint64(i)
		k.SetFaults(
			func(*kubelettest.Response) { f.answers.Add(1) },
			kubelettest.Sometimes(f.cfg.failing, seed, both(
				func(*kubelettest.Response) { f.failed.Add(1) },
				oneOf(seed, kubelettest.Refuse, kubelettest.Hang, kubelettest.Status(http.StatusInternalServerError), kubelettest.HalfBody),
			)),
		)
	}
	for end := time.Now().Add(f.cfg.duration); time.Now().Before(end); {
		if err := f.look(ctx); err != nil {
			return err
		}
		if err := sleep(ctx, pauseLook); err != nil {
			return err
		}
	}
	for _, k := range f.herd.kubelets {
		k.SetFaults()
	}
	return nil
}

// look notes how many pods are served, and how old the oldest figure is.
func (f *failures) look(ctx context.Context) error {
	asked := time.Now()
	pods, err := f.server.Pods(ctx, cluster.V1beta1+"/pods", cluster.TypeProtobuf)
	if err != nil {
		return err
	}
	f.served = append(f.served, float64(len(pods.Items))/float64(f.shape.pods()))
	for _, pod := range pods.Items {
		f.oldest = max(f.oldest, asked.Sub(pod.Timestamp.Time).Seconds())
	}
	return nil
}

// gone takes nodes away until their figures have vanished, and brings them back.
func (f *failures) gone(ctx context.Context) error {
	if err := sleep(ctx, 2*f.cfg.resolution); err != nil { // all have new figures by then
		return err
	}
	nodes := min(goneNodes, f.shape.nodes)
	f.progress("taking %d nodes away", nodes)
	for i := range nodes {
		f.herd.Remove(objects.NodeName(i))
	}
	if err := f.watchVanish(ctx, nodes); err != nil {
		return err
	}
	f.progress("bringing them back")
	returned := time.Now()
	for i := range nodes {
		if _, err := f.herd.Add(f.herd.kubelets[i], kubelettest.Address(i)); err != nil {
			return err
		}
	}
	return f.watchReturn(ctx, nodes, returned)
}

// watchVanish waits until nothing is served of the first nodes, and notes of each figure how old it
// became.
func (f *failures) watchVanish(ctx context.Context, nodes int) error {
	limit := 2 * defaultAges * f.cfg.resolution
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("after %s, figures of nodes that are gone are still served", limit))
	defer cancel()
	last := map[string]time.Time{} // NODE, or NAMESPACE/POD → timestamp of the figure that was served last
	for {
		now, err := f.figuresOf(ctx, nodes)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		for name, timestamp := range last {
			if _, ok := now[name]; !ok {
				f.vanishedAt = append(f.vanishedAt, time.Since(timestamp).Seconds())
			}
		}
		if last = now; len(last) == 0 {
			return nil
		}
		if sleep(ctx, pauseLook) != nil {
			return context.Cause(ctx)
		}
	}
}

// watchReturn waits until everything is served of the first nodes, and notes when it was so for
// each.
func (f *failures) watchReturn(ctx context.Context, nodes int, returned time.Time) error {
	limit := 2 * defaultAges * f.cfg.resolution
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("after %s, nodes that came back are not served", limit))
	defer cancel()
	seen := map[string]bool{}
	for len(seen) < nodes*(1+podsPerNode) {
		now, err := f.figuresOf(ctx, nodes)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		for name := range now {
			if !seen[name] {
				seen[name] = true
				f.back = append(f.back, time.Since(returned).Seconds())
			}
		}
		if sleep(ctx, pauseLook) != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// figuresOf lists the figures of the first nodes and of their pods: name → timestamp.
func (f *failures) figuresOf(ctx context.Context, nodes int) (map[string]time.Time, error) {
	figures := map[string]time.Time{}
	for i := range nodes {
		figures[objects.NodeName(i)] = time.Time{}
	}
	list, err := f.server.Nodes(ctx, cluster.V1beta1+"/nodes", cluster.TypeProtobuf)
	if err != nil {
		return nil, err
	}
	for _, node := range list.Items {
		if _, ok := figures[node.Name]; ok {
			figures[node.Name] = node.Timestamp.Time
		}
	}
	for name, at := range figures {
		if at.IsZero() {
			delete(figures, name)
		}
	}
	pods, err := f.server.Pods(ctx, cluster.V1beta1+"/pods", cluster.TypeProtobuf)
	if err != nil {
		return nil, err
	}
	served := make(map[string]time.Time, len(pods.Items))
	for _, pod := range pods.Items {
		served[pod.Namespace+"/"+pod.Name] = pod.Timestamp.Time
	}
	for i := range f.shape.pods() {
		p := f.shape.pod(i)
		if at, ok := served[p.Namespace+"/"+p.Name]; ok && p.Node < nodes {
			figures[p.Namespace+"/"+p.Name] = at
		}
	}
	return figures, nil
}

func (f *failures) print(out io.Writer) error {
	limit := (defaultAges * f.cfg.resolution).Seconds()
	t := newTable(fmt.Sprintf("%s with failing kubelets: %d nodes, %d pods, resolution %s, for %s",
		f.cfg.name(), f.shape.nodes, f.shape.pods(), f.cfg.resolution, f.cfg.duration), "Measure", "measured", "target")
	row := func(name, format string, value float64, target string) {
		t.row(name, fmt.Sprintf(format, value), target)
	}
	row("answers that failed, of all", "%.1f %%", 100*float64(f.failed.Load())/float64(max(f.answers.Load(), 1)), "")
	row("pods served, minimum", "%.2f %%", 100*percentile(f.served, 0), "100 %")
	row("pods served, mean", "%.2f %%", 100*mean(f.served), "100 %")
	row("oldest figure served", "%.1f s", f.oldest, fmt.Sprintf("≤ %g s", limit+timestampUnit))
	row("a node is gone: its figures vanish at the age of, minimum", "%.1f s", percentile(f.vanishedAt, 0), fmt.Sprintf("≥ %g s", limit))
	row("a node is gone: its figures vanish at the age of, maximum", "%.1f s", percentile(f.vanishedAt, 100),
		fmt.Sprintf("≤ %g s", limit+timestampUnit+2*pauseLook.Seconds()))
	row("it is back: its figures are there after, maximum", "%.1f s", percentile(f.back, 100), fmt.Sprintf("≤ %g s", f.cfg.resolution.Seconds()))
	if err := t.print(out); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\nTimestamps are told in whole seconds, so ages seem up to %g s greater than they are. It is looked every %s.\n",
		timestampUnit, pauseLook)
	return err
}

// timestampUnit is to how many seconds a figure's timestamp is told, cut off.
const timestampUnit = 1.0

// both applies one fault after the other.
func both(first, second kubelettest.Fault) kubelettest.Fault {
	return func(a *kubelettest.Response) {
		first(a)
		second(a)
	}
}

// oneOf applies one of the faults at random, always in the same sequence for a seed.
func oneOf(seed uint64, faults ...kubelettest.Fault) kubelettest.Fault {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 1))
	return func(a *kubelettest.Response) {
		mu.Lock()
		fault := faults[random.IntN(len(faults))]
		mu.Unlock()
		fault(a)
	}
}
