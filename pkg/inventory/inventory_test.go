package inventory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
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

func TestIndexFollowsAWatch(t *testing.T) {
	x := New()
	if x.HasSynced() {
		t.Error("synced before anything was told")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(x.Replace([]any{pod("b", "2", "app", "x"), pod("a", "9"), pod("b", "1", "app", "x"), pod("b", "3", "app", "y")}, "1"))
	if !x.HasSynced() {
		t.Error("not synced after Replace")
	}
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

	must(x.Add(pod("b", "0", "app", "x")))
	must(x.Update(pod("b", "1", "app", "y")))
	must(x.Delete(pod("b", "2")))
	must(x.Delete(pod("b", "never-was")))
	must(x.Delete(cache.DeletedFinalStateUnknown{Key: "a/9"}))
	list("", "", "b/0 b/1 b/3")
	list("b", "app=x", "b/0")
	list("b", "app=y", "b/1 b/3")
	if x.Get("b", "2") != nil || x.Get("a", "9") != nil {
		t.Error("a deleted object is still there")
	}
	if o := x.Get("b", "1"); o == nil || o.Labels["app"] != "y" || !o.CreatedAt.Time().Equal(time.Unix(1_000, 0)) {
		t.Errorf("Get(b, 1) = %+v", o)
	}
	if x.Len() != 3 {
		t.Errorf("Len() = %d, want 3", x.Len())
	}
	if err := x.Add("not an object"); err == nil {
		t.Error("a string was taken for an object")
	}
}

func TestEqualLabelsAreShared(t *testing.T) {
	x := New()
	for i := range 3 {
		if err := x.Add(pod("n", fmt.Sprint(i), "app", "web", "tier", "front")); err != nil {
			t.Fatal(err)
		}
	}
	if len(x.labels) != 1 {
		t.Errorf("%d label sets are kept for three pods with equal labels", len(x.labels))
	}
	for i := range 3 {
		if err := x.Delete(pod("n", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if len(x.labels) != 0 || len(x.namespaces) != 0 || len(x.names) != 0 {
		t.Errorf("an empty index still keeps %d label sets, %d namespaces", len(x.labels), len(x.namespaces))
	}
}

func TestTransformerDropsWhatIsNotKept(t *testing.T) {
	in := pod("n", "p", "app", "web")
	in.Annotations = map[string]string{"big": strings.Repeat("x", 1000)}
	in.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	out, err := New().Transformer()(in)
	if err != nil {
		t.Fatal(err)
	}
	o := out.(*slim)
	if o.Annotations != nil || o.ManagedFields != nil || o.Name != "p" || o.Labels["app"] != "web" || o.CreationTimestamp.IsZero() {
		t.Errorf("transformed to %+v", o)
	}
	whole, err := New().Transformer()(&corev1.Pod{ObjectMeta: in.ObjectMeta, Spec: corev1.PodSpec{NodeName: "n1"}})
	if err != nil {
		t.Fatal(err)
	}
	x := New()
	if err := x.Add(whole); err != nil || x.Get("n", "p").Node != "n1" || x.Get("n", "p").Labels["app"] != "web" {
		t.Errorf("a whole pod is kept as %+v, %v", x.Get("n", "p"), err)
	}
	tombstone := cache.DeletedFinalStateUnknown{Key: "n/p"}
	if out, err := New().Transformer()(tombstone); err != nil || out != any(tombstone) {
		t.Errorf("a tombstone became %v, %v", out, err)
	}
}

// TestSelectorsMatchTheStandardMatcher compares the index with a scan by the standard matcher, over random objects that
// come, change and go, and random selectors.
func TestSelectorsMatchTheStandardMatcher(t *testing.T) {
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
		switch rng.IntN(20) {
		case 0:
			var all []any
			for _, o := range model {
				all = append(all, o)
			}
			if err := x.Replace(all, ""); err != nil {
				t.Fatal(err)
			}
		case 1, 2, 3, 4, 5:
			delete(model, p.Namespace+"/"+p.Name)
			if err := x.Delete(p); err != nil {
				t.Fatal(err)
			}
		default:
			model[p.Namespace+"/"+p.Name] = p
			if err := x.Add(p); err != nil {
				t.Fatal(err)
			}
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
		slices.SortFunc(want, func(a, b *Object) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
		if got := names(x.List(namespace, s)); got != names(want) {
			t.Fatalf("round %d: List(%q, %q)\n got %q\nwant %q", round, namespace, s, got, names(want))
		}
	}
}

// BenchmarkSelect shows that the cost follows the answer, not the namespace.
func BenchmarkSelect(b *testing.B) {
	for _, size := range []int{100, 10_000} {
		x := New()
		var all []any
		for i := range size {
			all = append(all, pod("n", fmt.Sprintf("pod-%06d", i), "app", fmt.Sprint(i/10), "tier", "web"))
		}
		if err := x.Replace(all, ""); err != nil {
			b.Fatal(err)
		}
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
