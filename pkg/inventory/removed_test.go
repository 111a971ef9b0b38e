package inventory

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

func withUID(namespace, name string, uid types.UID) *metav1.PartialObjectMetadata {
	p := pod(namespace, name)
	p.UID = uid
	return p
}

// generationsOf maps the UIDs "0" to n-1 to their numbers.
func generationsOf(n int) map[UID]int {
	generation := map[UID]int{}
	for i := range n {
		generation[UIDOf(types.UID(fmt.Sprint(i)))] = i
	}
	return generation
}

func TestRemoved(t *testing.T) {
	generation := generationsOf(5)
	var removed []string
	var x *Index
	x = NewNotifying(func(old *Object) {
		removed = append(removed, fmt.Sprintf("%s/%s/%d", old.Namespace, old.Name, generation[old.UID]))
		if x.Get(old.Namespace, old.Name) != old || !slices.Contains(x.List("", labels.Everything()), old) {
			t.Errorf("%s/%s is not in the Index during removed", old.Namespace, old.Name)
		}
	})
	of := func(object string) any {
		parts := strings.Split(object, "/")
		return withUID(parts[0], parts[1], types.UID(parts[2]))
	}
	list := func(objects ...string) func() error {
		var all []any
		for _, object := range objects {
			all = append(all, of(object))
		}
		return func() error { return x.Replace(all, "1") }
	}
	for _, step := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"first list", list("n/a/1", "n/b/1", "n/c/1", "m/a/1"), nil},
		{"new object", func() error { return x.Add(of("n/d/1")) }, nil},
		{"new version", func() error { return x.Update(of("n/a/1")) }, nil},
		{"update with another UID", func() error { return x.Update(of("n/a/2")) }, []string{"n/a/1"}},
		{"add with another UID", func() error { return x.Add(of("n/a/3")) }, []string{"n/a/2"}},
		{"deletion", func() error { return x.Delete(of("n/a/3")) }, []string{"n/a/3"}},
		{"second deletion", func() error { return x.Delete(of("n/a/3")) }, nil},
		{"new object with the name of a deleted one", func() error { return x.Add(of("n/a/4")) }, nil},
		{"another deletion", func() error { return x.Delete(of("n/d/1")) }, []string{"n/d/1"}},
		{"absent and replaced", list("n/a/4", "n/b/2", "o/a/1"), []string{"m/a/1", "n/b/1", "n/c/1"}},
		{"duplicates", list("n/b/1", "n/a/4", "n/b/2"), []string{"o/a/1"}},
		{"empty list", list(), []string{"n/a/4", "n/b/2"}},
	} {
		removed = nil
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if !slices.Equal(removed, step.want) {
			t.Errorf("%s: removed %q, want %q", step.name, removed, step.want)
		}
	}
}

// TestRemovedBeforeReplacementIsVisible reads during changes of all kinds. No reader may see an
// object together with the usage of its predecessor.
func TestRemovedBeforeReplacementIsVisible(t *testing.T) {
	const generations = 40
	generation := generationsOf(generations)
	const nothing = -1
	var used atomic.Int64 // generation of the usage of pod n/p
	used.Store(nothing)
	const parallel = 2
	var reads atomic.Int64
	x := NewNotifying(func(*Object) {
		// At least one reader starts and ends a read before the usage is deleted.
		for before := reads.Load(); reads.Load() <= before+parallel; {
			runtime.Gosched()
		}
		used.Store(nothing)
	})
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range parallel {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				objects := x.List("n", labels.Everything())
				if o := x.Get("n", "p"); o != nil {
					objects = append(objects, o)
				}
				// As in pkg/api, the usage is read after the objects.
				usage := int(used.Load())
				for _, o := range objects {
					if usage != nothing && usage < generation[o.UID] {
						t.Errorf("got generation %d with the usage of generation %d", generation[o.UID], usage)
					}
				}
				reads.Add(1)
				runtime.Gosched()
			}
		})
	}
	changes := []func(p any) error{
		x.Add, x.Update,
		func(p any) error { return x.Replace([]any{p}, "") },
		func(p any) error { return errors.Join(x.Delete(p), x.Add(p)) },
	}
	for i := range generations {
		must(t, changes[i%len(changes)](withUID("n", "p", types.UID(fmt.Sprint(i)))))
		used.Store(int64(i))
	}
	close(done)
	readers.Wait()
}

// blocking is a selector whose Matches calls started, then waits until finish is closed.
type blocking struct {
	labels.Selector
	started func()
	finish  chan struct{}
}

func (b blocking) Matches(set labels.Labels) bool {
	b.started()
	<-b.finish
	return b.Selector.Matches(set)
}

// TestSelectorsRunWithoutLock checks that a slow selector delays neither writers nor readers. A
// writer that waited for a reader would also delay all later readers.
func TestSelectorsRunWithoutLock(t *testing.T) {
	for s, want := range map[string]string{"a=1,b=1": "n/1", "a!=2": "n/1", "a in (1,3),b": "n/1", "a>0": "n/1 n/2"} {
		x := New()
		must(t, x.Replace([]any{pod("n", "1", "a", "1", "b", "1"), pod("n", "2", "a", "2")}, "1"))
		started, found := make(chan struct{}), make(chan string)
		slow := blocking{selector(t, s), sync.OnceFunc(func() { close(started) }), make(chan struct{})}
		go func() { found <- names(x.List("", slow)) }()
		<-started
		must(t, x.Add(pod("n", "3", "a", "1", "b", "1")))
		if x.Get("n", "3") == nil || names(x.List("n", selector(t, "b=1"))) != "n/1 n/3" {
			t.Errorf("%s: other readers do not see the new pod", s)
		}
		must(t, x.Delete(pod("n", "1")))
		must(t, x.Replace(nil, "2"))
		close(slow.finish)
		if got := <-found; got != want {
			t.Errorf("%s: got %q, want %q", s, got, want)
		}
	}
}
