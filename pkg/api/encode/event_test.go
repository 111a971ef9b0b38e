package encode

import (
	"bytes"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// encodeEvent encodes an Event as the library does: the whole event with one encoder, its object with
// another one. It returns how often the object was encoded.
func encodeEvent(t *testing.T, e *Event, encoder runtime.Encoder, out io.Writer) (encoded int) {
	t.Helper()
	object := func(o runtime.Object, w io.Writer) error { // may transform the object
		return encoder.Encode(o, w)
	}
	event := func(o runtime.Object, w io.Writer) error {
		encoded++
		return o.(runtime.CacheableObject).CacheEncode(encoder.Identifier(), object, w)
	}
	if err := e.CacheEncode("event "+encoder.Identifier(), event, out); err != nil {
		t.Fatalf("%s: %v", encoder.Identifier(), err)
	}
	return encoded
}

// TestEvent compares the object in an Event with the typed object, in each format, and checks that
// watchers share what the object has encoded itself, until it is released.
func TestEvent(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(1, 0)), "text"}
	for range 50 {
		list := encoder.NewList(PodMetrics, now, 1)
		pod := g.pod()
		list.Add(&inventory.Object{Namespace: "ns", Name: "pod", Labels: app("web")}, pod,
			g.extra(len(pod.Containers)))
		list.Items[0].Version = g.Uint64()
		for _, encoder := range encoders(versions...) {
			_, encodesItself := list.Items[0].response.encoder.formats[encoder.Identifier()]
			for _, shared := range []bool{true, false} {
				event := NewEvent(list.Items[0], shared)
				for i, want := range []bool{true, !shared || !encodesItself, true} {
					if i == 2 {
						event.Release()
					}
					var got, typed bytes.Buffer
					if encoder.Encode(event.GetObject(), &typed) != nil {
						continue // YAML has no form for some control characters
					}
					n := encodeEvent(t, event, encoder, &got)
					if !bytes.Equal(got.Bytes(), typed.Bytes()) {
						t.Fatalf("%s: got\n%q\nwant\n%q", encoder.Identifier(), got.Bytes(), typed.Bytes())
					}
					if n > 0 != want {
						t.Errorf("%s, shared %t: time %d: encoded %d times", encoder.Identifier(), shared, i, n)
					}
				}
			}
		}
	}
}

// TestEventIsTransformable checks that a transformation, such as to a table, gets the Item, and that
// its result is not shared: it may depend on the user.
func TestEventIsTransformable(t *testing.T) {
	event := NewEvent(*encoder.NewItem(NodeMetrics, now, &inventory.Object{Name: "node"}, &Node{}, nil), true)
	for range 2 {
		transformed := 0
		err := event.CacheEncode("event", func(o runtime.Object, w io.Writer) error {
			return o.(runtime.CacheableObject).CacheEncode("table", func(o runtime.Object, _ io.Writer) error {
				transformed++
				if item, ok := o.(*Transformable); !ok || item.Object.Name != "node" || item.GetObjectMeta().GetName() != "node" {
					t.Errorf("got %T %+v, want the Item", o, o)
				}
				return nil
			}, w)
		}, io.Discard)
		if err != nil || transformed != 1 {
			t.Errorf("transformed %d times, error %v", transformed, err)
		}
	}
}

// TestEventIsSafeForConcurrentUse encodes and releases an Event in several goroutines.
func TestEventIsSafeForConcurrentUse(t *testing.T) {
	event := NewEvent(*encoder.NewItem(NodeMetrics, now, &inventory.Object{Name: "node"}, &Node{}, nil), true)
	var want bytes.Buffer
	all := encoders(versions...)
	encodeEvent(t, NewEvent(event.Item, false), all[0], &want)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				var got bytes.Buffer
				if encodeEvent(t, event, all[0], &got); !bytes.Equal(got.Bytes(), want.Bytes()) {
					t.Errorf("got %s, want %s", got.Bytes(), want.Bytes())
				}
			}
		})
	}
	event.Release()
	group.Wait()
}

func TestIsEqual(t *testing.T) {
	object := &inventory.Object{Namespace: "ns", Name: "pod", Labels: app("web")}
	relabeled := &inventory.Object{Namespace: "ns", Name: "pod", Labels: app("db")}
	same := &inventory.Object{Namespace: "ns", Name: "pod", Labels: app("web"), CreatedAt: 1}
	newPod := func(cpu uint64, at usage.Time, asOf usage.Time) *Pod {
		return &Pod{At: at, AsOf: asOf, Window: time.Second,
			Containers: []usage.Container{{Name: "main", Amount: usage.Amount{CPUNanocores: cpu}}}}
	}
	extra := func(value uint64) Extra { return Extra{{{Name: "gpu", Value: value}}} }
	base := encoder.NewItem(PodMetrics, now, object, newPod(1, 1, 1), extra(1))
	for name, test := range map[string]struct {
		item *Item
		want bool
	}{
		"itself":           {base, true},
		"a copy":           {encoder.NewItem(PodMetrics, now, same, newPod(1, 1, 1), extra(1)), true},
		"a later scrape":   {encoder.NewItem(PodMetrics, now, object, newPod(1, 1, 2), extra(1)), true},
		"other usage":      {encoder.NewItem(PodMetrics, now, object, newPod(2, 1, 1), extra(1)), false},
		"a later sample":   {encoder.NewItem(PodMetrics, now, object, newPod(1, 2, 1), extra(1)), false},
		"other labels":     {encoder.NewItem(PodMetrics, now, relabeled, newPod(1, 1, 1), extra(1)), false},
		"another resource": {encoder.NewItem(PodMetrics, now, object, newPod(1, 1, 1), extra(2)), false},
		"no resource":      {encoder.NewItem(PodMetrics, now, object, newPod(1, 1, 1), nil), false},
	} {
		if got := base.IsEqual(test.item); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
	one, other := &Node{Amount: usage.Amount{Memory: 1}, AsOf: 1}, &Node{Amount: usage.Amount{Memory: 1}, AsOf: 2}
	if !one.equal(other) || one.equal(&Node{}) {
		t.Error("nodes are compared wrongly")
	}
	if _, ok := base.GetObject().(*metrics.PodMetrics); !ok {
		t.Error("the item has no typed object")
	}
}

// app returns a label app.
func app(value string) inventory.Labels { return inventory.NewLabels(map[string]string{"app": value}) }
