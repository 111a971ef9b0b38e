package prometheus

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// BenchmarkRefresh refreshes 1000 nodes with 30 pods of 2 containers each. The engine is in the
// same process, but only copies prepared responses.
func BenchmarkRefresh(b *testing.B) {
	const nodes, pods = 1000, 30
	now := time.Now()
	round := 0
	responses := map[string][]byte{}
	prepare := func() {
		for _, query := range []string{"container_cpu", "container_memory", "container_start", "node_cpu", "node_memory"} {
			responses[query] = clusterResponse(query, nodes, pods, now.Add(time.Duration(round)*15*time.Second))
		}
		round++
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		query := strings.TrimPrefix(r.FormValue("query"), "last_over_time(")
		for prefix, response := range responses {
			if strings.HasPrefix(query, prefix) {
				_, _ = w.Write(response)
				return
			}
		}
		_, _ = w.Write([]byte(`{"status":"success","data":{"resultType":"vector","result":[]}}`))
	}))
	defer server.Close()
	metrics := store.New(store.Config{MaxSampleAge: maxAge, MaxContainers: 1000})
	always := func(_, _, _ string) bool { return true }
	before := heap()
	source, err := New(Config{
		URL: server.URL, Interval: interval, MaxSampleAge: maxAge, MaxContainers: 1000, Sink: metrics,
		Clock: usage.NewClock(now), Synced: func() bool { return true }, IsBound: always,
		IsRunning: func(_, _, _, _ string) bool { return true },
	})
	if err != nil {
		b.Fatal(err)
	}
	defer source.client.http.CloseIdleConnections()
	for i := range nodes {
		source.Set(newNode("node-"+strconv.Itoa(i), fmt.Sprintf("10.0.%d.%d", i/250, i%250)))
	}
	for b.Loop() {
		b.StopTimer()
		prepare()
		b.StartTimer()
		if result := source.refresh(context.Background()); result.Err != nil || result.Nodes != nodes {
			b.Fatal(result.Nodes, result.Err)
		}
	}
	b.StopTimer()
	size := 0
	for _, r := range responses {
		size += len(r)
	}
	clear(responses)
	b.ReportMetric(float64(heap()-before)/(nodes*pods*2), "B/container") // with the store
	b.ReportMetric(float64(size)/(1<<20), "MB/refresh")
	runtime.KeepAlive(metrics)
	runtime.KeepAlive(source)
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// clusterResponse returns the response to a query at a time. The counters come with 7 samples.
func clusterResponse(query string, nodes, pods int, now time.Time) []byte {
	var b bytes.Buffer
	b.WriteString(`{"status":"success","data":{"resultType":"x","result":[`)
	first := true
	series := func(labels string) {
		if !first {
			b.WriteByte(',')
		}
		first = false
		fmt.Fprintf(&b, `{"metric":{"__name__":"%s","endpoint":"https-metrics",%s},`, query, labels)
		if !strings.HasSuffix(query, "_cpu") {
			fmt.Fprintf(&b, `"value":[%d.5,"%d"]}`, now.Unix(), 1<<30)
			return
		}
		b.WriteString(`"values":[`)
		for i := range 7 {
			if i > 0 {
				b.WriteByte(',')
			}
			at := now.Add(time.Duration(i-6) * 15 * time.Second).Unix()
			fmt.Fprintf(&b, `[%d.5,"%d.25"]`, at, at%100_000)
		}
		b.WriteString(`]}`)
	}
	for n := range nodes {
		if strings.HasPrefix(query, "node") {
			series(fmt.Sprintf(`"instance":"10.0.0.1:10250","job":"kubelet","node":"node-%d"`, n))
			continue
		}
		for p := range pods * 2 {
			series(fmt.Sprintf(`"container":"app-%d","instance":"10.0.0.1:10250","job":"kubelet",`+
				`"metrics_path":"/metrics/resource","namespace":"shop-%d","node":"node-%d","pod":"web-7d4b9c6f5-%d-%d"`,
				p%2, p%10, n, n, p/2))
		}
	}
	b.WriteString(`]}}`)
	return b.Bytes()
}
