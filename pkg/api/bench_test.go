package api

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view/viewtest"
)

// benchCluster returns pods of two containers each in 50 namespaces. Two thirds of the pods of a
// namespace belong to one application. Pods lie in memory in another order than they are listed in, as in
// a cluster where pods come and go.
func benchCluster(b *testing.B, pods, nodes int) Config {
	const namespaces = 50
	random, started := rand.New(rand.NewPCG(1, 2)), nodeAt.Add(-time.Hour)
	objects, reported := make([]*inventory.Object, pods), make([][]*usage.Pod, nodes)
	nodeName := func(i int) string { return fmt.Sprintf("node-%04d", i) }
	for k, i := range random.Perm(pods) {
		app, node := "large", random.IntN(nodes)
		if i/namespaces%3 == 0 {
			app = fmt.Sprintf("small-%d", i/namespaces%20)
		}
		p := pod(
			usage.Container{Name: "main", Amount: amount(uint64(i)*10_007, uint64(i)<<12)},
			usage.Container{Name: "proxy", Amount: amount(uint64(i)*1_009, uint64(i)<<12+4096)})
		p.Namespace, p.Name = fmt.Sprintf("team-%02d", i%namespaces), fmt.Sprintf("app-7d4b9c6f5d-%05d", i)
		o, err := inventory.NewObject(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: p.Namespace, Name: p.Name,
				Labels: map[string]string{"app": app, "pod-template-hash": "7d4b9c6f5d", "team": p.Namespace},
			},
			Spec:   corev1.PodSpec{NodeName: nodeName(node)},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		})
		if err != nil {
			b.Fatal(err)
		}
		objects[k] = running(running(o, "main", started), "proxy", started)
		reported[node] = append(reported[node], p)
	}
	s := viewtest.NewStore(10_000)
	nodeObjects := make([]*inventory.Object, nodes)
	for _, i := range random.Perm(nodes) {
		name := nodeName(i)
		nodeObjects[i] = object("", name, fmt.Sprint("zone=", i%3), "kubernetes.io/hostname="+name)
		viewtest.Put(s, name, &usage.Node{Amount: amount(uint64(i)*1_000_003, uint64(i)<<20), AsOf: at}, reported[i]...)
	}
	return configOf(objects, nodeObjects, s)
}

// largeCluster returns 1000 nodes with 30,000 pods.
func largeCluster(b *testing.B) Config { return benchCluster(b, 30_000, 1000) }

// discardWriter is a http.ResponseWriter that keeps nothing of the body but its size.
type discardWriter struct {
	header http.Header
	code   int
	bytes  int64
}

func (d *discardWriter) Header() http.Header         { return d.header }
func (d *discardWriter) WriteHeader(code int)        { d.code = code }
func (d *discardWriter) Write(p []byte) (int, error) { d.bytes += int64(len(p)); return len(p), nil }

// BenchmarkAllPods measures lists of all pods of 5000 nodes: only the lookups, and requests without the
// network, TLS, authentication and authorization.
func BenchmarkAllPods(b *testing.B) {
	c := benchCluster(b, 150_000, 5000)
	h := serve(b, c)
	runtime.GC()
	b.Run("lookups", func(b *testing.B) {
		objects := c.View.RunningPods("", labels.Everything())
		all := pods{view: c.View}
		measure(b, func() {
			for _, item := range all.items(objects, usage.At(now)) {
				if item.Usage == nil {
					b.Fatalf("no usage of %s", item.Object.Name)
				}
			}
		})
	})
	b.Run("json", func(b *testing.B) { measure(b, func() { send(b, h, "/pods", jsonType, "") }) })
	b.Run("protobuf", func(b *testing.B) { measure(b, func() { send(b, h, "/pods", protobufType, "") }) })
}

// measure runs f and reports its CPU time.
func measure(b *testing.B, f func()) {
	b.ReportAllocs()
	start := testenv.CPUTime(b)
	for b.Loop() {
		f()
	}
	b.ReportMetric(float64(testenv.CPUTime(b)-start)/float64(b.N), "cpu-ns/op")
}

// send sends a request and discards the response.
func send(b *testing.B, h http.Handler, path, accept, acceptEncoding string) {
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, v1beta1Path+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	r.Header.Set("Accept-Encoding", acceptEncoding)
	w := &discardWriter{header: http.Header{}, code: http.StatusOK}
	h.ServeHTTP(w, r)
	if w.code != http.StatusOK {
		b.Fatalf("%s: %d", path, w.code)
	}
	b.SetBytes(w.bytes)
}

// BenchmarkRequest measures requests without the network, TLS, authentication and authorization.
func BenchmarkRequest(b *testing.B) {
	h := serve(b, largeCluster(b))
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
			measure(b, func() { send(b, h, test.path, test.accept, test.compressed) })
		})
	}
}
