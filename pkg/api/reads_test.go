package api

import (
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// fakeReads records all reads.
type fakeReads struct {
	mu      sync.Mutex
	readers []uint64
	sizes   []int
	nodes   []string // of the last read
}

func (f *fakeReads) observe(reader uint64, size int, nodes iter.Seq[string]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers, f.sizes, f.nodes = append(f.readers, reader), append(f.sizes, size), slices.Collect(nodes)
}

// onNodes returns newConfig, with the pods on nodes.
func onNodes() (Config, *fakeReads) {
	onNodes, reads := newCluster(), &fakeReads{}
	for i, o := range onNodes.pods {
		o.Node = []string{"node-a", "node-b"}[i/4] // web-1 and web-2 in apps are on different nodes
	}
	c := onNodes.config()
	c.ObserveRead = reads.observe
	return c, reads
}

func TestReadsAreReported(t *testing.T) {
	c, reads := onNodes()
	h := serve(t, c)
	const pods = v1beta1Path + "/namespaces/apps/pods"
	for _, tc := range []struct {
		path, accept string
		nodes        string // that count as read; "": none
		size         int
	}{
		{pods, jsonType, "", 0},
		{v1beta1Path + "/pods", jsonType, "", 0},
		{v1beta1Path + "/nodes", jsonType, "", 0},
		{pods + "?limit=1", jsonType, "", 0},
		{pods + "?labelSelector=app%3Dweb", jsonType, "node-a,node-b", 2},
		{pods + "?labelSelector=app%3Dweb", protobufType, "node-a,node-b", 2},
		{pods + "?labelSelector=app%3Dweb", tableType, "node-a,node-b", 2},
		{pods + "?labelSelector=app%3Dweb&limit=1", jsonType, "node-a", 1},
		{pods + "?labelSelector=app%3Dnone", jsonType, "", 0},
		{v1beta1Path + "/pods?labelSelector=app%3Dweb", jsonType, "node-a,node-b", 3},
		{v1beta1Path + "/nodes?labelSelector=zone%3Da", jsonType, "node-a,node-no-metrics", 2},
		{v1beta1Path + "/nodes/node-b", jsonType, "node-b", 1},
		{pods + "/idle", jsonType, "node-a", 1},
		{pods + "/idle", tableType, "node-a", 1},
		{pods + "?fieldSelector=metadata.name%3Didle", jsonType, "node-a", 1},
		{v1beta1Path + "/pods?fieldSelector=metadata.name%3Ddb", jsonType, "node-b", 1},
		{v1beta1Path + "/pods?fieldSelector=metadata.namespace%3Dapps", jsonType, "", 0},
		{pods + "?fieldSelector=metadata.name%21%3Didle", jsonType, "", 0},
		{pods + "/no-metrics", jsonType, "node-a", 1},
		{pods + "/unknown", jsonType, "", 0},
	} {
		*reads = fakeReads{}
		do(h, http.MethodGet, tc.path, tc.accept)
		got := strings.Join(reads.nodes, ",")
		if tc.nodes == "node-a,node-b" && got == "node-b,node-a" {
			got = tc.nodes
		}
		if tc.nodes == "" && len(reads.readers) > 0 || got != tc.nodes {
			t.Errorf("%s: %d reads of %q, want %q", tc.path, len(reads.readers), got, tc.nodes)
		} else if tc.nodes != "" && (len(reads.readers) != 1 || reads.sizes[0] != tc.size || reads.readers[0] == 0) {
			t.Errorf("%s: got readers %v with sizes %v, want one with size %d", tc.path, reads.readers, reads.sizes, tc.size)
		}
	}
}

// TestReaders checks which reads count as those of the same reader.
func TestReaders(t *testing.T) {
	c, reads := onNodes()
	h := serve(t, c)
	as := func(name, path string) uint64 {
		ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: name})
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/apis/metrics.k8s.io/"+path, nil)
		h.ServeHTTP(httptest.NewRecorder(), r)
		return reads.readers[len(reads.readers)-1]
	}
	const list = "v1beta1/namespaces/apps/pods?labelSelector=app%3Dweb"
	first := as("hpa", list)
	for _, same := range []string{list, "v1/namespaces/apps/pods?labelSelector=app%3Dweb", list + "&limit=1"} {
		if as("hpa", same) != first {
			t.Errorf("%s: got another reader", same)
		}
	}
	seen := map[uint64]string{first: list}
	for _, other := range []string{
		"v1/namespaces/apps/pods?labelSelector=app+in+%28web%29",
		"v1/namespaces/data/pods?labelSelector=app%3Dweb", "v1/namespaces/apps/pods?labelSelector=app%21%3Dweb",
		"v1/pods?labelSelector=app%3Dweb", "v1/nodes?labelSelector=zone", "v1/nodes/node-a", "v1/namespaces/apps/pods/web-1",
		"v1/namespaces/apps/pods/web-2", "v1/namespaces/data/pods/web-1",
		list + "&fieldSelector=metadata.name%3Dweb-1",
	} {
		reader := as("hpa", other)
		if seen[reader] != "" {
			t.Errorf("%s: the same reader as %s", other, seen[reader])
		}
		seen[reader] = other
	}
	if as("alice", list) == first {
		t.Error("another user is the same reader")
	}
}
