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
	p := &corev1.Pod{ObjectMeta: pod(strings.Clone(namespace), name, kv...).ObjectMeta}
	p.Spec.NodeName, p.Status.Phase = strings.Clone("node-1"), corev1.PodRunning
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

// TestAlive checks which containers still belong to a pod although they do not run.
func TestAlive(t *testing.T) {
	never, onFailure := corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure
	ended := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	const always, ofPodNever = corev1.RestartPolicyAlways, corev1.RestartPolicyNever
	const ofPodOnFailure = corev1.RestartPolicyOnFailure
	rules := []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart}}
	for _, tc := range []struct {
		name   string
		ofPod  corev1.RestartPolicy
		spec   corev1.Container
		status corev1.ContainerStatus
		want   bool
	}{
		{"running", ofPodNever, corev1.Container{}, runningContainer("", 1), true},
		{"not started yet", always, corev1.Container{}, corev1.ContainerStatus{State: waiting}, false},
		{"waits after a crash", always, corev1.Container{},
			corev1.ContainerStatus{State: waiting, LastTerminationState: ended(1)}, true},
		{"waits, restarted before", always, corev1.Container{},
			corev1.ContainerStatus{State: waiting, RestartCount: 1}, true},
		{"ended, is restarted", always, corev1.Container{}, corev1.ContainerStatus{State: ended(0)}, true},
		{"failed, is restarted", ofPodOnFailure, corev1.Container{}, corev1.ContainerStatus{State: ended(1)}, true},
		{"succeeded", ofPodOnFailure, corev1.Container{}, corev1.ContainerStatus{State: ended(0)}, false},
		{"failed for good", ofPodNever, corev1.Container{}, corev1.ContainerStatus{State: ended(1)}, false},
		{"failed for good by its own policy", always, corev1.Container{RestartPolicy: &never},
			corev1.ContainerStatus{State: ended(1)}, false},
		{"restarted by its own policy", ofPodNever, corev1.Container{RestartPolicy: &onFailure},
			corev1.ContainerStatus{State: ended(1)}, true},
		{"may be restarted by its rules", ofPodNever, corev1.Container{RestartPolicy: &never, RestartPolicyRules: rules},
			corev1.ContainerStatus{State: ended(42)}, true},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: tc.ofPod, Containers: []corev1.Container{tc.spec}}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{tc.status}
		if got := containersOf(p)[0].Alive; got != tc.want {
			t.Errorf("%s: got %t, want %t", tc.name, got, tc.want)
		}
	}
}

func TestNewObject(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	terminated := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.Unix(1_001, 0)}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	whole := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: "p", UID: "u", CreationTimestamp: metav1.Unix(1_000, 0),
			Labels: map[string]string{"app": "web"},
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
	at := func(second int64) usage.NodeTime { return usage.NodeAt(time.Unix(second, 0)) }
	want := &Object{
		Namespace: "n", Name: "p", UID: UIDOf("u"), CreatedAt: usage.At(time.Unix(1_000, 0)),
		Node: "n1", Phase: PodRunning, StartedAt: at(1_000) + 5, Containers: []ContainerState{
			{Name: "crashing", Restarted: true, Alive: true}, {Name: "main", StartedAt: at(1_003), Running: true, Alive: true},
			{Name: "sidecar", StartedAt: at(1_002), Running: true, Alive: true},
		},
	}
	want.Labels, want.indexed = NewLabels(map[string]string{"app": "web"}), true
	got, err := NewObject(whole)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("NewObject = %+v, %v\nwant %+v", got, err, want)
	}
	clone := got.DeepCopyObject().(*Object)
	if !reflect.DeepEqual(clone, want) || &clone.Containers[0] == &got.Containers[0] {
		t.Errorf("DeepCopyObject = %+v", clone)
	}

	whole.Status = corev1.PodStatus{Phase: corev1.PodPending}
	got, err = NewObject(whole)
	if err != nil || got.Containers != nil || got.Labels != "" || got.Phase != PodPending {
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

// TestListEqualsScan compares List with a scan by the library's selectors, during random changes
// and for random selectors. Some objects are indexed, others have too many labels, and pending pods have
// none. Lists that replace all objects have some of them twice: the last one is used.
func TestListEqualsScan(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(from ...string) string { return from[rng.IntN(len(from))] }
	requirement := func() string {
		key, value, other := pick("a", "b", "c"), fmt.Sprint(rng.IntN(4)), fmt.Sprint(rng.IntN(4))
		return pick(key, "!"+key, key+"!="+value, key+" in ("+value+","+other+")", key+" notin ("+value+","+other+")",
			key+">"+value, key+"<"+value, key+"="+value)
	}

	x, model := New(), map[string]*corev1.Pod{}
	for round := range 3000 {
		p := &corev1.Pod{ObjectMeta: pod(pick("x", "y"), fmt.Sprint(rng.IntN(30))).ObjectMeta}
		p.Status.Phase = corev1.PodPhase(pick("Pending", "Running", "Running", "Running"))
		for i := range rng.IntN(3) {
			status := corev1.ContainerStatus{Name: fmt.Sprint(i)}
			if rng.IntN(2) > 0 {
				status.State.Running = &corev1.ContainerStateRunning{}
			}
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: status.Name})
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, status)
		}
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
			if x.Get(p.Namespace, p.Name) != nil {
				t.Fatalf("round %d: Get returns a deleted object", round)
			}
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
		pending, running := 0, 0
		for _, o := range model {
			set := labels.Set{}
			if o.Status.Phase == corev1.PodRunning {
				set = o.Labels
			}
			isRunning := func(c corev1.ContainerStatus) bool { return c.State.Running != nil }
			switch {
			case len(o.Status.ContainerStatuses) > 0 && !slices.ContainsFunc(o.Status.ContainerStatuses, isRunning):
			case o.Status.Phase == corev1.PodRunning:
				running++
			default:
				pending++
			}
			if (namespace == "" || namespace == o.Namespace) && s.Matches(set) {
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
		if p, r := x.LenOf(PodPending), x.LenOf(PodRunning); x.Len() != len(model) || p != pending || r != running {
			t.Fatalf("round %d: got %d objects, %d pending and %d running; want %d, %d and %d",
				round, x.Len(), p, r, len(model), pending, running)
		}
	}
	if got := x.List("", labels.Nothing()); len(got) > 0 {
		t.Errorf("got %q for a selector that matches nothing", names(got))
	}
	if x.Add("not an object") == nil {
		t.Error("got no error for a string")
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
	var grown int64
	for b.Loop() {
		before := liveBytes()
		x := New()
		list := make([]any, 0, pods)
		for i := range pods {
			app := fmt.Sprintf("application-%d", i/10)
			p := running(fmt.Sprintf("namespace-%d", i/600), fmt.Sprintf("%s-7d4b9c6f5d-%05d", app, i),
				"app.kubernetes.io/name", app, "app.kubernetes.io/part-of", "shop", "pod-template-hash", "7d4b9c6f5d")
			p.UID = uidOf(i)
			p.Spec.NodeName = fmt.Sprintf("node-%d.example.com", i/30)
			o, err := NewObject(p)
			must(b, err)
			list = append(list, o)
		}
		must(b, x.Replace(list, "1"))
		clear(list)
		grown = liveBytes() - before
		runtime.KeepAlive(x)
	}
	b.ReportMetric(float64(grown)/pods, "bytes/pod")
}

// TestEarliestStart checks the earliest possible start of a container.
func TestEarliestStart(t *testing.T) {
	const pod, main = 1000, 1060
	running := func(startedAt usage.NodeTime) []ContainerState {
		return []ContainerState{{Name: "main", Running: true, StartedAt: startedAt}, {Name: "waits"}}
	}
	for _, test := range []struct {
		name, container string
		object          Object
		want            usage.NodeTime
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
