package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

const (
	freshNamespace = "fresh" // of the new pods
	targetNewPod   = 20.0    // seconds in which 95 % of the new pods are to have figures
	// patience is how long to wait for the last pods.
	patience = 90 * time.Second
	// pauseFresh is the pause between two looks at the new pods.
	pauseFresh = 100 * time.Millisecond
	// maxNotice is how long a kubelet takes at most to tell the API server that a container runs.
	maxNotice = time.Second
)

// newPods is a server being measured while pods start. Of the kubelets, those of even nodes sample
// their containers every 10 s, those of odd nodes on demand.
type newPods struct {
	cfg      config
	shape    shape
	server   *cluster.Standalone
	herd     *herd
	objects  objects.Client
	progress func(string, ...any)

	baseline float64 // scrapes a second while no pod starts, of all nodes
	during   float64 // scrapes a second while pods start
	seconds  float64 // for how long they did

	mu      sync.Mutex
	started map[string]start   // by name of the pod
	waited  map[string]float64 // name of the pod → seconds from its start until it was served
}

// start is when and on which node a pod's containers started.
type start struct {
	at   time.Time
	node int
}

// measureNewPods measures how soon the pods that start have figures, and how many scrapes it costs.
func measureNewPods(ctx context.Context, cfg config, nodes int, out io.Writer, progress func(string, ...any)) error {
	shape := newShape(nodes)
	w, err := newWorld(ctx, cfg, progress)
	if err != nil {
		return err
	}
	defer w.Stop()
	h, err := startWithin(w, kubelets(shape, cfg.idle, onDemandNode))
	if err != nil {
		return err
	}
	defer h.Close()
	if err := fill(ctx, w, shape, h.port, progress); err != nil {
		return err
	}
	objects := objects.Client{Interface: w.Client}
	if err := objects.CreateNamespace(ctx, freshNamespace); err != nil {
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
	n := &newPods{
		cfg: cfg, shape: shape, server: s, herd: h, objects: objects, progress: progress,
		started: map[string]start{}, waited: map[string]float64{},
	}
	if err := n.run(ctx); err != nil {
		return errors.Join(err, s.Process.Running())
	}
	return n.print(out)
}

func onDemandNode(node int) bool { return node%2 == 1 }

func (n *newPods) run(ctx context.Context) (err error) {
	if err := sleep(ctx, 3*n.cfg.resolution); err != nil { // what follows a server's start is over by then
		return err
	}
	n.progress("counting scrapes while no pod starts")
	if n.baseline, err = n.scrapeRate(ctx, 4*n.cfg.resolution, nil); err != nil {
		return err
	}
	n.progress("starting %g pods a second for %s", n.cfg.rate, n.cfg.duration)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { n.observe(ctx, cancel) })
	began := time.Now()
	n.during, err = n.scrapeRate(ctx, 0, func() error {
		if err := n.startPods(ctx, cancel, &work); err != nil {
			return err
		}
		n.progress("waiting for the last pods")
		return n.await(ctx)
	})
	n.seconds = time.Since(began).Seconds()
	cancel(nil)
	return err
}

// scrapeRate counts scrapes a second, as the kubelets see them, while f runs or for some time.
func (n *newPods) scrapeRate(ctx context.Context, d time.Duration, f func() error) (float64, error) {
	if f == nil {
		f = func() error { return sleep(ctx, d) }
	}
	began, before := time.Now(), n.scrapes()
	err := f()
	return float64(n.scrapes()-before) / time.Since(began).Seconds(), err
}

// scrapes is how often the kubelets have been asked, for anything.
func (n *newPods) scrapes() (sum int) {
	for _, k := range n.herd.kubelets {
		sum += k.Requests(kubelettest.ResourcePath) + k.Requests(kubelettest.SummaryPath)
	}
	return sum
}

// startPods starts pods at random moments on random nodes.
func (n *newPods) startPods(ctx context.Context, cancel context.CancelCauseFunc, work *sync.WaitGroup) error {
	random := rand.New(rand.NewPCG(1, 2))
	end := time.Now().Add(n.cfg.duration)
	for index := n.shape.pods(); ; index++ {
		pause := time.Duration(random.ExpFloat64() / n.cfg.rate * float64(time.Second))
		if time.Now().Add(pause).After(end) {
			return nil
		}
		if sleep(ctx, pause) != nil {
			return context.Cause(ctx)
		}
		p := objects.NewPod(freshNamespace, fmt.Sprintf("app-%d", index%7), random.IntN(n.shape.nodes), index)
		notice := time.Duration(random.Int64N(int64(maxNotice)))
		work.Go(func() {
			if err := n.startPod(ctx, p, notice); err != nil {
				cancel(err)
			}
		})
	}
}

// startPod leads a pod's life: it is created and bound, its containers start, and its kubelet says
// so a little later.
func (n *newPods) startPod(ctx context.Context, p objects.Pod, notice time.Duration) error {
	if err := n.objects.CreatePod(ctx, p); err != nil {
		return err
	}
	now := time.Now()
	for _, name := range objects.ContainerNames {
		n.herd.kubelets[p.Node].Run(p.Namespace, p.Name, name, kubelettest.Usage{CPU: 0.1, Memory: 64 << 20}, now)
	}
	n.mu.Lock()
	n.started[p.Name] = start{at: now, node: p.Node}
	n.mu.Unlock()
	if sleep(ctx, notice) != nil {
		return context.Cause(ctx)
	}
	return n.objects.SetRunning(ctx, p, time.Now())
}

// observe notes for each pod when it is served for the first time, until the context ends.
func (n *newPods) observe(ctx context.Context, cancel context.CancelCauseFunc) {
	for sleep(ctx, pauseFresh) == nil {
		list, err := n.server.Pods(ctx, cluster.V1beta1+"/namespaces/"+freshNamespace+"/pods", cluster.TypeProtobuf)
		if err != nil {
			cancel(err)
			return
		}
		now := time.Now()
		n.mu.Lock()
		for _, pod := range list.Items {
			if _, ok := n.waited[pod.Name]; !ok {
				n.waited[pod.Name] = now.Sub(n.started[pod.Name].at).Seconds()
			}
		}
		n.mu.Unlock()
	}
}

// await waits until all pods have been served, or until it has taken too long.
func (n *newPods) await(ctx context.Context) error {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		n.mu.Lock()
		missing := len(n.started) - len(n.waited)
		n.mu.Unlock()
		if missing == 0 {
			return nil
		}
		if sleep(ctx, pauseFresh) != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// times are those of the pods on the nodes that are picked.
func (n *newPods) times(pick func(node int) bool) (waited []float64, never int) {
	for name, s := range n.started {
		if !pick(s.node) {
			continue
		}
		if seconds, ok := n.waited[name]; ok {
			waited = append(waited, seconds)
		} else {
			never++
		}
	}
	return waited, never
}

func (n *newPods) print(out io.Writer) error {
	t := newTable(fmt.Sprintf("%s and new pods: %d nodes, %g pods a second, resolution %s, housekeeping %s",
		n.cfg.name(), n.shape.nodes, n.cfg.rate, n.cfg.resolution, housekeeping),
		"From a container's start until its pod is served", "pods", "p50", "p95", "maximum", "never", "target of p95")
	for _, kind := range []struct {
		name string
		pick func(node int) bool
	}{
		{"all kubelets", func(int) bool { return true }},
		{fmt.Sprintf("kubelets that sample containers every %s", housekeeping), func(node int) bool { return !onDemandNode(node) }},
		{"kubelets that sample containers on demand", onDemandNode},
	} {
		waited, never := n.times(kind.pick)
		seconds := func(p float64) string { return fmt.Sprintf("%.1f s", percentile(waited, p)) }
		t.row(kind.name, fmt.Sprint(len(waited)+never), seconds(50), seconds(95), seconds(100), fmt.Sprint(never),
			fmt.Sprintf("≤ %g s", targetNewPod))
	}
	if err := t.print(out); err != nil {
		return err
	}
	perInterval := n.cfg.resolution.Seconds() / float64(n.shape.nodes)
	_, err := fmt.Fprintf(out, "\nRequests to a kubelet in an interval: %.2f while no pod starts, %.2f while pods do; %.1f more for each new pod.\n",
		n.baseline*perInterval, n.during*perInterval, (n.during-n.baseline)*n.seconds/float64(max(len(n.started), 1)))
	return err
}
