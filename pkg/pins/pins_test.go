package pins

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kube-vitals/kube-vitals/internal/leaktest"
	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

func TestMain(m *testing.M) {
	// The other handlers of errors sleep by the time of the last error, which is that of another bubble.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	leaktest.Main(m)
}

// nodes are the nodes of the API server with their UIDs.
type nodes struct {
	mu    sync.Mutex
	known map[string]types.UID
	stale map[string]types.UID // what the replicas know, if it is not what the API server has
	err   error                // of a list
}

func (n *nodes) set(name string, uid types.UID) {
	n.locked(func() {
		if n.known[name] = uid; uid == "" {
			delete(n.known, name)
		}
	})
}

func (n *nodes) isCurrent(name string, uid types.UID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stale != nil {
		return n.stale[name] == uid
	}
	return n.known[name] == uid
}

// list is the API server's list.
func (n *nodes) list(context.Context) (map[string]types.UID, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.known), n.err
}

// locked changes the nodes while replicas may run.
func (n *nodes) locked(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

// world is an API server with at most one ConfigMap and the nodes n1 to n9, whose UIDs are u1 to u9, and
// replicas.
type world struct {
	*testing.T
	api        *sim.API
	configMaps corev1client.ConfigMapInterface
	nodes      nodes
}

const configMapPath = "/api/v1/namespaces/kube-system/configmaps/pins"

// test calls f in a synctest bubble, with the empty ConfigMap of the chart.
func test(t *testing.T, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, api: sim.NewAPI(), nodes: nodes{known: map[string]types.UID{}}}
		client, err := corev1client.NewForConfig(w.api.Config())
		if err != nil {
			t.Fatal(err)
		}
		w.configMaps = client.ConfigMaps("kube-system")
		w.put(nil)
		for i := range 9 {
			w.nodes.set(fmt.Sprintf("n%d", i+1), types.UID(fmt.Sprintf("u%d", i+1)))
		}
		f(w)
	})
}

// put replaces the ConfigMap as another client would.
func (w *world) put(data map[string]any) {
	w.api.Put(configMapPath, map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "pins"}, "data": data,
	})
}

// patch changes the entries as another client would; nil removes one.
func (w *world) patch(node string, value any) {
	w.api.Patch(configMapPath, map[string]any{"data": map[string]any{node: value}})
}

// fail makes all requests fail and ends the watches; nil: requests succeed.
func (w *world) fail(failure *sim.Refusal) {
	w.api.RefuseBy(func(string, string) *sim.Refusal { return failure })
	w.api.EndWatches()
}

func (w *world) config() Config {
	return Config{ConfigMaps: w.configMaps, Namespace: "kube-system", Name: "pins", IsCurrent: w.nodes.isCurrent,
		ListNodes: w.nodes.list}
}

// replica starts a process. The function ends it.
func (w *world) replica() (p *Pins, stop func()) {
	p = New(w.config())
	return p, w.run(p)
}

// run runs p until the test ends or the function is called.
func (w *world) run(p *Pins) (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	stop = func() {
		cancel()
		running.Wait()
	}
	w.Cleanup(stop)
	return stop
}

// keyN returns the n-th key.
func keyN(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// pin pins a key and fails the test if that fails.
func (w *world) pin(p *Pins, node string, uid types.UID, key string) {
	w.Helper()
	if err := p.Pin(w.Context(), node, uid, key); err != nil {
		w.Errorf("%s: %v", node, err)
	}
	if pinned, err := p.Check(node, uid, key); !pinned || err != nil {
		w.Errorf("%s: pinned %v, error %v after Pin", node, pinned, err)
	}
}

// refused checks that a key is refused.
func (w *world) refused(p *Pins, node string, uid types.UID, key, text string) {
	w.Helper()
	for what, err := range map[string]error{
		"Check": second(p.Check(node, uid, key)), "Pin": p.Pin(w.Context(), node, uid, key),
	} {
		if r := reason.Of(err); r != reason.TLSKeyChanged || !strings.Contains(explained(r, err), text) {
			w.Errorf("%s of %s: got error %v, want one with %q", what, node, err, text)
		}
	}
}

// explained returns what users read about an error with this reason.
func explained(r reason.Reason, err error) string { return r.Describe().Explain(err).Error() }

func second[T any](_ T, err error) error { return err }

// notPinned checks that a key cannot be pinned because it is not stored in time.
func (w *world) notPinned(p *Pins, node string, uid types.UID, key string, texts ...string) {
	w.Helper()
	start := time.Now()
	err := p.Pin(w.Context(), node, uid, key)
	for _, text := range texts {
		if err == nil || !strings.Contains(explained(reason.TLSNotPinned, err), text) {
			w.Errorf("%s: got error %v, want %q", node, err, text)
		}
	}
	if took := time.Since(start); took != storeTimeout {
		w.Errorf("%s: waited %v", node, took)
	}
	if pinned, err := p.Check(node, uid, key); pinned || err != nil {
		w.Errorf("%s: pinned %v, error %v after a Pin that failed", node, pinned, err)
	}
}

// unknown checks that a node has no pin.
func (w *world) unknown(p *Pins, node string, uid types.UID) {
	w.Helper()
	if pinned, err := p.Check(node, uid, keyN(1)); pinned || err != nil {
		w.Errorf("%s: pinned %v, error %v, want no pin", node, pinned, err)
	}
}

// settle waits until all has been stored and seen.
func settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

// wantData checks the entries of the ConfigMap.
func (w *world) wantData(want map[string]string) {
	w.Helper()
	data, _ := w.api.Get(configMapPath)["data"].(map[string]any)
	got := map[string]string{}
	for node, value := range data {
		got[node], _ = value.(string)
	}
	if !maps.Equal(got, want) {
		w.Errorf("the ConfigMap has %v, want %v", got, want)
	}
}

func (w *world) wantStats(p *Pins, want Stats) {
	w.Helper()
	if got := p.Stats(); got != want {
		w.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFirstSight(t *testing.T) {
	test(t, func(w *world) {
		p, _ := w.replica()
		w.unknown(p, "n1", "u1") // before the ConfigMap has been read
		w.pin(p, "n1", "u1", keyN(1))
		w.wantData(map[string]string{"n1": keyN(1) + " u1"}) // it is stored before it is used
		w.pin(p, "n1", "u1", keyN(1))
		w.refused(p, "n1", "u1", keyN(2), "it has the key "+keyN(2)+", but its key is pinned as "+keyN(1)+" ("+
			reason.TLSKeyChanged.Describe().Cure+
			"; the command: kubectl -n kube-system patch configmap pins --type=merge -p 'data: {n1: "+keyN(2)+" u1}')")
		w.unknown(p, "n2", "u2")
		settle()
		w.wantStats(p, Stats{Keys: 1, Created: 1})
	})
}

// TestRestart checks that a new process uses the stored pins, and counts none as new.
func TestRestart(t *testing.T) {
	test(t, func(w *world) {
		p, stop := w.replica()
		w.pin(p, "n1", "u1", keyN(1))
		p.Verified("n2", "u2")
		settle()
		stop()
		p, _ = w.replica()
		settle()
		w.refused(p, "n1", "u1", keyN(2), "its key is pinned")
		w.refused(p, "n2", "u2", keyN(2), "a CA has verified")
		w.pin(p, "n1", "u1", keyN(1))
		w.wantStats(p, Stats{Keys: 1, Authorities: 1})
		if n := w.api.Written(); n > 2 {
			t.Errorf("%d writes", n)
		}
	})
}

// TestRestartBeforeRead checks that a stored key does not count as new if a new process connects to its
// kubelet before it has read the ConfigMap.
func TestRestartBeforeRead(t *testing.T) {
	test(t, func(w *world) {
		w.patch("n1", keyN(1)+" u1")
		p := New(w.config())
		pinned := make(chan error, 1)
		go func() { pinned <- p.Pin(w.Context(), "n1", "u1", keyN(1)) }()
		synctest.Wait()
		w.run(p)
		if err := <-pinned; err != nil {
			t.Error(err)
		}
		w.wantStats(p, Stats{Keys: 1})
	})
}

// TestKnownPin checks that nothing is written for a node that has a pin.
func TestKnownPin(t *testing.T) {
	test(t, func(w *world) {
		p, _ := w.replica()
		w.pin(p, "n1", "u1", keyN(1))
		before := w.api.Written()
		p.want("n1", pin{"u1", keyN(1)}) // as if it was pinned between Check and want
		p.want("n1", pin{"u1", keyN(2)})
		settle()
		if n := w.api.Written() - before; n != 0 || p.hasWork() {
			t.Errorf("%d writes, something left: %v", n, p.hasWork())
		}
	})
}

// TestManyNodes checks that a start with 1000 nodes takes few writes, and little time.
func TestManyNodes(t *testing.T) {
	test(t, func(w *world) {
		p, _ := w.replica()
		start := time.Now()
		var pinning sync.WaitGroup
		for i := range 1000 {
			name, uid := fmt.Sprintf("node-%d", i), types.UID(fmt.Sprintf("uid-%d", i))
			w.nodes.set(name, uid)
			pinning.Go(func() {
				time.Sleep(time.Duration(i) * 3 * time.Millisecond) // handshakes take some seconds together
				w.pin(p, name, uid, keyN(i))
			})
		}
		pinning.Wait()
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		if n := w.api.Written(); n > 10 {
			t.Errorf("%d writes", n)
		}
		settle()
		w.wantStats(p, Stats{Keys: 1000, Created: 1000})
	})
}

// TestReplicas has two replicas see different keys of one node at the same time. Only one of them
// uses its key, and only after it was stored.
func TestReplicas(t *testing.T) {
	test(t, func(w *world) {
		p1, _ := w.replica()
		p2, _ := w.replica()
		var errs [2]error
		var pinning sync.WaitGroup
		pinning.Go(func() { errs[0] = p1.Pin(w.Context(), "n1", "u1", keyN(1)) })
		pinning.Go(func() { errs[1] = p2.Pin(w.Context(), "n1", "u1", keyN(2)) })
		pinning.Wait()
		winner := slices.Index(errs[:], nil)
		if winner < 0 || errs[1-winner] == nil || !strings.Contains(errs[1-winner].Error(), "its key is pinned as ") {
			t.Fatalf("got errors %v, want one success and one refusal", errs)
		}
		w.wantData(map[string]string{"n1": keyN(winner+1) + " u1"})
		w.pin(p1, "n2", "u2", keyN(3)) // what one pins, the other knows
		settle()
		w.refused(p2, "n2", "u2", keyN(4), keyN(3))
	})
}

// TestCountOfReplicas has two replicas pin the same keys at the same time. Each counts those that it has stored.
func TestCountOfReplicas(t *testing.T) {
	test(t, func(w *world) {
		p1, _ := w.replica()
		p2, _ := w.replica()
		for i := range 9 {
			for _, p := range []*Pins{p1, p2} {
				go w.pin(p, fmt.Sprintf("n%d", i+1), types.UID(fmt.Sprintf("u%d", i+1)), keyN(i))
			}
		}
		settle()
		if one, other := p1.Stats().Created, p2.Stats().Created; one+other != 9 {
			t.Errorf("the replicas count %d and %d keys, want 9 together", one, other)
		}
	})
}

// TestVerifiedNode checks that a node whose certificate a CA has verified cannot have a self-signed
// one later, and that a pin is replaced when a CA verifies a certificate.
func TestVerifiedNode(t *testing.T) {
	test(t, func(w *world) {
		p, _ := w.replica()
		w.pin(p, "n1", "u1", keyN(1))
		p.Verified("n1", "u1")
		p.Verified("n2", "u2")
		settle()
		w.wantData(map[string]string{"n1": "ca u1", "n2": "ca u2"})
		w.refused(p, "n1", "u1", keyN(1), "a CA has verified an earlier certificate of this node (find out")
		w.refused(p, "n2", "u2", keyN(1), "a CA has verified")
		before := w.api.Written()
		p.Verified("n1", "u1")
		settle()
		if n := w.api.Written() - before; n != 0 {
			t.Errorf("%d writes of what is known", n)
		}
		w.patch("n2", keyN(5)+" u2") // the administrator goes back to self-signed certificates
		settle()
		w.pin(p, "n2", "u2", keyN(5))
	})
}

// TestRenewedNode checks what ends a pin: another UID, another entry, no entry.
func TestRenewedNode(t *testing.T) {
	test(t, func(w *world) {
		p, _ := w.replica()
		w.pin(p, "n1", "u1", keyN(1))
		w.nodes.set("n1", "new")
		w.unknown(p, "n1", "new")
		w.pin(p, "n1", "new", keyN(2))
		w.wantData(map[string]string{"n1": keyN(2) + " new"})

		w.refused(p, "n1", "new", keyN(3), "pinned")
		w.patch("n1", keyN(3)+" new") // the command in the error
		settle()
		w.pin(p, "n1", "new", keyN(3))
		w.refused(p, "n1", "new", keyN(2), "pinned")

		w.patch("n1", nil) // the only entry: it is not written back
		settle()
		w.wantData(map[string]string{})
		w.unknown(p, "n1", "new")
		w.pin(p, "n1", "new", keyN(4))
	})
}

// TestMissing deletes the ConfigMap: known keys stay in use, and no others are accepted. When it exists
// again, keys are pinned again at first sight.
func TestMissing(t *testing.T) {
	test(t, func(w *world) {
		p, _ := w.replica()
		w.pin(p, "n1", "u1", keyN(1))
		w.api.Put(configMapPath, nil)
		settle()
		w.pin(p, "n1", "u1", keyN(1))
		w.refused(p, "n1", "u1", keyN(8), "pinned")
		w.notPinned(p, "n2", "u2", keyN(2), `has not been written yet: it does not exist (create it with "helm upgrade"`)
		settle()
		w.wantData(nil)
		w.unknown(p, "n2", "u2")
		w.put(nil)
		settle()
		w.unknown(p, "n1", "u1")
		w.pin(p, "n1", "u1", keyN(8))
		w.pin(p, "n2", "u2", keyN(2))
	})
}

// TestUnavailable checks what happens while the API server is: known keys work, new ones wait and
// are pinned afterwards.
func TestUnavailable(t *testing.T) {
	test(t, func(w *world) {
		p, _ := w.replica()
		w.pin(p, "n1", "u1", keyN(1))
		w.fail(&sim.Refusal{})
		w.notPinned(p, "n2", "u2", keyN(2), "has not been written yet", "connection refused")
		w.pin(p, "n1", "u1", keyN(1))
		w.refused(p, "n1", "u1", keyN(3), "pinned")
		w.fail(nil)
		settle()
		w.pin(p, "n2", "u2", keyN(2))
	})
}

// TestStartDuringOutage checks that nothing is accepted before the ConfigMap has been read. The error
// has no URL, whose random timeout would make each attempt a new error in the log.
func TestStartDuringOutage(t *testing.T) {
	test(t, func(w *world) {
		w.patch("n1", keyN(1)+" u1")
		w.fail(&sim.Refusal{})
		p, _ := w.replica()
		w.notPinned(p, "n1", "u1", keyN(2), "has not been read yet: cannot read it: dial tcp")
		w.fail(nil)
		settle()
		w.refused(p, "n1", "u1", keyN(2), keyN(1)+" (find out") // the stored key counts, not the one seen during the outage
		w.pin(p, "n1", "u1", keyN(1))
	})
}

// TestDeletedNodes checks that entries of deleted nodes go, and those of others stay.
func TestDeletedNodes(t *testing.T) {
	test(t, func(w *world) {
		p, _ := w.replica()
		w.pin(p, "n1", "u1", keyN(1))
		w.pin(p, "n2", "u2", keyN(2))
		w.nodes.set("n2", "")
		time.Sleep(11 * time.Minute)
		w.wantData(map[string]string{"n1": keyN(1) + " u1"})
		p.mu.RLock()
		defer p.mu.RUnlock()
		if len(p.deleted) > 0 {
			t.Errorf("left: %v", p.deleted)
		}
	})
}

// TestStaleNodes checks that a replica whose watch of nodes hangs does not remove the entries of new
// nodes, and that entries are not removed while the nodes cannot be listed.
func TestStaleNodes(t *testing.T) {
	test(t, func(w *world) {
		p, _ := w.replica()
		w.pin(p, "n1", "u1", keyN(1))
		w.nodes.locked(func() { w.nodes.stale = maps.Clone(w.nodes.known) }) // all watches of nodes hang
		w.nodes.set("new", "u")
		w.patch("new", keyN(3)+" u") // by another replica
		w.patch("old", keyN(4)+" u") // of a deleted node
		w.nodes.locked(func() { w.nodes.err = errors.New("connection refused") })
		time.Sleep(2*pruneInterval + time.Minute)
		w.wantData(map[string]string{"n1": keyN(1) + " u1", "new": keyN(3) + " u", "old": keyN(4) + " u"})
		w.nodes.locked(func() { w.nodes.err = nil })
		time.Sleep(pruneInterval)
		w.wantData(map[string]string{"n1": keyN(1) + " u1", "new": keyN(3) + " u"})
		w.nodes.set("new", "u2") // created again
		time.Sleep(pruneInterval)
		w.wantData(map[string]string{"n1": keyN(1) + " u1"})
	})
}

// TestOutdatedNode checks that a replica whose watch of nodes hangs does not replace the pin of a newer Node of the
// same name, and that pins are not replaced while the nodes cannot be listed.
func TestOutdatedNode(t *testing.T) {
	test(t, func(w *world) {
		p, _ := w.replica()
		w.nodes.locked(func() { w.nodes.stale = maps.Clone(w.nodes.known) }) // all watches of nodes hang
		w.nodes.set("n1", "new")
		w.patch("n1", keyN(2)+" new") // by another replica
		settle()
		w.notPinned(p, "n1", "u1", keyN(1))
		settle()
		w.wantData(map[string]string{"n1": keyN(2) + " new"})
		w.nodes.locked(func() { w.nodes.stale, w.nodes.err = nil, errors.New("connection refused") })
		w.nodes.set("n1", "newer")
		w.notPinned(p, "n1", "newer", keyN(3), "cannot list the nodes", "connection refused")
		w.pin(p, "n2", "u2", keyN(4)) // another node
		w.nodes.locked(func() { w.nodes.err = nil })
		settle()
		w.pin(p, "n1", "newer", keyN(3))
		w.wantData(map[string]string{"n1": keyN(3) + " newer", "n2": keyN(4) + " u2"})
	})
}

// TestInvalidEntry checks that an entry which cannot be parsed is not replaced by the next key.
func TestInvalidEntry(t *testing.T) {
	for _, value := range []string{
		"", " ", "ca", keyN(1), keyN(1) + " u1 u2", "sha256:1 u1", "sha256:" + strings.Repeat("g", 64) + " u1", "md5:1 u1",
	} {
		test(t, func(w *world) {
			p, _ := w.replica()
			w.pin(p, "n1", "u1", keyN(1))
			w.patch("n1", value)
			settle()
			w.refused(p, "n1", "u1", keyN(1), `the entry n1 of ConfigMap kube-system/pins is not "sha256:KEY UID" `+
				"(correct or remove the entry)")
			w.wantData(map[string]string{"n1": value})
		})
	}
}

// TestFull fills the ConfigMap. Nodes that do not fit are not pinned, and all others are.
func TestFull(t *testing.T) {
	test(t, func(w *world) {
		name := func(i int) string { return fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/256, i%256) }
		uid := func(i int) types.UID { return types.UID(fmt.Sprintf("aaaaaaaa-bbbb-cccc-dddd-%012d", i)) }
		const n = 8000
		full := map[string]any{}
		bytes := 0
		for i := range n {
			w.nodes.set(name(i), uid(i))
			value := pin{uid(i), keyN(i)}.String()
			if bytes += sizeOf(name(i), value); bytes <= maxBytes {
				full[name(i)] = value
			}
		}
		if len(full) < 6000 {
			t.Errorf("it has room for %d nodes", len(full))
		}
		delete(full, name(0))
		w.put(full)
		p, _ := w.replica()
		settle()
		w.pin(p, name(0), uid(0), keyN(0))
		before := w.api.Written()
		w.notPinned(p, name(n-1), uid(n-1), keyN(1), "it is full with ", "serverTLSBootstrap")
		settle()
		if n := w.api.Written() - before; n != 0 {
			t.Errorf("%d writes of a full ConfigMap", n)
		}
		w.nodes.set(name(1), "")
		w.patch(name(1), nil)
		settle()
		w.pin(p, name(n-1), uid(n-1), keyN(1))
	})
}

// TestWritesAreLimited has something undo each write.
func TestWritesAreLimited(t *testing.T) {
	test(t, func(w *world) {
		p, _ := w.replica()
		w.pin(p, "n1", "u1", keyN(1))
		for range 600 {
			w.put(nil)
			p.want("n1", pin{"u1", keyN(1)}) // by the next scrape
			time.Sleep(time.Second)
		}
		if n := w.api.Written(); n > writeBurst+600*writesPerSecond+10 {
			t.Errorf("%d writes in 10 minutes", n)
		}
	})
}

// TestForbidden checks that an error names the permission to write only if it is missing.
func TestForbidden(t *testing.T) {
	test(t, func(w *world) {
		p, _ := w.replica()
		settle()
		w.api.Forbid("", "")
		w.notPinned(p, "n1", "u1", keyN(1), "ConfigMap kube-system/pins has not been written yet: cannot write it: ",
			"not allowed by RBAC (give the ServiceAccount permission to list, watch and update the ConfigMap)")
		w.api.RefuseBy(func(string, string) *sim.Refusal { return sim.Refuse(500, "InternalError", "a timeout") })
		settle()
		w.notPinned(p, "n1", "u1", keyN(1), "has not been written yet: cannot write it: a timeout ("+
			reason.TLSNotPinned.Describe().Cure+")")
	})
}

// TestConcurrentReplicas lets replicas pin, restart and meet attackers at random. No replica may ever
// use a key that another one does not.
func TestConcurrentReplicas(t *testing.T) {
	test(t, func(w *world) {
		var mu sync.Mutex
		used := map[string]string{} // node → key that a replica has used
		var running sync.WaitGroup
		for r := range 3 {
			running.Go(func() {
				for round := range 4 {
					p, stop := w.replica()
					for i := range 9 {
						node, uid := fmt.Sprintf("n%d", i+1), types.UID(fmt.Sprintf("u%d", i+1))
						key := keyN((r + round + i) % 3) // some of them from an attacker
						if p.Pin(w.Context(), node, uid, key) != nil {
							continue
						}
						mu.Lock()
						if before, ok := used[node]; ok && before != key {
							t.Errorf("%s: replicas used %s and %s", node, before, key)
						}
						used[node] = key
						mu.Unlock()
					}
					stop()
				}
			})
		}
		running.Wait()
		if len(used) != 9 {
			t.Errorf("%d of 9 nodes were pinned", len(used))
		}
	})
}
