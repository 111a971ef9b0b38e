package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/world"
)

// namespaces are those of the pods, and apps what they run: four of each namespace.
var namespaces = []string{"shop", "batch", "team-a", "team-b"}

const appsPerNamespace = 4

func appName(i int) string { return fmt.Sprintf("app-%d", i%appsPerNamespace) }

// herd is the nodes and pods of a cluster, and leads their lives: objects in the API server, and kubelets. Apart from fill,
// all changes are made by one goroutine, and others may only look on.
type herd struct {
	objects      world.Objects
	fleet        *kubelettest.Fleet
	ledger       *ledger
	housekeeping time.Duration
	random       *rand.Rand

	mu       sync.Mutex
	nextNode int // index; none is used twice, so that no name is
	nextPod  int
	members  []*member
	counts   counts
}

// counts is what has happened.
type counts struct {
	podsReplaced, nodesReplaced, restarts, ailments int
}

// member is a node that exists.
type member struct {
	index   int
	kubelet *kubelettest.Kubelet
	record  *node
	pods    []resident
	until   time.Time // when its kubelet is to be cured; zero: nothing is the matter with it
}

// resident is a pod that exists.
type resident struct {
	world.Pod
	record *pod
}

// fillers is how many nodes are made at the same time in the beginning.
const fillers = 8

// fill makes the first nodes, each with so many pods.
func (h *herd) fill(ctx context.Context, nodes, pods int) error {
	for _, name := range namespaces {
		if err := h.objects.CreateNamespace(ctx, name); err != nil {
			return err
		}
	}
	work := make(chan struct{})
	errs := make([]error, fillers)
	var group sync.WaitGroup
	for i := range fillers {
		group.Go(func() {
			for range work {
				if errs[i] == nil {
					errs[i] = h.addNode(ctx, pods)
				}
			}
		})
	}
	for range nodes {
		work <- struct{}{}
	}
	close(work)
	group.Wait()
	return errors.Join(errs...)
}

// addNode registers a node with a kubelet, and starts pods on it.
func (h *herd) addNode(ctx context.Context, pods int) error {
	h.mu.Lock()
	index := h.nextNode
	h.nextNode++
	h.mu.Unlock()
	name := world.NodeName(index)
	m := &member{
		index: index,
		// Of two kubelets, one samples its containers on demand.
		kubelet: kubelettest.New(name, kubelettest.Config{Housekeeping: h.housekeeping, ContainersOnDemand: index%2 == 1}),
		record:  h.ledger.addNode(name),
	}
	m.kubelet.SetNode(kubelettest.Usage{CPU: 2, Memory: 8 << 30})
	at, err := h.fleet.Add(m.kubelet, kubelettest.Address(index))
	if err != nil {
		return err
	}
	if err := h.objects.CreateNode(ctx, index, at.Port()); err != nil {
		return err
	}
	h.ledger.note(func() { m.record.steady = time.Now() })
	for range pods {
		if err := h.addPod(ctx, m); err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.members = append(h.members, m)
	return nil
}

// addPod starts a pod on a node.
func (h *herd) addPod(ctx context.Context, m *member) error {
	h.mu.Lock()
	index := h.nextPod
	h.nextPod++
	h.mu.Unlock()
	p := world.NewPod(namespaces[index%len(namespaces)], appName(index/len(namespaces)), m.index, index)
	var usage [len(world.ContainerNames)]kubelettest.Usage
	for i := range usage {
		usage[i] = kubelettest.Usage{CPU: float64((index*7+i)%10) / 20, Memory: uint64(16+(index+i)%100) << 20} // a tenth of them idle
	}
	record := h.ledger.addPod(p, m.record, usage)
	if err := h.objects.CreatePod(ctx, p); err != nil {
		return err
	}
	for i, name := range world.ContainerNames {
		m.kubelet.SetContainer(p.Namespace, p.Name, name, usage[i])
	}
	if err := h.objects.SetRunning(ctx, p); err != nil {
		return err
	}
	h.ledger.note(func() { record.steady = time.Now() })
	m.pods = append(m.pods, resident{p, record})
	return nil
}

// removePod ends one of a node's pods.
func (h *herd) removePod(ctx context.Context, m *member, i int) error {
	p := m.pods[i]
	m.pods = slices.Delete(m.pods, i, i+1)
	h.ledger.note(func() { p.record.ending = true })
	m.kubelet.RemovePod(p.Namespace, p.Name)
	if err := h.objects.DeletePod(ctx, p.Pod); err != nil {
		return err
	}
	h.ledger.note(func() { p.record.deleted = time.Now() })
	return nil
}

// removeNode ends a node, and all its pods.
func (h *herd) removeNode(ctx context.Context, i int) error {
	h.mu.Lock()
	m := h.members[i]
	h.members = slices.Delete(h.members, i, i+1)
	h.mu.Unlock()
	h.ledger.note(func() { m.record.ending = true })
	h.fleet.Remove(m.kubelet.Name())
	if err := h.objects.DeleteNode(ctx, m.index); err != nil {
		return err
	}
	h.ledger.note(func() { m.record.deleted = time.Now() })
	for len(m.pods) > 0 {
		if err := h.removePod(ctx, m, len(m.pods)-1); err != nil {
			return err
		}
	}
	return nil
}

// churn lets things happen at random moments, so many a second, until the time is over. Then it cures all kubelets.
func (h *herd) churn(ctx context.Context, perSecond float64, duration time.Duration) error {
	for end := time.Now().Add(duration); time.Now().Before(end); {
		if err := sleep(ctx, time.Duration(h.random.ExpFloat64()/perSecond*float64(time.Second))); err != nil {
			return err
		}
		now := time.Now()
		h.cure(now)
		if err := h.happen(ctx, now); err != nil {
			return err
		}
	}
	h.cure(time.Time{})
	return nil
}

// happen lets one thing happen.
func (h *herd) happen(ctx context.Context, now time.Time) error {
	i := h.random.IntN(len(h.members))
	m := h.members[i]
	switch chance := h.random.Float64(); {
	case chance < 0.05:
		h.counts.nodesReplaced++
		pods := len(m.pods)
		if err := h.removeNode(ctx, i); err != nil {
			return err
		}
		return h.addNode(ctx, pods)
	case chance < 0.35 && len(m.pods) > 0:
		h.counts.podsReplaced++
		if err := h.removePod(ctx, m, h.random.IntN(len(m.pods))); err != nil {
			return err
		}
		return h.addPod(ctx, h.members[h.random.IntN(len(h.members))])
	case chance < 0.65 && len(m.pods) > 0:
		h.counts.restarts++
		p := m.pods[h.random.IntN(len(m.pods))]
		h.ledger.restart(p.record, now)
		m.kubelet.Restart(p.Namespace, p.Name, world.ContainerNames[h.random.IntN(len(world.ContainerNames))])
	default:
		h.ail(m, now)
	}
	return nil
}

const (
	// maxIll is for how long a kubelet misbehaves at most: some scrapes, or until its figures are too old.
	maxIll = 40 * time.Second
	// maxIllShare is the share of kubelets that misbehave at the same time at most.
	maxIllShare = 0.2
)

// ill is how many kubelets misbehave.
func (h *herd) ill() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.members {
		if !m.until.IsZero() {
			n++
		}
	}
	return n
}

// ail lets a kubelet misbehave for a while, always or half of the times.
func (h *herd) ail(m *member, now time.Time) {
	if !m.until.IsZero() || float64(h.ill()) >= maxIllShare*float64(len(h.members)) {
		return
	}
	h.counts.ailments++
	faults := kubelettest.Faults()
	f := faults[h.random.IntN(len(faults))]
	if h.random.IntN(2) == 0 {
		f.Fault = kubelettest.Sometimes(0.5, h.random.Uint64(), f.Fault)
	}
	h.setIll(m, now.Add(time.Duration(h.random.Int64N(int64(maxIll)))))
	h.ledger.note(func() { m.record.failing, m.record.ailment = now, f.Name })
	m.kubelet.SetFaults(f.Fault)
}

// setIll notes until when a kubelet misbehaves; the zero time: it does not.
func (h *herd) setIll(m *member, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.until = until
}

// cure lets the kubelets behave whose time has come; at the zero time, all.
func (h *herd) cure(now time.Time) {
	for _, m := range h.members {
		if m.until.IsZero() || !now.IsZero() && now.Before(m.until) {
			continue
		}
		m.kubelet.SetFaults()
		h.setIll(m, time.Time{})
		h.ledger.note(func() { m.record.failing, m.record.steady = time.Time{}, time.Now() })
	}
}
