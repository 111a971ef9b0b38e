// Package inventory knows what exists: the names, labels and age of pods or nodes, as the API server tells them through a
// watch, held compactly and indexed by label, so that a selector costs what it finds and not what its namespace holds.
//
// An Index is filled by a client-go Reflector, whose store it is. It deliberately keeps nothing else of an object (but the
// node of a pod, if the Reflector brings whole pods): no annotations, no managed fields, no owner references, no resource
// version. What is used is not known here; that is the store's.
package inventory

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Object is one pod or node that exists. It is immutable once an Index has it.
type Object struct {
	Namespace, Name string            // Namespace is empty for a node
	Labels          map[string]string // shared between all objects with equal labels: read it only
	CreatedAt       usage.Time        // by the API server's clock, in whole seconds
	Node            string            // that a pod is bound to; "": not known, since only metadata were watched
}

var _ runtime.Object = (*Object)(nil)

// GetObjectKind implements runtime.Object, so that a client may list Objects in place of the API's own.
func (o *Object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (o *Object) DeepCopyObject() runtime.Object { return o.DeepCopy() }

// DeepCopy gives a copy that shares nothing with o.
func (o *Object) DeepCopy() *Object {
	clone := *o
	clone.Labels = maps.Clone(o.Labels)
	return &clone
}

// Index holds the objects of one kind. It is safe for concurrent use.
type Index struct {
	mu         sync.RWMutex
	synced     bool
	namespaces map[string]*namespace // by name
	names      []string              // the keys of namespaces, sorted
	labels     labelSets
}

var _ cache.TransformingStore = (*Index)(nil)

// New gives an empty Index.
func New() *Index {
	return &Index{namespaces: map[string]*namespace{}, labels: labelSets{}}
}

// Get gives the object of that name, or nil. Nodes have the namespace "".
func (x *Index) Get(namespace, name string) *Object {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if n := x.namespaces[namespace]; n != nil {
		if i, found := find(n.objects, name); found {
			return n.objects[i]
		}
	}
	return nil
}

// List gives the objects of a namespace (of all of them if it is "") that the selector matches, sorted by namespace, then
// by name. The slice is the caller's.
func (x *Index) List(namespace string, selector labels.Selector) []*Object {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if namespace != "" {
		if n := x.namespaces[namespace]; n != nil {
			return n.match(nil, selector)
		}
		return nil
	}
	var all []*Object
	if selector.Empty() {
		all = make([]*Object, 0, x.count())
	}
	for _, name := range x.names {
		all = x.namespaces[name].match(all, selector)
	}
	return all
}

// Len gives the number of objects.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.count()
}

// count is Len. x.mu is held.
func (x *Index) count() int {
	sum := 0
	for _, n := range x.namespaces {
		sum += len(n.objects)
	}
	return sum
}

// HasSynced says whether the whole of what exists was told at least once.
func (x *Index) HasSynced() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.synced
}

// Add takes in a new object, or a new version of a known one. It implements cache.ReflectorStore.
func (x *Index) Add(obj any) error {
	o, err := x.object(obj)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.namespaces[o.Namespace]
	if n == nil {
		n = &namespace{byLabel: postings{}}
		x.namespaces[o.Namespace] = n
		i, _ := slices.BinarySearch(x.names, o.Namespace)
		x.names = slices.Insert(x.names, i, o.Namespace)
	}
	o.Labels = x.labels.share(o.Labels)
	if old := n.put(o); old != nil {
		x.labels.release(old.Labels)
	}
	return nil
}

// Update is Add. It implements cache.ReflectorStore.
func (x *Index) Update(obj any) error { return x.Add(obj) }

// Delete forgets an object; one that is not known is no error. It implements cache.ReflectorStore.
func (x *Index) Delete(obj any) error {
	o, err := x.object(obj)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.namespaces[o.Namespace]
	if n == nil {
		return nil
	}
	if old := n.remove(o.Name); old != nil {
		x.labels.release(old.Labels)
	}
	if len(n.objects) == 0 {
		delete(x.namespaces, o.Namespace)
		i, _ := slices.BinarySearch(x.names, o.Namespace)
		x.names = slices.Delete(x.names, i, i+1)
	}
	return nil
}

// Replace takes the list for all that exists. It implements cache.ReflectorStore.
func (x *Index) Replace(list []any, _ string) error {
	objects := make([]*Object, 0, len(list))
	for _, item := range list {
		o, err := x.object(item)
		if err != nil {
			return err
		}
		objects = append(objects, o)
	}
	slices.SortFunc(objects, func(a, b *Object) int {
		if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})

	fresh := New()
	for len(objects) > 0 {
		name := objects[0].Namespace
		end := slices.IndexFunc(objects, func(o *Object) bool { return o.Namespace != name })
		if end < 0 {
			end = len(objects)
		}
		n := &namespace{objects: slices.Clone(objects[:end]), byLabel: postings{}}
		for _, o := range n.objects {
			o.Labels = fresh.labels.share(o.Labels)
			n.byLabel.append(o)
		}
		fresh.namespaces[name] = n
		fresh.names = append(fresh.names, name)
		objects = objects[end:]
	}

	x.mu.Lock()
	defer x.mu.Unlock()
	x.namespaces, x.names, x.labels, x.synced = fresh.namespaces, fresh.names, fresh.labels, true
	return nil
}

// Resync does nothing. It implements cache.ReflectorStore.
func (x *Index) Resync() error { return nil }

// Transformer reduces objects to what an Index keeps while a list is still streaming in, so that the whole list is never
// in memory. It implements cache.TransformingStore.
func (x *Index) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		switch obj.(type) {
		case *Object, cache.DeletedFinalStateUnknown:
			return obj, nil // object knows what to do with it
		}
		o, err := meta.Accessor(obj)
		if err != nil {
			return nil, fmt.Errorf("cannot keep a %T in the inventory: %w", obj, err)
		}
		return &slim{node: nodeOf(obj), ObjectMeta: metav1.ObjectMeta{
			Namespace:         o.GetNamespace(),
			Name:              o.GetName(),
			Labels:            o.GetLabels(),
			CreationTimestamp: o.GetCreationTimestamp(),
		}}, nil
	}
}

// slim is an object on its way into an Index.
type slim struct {
	metav1.ObjectMeta
	node string
}

// nodeOf gives the node that a pod is bound to, if obj is a whole pod. There are few nodes beside pods, so their names are
// shared.
func nodeOf(obj any) string {
	switch obj := obj.(type) {
	case *corev1.Pod:
		return unique.Make(obj.Spec.NodeName).Value()
	case *slim:
		return obj.node
	}
	return ""
}

// object gives what an Index keeps of obj: any API object, or the tombstone of one. An Object becomes the Index's own.
func (x *Index) object(obj any) (*Object, error) {
	switch obj := obj.(type) {
	case *Object:
		return obj, nil
	case cache.DeletedFinalStateUnknown:
		namespace, name, err := cache.SplitMetaNamespaceKey(obj.Key)
		return &Object{Namespace: namespace, Name: name}, err
	}
	o, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("cannot keep a %T in the inventory: %w", obj, err)
	}
	return &Object{
		Namespace: unique.Make(o.GetNamespace()).Value(), // kept once, not with each pod
		Name:      o.GetName(),
		Labels:    o.GetLabels(),
		CreatedAt: usage.At(o.GetCreationTimestamp().Time),
		Node:      nodeOf(obj),
	}, nil
}
