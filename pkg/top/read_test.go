package top

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"

	"github.com/kube-vitals/kube-vitals/internal/sim"
)

func contextOf(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

// TestRequests checks how the scheduler counts what a pod requests, in thousandths of a core and mebibytes.
func TestRequests(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	status := func(allocated, applied, limits string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: "app", AllocatedResources: list(allocated),
			Resources: &corev1.ResourceRequirements{Requests: list(applied), Limits: list(limits)}}
	}
	for name, tt := range map[string]struct {
		edit func(*corev1.Pod)
		want string // request and limit of CPU, of memory
	}{
		"containers": {func(*corev1.Pod) {}, "300 - 96 256"},
		"init container": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{container("init", "cpu=1", "memory=512Mi")}
		}, "1000 - 96 512"},
		"sidecar": {func(p *corev1.Pod) {
			c := container("mesh", "cpu=50m memory=32Mi", "")
			c.RestartPolicy = &always
			p.Spec.InitContainers = []corev1.Container{c, container("init", "cpu=290m", "")}
		}, "350 - 128 256"},
		"overhead": {func(p *corev1.Pod) { p.Spec.Overhead = list("cpu=250m memory=120Mi") }, "550 - 216 376"},
		"pod-level": {func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("cpu=2 memory=1Gi"), Limits: list("cpu=4")}
		}, "2000 4000 1024 256"},
		"resized upwards": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{status("cpu=100m", "cpu=100m", "")}
			p.Spec.Containers[0].Resources.Requests = list("cpu=900m")
		}, "1000 - 32 256"},
		"resized downwards": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{status("cpu=500m", "cpu=700m memory=64Mi", "memory=512Mi")}
		}, "800 - 96 512"},
		"infeasible": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = list("cpu=9000m memory=64Mi")
			p.Status.ContainerStatuses = []corev1.ContainerStatus{
				status("cpu=200m memory=64Mi", "cpu=200m memory=64Mi", "memory=256Mi")}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Reason: corev1.PodReasonInfeasible}}
		}, "200 - 64 256"},
		"pod-level, resized": {func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("cpu=2")}
			p.Status.Resources = &corev1.ResourceRequirements{Requests: list("cpu=3")}
		}, "3000 - 96 256"},
		"without a limit, cgroup v1": {func(p *corev1.Pod) {
			p.Status.Resources = &corev1.ResourceRequirements{Limits: list("cpu=1 memory=9007199254740988Ki")}
		}, "300 1000 96 256"},
		"ended": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, "- - - -"},
		"none":  {func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:0] }, "- - - -"},
		"zero":  {func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{container("a", "cpu=0", "")} }, "0 - - -"},
		"too much": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = list("cpu=8E memory=8E")
		}, "max - max 256"},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
			container("app", "cpu=200m memory=64Mi", "memory=256Mi"), container("proxy", "cpu=100m memory=32Mi", "")}}}
		p.Status.Phase = corev1.PodRunning
		tt.edit(p)
		r := newPod(p, true)[0]
		show := func(v value, unit int64) string {
			if v.n() > 1<<62 {
				return "max"
			}
			return or(v.known(), fmt.Sprint(v.n()/unit))
		}
		got := strings.Join([]string{show(r.CPU[request], 1e6), show(r.CPU[limit], 1e6), show(r.Memory[request], 1<<20),
			show(r.Memory[limit], 1<<20)}, " ")
		if got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

// TestSums checks that sums say what they cover, and that percentages are of what has usage.
func TestSums(t *testing.T) {
	w := newWorld().shop()
	r := w.report(t)
	web := r.find(t, "web", "")
	if web.WithMetrics != 2 || web.Objects.n() != 3 || web.CPU[usage].n() != 288e6 || web.CPU[request].n() != 600e6 ||
		web.CPU[percent].n() != 72 || web.Missing["tls-self-signed"] != 1 || web.Memory[near].n() != 1 {
		t.Errorf("got %+v", web)
	}
	if db := r.find(t, "db", ""); db.CPU[percent].known() || db.CPU[request].known() || db.Memory[percent].n() != 48 {
		t.Errorf("a percentage without a request: %+v", db)
	}
	if canary := r.find(t, "canary", ""); canary.CPU[usage] != number(0) || canary.CPU[percent] != number(0) {
		t.Errorf("zero is unknown: %+v", canary)
	}
	if backup := r.find(t, "backup", ""); backup.Objects != number(0) || backup.CPU != (amount{}) ||
		backup.Missing["Succeeded"] != 1 {
		t.Errorf("got %+v", backup)
	}
	if r.Total.Objects.n() != 9 || r.Total.WithMetrics != 7 ||
		r.Total.Memory[usage].n()>>20 != 96+118+2*901+2000+10+30+80 {
		t.Errorf("got %+v", r.Total)
	}
	w.config.Kind = Nodes
	w.config.Namespace = ""
	r = w.report(t)
	n1, n2 := r.find(t, "n1", ""), r.find(t, "n2", "")
	if n1.CPU[request].n() != (600+1100+10+100+50)*1e6 || n1.CPU[percent].n() != 77 || n1.CPU[allocatable].n() != 4e9 ||
		!n2.CPU[request].known() || n2.CPU[request].n() != 0 || n2.Missing["timeout"] != 1 || n2.CPU[usage].known() ||
		r.Total.CPU[percent].n() != 77 || r.Total.CPU[allocatable].n() != 8e9 {
		t.Errorf("got %+v, %+v, %+v", n1, n2, r.Total)
	}
}

// TestPercent checks percentages of numbers that any object can have.
func TestPercent(t *testing.T) {
	for _, tt := range []struct{ part, whole, cpu, memory int64 }{
		{199_999_999, 200e6, 100, 99}, {1, 1e6, 100, 0}, {0, 1e6, 0, 0}, {1e9, 0, -1, -1},
		{math.MaxInt64, 1, -1, math.MaxInt64 / 100 * 100}, {math.MaxInt64, math.MaxInt64, 100, 100},
	} {
		r := &row{}
		for _, a := range r.amounts() {
			a[part], a[whole] = number(tt.part), number(tt.whole)
		}
		r.finish()
		for i, want := range []int64{tt.cpu, tt.memory} {
			got := r.amounts()[i][percent]
			if got.known() != (want >= 0) || got.n() != max(0, want) {
				t.Errorf("%d of %d: got %d, want %d", tt.part, tt.whole, got.n(), want)
			}
		}
	}
}

// TestContainers checks the rows of containers.
func TestContainers(t *testing.T) {
	w := newWorld()
	always := corev1.ContainerRestartPolicyAlways
	mesh := container("mesh", "cpu=50m", "")
	mesh.RestartPolicy = &always
	p := w.pod("shop", "a", "", "cpu=10m memory=1Mi", container("app", "cpu=100m", "memory=10Mi"))
	p.Spec.InitContainers = []corev1.Container{mesh, container("init", "", ""), container("ran", "", "")}
	for _, name := range []string{"shell", "left"} {
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers,
			corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name}})
	}
	w.inPhase(p, corev1.PodRunning, "")
	m := w.Get(metricsV1 + "namespaces/shop/pods/a")
	for _, name := range []string{"init", "shell"} {
		m["containers"] = append(m["containers"].([]any), map[string]any{"name": name,
			"usage": map[string]any{"cpu": "5m", "memory": "2Mi"}})
	}
	w.Put(metricsV1+"namespaces/shop/pods/a", m)
	w.config.Kind, w.config.Containers = Pods, true
	r := w.report(t)
	if len(r.Items) != 4 {
		t.Errorf("got %+v", r.Items)
	}
	if app := r.find(t, "a", "app"); app.CPU[percent].n() != 10 || app.Memory[limit].n() != 10<<20 {
		t.Errorf("got %+v", app)
	}
	for _, name := range []string{"init", "shell"} {
		if c := r.find(t, "a", name); c.CPU[usage].n() != 5e6 || c.CPU[request].known() {
			t.Errorf("got %+v", c)
		}
	}
	if mesh := r.find(t, "a", "mesh"); mesh.CPU[usage].known() || mesh.Missing[noMetrics] != 1 ||
		mesh.CPU[request].n() != 50e6 {
		t.Errorf("got %+v", mesh)
	}
	if r.Total.CPU[usage].n() != 20e6 || r.Total.CPU[request].n() != 150e6 || r.Total.Objects.n() != 1 {
		t.Errorf("got %+v", r.Total)
	}
	m["containers"].([]any)[0].(map[string]any)["usage"] = map[string]any{"memory": "1Mi"}
	w.Put(metricsV1+"namespaces/shop/pods/a", m)
	if r = w.report(t); r.Total.CPU[usage].known() || r.Total.Memory[usage].n() != 5<<20 || r.Total.WithMetrics != 0 {
		t.Errorf("the CPU usage of a part of a pod is that of the pod: %+v", r.Total)
	}
}

// TestOwners checks the way up, which ends where it cannot be read.
func TestOwners(t *testing.T) {
	w := newWorld()
	for i, owner := range []string{"", "v1 Node n1", "v1 ReplicationController rc", "apps/v1 ReplicaSet unread",
		"example.com/v1 Ring a", "example.com/v1 Island i", "example.com/v2 Ring a", "../../api/v1 Secret s", "x/y/z A b",
		"batch/v1 Job job"} {
		w.pod("shop", fmt.Sprintf("p%d", i), owner, "cpu=1m memory=1Mi", container("app", "", ""))
	}
	w.owner("shop", "example.com/v1 Ring a", "example.com/v1 Ring b")
	w.owner("shop", "example.com/v1 Ring b", "example.com/v1 Ring a")
	w.owner("shop", "batch/v1 Job job", "batch/v1 CronJob cron")
	w.owner("shop", "batch/v1 CronJob cron", "example.com/v1 Rollout top")
	w.Refusals["/apis/apps/v1/namespaces/shop/replicasets"] = *sim.Refuse(403, metav1.StatusReasonForbidden, "no")
	w.config.Output = "name"
	out, errOut, complete := w.top(t)
	want := []string{"a.x/y/z/b", "island.example.com/i", "pod/p0", "pod/p1", "replicaset.apps/unread",
		"replicationcontroller/rc", "ring.example.com/a", "rollout.example.com/top"}
	for _, name := range want[1:] {
		if strings.Count(out, name+"\n") != 1 {
			t.Errorf("%s is not there once in\n%s", name, out)
		}
	}
	note := "you cannot list replicasets.apps in namespace \"shop\": workloads end at the last owner that can be read\n"
	if complete || errOut != note {
		t.Errorf("got %t, %q, want %q", complete, errOut, note)
	}
	for path := range maps.Keys(w.Objects) {
		if strings.Contains(path, "secret") || w.Requested("/api/v1/namespaces/shop/secrets") > 0 {
			t.Error("the owner of a pod has chosen a path")
		}
	}
}

// TestForbidden forbids one kind at a time: its columns are empty, and one line names the permission.
func TestForbidden(t *testing.T) {
	for _, tt := range []struct {
		kind, namespace, path string
		note                  string // "you cannot list" it
		out                   []string
	}{
		{Workloads, "shop", hpas, `horizontalpodautoscalers.autoscaling in namespace "shop"`,
			[]string{"deployment/web", "2/3"}},
		{Workloads, "", "/apis/apps/v1/replicasets", "replicasets.apps in all namespaces",
			[]string{"replicaset/web-6f9c7d5b8d", "statefulset/db"}},
		{Pods, "shop", "/apis/metrics.k8s.io/", `pods.metrics.k8s.io in namespace "shop"`, []string{"0 of 9 pods", "200m"}},
		{Pods, "shop", "/api/v1/namespaces/shop/pods", `pods in namespace "shop"`, []string{"7 of ? pods", "168m"}},
		{Namespaces, "", "/api/v1/pods", "pods in all namespaces", []string{"7 of ? pods", "shop", "7/?"}},
		{Nodes, "", "/api/v1/nodes", "nodes", []string{"1 of ? nodes", "3100m"}},
		{Nodes, "", "/api/v1/pods", "pods in all namespaces", []string{"1 of 2 nodes", "3100m   -"}},
		{Nodes, "", "/apis/metrics.k8s.io/", "nodes.metrics.k8s.io", []string{"0 of 2 nodes", "1860m"}},
	} {
		w := newWorld().shop()
		w.config.Kind, w.config.Namespace = tt.kind, tt.namespace
		w.RefuseBy(func(_, path string) *sim.Refusal {
			if path == tt.path || strings.HasSuffix(tt.path, "io/") && strings.HasPrefix(path, tt.path) {
				return sim.Refuse(403, metav1.StatusReasonForbidden, "no")
			}
			return nil
		})
		out, errOut, complete := w.top(t)
		if complete || !strings.HasPrefix(errOut, "you cannot list "+tt.note+":") || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s without %s: got %t, %q", tt.kind, tt.path, complete, errOut)
		}
		for _, text := range tt.out {
			if !strings.Contains(out, text) {
				t.Errorf("%s without %s: %q is missing in\n%s", tt.kind, tt.path, text, out)
			}
		}
	}
	w := newWorld().shop()
	w.Forbid("", "")
	const podsError, usageError = "error: cannot list pods in namespace \"shop\": ",
		"\ncannot list pods.metrics.k8s.io in namespace \"shop\": "
	if out, errOut, _ := w.top(t); out != "" || !strings.HasPrefix(errOut, podsError) ||
		!strings.Contains(errOut, usageError) {
		t.Errorf("without permissions: got %q, %q", out, errOut)
	}
}

// TestBrokenList breaks the LIST of pods after its first page: sums of a part are no sums.
func TestBrokenList(t *testing.T) {
	for _, kind := range []string{Nodes, Pods} {
		w := newWorld()
		w.node("n1", "cpu=400 memory=8Gi", "cpu=1 memory=1Gi")
		for i := range 600 {
			w.pod("shop", fmt.Sprintf("p%d", i), "", "", container("a", "cpu=100m", ""))
		}
		pages := 0
		w.RefuseBy(func(_, path string) *sim.Refusal {
			if path == "/api/v1/pods" {
				if pages++; pages == 2 {
					return sim.Refuse(500, metav1.StatusReasonInternalError, "it is down")
				}
			}
			return nil
		})
		w.config.Kind, w.config.Namespace = kind, ""
		out, errOut, complete := w.top(t)
		if complete || pages != 2 || !strings.Contains(errOut, "it is down") || kind == Pods != (out == "") ||
			kind == Nodes && !strings.Contains(out, "1000m   -") {
			t.Errorf("%s: got %d pages, %q\n%s", kind, pages, errOut, out)
		}
	}
}

// TestNames checks that a name selects what it names, whose reasons are read first, and that another one is reported.
func TestNames(t *testing.T) {
	w := newWorld().shop()
	for i := range 130 {
		name := fmt.Sprintf("a%d", i)
		w.pod("shop", name, "", "", container("app", "", ""))
		w.unserved("namespaces/shop/pods/"+name, "timeout", "")
	}
	for _, tt := range []struct {
		kind   string
		names  []string
		want   string // names with -o name
		errOut string
	}{
		{Pods, []string{"web-6f9c7d5b8d-q7d2m"}, "pod/web-6f9c7d5b8d-q7d2m", ""},
		{Pods, []string{"pod/db-0", "typo"}, "pod/db-0", "found no pods \"typo\" in namespace \"shop\"\n"},
		{Workloads, []string{"web"}, "deployment.apps/web", ""},
		{Workloads, []string{"deployment/web", "statefulset.apps/db"}, "deployment.apps/web statefulset.apps/db", ""},
		{Workloads, []string{"deployment/db"}, "", "found no pods of workload \"deployment/db\" in namespace \"shop\"\n"},
		{Nodes, []string{"n2", "n3"}, "node/n2", "found no nodes \"n3\"\n"},
		{Namespaces, []string{"shop"}, "namespace/shop", "131 pods have no metrics: the reasons of 100 were read\n"},
	} {
		w.config.Kind, w.config.Names, w.config.Output = tt.kind, tt.names, "name"
		out, errOut, complete := w.top(t)
		got := strings.Join(strings.Fields(out), " ")
		if got != tt.want || errOut != tt.errOut || complete != (errOut == "") {
			t.Errorf("%s %q: got %q, %q, %t", tt.kind, tt.names, got, errOut, complete)
		}
		for _, r := range w.report(t).Items {
			if tt.kind != Namespaces && r.Missing[noMetrics] > 0 {
				t.Errorf("%s %q: the reason was not read: %+v", tt.kind, tt.names, r)
			}
		}
	}
	w.config.Names, w.config.Output = []string{"typo"}, ""
	if out, errOut, _ := w.top(t); out != "" || errOut != "found no pods of namespace \"typo\" in namespace \"shop\"\n" {
		t.Errorf("got %q, %q", out, errOut)
	}
}

// TestDiscovery checks that owners which could not be looked up are no end of a path without a word.
func TestDiscovery(t *testing.T) {
	w := newWorld().shop()
	w.RefuseBy(func(_, path string) *sim.Refusal {
		if path == "/apis" {
			return sim.Refuse(500, metav1.StatusReasonInternalError, "it is down")
		}
		return nil
	})
	out, errOut, complete := w.top(t)
	if complete || !strings.Contains(out, "replicaset/web-6f9c7d5b8d") ||
		!strings.HasPrefix(errOut, "cannot find out which APIs there are: ") ||
		!strings.HasSuffix(errOut, ": workloads end at the owners of pods\n") || strings.Count(errOut, "\n") != 1 {
		t.Errorf("got %t, %q\n%s", complete, errOut, out)
	}
}

// TestEmpty checks that nothing is an empty list of 0 objects.
// TestBytes tests bytes that are no multiple of 1024: their quantity does not show that they are bytes.
func TestBytes(t *testing.T) {
	w := newWorld()
	for name, memory := range map[string]string{"a": "1000000Ki", "b": "1001000000"} {
		w.pod("shop", name, "", "cpu=1 memory=1Mi example.com/vram="+memory, container("app", "", ""))
	}
	w.config.Kind, w.config.Namespace, w.config.Output = Pods, "shop", "wide"
	out, _, _ := w.top(t)
	for _, want := range []string{" 976Mi ", " 954Mi "} {
		if !strings.Contains(out, want) {
			t.Errorf("got\n%s, want%s", out, want)
		}
	}
}

// TestOddTime tests the time of a server that counts milliseconds: JSON does not have that year.
func TestOddTime(t *testing.T) {
	used := map[key]*measured{}
	odd := &metricsv1.NodeMetrics{Timestamp: metav1.Unix(1_790_000_000_000, 0)}
	(&reader{Config: &Config{Kind: Nodes}}).measure(odd, used)
	if at := used[key{}].at; !at.IsZero() {
		t.Errorf("got %v", at)
	}
}

func TestEmpty(t *testing.T) {
	for _, kind := range []string{Pods, Workloads, Namespaces, Nodes} {
		w := newWorld()
		w.config.Kind, w.config.Output = kind, "json"
		if out, errOut, _ := w.top(t); !strings.Contains(out, `"items": []`) || !strings.Contains(out, `"objects": 0`) ||
			errOut != "" {
			t.Errorf("%s: got %s%s", kind, out, errOut)
		}
		w.config.Output = ""
		want := "there are no pods in namespace \"shop\"\n"
		if kind == Nodes {
			want = "there are no nodes\n"
		}
		if out, errOut, _ := w.top(t); out != "" || errOut != want {
			t.Errorf("%s: got %q, %q", kind, out, errOut)
		}
	}
}

// TestNearLimit checks that only what has a limit can be near it.
func TestNearLimit(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	sidecar := func(limits string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			c := container("mesh", "", limits)
			c.RestartPolicy = &always
			p.Spec.InitContainers = []corev1.Container{c, container("init", "", "cpu=100m")}
		}
	}
	for name, tt := range map[string]struct {
		limits string // of one of two containers; the other one has cpu=100m
		edit   func(*corev1.Pod)
		near   bool
	}{
		"both":                  {"cpu=100m", func(*corev1.Pod) {}, true},
		"far":                   {"cpu=9", func(*corev1.Pod) {}, false},
		"one":                   {"", func(*corev1.Pod) {}, false},
		"0":                     {"cpu=0", func(*corev1.Pod) {}, false},
		"sidecar":               {"cpu=100m", sidecar("cpu=100m"), true},
		"sidecar without limit": {"cpu=100m", sidecar(""), false},
		"pod": {"", func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Limits: list("cpu=300m")}
		}, true},
		"pod, far": {"cpu=100m", func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Limits: list("cpu=4")}
		}, false},
	} {
		w := newWorld()
		p := w.pod("shop", "a", "", "cpu=140m memory=1Mi", container("app", "", tt.limits),
			container("proxy", "", "cpu=100m"))
		tt.edit(p)
		w.inPhase(p, corev1.PodRunning, "")
		if got := w.report(t).find(t, "a", ""); (got.CPU[near].n() == 1) != tt.near {
			t.Errorf("%s: got %+v", name, got.CPU)
		}
	}
}

// TestServers checks which version is read: metrics-server has v1beta1 only, and no reasons.
func TestServers(t *testing.T) {
	w := newWorld().shop()
	for path, object := range maps.Clone(w.Objects) {
		if rest, ok := strings.CutPrefix(path, metricsV1); ok {
			w.Put(metricsV1b1+rest, object)
			w.Put(path, nil)
		}
	}
	clear(w.Refusals)
	w.RefuseBy(func(_, path string) *sim.Refusal {
		if strings.HasPrefix(path, metricsV1) {
			return sim.Refuse(404, metav1.StatusReasonNotFound, "the server could not find the requested resource")
		}
		return nil
	})
	if web := w.report(t).find(t, "web", ""); web.WithMetrics != 2 || web.Missing[noMetrics] != 1 {
		t.Errorf("metrics-server: got %+v", web)
	}
	w.RefuseBy(func(_, path string) *sim.Refusal {
		switch {
		case strings.HasPrefix(path, metricsV1):
			return sim.Refuse(404, metav1.StatusReasonNotFound, "the server could not find the requested resource")
		case strings.HasPrefix(path, metricsV1b1):
			return sim.Refuse(503, metav1.StatusReasonServiceUnavailable, "it is down")
		}
		return nil
	})
	out, errOut, complete := w.top(t)
	if complete || !strings.Contains(out, "0/3") ||
		!strings.Contains(errOut, "it is down: there is no usage; see kubectl vitals doctor") {
		t.Errorf("unavailable: got %q\n%s", errOut, out)
	}
	w.RefuseBy(func(_, path string) *sim.Refusal {
		if strings.HasPrefix(path, "/apis/metrics.k8s.io/") {
			return sim.Refuse(404, metav1.StatusReasonNotFound, "the server could not find the requested resource")
		}
		return nil
	})
	if _, errOut, _ = w.top(t); !strings.Contains(errOut, "no server has this API") {
		t.Errorf("no server: got %q", errOut)
	}
}

// TestNoReasons checks that a failed GET of a reason is reported, and that there is no line about reasons that a server
// does not have.
func TestNoReasons(t *testing.T) {
	const pod = metricsV1 + "namespaces/shop/pods/web-6f9c7d5b8d-q7d2m"
	for _, refused := range []*sim.Refusal{sim.Refuse(403, metav1.StatusReasonForbidden, "no"),
		sim.Refuse(503, metav1.StatusReasonServiceUnavailable, "it is down")} {
		w := newWorld().shop()
		w.Refusals[pod] = *refused
		out, errOut, complete := w.top(t)
		if complete || !strings.HasPrefix(errOut, "cannot get pods.metrics.k8s.io: "+refused.Message) ||
			strings.Count(errOut, "\n") != 1 || !strings.Contains(out, noMetrics) {
			t.Errorf("got %t, %q\n%s", complete, errOut, out)
		}
	}
	w := newWorld()
	for i := range maxReasons + 1 {
		w.pod("shop", fmt.Sprintf("p%d", i), "", "", container("app", "", ""))
	}
	if _, errOut, complete := w.top(t); !complete || errOut != "" {
		t.Errorf("metrics-server: got %t, %q", complete, errOut)
	}
}

// TestPages checks that LISTs are read in pages, and that a bounded number of reasons is read.
func TestPages(t *testing.T) {
	w := newWorld()
	const pods, missing = 1100, 130
	for i := range pods {
		usage := "cpu=1m memory=1Mi"
		if i < missing {
			usage = ""
			w.unserved(fmt.Sprintf("namespaces/shop/pods/p%d", i), "timeout", "")
		}
		w.pod("shop", fmt.Sprintf("p%d", i), "", usage, container("app", "cpu=2m", ""))
	}
	w.config.Kind = Namespaces
	w.config.Namespace = ""
	r := w.report(t)
	got := r.find(t, "shop", "")
	notes := []string{"130 pods have no metrics: the reasons of 100 were read"}
	if got.Objects.n() != pods || got.WithMetrics != pods-missing || got.CPU[percent].n() != 50 ||
		got.Missing["timeout"] != maxReasons || got.Missing[noMetrics] != missing-maxReasons ||
		!slices.Equal(r.Unread, notes) {
		t.Errorf("got %+v, %q", got, r.Unread)
	}
	if n := w.Requested("/api/v1/pods"); n != 3 {
		t.Errorf("got %d pages of pods", n)
	}
	if n := w.Requested(metricsV1 + "pods"); n != 2 {
		t.Errorf("got %d pages of metrics", n)
	}
}
