package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

// namespaces are those of the pods, and apps what they run: four of each namespace.
var namespaces = []string{"shop", "batch", "team-a", "team-b"}

const appsPerNamespace = 4

func appName(i int) string { return fmt.Sprintf("app-%d", i%appsPerNamespace) }

// herd is the nodes and pods of a cluster, and leads their lives: objects in the API server, and
// kubelets. Apart from fill, all changes are made by one goroutine, and others may only look on.
type herd struct {
	objects      objects.Client
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
	podsReplaced, nodesReplaced, restarts, ailments, absences int
	steps, stepsBack                                          int // of clocks
	startsMoved, startsMove                                   int // nodes; once, and with every sample
}

// member is a node that exists.
type member struct {
	index   int
	kubelet *kubelettest.Kubelet
	record  *node
	pods    []resident
	until   time.Time // when its kubelet is to be cured; zero: nothing is the matter with it

	habits  []kubelettest.Fault // that are never cured
	undated bool                // whether its responses never have a Date header
	reload  time.Time           // when its load changes while it is away; zero: it does not
	quiet   time.Time           // until when its clock is not set again
}

// adopt gives a new node its habits: of ten nodes, one has start times that are always 12 s before
// the sample, one has some that are always 3 s before it, and one is behind a proxy that removes
// the Date header. The clocks of a third of the others are wrong from the start.
func (h *herd) adopt(m *member) {
	switch m.index % 10 {
	case 3:
		h.moveStarts(m, kubelettest.StartsBefore(12*time.Second))
	case 6:
		h.moveStarts(m, kubelettest.StartsBefore(3*time.Second))
	case 9:
		m.habits, m.undated = append(m.habits, kubelettest.NoDate), true
		return
	}
	offsets := []time.Duration{30 * time.Second, -75 * time.Second, -10 * time.Minute, 25 * time.Hour, -25 * time.Hour, 400 * time.Millisecond}
	if m.index%3 == 1 {
		h.setClock(m, offsets[m.index/3%len(offsets)])
	}
}

// moveStarts alters the start times of a node's containers from now on.
func (h *herd) moveStarts(m *member, how kubelettest.Fault) {
	h.ledger.lie(m.record, time.Now())
	m.habits = append(m.habits, how)
}

// setClock sets the clock of a node.
func (h *herd) setClock(m *member, ahead time.Duration) {
	h.ledger.step(m.record, time.Now(), ahead, func() { m.kubelet.SetClockOffset(ahead) })
}

// resident is a pod that exists.
type resident struct {
	objects.Pod
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
	name := objects.NodeName(index)
	m := &member{
		index: index,
		// Of two kubelets, one samples its containers on demand.
		kubelet: kubelettest.New(name, kubelettest.Config{
			Boot: time.Now().Add(-time.Hour), Housekeeping: h.housekeeping, ContainersOnDemand: index%2 == 1,
		}),
		record: h.ledger.addNode(name, nodeUsage),
	}
	m.kubelet.SetNode(nodeUsage)
	h.adopt(m)
	m.kubelet.SetFaults(m.habits...)
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
	if m.record.lies {
		h.counts.startsMove++
	}
	return nil
}

// nodeUsage is that of every node at first.
var nodeUsage = kubelettest.Usage{CPU: 2, Memory: 8 << 30}

// addPod starts a pod on a node.
func (h *herd) addPod(ctx context.Context, m *member) error {
	h.mu.Lock()
	index := h.nextPod
	h.nextPod++
	h.mu.Unlock()
	p := objects.NewPod(namespaces[index%len(namespaces)], appName(index/len(namespaces)), m.index, index)
	var usage [len(objects.ContainerNames)]kubelettest.Usage
	for i := range usage {
		usage[i] = kubelettest.Usage{CPU: float64((index*7+i)%10) / 20, Memory: uint64(16+(index+i)%100) << 20} // a tenth of them idle
	}
	record := h.ledger.addPod(p, m.record, usage)
	if err := h.objects.CreatePod(ctx, p); err != nil {
		return err
	}
	for i, name := range objects.ContainerNames {
		m.kubelet.SetContainer(p.Namespace, p.Name, name, usage[i])
	}
	// The kubelet writes the start by the node's clock.
	if err := h.objects.SetRunning(ctx, p, time.Now().Add(m.record.clock.ahead())); err != nil {
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

// churn lets things happen at random moments, so many a second, until the time is over. Then it
// cures all kubelets.
func (h *herd) churn(ctx context.Context, perSecond float64, duration time.Duration) error {
	for end := time.Now().Add(duration); time.Now().Before(end); {
		if err := sleep(ctx, time.Duration(h.random.ExpFloat64()/perSecond*float64(time.Second))); err != nil {
			return err
		}
		now := time.Now()
		h.reload(now)
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
	case chance < 0.30 && len(m.pods) > 0:
		h.counts.podsReplaced++
		if err := h.removePod(ctx, m, h.random.IntN(len(m.pods))); err != nil {
			return err
		}
		return h.addPod(ctx, h.members[h.random.IntN(len(h.members))])
	case chance < 0.55 && len(m.pods) > 0:
		h.counts.restarts++
		p := m.pods[h.random.IntN(len(m.pods))]
		h.ledger.restart(p.record, now)
		m.kubelet.Restart(p.Namespace, p.Name, objects.ContainerNames[h.random.IntN(len(objects.ContainerNames))])
	case chance < 0.70:
		h.step(m, now)
	case chance < 0.72:
		if len(m.habits) == 0 {
			h.counts.startsMoved++
			h.moveStarts(m, kubelettest.MoveStarts(time.Duration((h.random.Float64()*2-1)*float64(time.Hour))))
			if m.until.IsZero() {
				m.kubelet.SetFaults(m.habits...)
			}
		}
	case chance < 0.75:
		h.leave(m, now)
	default:
		h.ail(m, now)
	}
	return nil
}

// step sets the clock of a node, while it is away or has been well for so long that the server has
// noticed the step before.
func (h *herd) step(m *member, now time.Time) {
	well := m.until.IsZero() && now.Sub(m.record.steady) >= h.ledger.settle
	isAway := !m.until.IsZero() && m.record.ailment == away
	if m.undated || now.Before(m.quiet) || !well && !isAway {
		return
	}
	was := m.record.clock.ahead()
	by := h.stepSize()
	if was.Abs() > 24*time.Hour || h.random.IntN(4) == 0 {
		by = -was // it is corrected
	}
	if by == 0 || by.Abs() > unnoticed && by.Abs() < 2*time.Second {
		return
	}
	m.quiet = now.Add(h.ledger.settle)
	if by.Abs() <= unnoticed {
		m.quiet = now.Add(time.Minute) // a step that follows an unnoticed one could take it back in part, and not be noticed either
	}
	h.counts.steps++
	if by < 0 {
		h.counts.stepsBack++
	}
	h.setClock(m, was+by)
}

// stepSize returns by how much a clock is set: in 1 of 10 cases so little that it may not be
// noticed, in as many by 25 hours, otherwise by 2 seconds to 10 minutes; ahead or back.
func (h *herd) stepSize() time.Duration {
	by := time.Duration(2 * math.Pow(300, h.random.Float64()) * float64(time.Second))
	switch h.random.IntN(10) {
	case 0:
		by = time.Duration(h.random.Int64N(int64(unnoticed)))
	case 1:
		by = 25 * time.Hour
	}
	if h.random.IntN(2) == 0 {
		by = -by
	}
	return by.Truncate(time.Millisecond)
}

const (
	// maxAway is for how long a node is away at most. It is longer than metrics stand.
	maxAway = 50 * time.Second
	// reloadBefore is how long before its return the load of a node that is away changes: longer
	// than any kubelet-reported rate covers.
	reloadBefore = 3 * housekeeping
	// maxAwayShare is the share of nodes that are away at the same time at most, beside those that
	// misbehave.
	maxAwayShare = 0.05
)

// leave lets a node be away for longer than its metrics stand.
func (h *herd) leave(m *member, now time.Time) {
	gone := 0
	for _, other := range h.members {
		if !other.reload.IsZero() {
			gone++
		}
	}
	if !m.until.IsZero() || float64(gone) >= maxAwayShare*float64(len(h.members)) {
		return
	}
	h.counts.absences++
	shortest := h.ledger.maxAge + 2*time.Second
	until := now.Add(shortest + time.Duration(h.random.Int64N(int64(max(1, maxAway-shortest)))))
	h.setIll(m, until)
	m.reload = until.Add(-reloadBefore)
	h.ledger.note(func() { m.record.failing, m.record.ailment = now, away })
	m.kubelet.SetFaults(kubelettest.Refuse)
}

// reload changes the load of the nodes that are away and whose time has come, by a factor of 1/4 to
// 4.
func (h *herd) reload(now time.Time) {
	for _, m := range h.members {
		if m.reload.IsZero() || now.Before(m.reload) {
			continue
		}
		m.reload = time.Time{}
		h.ledger.note(func() {
			u := h.otherLoad(m.record.load)
			m.kubelet.SetNode(u)
			m.record.load = append(m.record.load, change{time.Now(), u})
			for _, p := range m.pods {
				for i, name := range objects.ContainerNames {
					u := h.otherLoad(p.record.load[i])
					m.kubelet.SetContainer(p.Namespace, p.Name, name, u)
					p.record.load[i] = append(p.record.load[i], change{time.Now(), u})
				}
			}
		})
	}
}

// otherLoad returns a load that follows another one.
func (h *herd) otherLoad(l load) kubelettest.Usage {
	u := l[len(l)-1].usage
	u.CPU = min(u.CPU*math.Pow(4, h.random.Float64()*2-1), 4)
	u.Memory += 1 << 20
	return u
}

const (
	// maxIll is for how long a kubelet misbehaves at most: some scrapes, or until its figures are
	// too old.
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
	faults := kubelettest.Faults()
	f := faults[h.random.IntN(len(faults))]
	if f.Name == responsesUndated && now.Sub(m.record.clock.setAt()) < h.ledger.settle {
		return // the server cannot notice the step without a Date header
	}
	h.counts.ailments++
	if f.Name == startsMove || f.Name == startsMoved {
		h.ledger.lie(m.record, now)
	}
	if h.random.IntN(2) == 0 {
		f.Fault = kubelettest.Sometimes(0.5, h.random.Uint64(), f.Fault)
	}
	h.setIll(m, now.Add(time.Duration(h.random.Int64N(int64(maxIll)))))
	h.ledger.note(func() {
		m.record.failing, m.record.ailment = now, f.Name
		if isTimeWrong(f.Name) {
			m.record.doubt = now.Add(maxIll + h.ledger.settle + h.ledger.doubtful())
		}
	})
	m.kubelet.SetFaults(slices.Concat(m.habits, []kubelettest.Fault{f.Fault})...)
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
		m.kubelet.SetFaults(m.habits...)
		m.reload = time.Time{}
		h.setIll(m, time.Time{})
		h.ledger.note(func() { m.record.failing, m.record.steady = time.Time{}, time.Now() })
	}
}
