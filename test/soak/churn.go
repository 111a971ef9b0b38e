package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

// namespaces are those of the pods. Each has pods of four apps.
var namespaces = []string{"shop", "batch", "team-a", "team-b"}

const appsPerNamespace = 4

func appName(i int) string { return fmt.Sprintf("app-%d", i%appsPerNamespace) }

const (
	// maxFault is how long a kubelet misbehaves at most: some scrapes, or until its metrics expire.
	maxFault = 50 * time.Second
	// maxFaultyShare is the share of kubelets that misbehave at a time at most.
	maxFaultyShare = 0.2
)

// startCPU is what a container uses to start, in core-seconds. A counter that stays 0 is a kubelet's "unknown".
const startCPU = 0.02

// apiServer has the objects of the cluster.
type apiServer interface {
	CreateNamespace(ctx context.Context, name string) error
	CreateNode(ctx context.Context, index int, port uint16, cores int) error
	DeleteNode(ctx context.Context, index int) error
	CreatePod(context.Context, objects.Pod) error
	SetRunning(ctx context.Context, p objects.Pod, startedAt time.Time) error
	DeletePod(context.Context, objects.Pod) error
}

// fleet serves the kubelets.
type fleet interface {
	Add(k *kubelettest.Kubelet, at netip.Addr) (netip.AddrPort, error)
	Remove(name string)
}

// churn creates, changes and deletes nodes and pods: objects in the API server and kubelets. One
// goroutine makes all changes.
type churn struct {
	objects apiServer
	fleet   fleet
	oracle  *oracle
	random  *rand.Rand

	nextNode int // an index is never used again, and so no name
	nextPod  int
	events   map[string]int // how often each kind of event has happened
	nodes    []*node        // that exist; changed in oracle.update
}

func newChurn(objects apiServer, fleet fleet, o *oracle, seed uint64) *churn {
	return &churn{
		objects: objects, fleet: fleet, oracle: o, random: rand.New(rand.NewPCG(seed, 0)), events: map[string]int{},
	}
}

// fill creates the first nodes, each with some pods.
func (c *churn) fill(ctx context.Context, nodes, pods int) error {
	for _, name := range namespaces {
		if err := c.objects.CreateNamespace(ctx, name); err != nil {
			return err
		}
	}
	for range nodes {
		if err := c.addNode(ctx, pods); err != nil {
			return err
		}
	}
	return nil
}

// addNode creates a node with a kubelet and pods. Every other kubelet samples its containers for
// each request. Of ten nodes, one reports start times 12 s before each sample, one reports them 3 s before,
// one is behind a proxy that removes the Date header, two report no rates of some containers, and one has
// less CPU in its status than it uses. A third of the others have wrong clocks.
func (c *churn) addNode(ctx context.Context, pods int) error {
	index := c.nextNode
	c.nextNode++
	name := objects.NodeName(index)
	n := &node{readings: readings{}, index: index, cores: objects.NodeCores}
	if index%3 == 1 && index%10 != 9 {
		n.offset, n.stepped = wrongClocks[index/3%len(wrongClocks)], time.Now()
	}
	n.kubelet = kubelettest.New(name, kubelettest.Config{
		Boot: time.Now().Add(-time.Hour), Housekeeping: housekeeping, ContainersOnDemand: index%2 == 1,
		ClockOffset: n.offset, Readings: true, StartCPU: startCPU,
	})
	n.node = n
	c.oracle.add(nodeName(name), &n.object)
	n.kubelet.SetNode(kubelettest.Usage{CPU: 0.1}) // since Boot: the counter of a node is never 0
	n.kubelet.SetNode(c.load(4))
	switch index % 10 {
	case 3:
		c.moveStarts(n, kubelettest.StartsBefore(12*time.Second))
	case 6:
		c.moveStarts(n, kubelettest.StartsBefore(3*time.Second))
	case 9:
		n.permanent, n.withoutDate = append(n.permanent, kubelettest.NoDate), true
	case 2, 8: // not on demand: their rates are real
		n.permanent = append(n.permanent, noRates(objects.ContainerNames[index/10%len(objects.ContainerNames)]))
	case 5:
		n.cores = 1
	}
	c.setFaults(n)
	at, err := c.fleet.Add(n.kubelet, kubelettest.Address(index))
	if err != nil {
		return err
	}
	if err := c.objects.CreateNode(ctx, index, at.Port(), n.cores); err != nil {
		return err
	}
	c.oracle.update(func() { n.undisturbed = time.Now() })
	for range pods {
		if err := c.addPod(ctx, n); err != nil {
			return err
		}
	}
	c.oracle.update(func() { c.nodes = append(c.nodes, n) })
	return nil
}

// wrongClocks are how far the clocks of some nodes are ahead at first.
var wrongClocks = []time.Duration{
	30 * time.Second, -75 * time.Second, -10 * time.Minute, 25 * time.Hour, -25 * time.Hour, 400 * time.Millisecond,
}

// moveStarts changes the start times of a node's containers permanently.
func (c *churn) moveStarts(n *node, fault kubelettest.Fault) {
	c.oracle.moveStarts(n, time.Now())
	n.permanent = append(n.permanent, fault)
}

// addPod creates a pod on a node and starts its containers.
func (c *churn) addPod(ctx context.Context, n *node) error {
	index := c.nextPod
	c.nextPod++
	p := &pod{
		object: object{node: n},
		Pod:    objects.NewPod(namespaces[index%len(namespaces)], appName(index/len(namespaces)), n.index, index),
	}
	if n.startsMove {
		p.unjudgeable = time.Now().Add(c.oracle.wrongStartTime())
	}
	c.oracle.add(podName(p.Namespace, p.Name), &p.object)
	if err := c.objects.CreatePod(ctx, p.Pod); err != nil {
		return err
	}
	for _, name := range objects.ContainerNames {
		n.kubelet.SetContainer(p.Namespace, p.Name, name, c.load(0.5))
	}
	// Kubelets report start times by the node's clock.
	p.startedAt = time.Now().Add(n.offset)
	if err := c.objects.SetRunning(ctx, p.Pod, p.startedAt); err != nil {
		return err
	}
	c.oracle.update(func() { p.undisturbed = time.Now() })
	n.pods = append(n.pods, p)
	return nil
}

// removePod deletes pod i of a node.
func (c *churn) removePod(ctx context.Context, n *node, i int) error {
	p := n.pods[i]
	n.pods = slices.Delete(n.pods, i, i+1)
	c.oracle.update(func() { p.deleting = true })
	n.kubelet.RemovePod(p.Namespace, p.Name)
	if err := c.objects.DeletePod(ctx, p.Pod); err != nil {
		return err
	}
	c.oracle.update(func() { p.deleted = time.Now() })
	return nil
}

// removeNode deletes node i with its pods.
func (c *churn) removeNode(ctx context.Context, i int) error {
	n := c.nodes[i]
	c.oracle.update(func() { c.nodes, n.deleting = slices.Delete(c.nodes, i, i+1), true })
	c.fleet.Remove(n.kubelet.Name())
	if err := c.objects.DeleteNode(ctx, n.index); err != nil {
		return err
	}
	c.oracle.update(func() { n.deleted = time.Now() })
	for len(n.pods) > 0 {
		if err := c.removePod(ctx, n, len(n.pods)-1); err != nil {
			return err
		}
	}
	return nil
}

// run causes random events for a time, and then clears all faults that are not permanent.
func (c *churn) run(ctx context.Context, perSecond float64, duration time.Duration) error {
	for end := time.Now().Add(duration); time.Now().Before(end); {
		if err := program.Sleep(ctx, time.Duration(c.random.ExpFloat64()/perSecond*float64(time.Second))); err != nil {
			return err
		}
		now := time.Now()
		c.clearFaults(func(n *node) bool { return !now.Before(n.faultyUntil) })
		if err := c.causeEvent(ctx, now); err != nil {
			return err
		}
	}
	c.clearFaults(func(*node) bool { return true })
	return nil
}

// causeEvent causes one random event.
func (c *churn) causeEvent(ctx context.Context, now time.Time) error {
	i := c.random.IntN(len(c.nodes))
	n := c.nodes[i]
	switch chance := c.random.Float64(); {
	case chance < 0.05:
		c.events["nodes replaced"]++
		pods := len(n.pods)
		if err := c.removeNode(ctx, i); err != nil {
			return err
		}
		return c.addNode(ctx, pods)
	case chance < 0.30 && len(n.pods) > 0:
		c.events["pods replaced"]++
		if err := c.removePod(ctx, n, c.random.IntN(len(n.pods))); err != nil {
			return err
		}
		return c.addPod(ctx, c.nodes[c.random.IntN(len(c.nodes))])
	case chance < 0.55 && len(n.pods) > 0:
		p := n.pods[c.random.IntN(len(n.pods))]
		if now.Add(n.offset).Before(p.startedAt) {
			break // the start time would be from before that of the pod, and the statuses here do not show restarts
		}
		c.events["container restarts"]++
		c.oracle.restart(&p.object, now)
		n.kubelet.Restart(p.Namespace, p.Name, objects.ContainerNames[c.random.IntN(len(objects.ContainerNames))])
	case chance < 0.70:
		c.stepClock(n, now)
	case chance < 0.72 && len(n.permanent) == 0:
		c.events["nodes whose start times moved"]++
		// Start times from cAdvisor move forwards only. Earlier ones would be of another pod.
		by := time.Duration(c.random.Float64() * float64(time.Hour))
		c.moveStarts(n, kubelettest.MoveStarts(by))
		if n.failing.IsZero() {
			c.setFaults(n)
		}
	case chance < 0.75:
		c.changeLoad(n)
	default:
		c.injectFault(n, now)
	}
	return nil
}
