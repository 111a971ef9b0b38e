package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

const (
	newPodsNamespace = "fresh"
	goalNewPod       = 20.0 // seconds within which 95 % of the new pods have metrics
	lastPodTimeout   = 90 * time.Second
	newPodsPause     = 100 * time.Millisecond
	// maxStatusDelay is how long a kubelet takes at most to report a started container.
	maxStatusDelay = time.Second
)

// newPods is when new pods have metrics. Kubelets of even nodes sample their containers every 10 s,
// those of odd nodes for each request.
type newPods struct {
	*bench
	server  *cluster.Standalone
	objects objects.Client

	scrapesBefore float64 // requests per second to all kubelets before pods start
	scrapesDuring float64 // while pods start
	elapsed       float64 // seconds in which pods start

	mu      sync.Mutex
	started map[string]podStart // by pod
	delays  map[string]float64  // by pod, in seconds, from its start until it is served
}

type podStart struct {
	at   time.Time
	node int
}

// measureNewPods measures how soon new pods have metrics, and how many scrapes that costs.
func measureNewPods(ctx context.Context, b *bench) (err error) {
	n := &newPods{
		bench: b, objects: objects.Client{Interface: b.cluster.Client},
		started: map[string]podStart{}, delays: map[string]float64{},
	}
	if err := n.objects.CreateNamespace(ctx, newPodsNamespace); err != nil {
		return err
	}
	if n.server, _, err = b.startServer(ctx, b.server, b.serverArgs...); err != nil {
		return err
	}
	if err := n.run(ctx); err != nil {
		return errors.Join(err, n.server.Process.Running())
	}
	n.print()
	return nil
}

func (n *newPods) run(ctx context.Context) (err error) {
	if err := sleep(ctx, 3*n.resolution); err != nil { // the early scrapes of the start
		return err
	}
	logf("counting scrapes while no pod starts")
	if n.scrapesBefore, _, err = n.countScrapes(func() error { return sleep(ctx, 4*n.resolution) }); err != nil {
		return err
	}
	logf("starting %g pods per second for %s", n.rate, n.duration)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { n.watch(ctx, cancel) })
	n.scrapesDuring, n.elapsed, err = n.countScrapes(func() error {
		if err := n.startPods(ctx, cancel, &group); err != nil {
			return err
		}
		logf("waiting for the last pods")
		return n.awaitAll(ctx)
	})
	cancel(nil)
	return err
}

// countScrapes returns how many requests per second all kubelets receive while f runs, and for how
// many seconds it runs.
func (n *newPods) countScrapes(f func() error) (perSecond, elapsed float64, err error) {
	requests := func() (sum int) {
		for _, k := range n.kubelets.byNode {
			sum += k.Requests(kubelettest.ResourcePath) + k.Requests(kubelettest.SummaryPath)
		}
		return sum
	}
	start, before := time.Now(), requests()
	err = f()
	elapsed = time.Since(start).Seconds()
	return float64(requests()-before) / elapsed, elapsed, err
}

// startPods starts pods at random times on random nodes.
func (n *newPods) startPods(ctx context.Context, cancel context.CancelCauseFunc, group *sync.WaitGroup) error {
	random := rand.New(rand.NewPCG(1, 2))
	end := time.Now().Add(n.duration)
	for index := n.pods(); ; index++ {
		pause := time.Duration(random.ExpFloat64() / n.rate * float64(time.Second))
		if time.Now().Add(pause).After(end) {
			return nil
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		p := objects.NewPod(newPodsNamespace, fmt.Sprintf("app-%d", index%7), random.IntN(n.nodes), index)
		delay := time.Duration(random.Int64N(int64(maxStatusDelay)))
		group.Go(func() {
			if err := n.startPod(ctx, p, delay); err != nil {
				cancel(err)
			}
		})
	}
}

// startPod creates a pod and starts its containers. Its kubelet reports them after a delay.
func (n *newPods) startPod(ctx context.Context, p objects.Pod, delay time.Duration) error {
	if err := n.objects.CreatePod(ctx, p); err != nil {
		return err
	}
	now := time.Now()
	for _, name := range objects.ContainerNames {
		n.kubelets.byNode[p.Node].Run(p.Namespace, p.Name, name, kubelettest.Usage{CPU: 0.1, Memory: 64 << 20}, now)
	}
	n.mu.Lock()
	n.started[p.Name] = podStart{at: now, node: p.Node}
	n.mu.Unlock()
	if err := sleep(ctx, delay); err != nil {
		return err
	}
	return n.objects.SetRunning(ctx, p, time.Now())
}

// watch records when each new pod is first served, until the context ends.
func (n *newPods) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	for sleep(ctx, newPodsPause) == nil {
		list, err := n.server.Pods(ctx, namespacePods(newPodsNamespace), cluster.TypeProtobuf)
		if err != nil {
			cancel(err)
			return
		}
		now := time.Now()
		n.mu.Lock()
		for _, pod := range list.Items {
			if _, ok := n.delays[pod.Name]; !ok {
				n.delays[pod.Name] = now.Sub(n.started[pod.Name].at).Seconds()
			}
		}
		n.mu.Unlock()
	}
}

// awaitAll waits until all new pods have been served, but no longer than lastPodTimeout.
func (n *newPods) awaitAll(ctx context.Context) error {
	for end := time.Now().Add(lastPodTimeout); time.Now().Before(end); {
		n.mu.Lock()
		missing := len(n.started) - len(n.delays)
		n.mu.Unlock()
		if missing == 0 {
			return nil
		}
		if err := sleep(ctx, newPodsPause); err != nil {
			return err
		}
	}
	return nil
}

func (n *newPods) print() {
	t := newTable(fmt.Sprintf("%s and new pods: %d nodes, %g pods per second, resolution %s",
		filepath.Base(n.config.server), n.nodes, n.rate, n.resolution),
		"From the start of a pod until it is served", "pods", "p50", "p95", "maximum", "never", "goal of p95")
	for _, kind := range []struct {
		name     string
		includes func(node int) bool
	}{
		{"all kubelets", func(int) bool { return true }},
		{fmt.Sprintf("kubelets that sample containers every %s", housekeeping), func(node int) bool { return node%2 == 0 }},
		{"kubelets that sample containers for each request", func(node int) bool { return node%2 == 1 }},
	} {
		var delays []float64
		never := 0
		for name, s := range n.started {
			if !kind.includes(s.node) {
				continue
			}
			if delay, ok := n.delays[name]; ok {
				delays = append(delays, delay)
			} else {
				never++
			}
		}
		seconds := func(p float64) string { return fmt.Sprintf("%.1f s", percentile(delays, p)) }
		t.row(kind.name, fmt.Sprint(len(delays)+never), seconds(50), seconds(95), seconds(100), fmt.Sprint(never),
			fmt.Sprintf("≤ %g s", goalNewPod))
	}
	t.print(os.Stdout)
	interval := n.resolution.Seconds() / float64(n.nodes)
	fmt.Printf("\nRequests to a kubelet per interval: %.2f without and %.2f with new pods, %.1f more for each new pod.\n",
		n.scrapesBefore*interval, n.scrapesDuring*interval,
		(n.scrapesDuring-n.scrapesBefore)*n.elapsed/float64(max(len(n.started), 1)))
}
