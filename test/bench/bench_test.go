package main

import (
	"errors"
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
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

func TestShape(t *testing.T) {
	for _, nodes := range []int{1, 7, 100, 1000, 5000} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			s := newShape(nodes, podsPerNode, containersPerPod)
			names := make(map[string]bool)
			onNode := make([]int, nodes)
			inNamespace := make(map[string]int)
			inApp := make(map[string]int)
			for i := range s.pods() {
				p := s.pod(i)
				names[p.Namespace+"/"+p.Name] = true
				onNode[p.Node]++
				inNamespace[p.Namespace]++
				inApp[p.Namespace+"/"+p.App]++
			}
			if len(names) != nodes*podsPerNode {
				t.Errorf("got %d different pods, want %d", len(names), nodes*podsPerNode)
			}
			if slices.Min(onNode) != podsPerNode || slices.Max(onNode) != podsPerNode {
				t.Errorf("got %d to %d pods per node, want %d", slices.Min(onNode), slices.Max(onNode), podsPerNode)
			}
			if n := len(s.namespaces()); n != len(inNamespace) {
				t.Errorf("got %d namespaces, want %d", n, len(inNamespace))
			}
			got := [4]int{
				inNamespace[hugeNamespace], inApp[hugeNamespace+"/"+rareApp],
				inNamespace[shopNamespace], inApp[shopNamespace+"/"+webApp],
			}
			want := [4]int{s.huge, s.rare, s.shop, s.web}
			if nodes == 1000 {
				want = [4]int{10000, 10, 600, 400}
			}
			if got != want {
				t.Errorf("got %v pods in the requested groups, want %v", got, want)
			}
		})
	}
}

// TestKubeletsServePods checks that kubelets, which are in two processes, and objects describe the
// same pods.
func TestKubeletsServePods(t *testing.T) {
	s, o := newShape(3, podsPerNode, 3), kubeletOptions{idle: 0.1}
	var texts []string
	for _, k := range slices.Concat(newKubelets(s, 0, 2, o), newKubelets(s, 2, s.nodes, o)) {
		w := httptest.NewRecorder()
		k.ServeHTTP(w, httptest.NewRequest(http.MethodGet, kubelettest.ResourcePath, nil))
		texts = append(texts, w.Body.String())
	}
	for i := range s.pods() {
		p := s.pod(i)
		object := p.Object(time.Now())
		if want := objects.NodeName(p.Node); object.Spec.NodeName != want {
			t.Errorf("pod %s: got node %s, want %s", object.Name, object.Spec.NodeName, want)
		}
		for _, c := range object.Spec.Containers {
			labels := fmt.Sprintf("{container=%q,namespace=%q,pod=%q}", c.Name, object.Namespace, object.Name)
			if n := strings.Count(texts[p.Node], labels); n != 5 {
				t.Errorf("kubelet %d: got %d samples with %s, want 5", p.Node, n, labels)
			}
		}
	}
}

// TestPopulation decodes all objects as the API server does.
func TestPopulation(t *testing.T) {
	p := newPopulation(newShape(2, podsPerNode, 3), 10250, false)
	keys := make(map[string]bool)
	for i := range p.size() {
		key, object := p.object(i)
		keys[key] = true
		text, err := encode(object)
		if err != nil {
			t.Fatal(err)
		}
		decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if pod, ok := decoded.(*corev1.Pod); ok && (pod.Status.Phase != corev1.PodRunning || len(pod.ManagedFields) != 2) {
			t.Errorf("%s: got phase %q and %d managedFields", key, pod.Status.Phase, len(pod.ManagedFields))
		}
	}
	if want := len(p.namespaces) + p.nodes + p.pods(); len(keys) != want {
		t.Errorf("got %d keys, want %d", len(keys), want)
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
		t.Errorf("got %d and error %v, want 2", n, err)
	}
	for _, damaged := range [][]byte{nil, []byte(`{"kind":"NodeList"}`), body[:len(body)-10]} {
		if n, err := countProtobuf(damaged); err == nil {
			t.Errorf("got %d items in %d damaged bytes, want an error", n, len(damaged))
		}
	}
}

func TestTable(t *testing.T) {
	table := newTable("The title", "Name", "p50", "≤ 20 s")
	table.row("a long name", "1", "2")
	table.row("ä", "1000.0 s", "")
	var got strings.Builder
	table.print(&got)
	want := `
The title

| Name        |      p50 | ≤ 20 s |
| ----------- | -------: | -----: |
| a long name |        1 |      2 |
| ä           | 1000.0 s |        |
`
	if got.String() != want {
		t.Errorf("got:%s\nwant:%s", &got, want)
	}
}

func TestPrintCost(t *testing.T) {
	c := &cost{
		bench: &bench{
			config: config{resolution: 15 * time.Second}, shape: newShape(10, podsPerNode, containersPerPod),
		},
		cores:    0.0002,
		peak:     200,
		download: download{Spread: 0.2, Gzip: 0.3, Unspread: 0.1}, rss: 70, anon: 30,
		requests: []requestCost{{request: request{name: "GET one pod, JSON", want: 1}, cpu: 0.1234, latency: 1.5}},
	}
	var got strings.Builder
	c.print(&got)
	for _, want := range []string{
		"0.300 ms", "0.200 ms |  1.50 |", "0.123 ms", "1.5 ms", "RssAnon", "30 MiB",
		"200 MiB |",
		"Incomplete: GET one pod, JSON returns 0 items, want 1.",
	} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &got)
		}
	}
}

// TestPrintCostWithPrometheus checks which costs of Prometheus are shown of which server.
func TestPrintCostWithPrometheus(t *testing.T) {
	const perRefresh, perRequest = "| CPU of Prometheus for a refresh ", "34.5 ms |"
	for _, onRequest := range []bool{false, true} {
		c := &cost{
			bench: &bench{
				config: config{resolution: 15 * time.Second}, shape: newShape(10, podsPerNode, containersPerPod),
			},
			engine: &engine{
				onRequest: onRequest, coresAlone: 0.01, cores: 0.02, refreshes: refreshes{number: 9, failed: 2, seconds: 5.4},
			},
			requests: []requestCost{{request: request{name: "GET one pod, JSON", want: 1}, engineCPU: 34.5, items: 1}},
		}
		if onRequest {
			c.requests[0].err = errors.New("no answer")
		}
		var text strings.Builder
		c.print(&text)
		for part, want := range map[string]bool{
			"0.0200 cores": true, perRequest: onRequest, perRefresh: !onRequest, " 150 ms ": !onRequest,
			"9, 2": !onRequest, " 600 ms ": !onRequest, "CPU per refresh and node": !onRequest,
			"Failed: GET one pod, JSON: no answer.": onRequest, "Incomplete": false,
		} {
			if got := strings.Contains(text.String(), part); got != want {
				t.Errorf("queries on request %t: %q is there: %t, want %t, in\n%s", onRequest, part, got, want, &text)
			}
		}
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i) // 100, 99, … 1
	}
	for _, tt := range []struct {
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
		if got := percentile(tt.values, tt.p); got != tt.want {
			t.Errorf("percentile %g of %d values: got %v, want %v", tt.p, len(tt.values), got, tt.want)
		}
	}
}

func TestMean(t *testing.T) {
	if got := mean([]float64{1, 2, 6}); got != 3 {
		t.Errorf("got %v, want 3", got)
	}
	if got := mean(nil); got != 0 {
		t.Errorf("got %v for no values, want 0", got)
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 2, 9}, 3},
	} {
		if got := median(tt.values); got != tt.want {
			t.Errorf("median of %v: got %v, want %v", tt.values, got, tt.want)
		}
	}
}

// TestProcessUsage compares /proc with getrusage, and RSS with RssAnon.
func TestProcessUsage(t *testing.T) {
	pid := os.Getpid()
	cpu, err := process.CPUTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	if own := ownCPUTime(); math.Abs((own - cpu).Seconds()) > 1 {
		t.Errorf("got %s from /proc and %s from getrusage", cpu, own)
	}
	rss, err := process.Resident(pid)
	if err != nil {
		t.Fatal(err)
	}
	anon, err := process.Anonymous(pid)
	if err != nil {
		t.Fatal(err)
	}
	if anon < 1<<20 || anon > rss || rss > 1<<40 {
		t.Errorf("got RSS %d and RssAnon %d bytes", rss, anon)
	}
	if _, err := process.CPUTime(-1); err == nil {
		t.Error("got the CPU time of a process that does not exist")
	}
}

func TestFlags(t *testing.T) {
	executable := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(executable, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg, err := parse([]string{"-server", executable, "-nodes", "100, 5000,20000x5", "--", "--v=2"})
	if err != nil {
		t.Fatal(err)
	}
	sizes := []size{{100, 30}, {5000, 30}, {20000, 5}}
	if !slices.Equal(cfg.sizes, sizes) || !slices.Equal(cfg.serverArgs, []string{"--v=2"}) {
		t.Errorf("got nodes %v and arguments %q", cfg.sizes, cfg.serverArgs)
	}
	_, err = parse([]string{
		"-nodes", "many,0,7x1,8x", "-rounds", "0", "-metric-resolution", "1ms", "-only", "lunch", "-beside", "x",
		"-duration", "0s", "-failing", "1.5", "-rate", "0", "-idle", "-1",
		"-pods", "1", "-containers", "0",
	})
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{
		`"many"`, `"0"`, `"7x1"`, `"8x"`,
		"-server", "-beside", "-rounds", "-metric-resolution", "lunch", "-duration", "-failing", "-rate",
		"-idle", "-pods",
		"-containers",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not mention %s:\n%v", want, err)
		}
	}
}
