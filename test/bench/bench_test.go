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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// TestKubeletsServePods checks that kubelets and objects, as the API server decodes them, describe the
// same pods, in groups of the sizes that requests expect.
func TestKubeletsServePods(t *testing.T) {
	for _, small := range []bool{false, true} {
		s := shape{3, podsPerNode}
		samples := ""
		for _, k := range newKubelets(s, false) {
			w := httptest.NewRecorder()
			k.ServeHTTP(w, httptest.NewRequest(http.MethodGet, kubelettest.ResourcePath, nil))
			samples += w.Body.String()
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
			apps[pod.Namespace+"/"+pod.Labels[appLabel]]++
			for _, c := range pod.Spec.Containers {
				labels := fmt.Sprintf("{container=%q,namespace=%q,pod=%q}", c.Name, pod.Namespace, pod.Name)
				if n := strings.Count(samples, labels); n != 5 || pod.Status.Phase != corev1.PodRunning {
					t.Errorf("got %d samples with %s, want 5, and phase %q", n, labels, pod.Status.Phase)
				}
			}
		}
		if want := len(p.namespaces) + p.nodes + p.pods(); len(keys) != want ||
			apps[shopNamespace+"/"+webApp] != s.web() || apps[hugeNamespace+"/"+rareApp] != s.rare() {
			t.Errorf("got %d keys, want %d, and pods of apps %v", len(keys), want, apps)
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
	write := func(name, text string) string {
		if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(c.dir, name)
	}
	write(c.files.events, "oom_kill_disable 0\noom_kill 2\n")
	write(c.files.peak, "3145728\n")
	if mib, kills, err := c.peak(); mib != 3 || kills != 2 || err != nil {
		t.Errorf("got %d MiB, %d kills and error %v, want 3 and 2", mib, kills, err)
	}
	script, err := c.launcher(write("server", "#!/bin/sh\necho $GOMEMLIMIT \"$2\" $$\n"), t.TempDir(), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	output, err := exec.CommandContext(t.Context(), script, "a", "b  c").CombinedOutput()
	text, pid, _ := strings.Cut(string(output), "b  c ")
	if joined, _ := os.ReadFile(c.dir + "/cgroup.procs"); err != nil || text != "921MiB " || string(joined) != pid {
		t.Errorf("got %q and error %v; %q has joined the cgroup", output, err, joined)
	}
}

// TestScalingPage checks that the table of docs/scaling.md and the numbers of the comparison in the
// README are those of the last rows of scaling.csv: run make plot, and edit comparison.svg.
func TestScalingPage(t *testing.T) {
	const docs, table = "../../docs/", "../../docs/images/scaling.csv"
	read := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	rows, err := readRows(table)
	if err != nil {
		t.Fatal(err)
	}
	older := row{rows[0].server, map[string]float64{"nodes": rows[0].values["nodes"], "pods": rows[0].values["pods"]}}
	if err := writeRows(copied, latest(append([]row{older}, rows...))); err != nil || read(copied) != read(table) {
		t.Errorf("%s is written as (error %v)\n%s", table, err, read(copied))
	}
	page := read(docs + "scaling.md")
	if err := os.WriteFile(copied, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := runPlot([]string{"-csv", table, "-svg", copied + ".svg", "-page", copied}); err != nil {
		t.Fatal(err)
	}
	if got := read(copied); got != page {
		t.Errorf("the table is not that of scaling.csv:\n%s", got)
	}
	image, compared := read(docs+"images/comparison.svg"), 0
	for line := range strings.Lines(page) {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| 1,000 |") {
			compared++
			for i, unit := range map[int]string{4: " MiB", 5: " cores", 6: " s", 7: " ms CPU"} {
				if !strings.Contains(image, ">"+cells[i]+unit+"<") {
					t.Errorf("comparison.svg does not have %s%s of %s", cells[i], unit, cells[2])
				}
			}
		}
	}
	if compared != 2 {
		t.Errorf("there are %d rows with 1000 nodes, want 2", compared)
	}
}
