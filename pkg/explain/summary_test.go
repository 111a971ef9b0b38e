package explain

import (
	"fmt"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/store"
)

// addPods adds n running pods on a node, and returns them.
func (w *world) addPods(n int, node string, containers ...inventory.ContainerState) []*inventory.Object {
	var added []*inventory.Object
	for range n {
		o := &inventory.Object{
			Namespace: "shop", Name: fmt.Sprintf("pod-%d", len(w.pods)), Phase: inventory.PodRunning, Node: node,
			CreatedAt: atAgo(time.Hour), Containers: containers,
		}
		w.pods[o.Namespace+"/"+o.Name] = o
		added = append(added, o)
	}
	return added
}

func (w *world) addNode(name string, a health.Attempts) {
	w.nodes[name] = &inventory.Object{Name: name}
	w.source.List = append(w.source.List, health.Node{Name: name, Attempts: a})
}

func TestSummarizePods(t *testing.T) {
	old := running("app", time.Hour)
	for _, test := range []struct {
		name string
		make func(*world) []*inventory.Object
		want string
	}{
		{"one failing node", func(w *world) []*inventory.Object {
			w.fail(reason.TLSSelfSigned, now)
			return w.addPods(10, "n7", old)
		}, "10 on 1 node that cannot be read (n7: tls-self-signed)"},
		{"failing nodes and new pods", func(w *world) []*inventory.Object {
			w.fail(reason.TLSSelfSigned, now)
			w.addNode("n8", health.Attempts{Failures: 1, Reason: reason.Timeout})
			w.addNode("n9", health.Attempts{LastSuccess: now})
			pods := append(w.addPods(2, "n9", running("app", time.Second)), w.addPods(3, "n7", old)...)
			return append(pods, w.addPods(4, "n8", old)...)
		}, "7 on 2 nodes that cannot be read (1 timeout, 1 tls-self-signed), 2 whose metrics are expected soon"},
		{"unknown nodes", func(w *world) []*inventory.Object {
			w.selects = true
			return append(w.addPods(2, "a", old), w.addPods(1, "b", old)...)
		}, "3 on 2 nodes that are not scraped"},
		{"deleted node", func(w *world) []*inventory.Object { return w.addPods(2, "a", old) },
			"2 on 1 node that is not scraped"},
		{"not reported", func(w *world) []*inventory.Object { return w.addPods(1, "n7", old) },
			"1 that the kubelet does not report"},
		{"after a start", func(w *world) []*inventory.Object {
			w.report(facts("app", time.Second, time.Second))
			return []*inventory.Object{w.pod()}
		}, "1 with a container whose usage the kubelet does not report"}, // proxy
		{"scraped once", func(w *world) []*inventory.Object {
			w.report(facts("app", time.Second, time.Second), facts("proxy", time.Second, time.Second))
			return []*inventory.Object{w.pod()}
		}, "1 without a second sample yet"},
		{"many kinds", func(w *world) []*inventory.Object {
			w.addNode("failing", health.Attempts{Failures: 1, Reason: reason.DNS})
			w.report(facts("app", 50*time.Second, 50*time.Second), facts("proxy", time.Hour, time.Second))
			pods := append(w.addPods(5, "failing", old), w.addPods(4, "n7", old)...)
			pods = append(pods, w.addPods(3, "n7", inventory.ContainerState{Name: "app"})...)
			pods = append(pods, w.addPods(2, "n7", running("app", time.Second))...)
			w.addNode("new", health.Attempts{})
			return append(append(pods, w.pod()), w.addPods(1, "new", old)...)
		}, "5 on 1 node that cannot be read (failing: dns), 4 that the kubelet does not report, " +
			"3 without a running container, 2 whose metrics are expected soon, 2 for other reasons"},
		{"failing nodes come first", func(w *world) []*inventory.Object {
			w.addNode("failing", health.Attempts{Failures: 1, Reason: reason.DNS})
			return append(w.addPods(1, "n7", old), w.addPods(1, "failing", old)...)
		}, "1 on 1 node that cannot be read (failing: dns), 1 that the kubelet does not report"},
		{"too old", func(w *world) []*inventory.Object {
			w.report(facts("app", 50*time.Second, 50*time.Second), facts("proxy", time.Hour, time.Second))
			return []*inventory.Object{w.pod()}
		}, "1 with samples that are too old"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld()
			missing := test.make(w)
			if got := (&Pods{w.config()}).Summarize(missing, now); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if n := w.lookups(); n != 0 {
				t.Errorf("got %d lookups, want none", n)
			}
		})
	}
}

func TestSummarizeNodes(t *testing.T) {
	w := newWorld()
	w.addNode("a", health.Attempts{Failures: 1, Reason: reason.DNS})
	w.addNode("a2", health.Attempts{Failures: 1, Reason: reason.DNS})
	w.addNode("a3", health.Attempts{Failures: 1, Reason: reason.Timeout})
	w.addNode("b", health.Attempts{})
	w.addNode("c", health.Attempts{LastSuccess: now})
	w.addNode("d", health.Attempts{LastSuccess: now})
	w.nodeFacts["c"] = facts("", time.Hour, time.Hour).Facts
	w.nodeFacts["d"] = store.Facts{Since: atAgo(time.Hour)}
	var missing []*inventory.Object
	for _, name := range []string{"a", "a3", "a2", "b", "c", "d"} {
		missing = append(missing, w.nodes[name])
	}
	const want = "3 that cannot be read (2 dns, 1 timeout), 1 without a second sample yet, " +
		"1 with samples that are too old, 1 for other reasons"
	if got := (&Nodes{w.config()}).Summarize(missing, now); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// BenchmarkSummarize has 30,000 pods without metrics on 1000 nodes that respond.
func BenchmarkSummarize(b *testing.B) {
	w := newWorld()
	var missing []*inventory.Object
	for i := range 1000 {
		node := fmt.Sprintf("node-%d", i)
		w.addNode(node, health.Attempts{LastSuccess: now})
		for _, o := range w.addPods(30, node, running("app", time.Second), running("proxy", time.Second)) {
			w.podFacts[node+"/shop/"+o.Name] = store.PodFacts{Containers: []store.ContainerFacts{
				facts("app", time.Second, time.Second), facts("proxy", time.Second, time.Second),
			}}
			missing = append(missing, o)
		}
	}
	pods := &Pods{w.config()}
	b.ReportAllocs()
	for b.Loop() {
		if got := pods.Summarize(missing, now); got != "30000 whose metrics are expected soon" {
			b.Fatal(got)
		}
	}
}
