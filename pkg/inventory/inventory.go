// Package inventory holds the nodes and pods of the API server: the fields that kube-vitals needs,
// in a compact form, indexed by label. The cost of a selector with a label and its value depends on
// the number of objects that it matches, not on the number of objects in the namespace.
//
// Tenants and nodes choose what objects contain. An object in an Index takes at most twice the
// memory that the API server's object has in protobuf, and a change of it takes a lock for a time
// that does not depend on its size.
//
// Watches fill one Index with nodes and one with pods. An Index is the store of a client-go
// Reflector. It keeps the fields of Object and drops all others. Usage is in pkg/store.
package inventory

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// Index holds the objects of one kind. It is safe for concurrent use.
type Index struct {
	removed func(old *Object) // see NewNotifying; may be nil

	// writing serializes changes, including the calls of removed. Its holder may read the fields
	// guarded by mu without mu.
	writing sync.Mutex

	mu         sync.RWMutex
	synced     bool
	namespaces map[string]*namespace // by name
	names      []string              // the keys of namespaces, sorted
	phases     [numPhases]int        // number of objects, by phase
	sharing    sharing
}

var _ cache.TransformingStore = (*Index)(nil)

// New returns an empty Index.
func New() *Index { return NewNotifying(nil) }

// NewNotifying returns an empty Index that calls removed for each object that is deleted, is absent
// from a new list, or is replaced by an object of the same name with another UID.
//
// Get and List return old until removed has returned, and only then its replacement. So removed can
// delete the data of old before a reader sees the replacement. removed may read the Index but must
// not change it.
func NewNotifying(removed func(old *Object)) *Index {
	return &Index{removed: removed, namespaces: map[string]*namespace{}, sharing: sharing{}}
}

// Get returns the object with the name, or nil. The namespace of nodes is "".
func (x *Index) Get(namespace, name string) *Object {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.get(namespace, name)
}

// get is Get. The caller holds mu or writing.
func (x *Index) get(namespace, name string) *Object {
	if n := x.namespaces[namespace]; n != nil {
		if i, found := find(n.objects, name); found {
			return n.objects[i]
		}
	}
	return nil
}

// List returns the objects in the namespace that the selector matches, sorted by namespace, then by
// name. The namespace "" stands for all. The caller owns the slice.
//
// The selector runs without a lock, so a slow selector delays neither readers nor writers.
func (x *Index) List(namespace string, selector labels.Selector) []*Object {
	requirements, selectable := selector.Requirements()
	if !selectable {
		return nil
	}
	demands, exact := demandsOf(requirements)
	c := x.candidates(namespace, demands)
	if !exact || !c.meetOne && len(demands) > 0 {
		c.objects = slices.DeleteFunc(c.objects, func(o *Object) bool {
			return !selector.Matches(&o.Labels)
		})
	}
	if !c.sorted {
		slices.SortFunc(c.objects, byKey)
	}
	return c.objects
}

// candidates are objects that a selector may match.
type candidates struct {
	objects []*Object
	sorted  bool // by namespace and name
	meetOne bool // whether each object meets at least one of the demands
}

// candidates returns all objects in the namespace that meet the demands, and possibly others. The
// namespace "" stands for all.
func (x *Index) candidates(namespace string, demands []demand) candidates {
	x.mu.RLock()
	defer x.mu.RUnlock()
	names := x.names
	if namespace != "" {
		names = []string{namespace}
	}
	lists := make([][]*Object, 0, len(names))
	c := candidates{sorted: true, meetOne: true}
	for _, name := range names {
		n := x.namespaces[name]
		if n == nil {
			continue
		}
		before := len(lists)
		var meetOne bool
		lists, meetOne = n.candidates(lists, demands)
		c.sorted = c.sorted && len(lists) <= before+1
		c.meetOne = c.meetOne && meetOne
	}
	c.objects = slices.Concat(lists...)
	return c
}

// Len returns the number of objects.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	sum := 0
	for _, n := range x.phases {
		sum += n
	}
	return sum
}

// LenOf returns the number of objects in a phase.
func (x *Index) LenOf(phase Phase) int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.phases[phase]
}

// HasSynced reports whether Replace has been called.
func (x *Index) HasSynced() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.synced
}

// Add adds or replaces an object. It implements cache.ReflectorStore.
func (x *Index) Add(obj any) error {
	o, err := reduce(obj)
	if err != nil {
		return err
	}
	x.writing.Lock()
	defer x.writing.Unlock()
	if old := x.get(o.Namespace, o.Name); old != nil && old.UID != o.UID {
		x.notify(old)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.adopt(o)
	n := x.namespaces[o.Namespace]
	if n == nil {
		n = &namespace{byLabel: postings{}}
		x.namespaces[o.Namespace] = n
		i, _ := slices.BinarySearch(x.names, o.Namespace)
		x.names = slices.Insert(x.names, i, o.Namespace)
	}
	if old := n.put(o); old != nil {
		x.release(old)
	}
	return nil
}

// Update is Add. It implements cache.ReflectorStore.
func (x *Index) Update(obj any) error { return x.Add(obj) }

// Delete removes the object with the namespace and name of obj, if there is one. It implements
// cache.ReflectorStore.
func (x *Index) Delete(obj any) error {
	o, err := reduce(obj)
	if err != nil {
		return err
	}
	x.writing.Lock()
	defer x.writing.Unlock()
	old := x.get(o.Namespace, o.Name)
	if old == nil {
		return nil
	}
	x.notify(old)
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.namespaces[old.Namespace]
	n.remove(old)
	x.release(old)
	if len(n.objects) == 0 {
		delete(x.namespaces, old.Namespace)
		i, _ := slices.BinarySearch(x.names, old.Namespace)
		x.names = slices.Delete(x.names, i, i+1)
	}
	return nil
}

// Replace replaces all objects. If several objects in the list have the same namespace and name,
// the last one is used. It implements cache.ReflectorStore.
func (x *Index) Replace(list []any, _ string) error {
	objects := make([]*Object, 0, len(list))
	for _, item := range list {
		o, err := reduce(item)
		if err != nil {
			return err
		}
		objects = append(objects, o)
	}
	next := build(objects)

	x.writing.Lock()
	defer x.writing.Unlock()
	if x.removed != nil {
		for _, name := range x.names {
			for _, old := range x.namespaces[name].objects {
				if o := next.get(name, old.Name); o == nil || o.UID != old.UID {
					x.removed(old)
				}
			}
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.namespaces, x.names, x.sharing = next.namespaces, next.names, next.sharing
	x.phases = next.phases
	x.synced = true
	return nil
}

// build returns an Index of the objects. It sorts the slice.
func build(objects []*Object) *Index {
	slices.SortStableFunc(objects, byKey)
	x := New()
	for len(objects) > 0 {
		name := objects[0].Namespace
		end := slices.IndexFunc(objects, func(o *Object) bool { return o.Namespace != name })
		if end < 0 {
			end = len(objects)
		}
		n := &namespace{objects: make([]*Object, 0, end), byLabel: postings{}}
		for i, o := range objects[:end] {
			if i+1 < end && objects[i+1].Name == o.Name {
				continue // the last one is used
			}
			x.adopt(o)
			n.append(o)
		}
		name = n.objects[0].Namespace // the shared copy
		x.namespaces[name] = n
		x.names = append(x.names, name)
		objects = objects[end:]
	}
	return x
}

// notify calls removed. The caller holds writing, but not mu.
func (x *Index) notify(old *Object) {
	if x.removed != nil {
		x.removed(old)
	}
}

// adopt counts an object and makes it share equal values with others.
func (x *Index) adopt(o *Object) {
	x.phases[o.Phase]++
	x.sharing.adopt(o)
}

// release undoes adopt.
func (x *Index) release(o *Object) {
	x.phases[o.Phase]--
	x.sharing.release(o)
}

// Resync does nothing. It implements cache.ReflectorStore.
func (x *Index) Resync() error { return nil }

// Transformer returns a function that reduces API objects to Objects. It implements
// cache.TransformingStore.
func (x *Index) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if _, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			return obj, nil // for Delete
		}
		return reduce(obj)
	}
}

// byKey compares objects by namespace, then by name.
func byKey(a, b *Object) int {
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// reduce returns the Object of an API object or of its tombstone. It returns an *Object as it is;
// the Index then owns it.
func reduce(obj any) (*Object, error) {
	switch obj := obj.(type) {
	case *Object:
		return obj, nil
	case cache.DeletedFinalStateUnknown:
		namespace, name, err := cache.SplitMetaNamespaceKey(obj.Key)
		return &Object{Namespace: namespace, Name: name}, err
	}
	o, err := NewObject(obj)
	if err != nil {
		return nil, fmt.Errorf("cannot add a %T to the inventory: %w", obj, err)
	}
	return o, nil
}
