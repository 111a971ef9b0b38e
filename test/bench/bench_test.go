package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

// TestKubeletsServePods checks that kubelets and objects, as the API server decodes them, describe the
// same pods, in groups of the sizes that requests expect.
func TestKubeletsServePods(t *testing.T) {
	for _, small := range []bool{false, true} {
		s := shape{3, podsPerNode}
		var texts []string
		for _, k := range newKubelets(s, false) {
			w := httptest.NewRecorder()
			k.ServeHTTP(w, httptest.NewRequest(http.MethodGet, kubelettest.ResourcePath, nil))
			texts = append(texts, w.Body.String())
		}
		p := newPopulation(s, 10250)
		p.small = small
		keys, apps := map[string]bool{}, map[string]int{}
		for i := range p.size() {
			key, object := p.object(i)
			keys[key] = true
			text, err := cluster.Encode(object)
			if err != nil {
				t.Fatal(err)
			}
			decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			pod, isPod := decoded.(*corev1.Pod)
			if !isPod {
				continue
			}
			if pod.Status.Phase != corev1.PodRunning {
				t.Errorf("%s: got phase %q", key, pod.Status.Phase)
			}
			apps[pod.Namespace+"/"+pod.Labels["app.kubernetes.io/name"]]++
			for _, c := range pod.Spec.Containers {
				labels := fmt.Sprintf("{container=%q,namespace=%q,pod=%q}", c.Name, pod.Namespace, pod.Name)
				if n := strings.Count(strings.Join(texts, ""), labels); n != 5 {
					t.Errorf("got %d samples with %s, want 5", n, labels)
				}
			}
		}
		if want := len(p.namespaces) + p.nodes + p.pods(); len(keys) != want {
			t.Errorf("got %d keys, want %d", len(keys), want)
		}
		if apps[shopNamespace+"/"+webApp] != s.web() || apps[hugeNamespace+"/"+rareApp] != s.rare() {
			t.Errorf("got pods of apps %v, want %d and %d in the requested groups", apps, s.web(), s.rare())
		}
	}
}

func TestCountProtobuf(t *testing.T) {
	list := &corev1.NodeList{Items: []corev1.Node{*objects.Node(0, 1, time.Now()), *objects.Node(1, 1, time.Now())}}
	list.APIVersion, list.Kind = "v1", "NodeList"
	body, err := cluster.Encode(list)
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

func TestPercentile(t *testing.T) {
	for _, tt := range []struct {
		values  []float64
		p, want float64
	}{
		{nil, 95, 0},
		{[]float64{7}, 0, 7},
		{[]float64{3, 1, 2}, 50, 2},
		{[]float64{3, 1, 2}, 95, 3},
	} {
		if got := percentile(tt.values, tt.p); got != tt.want {
			t.Errorf("percentile %g of %v: got %v, want %v", tt.p, tt.values, got, tt.want)
		}
	}
}

// TestFlags checks that the memory limit is that of the chart, and that wrong flags are reported at once.
func TestFlags(t *testing.T) {
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := parse([]string{"-server", executable, "-nodes", "100, 20000x5", "--", "--v=2"})
	if err != nil || fmt.Sprint(cfg.sizes, cfg.serverArgs) != "[{100 30} {20000 5}] [--v=2]" {
		t.Errorf("got %v, %v and error %v", cfg.sizes, cfg.serverArgs, err)
	}
	text, err := os.ReadFile("../../charts/kube-vitals/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Resources struct {
			Limits struct{ Memory resource.Quantity }
		}
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	if want := values.Resources.Limits.Memory.Value(); memoryLimit != want {
		t.Errorf("got a limit of %d bytes, want that of the chart, %d", memoryLimit, want)
	}
	_, err = parse([]string{"-only=other", "-nodes=0,1x2", "-rounds=0"})
	for _, want := range []string{"-server", "-only", `"0"`, `"1x2"`, "-rounds"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not mention %s:\n%v", want, err)
		}
	}
}

// TestCgroup checks the paths and files of both versions, and that the server's script joins the
// cgroup, sets the limit for Go's heap, and passes the arguments on.
func TestCgroup(t *testing.T) {
	for self, want := range map[string]string{
		"9:cpu:/a\n4:memory:/b/c\n0::/\n":  "/sys/fs/cgroup/memory/b/c memory.oom_control",
		"0::/user.slice/session-1.scope\n": "/sys/fs/cgroup/user.slice memory.events",
	} {
		if dir, files := cgroupParent(self); dir+" "+files.events != want {
			t.Errorf("%q: got %q, %+v, want %s", self, dir, files, want)
		}
	}
	c := &cgroup{t.TempDir(), cgroupV1}
	if err := os.WriteFile(c.dir+"/memory.oom_control", []byte("oom_kill_disable 0\noom_kill 2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err := c.number(c.files.events, "oom_kill "); n != 2 || err != nil {
		t.Errorf("got %d kills and error %v, want 2", n, err)
	}
	executable := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(executable, []byte("#!/bin/sh\necho $GOMEMLIMIT \"$2\" $$\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	script, err := c.launcher(executable, t.TempDir(), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	output, err := exec.CommandContext(t.Context(), script, "a", "b  c").CombinedOutput()
	text, pid, _ := strings.Cut(string(output), "b  c ")
	if joined, _ := os.ReadFile(c.dir + "/cgroup.procs"); err != nil || text != "921MiB " || string(joined) != pid {
		t.Errorf("got %q and error %v; %q has joined the cgroup", output, err, joined)
	}
}

// TestRows writes rows with a server that was measured twice, and reads them again.
func TestRows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.csv")
	var rows []row
	for i, server := range []string{"metrics-server", "kube-vitals", "kube-vitals"} {
		rows = append(rows, row{server, map[string]float64{
			"nodes": 1000, "pods": 30000, "resolution_seconds": 30, cpuCores: 0.1 * float64(i+1), "rss_mib": 12.6,
		}})
	}
	if err := writeRows(file, latest(rows)); err != nil {
		t.Fatal(err)
	}
	rows, err := readRows(file)
	if err != nil {
		t.Fatal(err)
	}
	text := scaleTable(rows).markdown()
	for _, want := range []string{ // the last row of kube-vitals, whose cores are of an interval of 15 s
		"| 1,000 | 30,000 | kube-vitals | 0 | 13 | 0.600 |",
		"| 1,000 | 30,000 | metrics-server | 0 | 13 | 0.200 |",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q is not there once in\n%s", want, text)
		}
	}
}

// TestScalingPage checks that the table of docs/scaling.md and the numbers of the comparison in the
// README are those of the last rows of scaling.csv: run make plot, and edit comparison.svg.
func TestScalingPage(t *testing.T) {
	const docs = "../../docs/"
	want, err := os.ReadFile(docs + "scaling.md")
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, want, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := runPlot([]string{"-csv", docs + "images/scaling.csv", "-svg", page + ".svg", "-page", page}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(page); err != nil || string(got) != string(want) {
		t.Errorf("the table is not that of scaling.csv (error %v):\n%s", err, got)
	}
	image, err := os.ReadFile(docs + "images/comparison.svg")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(want)) {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| 1,000 |") {
			rows++
			for i, unit := range map[int]string{4: " MiB", 5: " cores", 6: " s", 7: " ms CPU"} {
				if !strings.Contains(string(image), ">"+cells[i]+unit+"<") {
					t.Errorf("comparison.svg does not have %s%s of %s", cells[i], unit, cells[2])
				}
			}
		}
	}
	if rows != 2 {
		t.Errorf("there are %d rows with 1000 nodes, want 2", rows)
	}
}
