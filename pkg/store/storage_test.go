package store

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// measured is requested, by the clock of a node that is right.
const measured = usage.NodeTime(requested)

// storageSample returns a sample that was measured then.
func storageSample(pod, uid, container string, bytes uint64) usage.StorageSample {
	return usage.StorageSample{
		Namespace: []byte("default"), Pod: []byte(pod), UID: []byte(uid), Container: []byte(container), Bytes: bytes,
		At: measured,
	}
}

func TestEphemeralStorage(t *testing.T) {
	node := usage.StorageSample{Bytes: 500, At: measured}
	old := func(s usage.StorageSample) usage.StorageSample { s.At -= usage.NodeTime(maxStorageLag + 1); return s }
	untimed := func(s usage.StorageSample) usage.StorageSample { s.At = 0; return s }
	web := []usage.StorageSample{
		storageSample("web", "u1", "b", 20), storageSample("web", "u1", "a", 10), storageSample("web", "u1", "", 70),
	}
	for _, tt := range []struct {
		name   string
		scrape usage.Scrape
		want   string // of the pod web with the containers a and b, then of the node
	}{
		{"everything", usage.Scrape{Date: measured, Storage: append(web, node)}, "[80 20] [500]"},
		{"no node", usage.Scrape{Date: measured, Storage: web}, "[80 20] []"},
		{"not whole", usage.Scrape{Date: measured, Storage: web[1:]}, "[] []"},
		{"another UID", usage.Scrape{Date: measured, Storage: []usage.StorageSample{
			storageSample("web", "u0", "a", 1), storageSample("web", "u0", "b", 1), storageSample("web", "u0", "", 1), node,
		}}, "[] [500]"},
		{"measured long ago", usage.Scrape{Date: measured, Storage: []usage.StorageSample{
			old(web[0]), old(web[1]), old(web[2]), node}}, "[] [500]"},
		{"node measured long ago", usage.Scrape{Date: measured, Storage: append(web, old(node))}, "[80 20] []"},
		{"no times", usage.Scrape{Date: measured, Storage: []usage.StorageSample{
			untimed(web[0]), untimed(web[1]), untimed(web[2]), untimed(node)}}, "[80 20] [500]"},
		{"the node's clock is behind", usage.Scrape{Date: measured.Add(-time.Hour), Storage: web}, "[80 20] []"},
		{"the node's clock is not known", usage.Scrape{Storage: []usage.StorageSample{old(web[0]), old(web[1]), old(web[2])}},
			"[80 20] []"},
		{"empty", usage.Scrape{}, "[] []"},
	} {
		s := withResources()
		sink := &EphemeralStorage{Resources: s.Resources, MaxAge: time.Minute}
		sink.IsBound = func(node, namespace, pod, uid string) bool {
			return node == "node1" && namespace == "default" && (pod == "web" || pod == "db") && uid == "u1"
		}
		now := requested.Add(time.Hour)
		show := func() string {
			values := func(list []usage.Resource) (all []string) {
				for _, r := range list {
					if r.Name != usage.EphemeralStorage || r.Unit != usage.Bytes {
						t.Errorf("%s: got %+v", tt.name, r)
					}
					all = append(all, fmt.Sprint(r.Value))
				}
				return all
			}
			var pods []string
			for _, c := range sink.Resources.Pod("node1", podOf("web", "a", "b"), now) {
				pods = append(pods, values(c)...)
			}
			return fmt.Sprint(pods, values(sink.Resources.Node("node1", now)))
		}
		tt.scrape.Sent = now
		tt.scrape.At = now.Add(time.Second)
		for _, n := range []string{"node1", "node2"} { // a pod that another node reports does not count
			sink.Put(n, &tt.scrape)
		}
		if got := sink.Resources.Pod("node2", podOf("web", "a", "b"), now); got != nil {
			t.Errorf("%s: got %v of a pod on another node", tt.name, got)
		}
		now = now.Add(time.Minute)
		if got := show(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
		now++
		if got := show(); got != "[] []" {
			t.Errorf("%s: got %s after they expired", tt.name, got)
		}
		now--
		// The response arrives after the pod was deleted, but before a new one of its name has usage.
		s.RemovePod("node1", "default", "web", tt.scrape.Sent.Add(time.Second/2))
		sink.Put("node1", &tt.scrape)
		if got := sink.Resources.Pod("node1", podOf("web", "a", "b"), now); got != nil {
			t.Errorf("%s: got %v of a deleted pod", tt.name, got)
		}
		if s.Forget("node1"); show() != "[] []" {
			t.Errorf("%s: got %s of a deleted node", tt.name, show())
		}
	}
}

// nodeStorage returns the samples of a node with 64 containers.
func nodeStorage() *usage.Scrape {
	s := &usage.Scrape{Sent: requested, Date: measured, Storage: []usage.StorageSample{{Bytes: 5e10, At: measured}}}
	for p := range 32 {
		name, uid := fmt.Sprintf("deployment-546ccb4d55-%05d", p), strings.Repeat("0", 36)
		for c := range 2 {
			s.Storage = append(s.Storage, storageSample(name, uid, fmt.Sprintf("app-%d", c), 40960))
		}
		s.Storage = append(s.Storage, storageSample(name, uid, "", 1<<20))
	}
	return s
}

// BenchmarkEphemeralStorage stores the samples of a node with 64 containers, and reports the memory that is
// kept for a container.
func BenchmarkEphemeralStorage(b *testing.B) {
	sink := &EphemeralStorage{Resources: NewResources(), MaxAge: time.Minute}
	sink.IsBound = func(_, _, _, _ string) bool { return true }
	s := nodeStorage()
	const nodes = 500
	heap := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	for i := range nodes {
		sink.Put(fmt.Sprintf("node-%d", i), s)
	}
	perContainer := float64(heap()-before) / (64 * nodes)
	b.ReportAllocs()
	for b.Loop() {
		sink.Put("node-0", s)
	}
	b.ReportMetric(perContainer, "B/container")
}
