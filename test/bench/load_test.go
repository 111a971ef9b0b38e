package main

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

func TestShape(t *testing.T) {
	for _, nodes := range []int{1, 7, 100, 1000, 5000} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			s := newShape(nodes)
			names := make(map[string]bool)
			onNode := make([]int, nodes)
			namespaces := make(map[string]int)
			apps := make(map[string]int)
			for i := range s.pods() {
				p := s.pod(i)
				names[p.Namespace+"/"+p.Name] = true
				onNode[p.Node]++
				namespaces[p.Namespace]++
				apps[p.Namespace+"/"+p.App]++
			}
			if len(names) != nodes*podsPerNode {
				t.Errorf("%d different pods, want %d", len(names), nodes*podsPerNode)
			}
			if slices.Min(onNode) != podsPerNode || slices.Max(onNode) != podsPerNode {
				t.Errorf("nodes have from %d to %d pods, want %d", slices.Min(onNode), slices.Max(onNode), podsPerNode)
			}
			if n := len(s.namespaces()); n != len(namespaces) {
				t.Errorf("%d namespaces are listed, pods are in %d", n, len(namespaces))
			}
			got := [4]int{
				namespaces[hugeNamespace], apps[hugeNamespace+"/"+rareApp], namespaces[shopNamespace], apps[shopNamespace+"/"+webApp],
			}
			if want := [4]int{s.huge, s.rare, s.shop, s.web}; got != want {
				t.Errorf("the measured groups have %v pods, want %v", got, want)
			}
			if nodes == 1000 && got != [4]int{10000, 10, 600, 400} {
				t.Errorf("the measured groups have %v pods", got)
			}
		})
	}
}

// TestKubeletsTellOfThePods checks that the kubelets and the objects in etcd are of the same
// cluster.
func TestKubeletsTellOfThePods(t *testing.T) {
	s := newShape(3)
	var texts []string
	for _, k := range kubelets(s, 0.1, func(int) bool { return false }) {
		w := httptest.NewRecorder()
		k.ServeHTTP(w, httptest.NewRequest(http.MethodGet, kubelettest.ResourcePath, nil))
		texts = append(texts, w.Body.String())
	}
	for i := range s.pods() {
		p := s.pod(i)
		object := p.Object(time.Now())
		if want := objects.Node(p.Node, 10250, time.Now()).Name; object.Spec.NodeName != want {
			t.Errorf("pod %s is on %s, want %s", object.Name, object.Spec.NodeName, want)
		}
		for _, c := range object.Spec.Containers {
			labels := fmt.Sprintf("{container=%q,namespace=%q,pod=%q}", c.Name, object.Namespace, object.Name)
			if n := strings.Count(texts[p.Node], labels); n != 5 {
				t.Errorf("the kubelet of node %d has %d lines with %s, want 5", p.Node, n, labels)
			}
		}
	}
}

// TestObjectsAreReadable decodes what is written into etcd as the API server does.
func TestObjectsAreReadable(t *testing.T) {
	s := newShape(2)
	keys := make(map[string]bool)
	err := eachObject(s, 10250, func(key string, object runtime.Object) error {
		if key == "" {
			return nil
		}
		keys[key] = true
		text, err := encode(object)
		if err != nil {
			return err
		}
		back, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
		if err != nil {
			return err
		}
		if pod, ok := back.(*corev1.Pod); ok && (pod.Status.Phase != corev1.PodRunning || len(pod.ManagedFields) != 2) {
			t.Errorf("%s has phase %q and %d managedFields", key, pod.Status.Phase, len(pod.ManagedFields))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := len(s.namespaces()) + s.nodes + s.pods(); len(keys) != want {
		t.Errorf("%d different keys, want %d", len(keys), want)
	}
}

func TestBatches(t *testing.T) {
	batches := make(chan []put, 10)
	s := newShape(7)
	if err := eachObject(s, 10250, batcher(context.Background(), batches)); err != nil {
		t.Fatal(err)
	}
	close(batches)
	total := 0
	for batch := range batches {
		if len(batch) == 0 || len(batch) > txnSize {
			t.Errorf("a batch has %d objects", len(batch))
		}
		total += len(batch)
	}
	if want := len(s.namespaces()) + s.nodes + s.pods(); total != want {
		t.Errorf("%d objects are written, want %d", total, want)
	}
}

func TestCountProtobuf(t *testing.T) {
	list := &corev1.NodeList{Items: []corev1.Node{*objects.Node(0, 1, time.Now()), *objects.Node(1, 1, time.Now())}}
	list.APIVersion, list.Kind = "v1", "NodeList"
	body, err := encode(list)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := countProtobuf(body); n != 2 || err != nil {
		t.Errorf("counted %d, %v; want 2", n, err)
	}
	for _, damaged := range [][]byte{nil, []byte(`{"kind":"NodeList"}`), body[:len(body)-10]} {
		if n, err := countProtobuf(damaged); err == nil {
			t.Errorf("counted %d in %d damaged bytes", n, len(damaged))
		}
	}
}

func TestTable(t *testing.T) {
	table := newTable("What it is", "Name", "p50", "≤ 20 s")
	table.row("a long name", "1", "2")
	table.row("ä", "1000.0 s", "")
	var b strings.Builder
	if err := table.print(&b); err != nil {
		t.Fatal(err)
	}
	want := `
What it is

| Name        |      p50 | ≤ 20 s |
| ----------- | -------: | -----: |
| a long name |        1 |      2 |
| ä           | 1000.0 s |        |
`
	if b.String() != want {
		t.Errorf("got:%s\nwant:%s", b.String(), want)
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i) // 100, 99, … 1
	}
	for _, test := range []struct {
		values  []float64
		p, want float64
	}{
		{nil, 95, 0},
		{[]float64{7}, 0, 7},
		{[]float64{7}, 95, 7},
		{hundred, 0, 1},
		{hundred, 50, 50},
		{hundred, 95, 95},
		{hundred, 100, 100},
		{[]float64{3, 1, 2}, 50, 2},
		{[]float64{3, 1, 2}, 95, 3},
	} {
		if got := percentile(test.values, test.p); got != test.want {
			t.Errorf("the %g. percentile of %d values = %v, want %v", test.p, len(test.values), got, test.want)
		}
	}
	if got := mean([]float64{1, 2, 6}); got != 3 {
		t.Errorf("the mean is %v, want 3", got)
	}
	if got := mean(nil); got != 0 {
		t.Errorf("the mean of nothing is %v, want 0", got)
	}
}

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 2, 9}, 3},
	} {
		if got := median(test.values); got != test.want {
			t.Errorf("median of %v = %v, want %v", test.values, got, test.want)
		}
	}
}

func TestOwnProcess(t *testing.T) {
	used, err := process.CPUTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	// Both are read from the kernel, one to 10 ms.
	if own := ownCPUTime(); math.Abs((own - used).Seconds()) > 1 {
		t.Errorf("/proc says %s of CPU, getrusage %s", used, own)
	}
	if rss, err := process.Resident(os.Getpid()); err != nil || rss < 1<<20 || rss > 1<<40 {
		t.Errorf("resident are %d bytes, %v", rss, err)
	}
	if _, err := process.CPUTime(-1); err == nil {
		t.Error("a process that is not there has CPU time")
	}
}

func TestFlags(t *testing.T) {
	executable := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(executable, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg, err := parse([]string{"--server", executable, "--nodes", "100, 5000", "--", "--v=2"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(cfg.nodes, []int{100, 5000}) || !slices.Equal(cfg.serverArgs, []string{"--v=2"}) {
		t.Errorf("nodes %v, arguments %q", cfg.nodes, cfg.serverArgs)
	}

	_, err = parse([]string{
		"--nodes", "many,0", "--rounds", "0", "--metric-resolution", "1ms", "--bin", t.TempDir(),
		"--only", "lunch", "--json", "x", "--duration", "0s", "--failing", "1.5", "--rate", "0", "--idle", "-1",
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`"many"`, `"0"`, "--server", "etcd", "kube-apiserver", "--rounds", "--metric-resolution",
		"lunch", "--json", "--duration", "--failing", "--rate", "--idle",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the mistakes do not mention %s:\n%v", want, err)
		}
	}
}

func TestPrint(t *testing.T) {
	r := &result{
		Server: "kube-vitals", Nodes: 10, ScrapeCPU: 0.3, Floor: floorResult{Plain: 0.2, Gzip: 0.3, InRow: 0.1},
		Requests: []requestResult{{Name: "GET one pod, JSON", CPU: 0.1234, Latency: 1.5}},
	}
	var b strings.Builder
	if err := r.print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| 0.200 ms |  1.50 |", "0.123 ms", "1.5 ms"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}
