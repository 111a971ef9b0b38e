package api

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
	"github.com/kube-vitals/kube-vitals/pkg/view/viewtest"
)

// largeCluster returns 1000 nodes with 30 pods of two containers each, in 50 namespaces of 600
// pods. Of these, 400 belong to one application.
func largeCluster() Config {
	const nodes, pods, namespaces = 1000, 30_000, 50
	var podList, nodeList []any
	names, reported := make([]string, nodes), make([][]*usage.Pod, nodes)
	created := metav1.NewTime(now.Add(-time.Hour))
	for i := range nodes {
		name := fmt.Sprintf("node-%04d", i)
		nodeList = append(nodeList, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: created,
			Labels: map[string]string{"zone": fmt.Sprint(i % 3), "kubernetes.io/hostname": name},
		}})
		names[i] = name
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
			Spec:   corev1.PodSpec{NodeName: names[i%nodes]},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		})
		p := pod(
			usage.Container{Name: "main", Amount: amount(uint64(i)*10_007, uint64(i)<<12)},
			usage.Container{Name: "proxy", Amount: amount(uint64(i)*1_009, uint64(i)<<12+4096)})
		p.Namespace, p.Name = namespace, name
		reported[i%nodes] = append(reported[i%nodes], p)
	}
	s := store.New(store.Config{MaxSampleAge: time.Minute, MaxContainers: 100})
	for i, name := range names {
		viewtest.Put(s, name, &usage.Node{Amount: amount(uint64(i)*1_000_003, uint64(i)<<20), AsOf: at}, reported[i]...)
	}
	v := &view.View{Pods: viewtest.Index(podList...), Nodes: viewtest.Index(nodeList...), Store: s}
	return Config{View: v, Now: func() time.Time { return now }, Clock: usage.NewClock(now)}
}

// hugeCluster returns 150,000 pods of two containers each, on 5000 nodes, in a real Store and Index. The
// pods of a node are in many namespaces. Pods lie in memory in another order than they are listed in, as
// in a cluster in which pods come and go.
func hugeCluster(b *testing.B) Config {
	const pods, nodes, apps = 150_000, 5000, 5000
	random, started := rand.New(rand.NewPCG(1, 2)), usage.At(now).Add(-time.Hour)
	objects, scrapes := make([]any, pods), make([]usage.Scrape, nodes)
	for k, i := range random.Perm(pods) {
		app := fmt.Sprintf("application-%d", i%apps)
		o, err := inventory.NewObject(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: fmt.Sprintf("team-%03d", i%100), Name: fmt.Sprintf("%s-7d4b9c6f5d-%05d", app, i),
				Labels: map[string]string{"app.kubernetes.io/name": app, "pod-template-hash": "7d4b9c6f5d", "team": "shop"},
			},
			Spec:   corev1.PodSpec{NodeName: fmt.Sprintf("node-%04d.example.com", random.IntN(nodes))},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		})
		if err != nil {
			b.Fatal(err)
		}
		node, err := strconv.Atoi(o.Node[len("node-"):len("node-0000")])
		if err != nil {
			b.Fatal(err)
		}
		for _, name := range []string{"main", "proxy"} {
			o = running(o, name, started)
			scrapes[node].Containers = append(scrapes[node].Containers, usage.ContainerSample{
				Namespace: []byte(o.Namespace), Pod: []byte(o.Name), Name: []byte(name),
			})
		}
		objects[k] = o
	}
	s := store.New(store.Config{MaxSampleAge: time.Minute, MaxContainers: 10_000})
	for round := range 3 {
		for _, n := range random.Perm(nodes) {
			sc := &scrapes[n]
			sc.At = usage.At(now).Add(time.Duration(round-3)*15*time.Second + time.Duration(n)*time.Millisecond)
			for i := range sc.Containers {
				sc.Containers[i].Sample = usage.Sample{
					At: sc.At, StartedAt: started, CPUSeconds: float64(round) * random.Float64(),
					Memory: random.Uint64N(1<<18) << 12, Has: usage.HasCPU | usage.HasMemory,
				}
			}
			s.Put(fmt.Sprintf("node-%04d.example.com", n), sc)
		}
	}
	v := &view.View{Pods: viewtest.Index(objects...), Nodes: inventory.New(), Store: s}
	return Config{View: v, Now: func() time.Time { return now }, Clock: usage.NewClock(now)}
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

// BenchmarkAllPods measures lists of all pods of 5000 nodes: only the lookups, and requests without the
// network, TLS, authentication and authorization.
func BenchmarkAllPods(b *testing.B) {
	c := hugeCluster(b)
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
	for _, test := range []struct{ name, accept string }{{"json", jsonType}, {"protobuf", protobufType}} {
		b.Run(test.name, func(b *testing.B) {
			measure(b, func() { send(b, h, "/pods", test.accept, "") })
		})
	}
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
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "/apis/metrics.k8s.io/v1beta1"+path, nil)
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
	h := serve(b, largeCluster())
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
