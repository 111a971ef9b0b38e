package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// stalledWriter is a client that reads nothing. It sends to stalled when the body begins, and blocks until release
// is closed.
type stalledWriter struct {
	*httptest.ResponseRecorder
	stalled chan<- int
	release <-chan struct{}
	buffer  int // what the server buffers for a client
}

func (w *stalledWriter) Write(p []byte) (int, error) {
	if w.buffer -= len(p); w.buffer < 0 || w.Code != http.StatusOK {
		w.stalled <- w.Code
		<-w.release
	}
	return len(p), nil
}

// TestMemoryOfStalledLists has clients request lists and read nothing, until the memory is in use. What they hold is
// at most what is reserved for them, also if the library compresses the response.
func TestMemoryOfStalledLists(t *testing.T) {
	const limit = 64 << 20
	for name, config := range map[string]Config{
		"medium": manyPods(700, 0), "large": manyPods(5000, 0), "labels": labeledPods(150),
	} {
		h := serveWithin(t, config, ResponseMemory{Large: limit, Small: limit, Max: 1 << 30})
		for _, accept := range []string{jsonType, protobufType, tableType, yamlType} {
			for _, encoding := range []string{"identity", "gzip"} {
				lists, held := stallLists(t, h, accept, encoding)
				if held > limit { // half of Large and of Small
					t.Errorf("%s, %s, %s: got %d lists that hold %d MiB, want at most %d", name, accept, encoding, lists,
						held>>20, limit>>20)
				}
			}
		}
	}
}

// labeledPods returns n pods with labels of 2 KiB each.
func labeledPods(n int) Config {
	c := &cluster{podUsage: map[string]*usage.Pod{}}
	for i := range n {
		o, set := running(object("apps", fmt.Sprint("web-", i)), "main", nodeAt.Add(-time.Hour)), map[string]string{}
		for label := range 32 {
			set[fmt.Sprintf("key-%d-%d", i, label)] = strings.Repeat("v", 50)
		}
		o.Labels = inventory.NewLabels(set)
		c.pods = append(c.pods, o)
		c.podUsage["apps/"+o.Name] = pod(usage.Container{Name: "main", Amount: amount(1, 4096)})
	}
	return c.config()
}

// stallLists starts lists until one is rejected. It returns how many, and what they hold in bytes.
func stallLists(t *testing.T, h http.Handler, accept, encoding string) (lists int, held int64) {
	t.Helper()
	before := liveHeap()
	stalled, release := make(chan int), make(chan struct{})
	var all sync.WaitGroup
	for {
		all.Go(func() {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, v1Path+"/pods", nil)
			r.Header.Set("Accept", accept)
			r.Header.Set("Accept-Encoding", encoding)
			h.ServeHTTP(&stalledWriter{httptest.NewRecorder(), stalled, release, 64}, r)
		})
		if <-stalled != http.StatusOK {
			break
		}
		lists++
	}
	held = liveHeap() - before
	go func() {
		for range stalled { // what else they write
		}
	}()
	close(release)
	all.Wait()
	close(stalled)
	return lists, held
}

// liveHeap returns the size of the heap without garbage.
func liveHeap() int64 {
	for range 3 { // further ones empty sync.Pools
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
