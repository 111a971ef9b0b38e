package api

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// largeCluster returns 1000 nodes with 30 pods of two containers each, in 50 namespaces of 600
// pods. Of these, 400 belong to one application.
func largeCluster(b *testing.B) Config {
	const nodes, pods, namespaces = 1000, 30_000, 50
	u := fakeUsage{pods: map[string]*usage.Pod{}, nodes: map[string]*usage.Node{}}
	var podList, nodeList []any
	created := metav1.NewTime(now.Add(-time.Hour))
	for i := range nodes {
		name := fmt.Sprintf("node-%04d", i)
		nodeList = append(nodeList, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: created,
			Labels: map[string]string{"zone": fmt.Sprint(i % 3), "kubernetes.io/hostname": name},
		}})
		u.nodes[name] = &usage.Node{Name: name, Amount: amount(uint64(i)*1_000_003, uint64(i)<<20)}
	}
	for i := range pods {
		namespace, name := fmt.Sprintf("team-%02d", i%namespaces), fmt.Sprintf("app-7d4b9c6f5d-%05d", i)
		app := "large"
		if i/namespaces%3 == 0 {
			app = fmt.Sprintf("small-%d", i/namespaces%20)
		}
		podList = append(podList, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name, CreationTimestamp: created,
				Labels: map[string]string{"app": app, "pod-template-hash": "7d4b9c6f5d", "team": namespace},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		})
		u.pods[namespace+"/"+name] = pod(
			usage.Container{Name: "main", Amount: amount(uint64(i)*10_007, uint64(i)<<12)},
			usage.Container{Name: "proxy", Amount: amount(uint64(i)*1_009, uint64(i)<<12+4096)})
	}
	c := Config{Usage: u, Now: func() time.Time { return now }, Clock: usage.NewClock(now)}
	for list, into := range map[*[]any]*Inventory{&podList: &c.Pods, &nodeList: &c.Nodes} {
		index := inventory.New()
		if err := index.Replace(*list, "1"); err != nil {
			b.Fatal(err)
		}
		*into = index
	}
	return c
}

// discardWriter is a http.ResponseWriter that keeps nothing of the body but its size.
type discardWriter struct {
	header http.Header
	code   int
	bytes  int64
}

func (d *discardWriter) Header() http.Header         { return d.header }
func (d *discardWriter) WriteHeader(code int)        { d.code = code }
func (d *discardWriter) Write(p []byte) (int, error) { d.bytes += int64(len(p)); return len(p), nil }

// BenchmarkRequest measures requests without the network, TLS, authentication and authorization.
func BenchmarkRequest(b *testing.B) {
	h := serve(b, largeCluster(b))
	const group = "/apis/metrics.k8s.io/v1beta1"
	for _, test := range []struct{ name, path, accept, compressed string }{
		{"pods/json", "/pods", jsonType, ""},
		{"pods/protobuf", "/pods", protobufType, ""},
		{"pods/table", "/pods", tableType, ""},
		{"pods/json/gzip", "/pods", jsonType, "gzip"},
		{"pods/protobuf/gzip", "/pods", protobufType, "gzip"},
		{"pods/table/gzip", "/pods", tableType, "gzip"},
		{"page/json", "/pods?limit=500", jsonType, ""},
		{"autoscaler/protobuf", "/namespaces/team-07/pods?labelSelector=app%3Dlarge", protobufType, ""},
		{"few/protobuf", "/namespaces/team-07/pods?labelSelector=app%3Dsmall-3", protobufType, ""},
		{"nodes/json", "/nodes", jsonType, ""},
		{"pod/json", "/namespaces/team-07/pods/app-7d4b9c6f5d-00007", jsonType, ""},
		{"node/json", "/nodes/node-0500", jsonType, ""},
	} {
		b.Run(test.name, func(b *testing.B) {
			b.ReportAllocs()
			start := testenv.CPUTime(b)
			for b.Loop() {
				r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, group+test.path, nil)
				if err != nil {
					b.Fatal(err)
				}
				r.Header.Set("Accept", test.accept)
				r.Header.Set("Accept-Encoding", test.compressed)
				w := &discardWriter{header: http.Header{}, code: http.StatusOK}
				h.ServeHTTP(w, r)
				if w.code != http.StatusOK {
					b.Fatalf("%s: %d", test.path, w.code)
				}
				b.SetBytes(w.bytes)
			}
			b.ReportMetric(float64(testenv.CPUTime(b)-start)/float64(b.N), "cpu-ns/op")
		})
	}
}
