package api

import (
	"iter"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// fakeReads records all reads.
type fakeReads struct {
	mu    sync.Mutex
	count int
	nodes []string // of the last read
}

func (f *fakeReads) observe(nodes iter.Seq[string]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count, f.nodes = f.count+1, slices.Collect(nodes)
}

// onNodes returns newConfig, with the pods on nodes.
func onNodes() (Config, *fakeReads) {
	onNodes, reads := newCluster(), &fakeReads{}
	for i, o := range onNodes.pods {
		o.Node = []string{"node-a", "node-b"}[i/4] // web-1 and web-2 in apps are on different nodes
	}
	c := onNodes.config()
	c.NoteRead = reads.observe
	return c, reads
}

func TestReadsAreReported(t *testing.T) {
	c, reads := onNodes()
	h := serve(t, c)
	const pods = v1beta1Path + "/namespaces/apps/pods"
	for _, tc := range []struct {
		path, accept string
		nodes        string // that count as read; "": none
	}{
		{pods, jsonType, ""},
		{v1beta1Path + "/pods", jsonType, ""},
		{v1beta1Path + "/nodes", jsonType, ""},
		{pods + "?limit=1", jsonType, ""},
		{pods + "?labelSelector=app%3Dweb", jsonType, "node-a,node-b"},
		{pods + "?labelSelector=app%3Dweb", protobufType, "node-a,node-b"},
		{pods + "?labelSelector=app%3Dweb", tableType, "node-a,node-b"},
		{pods + "?labelSelector=app%3Dweb&limit=1", jsonType, "node-a"},
		{pods + "?labelSelector=app%3Dnone", jsonType, ""},
		{v1beta1Path + "/pods?labelSelector=app%3Dweb", jsonType, "node-a,node-b"},
		{v1beta1Path + "/nodes?labelSelector=zone%3Da", jsonType, "node-a,node-no-metrics"},
		{v1beta1Path + "/nodes/node-b", jsonType, "node-b"},
		{pods + "/idle", jsonType, "node-a"},
		{pods + "/idle", tableType, "node-a"},
		{pods + "?fieldSelector=metadata.name%3Didle", jsonType, "node-a"},
		{v1beta1Path + "/pods?fieldSelector=metadata.name%3Ddb", jsonType, "node-b"},
		{v1beta1Path + "/pods?fieldSelector=metadata.namespace%3Dapps", jsonType, ""},
		{pods + "?fieldSelector=metadata.name%21%3Didle", jsonType, ""},
		{pods + "/no-metrics", jsonType, "node-a"},
		{pods + "/unknown", jsonType, ""},
	} {
		*reads = fakeReads{}
		do(h, http.MethodGet, tc.path, tc.accept)
		got := strings.Join(reads.nodes, ",")
		if tc.nodes == "node-a,node-b" && got == "node-b,node-a" {
			got = tc.nodes
		}
		want := 1
		if tc.nodes == "" {
			want = 0
		}
		if reads.count != want || got != tc.nodes {
			t.Errorf("%s: %d reads of %q, want %d of %q", tc.path, reads.count, got, want, tc.nodes)
		}
	}
}
