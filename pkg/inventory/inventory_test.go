package inventory

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func pod(namespace, name string, kv ...string) *metav1.PartialObjectMetadata {
	set := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		set[kv[i]] = kv[i+1]
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: set, CreationTimestamp: metav1.NewTime(time.Unix(1_000, 0)),
	}}
}

func names(objects []*Object) string {
	var s []string
	for _, o := range objects {
		s = append(s, o.Namespace+"/"+o.Name)
	}
	return strings.Join(s, " ")
}

func selector(t testing.TB, s string) labels.Selector {
	t.Helper()
	parsed, err := labels.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// Len returns the number of objects.
func (x *Index) Len() int { return len(x.List("", labels.Everything())) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestIndex(t *testing.T) {
	x := New()
	must(t, x.Replace([]any{
		pod("b", "2", "app", "x"), pod("a", "9"), pod("b", "1", "app", "x"), pod("b", "3", "app", "y"),
	}, "1"))
	list := func(namespace, s, want string) {
		t.Helper()
		if got := names(x.List(namespace, selector(t, s))); got != want {
			t.Errorf("List(%q, %q) = %q, want %q", namespace, s, got, want)
		}
	}
	list("", "", "a/9 b/1 b/2 b/3")
	list("b", "app=x", "b/1 b/2")
	list("", "app in (x,y)", "b/1 b/2 b/3")
	list("", "app", "b/1 b/2 b/3")
	list("", "!app", "a/9")
	list("", "app!=x", "a/9 b/3")
	list("nowhere", "", "")
	if got := names(x.List("", labels.Nothing())); got != "" {
		t.Errorf("List(Nothing) = %q", got)
	}

	must(t, x.Add(pod("b", "0", "app", "x")))
	must(t, x.Update(pod("b", "1", "app", "y")))
	must(t, x.Delete(pod("b", "2")))
	must(t, x.Delete(pod("b", "never-was")))
	must(t, x.Delete(cache.DeletedFinalStateUnknown{Key: "a/9"}))
	list("", "", "b/0 b/1 b/3")
	list("b", "app=x", "b/0")
	list("b", "app=y", "b/1 b/3")
	if x.Get("b", "2") != nil || x.Get("a", "9") != nil {
		t.Error("Get returns a deleted object")
	}
	if o := x.Get("b", "1"); o == nil || o.Labels.Get("app") != "y" || !o.CreatedAt.Time().Equal(time.Unix(1_000, 0)) {
		t.Errorf("Get(b, 1) = %+v", o)
	}
	if x.Len() != 3 {
		t.Errorf("Len() = %d, want 3", x.Len())
	}
	if err := x.Add("not an object"); err == nil {
		t.Error("no error for a string")
	}
}

// empty fails the test if the Index holds anything.
func empty(t *testing.T, x *Index) {
	t.Helper()
	if x.Len() != 0 || len(x.namespaces)+len(x.names)+len(x.sharing) != 0 {
		t.Errorf("an empty Index has %d objects, namespaces %v, shared %v", x.Len(), x.names, x.sharing)
	}
}

func TestEqualValuesAreShared(t *testing.T) {
	x := New()
	const pods = 3
	for i := range pods {
		must(t, x.Add(running("n", fmt.Sprint(i), "app", "web", "tier", "front")))
		must(t, x.Update(running("n", fmt.Sprint(i), "app", "web", "tier", "front")))
	}
	first := x.Get("n", "0")
	for i := range pods {
		o := x.Get("n", fmt.Sprint(i))
		for what, pair := range map[string][2]string{
			"namespace": {o.Namespace, first.Namespace}, "node": {o.Node, first.Node},
			"container": {o.Containers[0].Name, first.Containers[0].Name},
			"label":     {o.Labels.Get("app"), first.Labels.Get("app")},
		} {
			if unsafe.StringData(pair[0]) != unsafe.StringData(pair[1]) {
				t.Errorf("the %s of pod %d is not shared", what, i)
			}
		}
	}
	for i := range pods {
		must(t, x.Delete(pod("n", fmt.Sprint(i))))
	}
	empty(t, x)
}

// running returns a whole running pod of two containers. It shares no strings with other pods.
func running(namespace, name string, kv ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: pod(strings.Clone(namespace), name, kv...).ObjectMeta,
		Spec:       corev1.PodSpec{NodeName: strings.Clone("node-1")},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for key, value := range p.Labels {
		p.Labels[key] = strings.Clone(value)
	}
	for _, container := range []string{"main", "proxy"} {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: container})
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, runningContainer(container, 1_010))
	}
	return p
}

func runningContainer(name string, since int64) corev1.ContainerStatus {
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Unix(since, 0)}}
	return corev1.ContainerStatus{Name: strings.Clone(name), State: state}
}

// TestStatusOfManyContainers checks that a node, which sets the status of its pods, cannot make a
// pod have more containers than its spec.
func TestStatusOfManyContainers(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	p := running("n", "p")
	p.Spec.InitContainers = []corev1.Container{{Name: "sidecar", RestartPolicy: &always}}
	for range 1000 {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, runningContainer("main", 1_003))
		p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, runningContainer("sidecar", 1_003))
	}
	o, err := NewObject(p)
	if err != nil || len(o.Containers) != 3 || !o.Container("main").Running || !o.Container("proxy").Running ||
		!o.Container("sidecar").Running {
		t.Errorf("got %d containers, error %v", len(o.Containers), err)
	}
}

func TestNewObject(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	terminated := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.Unix(1_001, 0)}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	whole := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: "p", UID: "u", CreationTimestamp: metav1.Unix(1_000, 0),
			Labels:        map[string]string{"app": "web"},
			Annotations:   map[string]string{"large": strings.Repeat("x", 1000)},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		},
		Spec: corev1.PodSpec{
			NodeName:            "n1",
			InitContainers:      []corev1.Container{{Name: "setup"}, {Name: "sidecar", RestartPolicy: &always}},
			Containers:          []corev1.Container{{Name: "main"}, {Name: "crashing"}},
			EphemeralContainers: []corev1.EphemeralContainer{{}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, StartTime: new(metav1.Unix(1_000, 5)),
			InitContainerStatuses: []corev1.ContainerStatus{
				{Name: "setup", State: terminated}, runningContainer("sidecar", 1_002),
			},
			ContainerStatuses: []corev1.ContainerStatus{
				runningContainer("main", 1_003), {Name: "crashing", RestartCount: 2, State: waiting},
			},
			EphemeralContainerStatuses: []corev1.ContainerStatus{runningContainer("debug", 1_004)},
		},
	}
	at := func(second int64) usage.Time { return usage.At(time.Unix(second, 0)) }
	want := &Object{
		Namespace: "n", Name: "p", UID: UIDOf("u"), CreatedAt: at(1_000),
		Node: "n1", Phase: PodRunning, StartedAt: at(1_000) + 5, Containers: []ContainerState{
			{Name: "main", StartedAt: at(1_003), Running: true}, {Name: "crashing", Restarted: true},
			{Name: "sidecar", StartedAt: at(1_002), Running: true},
		},
	}
	want.Labels, want.indexed = NewLabels(map[string]string{"app": "web"}), true
	got, err := NewObject(whole)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("NewObject = %+v, %v\nwant %+v", got, err, want)
	}
	for container, want := range map[string]bool{
		"main": true, "crashing": false, "sidecar": true, "setup": false, "debug": false,
	} {
		if running := got.Container(container).Running; running != want {
			t.Errorf("Running(%q) = %v, want %v", container, running, want)
		}
	}
	clone := got.DeepCopyObject().(*Object)
	if !reflect.DeepEqual(clone, want) || &clone.Containers[0] == &got.Containers[0] {
		t.Errorf("DeepCopyObject = %+v", clone)
	}

	whole.Status = corev1.PodStatus{Phase: corev1.PodPending}
	got, err = NewObject(whole)
	if err != nil || got.Containers != nil || got.Labels != "" || got.Container("main").Running ||
		got.Phase != PodPending {
		t.Errorf("without container statuses: NewObject = %+v, %v", got, err)
	}
	if got, err := NewObject(pod("n", "p")); err != nil || got.Phase != PhaseUnknown || got.Node != "" {
		t.Errorf("of metadata: NewObject = %+v, %v", got, err)
	}
	for phase, want := range map[corev1.PodPhase]Phase{
		corev1.PodSucceeded: PodSucceeded, corev1.PodFailed: PodFailed,
		"": PhaseUnknown, "Unknown": PhaseUnknown, "new": PhaseUnknown,
	} {
		if got := phaseOf(phase); got != want {
			t.Errorf("phaseOf(%q) = %d, want %d", phase, got, want)
		}
	}
}

func TestLenOf(t *testing.T) {
	x := New()
	check := func(pending, running int) {
		t.Helper()
		if p, r := x.LenOf(PodPending), x.LenOf(PodRunning); p != pending || r != running || x.Len() != pending+running {
			t.Errorf("got %d pods, %d pending and %d running; want %d and %d", x.Len(), p, r, pending, running)
		}
	}
	waiting := running("n", "a")
	waiting.Status.Phase = corev1.PodPending
	must(t, x.Replace([]any{waiting, running("n", "b"), running("n", "b")}, "1"))
	check(1, 1)
	must(t, x.Update(running("n", "a")))
	check(0, 2)
	must(t, x.Delete(waiting))
	check(0, 1)
	must(t, x.Replace(nil, "2"))
	check(0, 0)
}

// TestListEqualsScan compares List with a scan by the library's selectors, during random changes
// and for random selectors. Some objects are indexed, others have too many labels. Lists that replace
// all objects have some of them twice: the last one is used.
func TestListEqualsScan(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(from ...string) string { return from[rng.IntN(len(from))] }
	requirement := func() string {
		key, value := pick("a", "b", "c"), func() string { return fmt.Sprint(rng.IntN(4)) }
		switch rng.IntN(8) {
		case 0:
			return key
		case 1:
			return "!" + key
		case 2:
			return key + "!=" + value()
		case 3:
			return key + " in (" + value() + "," + value() + ")"
		case 4:
			return key + " notin (" + value() + "," + value() + ")"
		case 5:
			return key + ">" + value()
		case 6:
			return key + "<" + value()
		default:
			return key + "=" + value()
		}
	}

	x, model := New(), map[string]*metav1.PartialObjectMetadata{}
	for round := range 3000 {
		p := pod(pick("x", "y"), fmt.Sprint(rng.IntN(30)))
		for _, key := range []string{"a", "b", "c"} {
			if rng.IntN(3) > 0 {
				p.Labels[key] = fmt.Sprint(rng.IntN(4))
			}
		}
		if rng.IntN(4) == 0 { // too many to be indexed
			for i := range maxIndexed {
				p.Labels[fmt.Sprint("x-", i)] = ""
			}
		}
		switch rng.IntN(20) {
		case 0:
			var all []any
			for _, o := range model {
				all = append(all, pod(o.Namespace, o.Name, "a", "old", "b", "0"), o)
			}
			must(t, x.Replace(all, ""))
		case 1, 2, 3, 4, 5:
			delete(model, p.Namespace+"/"+p.Name)
			must(t, x.Delete(p))
		default:
			model[p.Namespace+"/"+p.Name] = p
			must(t, x.Add(p))
		}

		var requirements []string
		for range rng.IntN(4) {
			requirements = append(requirements, requirement())
		}
		s, namespace := selector(t, strings.Join(requirements, ",")), pick("", "x", "y")
		var want []*Object
		for _, o := range model {
			if (namespace == "" || namespace == o.Namespace) && s.Matches(labels.Set(o.Labels)) {
				want = append(want, &Object{Namespace: o.Namespace, Name: o.Name})
			}
		}
		slices.SortFunc(want, byKey)
		got := x.List(namespace, s)
		if names(got) != names(want) {
			t.Fatalf("round %d: List(%q, %q)\n got %q\nwant %q", round, namespace, s, names(got), names(want))
		}
		for _, o := range got {
			if o != x.Get(o.Namespace, o.Name) {
				t.Fatalf("round %d: List(%q, %q) returns an old object %s/%s", round, namespace, s, o.Namespace, o.Name)
			}
		}
		if x.Len() != len(model) {
			t.Fatalf("round %d: got %d objects, want %d", round, x.Len(), len(model))
		}
	}
	for _, o := range model {
		must(t, x.Delete(o))
	}
	empty(t, x)
}

// BenchmarkSelect shows that the cost depends on the number of matches, not on the namespace.
func BenchmarkSelect(b *testing.B) {
	for _, size := range []int{100, 10_000} {
		x := New()
		var all []any
		for i := range size {
			all = append(all, pod("n", fmt.Sprintf("pod-%06d", i), "app", fmt.Sprint(i/10), "tier", "web"))
		}
		must(b, x.Replace(all, ""))
		s := selector(b, "app=3,tier=web")
		b.Run(fmt.Sprintf("10of%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got := x.List("n", s); len(got) != 10 {
					b.Fatalf("%d objects", len(got))
				}
			}
		})
	}
}

// BenchmarkMemory measures the memory per pod of an Index with 30,000 pods of 3000 Deployments in
// 50 namespaces, on 1000 nodes. The names have usual lengths.
func BenchmarkMemory(b *testing.B) {
	const pods = 30_000
	live := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var grown uint64
	for b.Loop() {
		before := live()
		x := New()
		list := make([]any, 0, pods)
		for i := range pods {
			app := fmt.Sprintf("application-%d", i/10)
			p := running(fmt.Sprintf("namespace-%d", i/600), fmt.Sprintf("%s-7d4b9c6f5d-%05d", app, i),
				"app.kubernetes.io/name", app, "app.kubernetes.io/part-of", "shop", "pod-template-hash", "7d4b9c6f5d")
			p.UID = types.UID(fmt.Sprintf("0b1a4c1e-9d0e-4a6c-8d0b-%012d", i))
			p.Spec.NodeName = fmt.Sprintf("node-%d.example.com", i/30)
			o, err := NewObject(p)
			must(b, err)
			list = append(list, o)
		}
		must(b, x.Replace(list, "1"))
		clear(list)
		grown = live() - before
		runtime.KeepAlive(x)
	}
	b.ReportMetric(float64(grown)/pods, "bytes/pod")
}

// TestEarliestStart checks the time before which a container cannot have started.
func TestEarliestStart(t *testing.T) {
	const pod, main = 1000, 1060
	running := func(startedAt usage.Time) []ContainerState {
		return []ContainerState{{Name: "main", Running: true, StartedAt: startedAt}, {Name: "waits"}}
	}
	for _, test := range []struct {
		name, container string
		object          Object
		want            usage.Time
	}{
		{"the start of the pod", "main", Object{StartedAt: pod, Containers: running(main)}, pod},
		{"container that does not run", "waits", Object{StartedAt: pod, Containers: running(main)}, pod},
		{"container without a status", "setup", Object{StartedAt: pod, Containers: running(main)}, pod},
		{"no statuses yet", "main", Object{StartedAt: pod}, pod},
		{"the kubelet lost the status of the pod", "main", Object{StartedAt: main + 900, Containers: running(main)}, main},
		{"the pod has no start", "main", Object{Containers: running(main)}, main},
		{"neither has a start", "waits", Object{Containers: running(main)}, 0},
	} {
		if got := test.object.EarliestStart(test.container); got != test.want {
			t.Errorf("%s: got %d, want %d", test.name, got, test.want)
		}
	}
}
