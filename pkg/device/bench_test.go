package device

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/extra"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// transport responds to each request with the same body.
type transport []byte

func (t transport) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(t))}, nil
}

// newBenchmarkGroup returns a group of dcgm-exporters of nodes with 8 GPUs, each of which a
// container uses.
func newBenchmarkGroup(b *testing.B) *group {
	f, err := Parse([]byte("exporters: [{preset: dcgm}]"), "")
	if err != nil {
		b.Fatal(err)
	}
	source := newSource(Config{
		Sink: extra.New(store.New(store.Config{}).Corrected), Scraped: func(Result) {}, Clock: usage.NewClock(time.Now()),
		IsKnown: func(_, _, _, _ string) bool { return true },
	})
	g := source.newGroup(&f.Exporters[0], transport(benchmarkBody(8)))
	g.pods = cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers())
	return g
}

func benchmarkPod(i int) *corev1.Pod {
	name := fmt.Sprintf("nvidia-dcgm-exporter-%05d", i)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-operator", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{NodeName: fmt.Sprintf("gpu-node-%d", i)},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)},
	}
}

// BenchmarkScrape measures a scrape without the network: decoding the response of a node with 8
// GPUs, and storing the values.
func BenchmarkScrape(b *testing.B) {
	g := newBenchmarkGroup(b)
	pod := benchmarkPod(0)
	t := &target{pod: pod}
	g.targets[pod.Spec.NodeName] = []*target{t}
	b.ReportAllocs()
	for b.Loop() {
		g.scrape(b.Context(), t)
	}
	if t.health.Reason != "" {
		b.Fatal(t.health.Err)
	}
}

// BenchmarkMemory measures the memory that stays in use for a node with 8 GPUs.
func BenchmarkMemory(b *testing.B) {
	const nodes = 1000
	for b.Loop() {
		before := memoryInUse()
		g := newBenchmarkGroup(b)
		ctx, cancel := context.WithCancel(b.Context())
		for i := range nodes {
			g.set(ctx, benchmarkPod(i))
		}
		for g.exporter(g.source.Clock.At(time.Now())).Containers["nvidia.com/gpu"] < nodes*8 {
			time.Sleep(10 * time.Millisecond)
		}
		b.ReportMetric(float64(memoryInUse()-before)/nodes, "B/node")
		cancel()
		g.work.Wait()
	}
}

func memoryInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// BenchmarkHostileResponse measures the processor time of the most expensive response.
func BenchmarkHostileResponse(b *testing.B) {
	var body strings.Builder
	body.WriteString("DCGM_FI_DEV_GPU_UTIL{" + manyLabels(1400) + "} 1\n")
	for i := range maxSeries - 1 {
		fmt.Fprintf(&body, "DCGM_FI_DEV_GPU_UTIL{gpu=\"%d\",namespace=\"n\",pod=\"p\",container=\"c%[1]d\"} 1\n", i)
	}
	body.WriteString(strings.Repeat("DCGM_FI_DEV_GPU_TEMP 1\n", (maxBody-body.Len())/23))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := newBenchmarkDecoder(b).decode(strings.NewReader(body.String())); err != nil {
			b.Fatal(err)
		}
	}
}
