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
	removed func(old *Object) // see NewNotifying
	stored  func(obj any)     // called after Add, Update or Replace has stored an API object

	// writing serializes changes, including the calls of removed and stored. Its holder may read the
	// fields guarded by mu without mu.
	writing sync.Mutex

	mu         sync.RWMutex
	namespaces map[string]namespace // by name
	names      []string             // the keys of namespaces, sorted
	sharing    sharing
}

var _ cache.ReflectorStore = (*Index)(nil)

// New returns an empty Index.
func New() *Index { return NewNotifying(func(*Object) {}) }

// NewNotifying returns an empty Index that calls removed for each object that is deleted, is absent
// from a new list, or is replaced by an object of the same name with another UID.
//
// Get and List return old until removed has returned, and only then its replacement. So removed can
// delete the data of old before a reader sees the replacement. removed may read the Index but must
// not change it.
func NewNotifying(removed func(old *Object)) *Index {
	return &Index{
		removed: removed, stored: func(any) {},
		namespaces: map[string]namespace{}, sharing: sharing{},
	}
}

// Get returns the object with the name, or nil. The namespace of nodes is "".
func (x *Index) Get(namespace, name string) *Object {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.get(namespace, name)
}

// get is Get. The caller holds mu or writing.
func (x *Index) get(namespace, name string) *Object {
	objects := x.namespaces[namespace].list(allObjects)
	if i, found := find(objects, name); found {
		return objects[i]
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
	terms := termsOf(requirements)
	objects, sorted, exact := x.candidates(namespace, terms)
	if !exact || len(terms) < len(requirements) {
		objects = slices.DeleteFunc(objects, func(o *Object) bool { return !selector.Matches(&o.Labels) })
	}
	if !sorted {
		slices.SortFunc(objects, byKey)
	}
	return objects
}

// candidates returns all objects in the namespace that meet the terms, and possibly others if exact
// is not set. Sorted reports whether they are sorted by namespace and name. The namespace "" stands
// for all.
func (x *Index) candidates(namespace string, terms []term) (objects []*Object, sorted, exact bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	names := x.names
	if namespace != "" {
		names = []string{namespace}
	}
	lists := make([][]*Object, 0, len(names))
	sorted, exact = true, true
	for _, name := range names {
		before := len(lists)
		var ok bool
		lists, ok = x.namespaces[name].candidates(lists, terms)
		sorted, exact = sorted && len(lists) <= before+1, exact && ok
	}
	return slices.Concat(lists...), sorted, exact
}

// LenOf returns the number of objects in a phase, without pods whose containers do not run, as in
// CrashLoopBackOff. Nodes have PhaseUnknown.
func (x *Index) LenOf(phase Phase) (sum int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, n := range x.namespaces {
		for _, o := range n.list(allObjects) {
			if o.Phase == phase && !o.NoneRuns() {
				sum++
			}
		}
	}
	return sum
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
		x.removed(old)
	}
	x.mu.Lock()
	x.put(o)
	x.mu.Unlock()
	x.stored(obj)
	return nil
}

// put adds or replaces an object. The caller holds writing and mu.
func (x *Index) put(o *Object) {
	old := x.get(o.Namespace, o.Name)
	x.sharing.adopt(o)
	n := x.namespaces[o.Namespace]
	if n == nil {
		n = namespace{}
		x.namespaces[o.Namespace] = n
		i, _ := slices.BinarySearch(x.names, o.Namespace)
		x.names = slices.Insert(x.names, i, o.Namespace)
	}
	n.put(o)
	if old == nil {
		return
	}
	if old.indexed != o.indexed || old.Labels != o.Labels {
		n.remove(old)
	}
	x.sharing.release(old)
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
	x.removed(old)
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.namespaces[old.Namespace]
	n.remove(old)
	x.sharing.release(old)
	if len(n) == 0 {
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
	slices.SortStableFunc(objects, byKey) // put then only appends
	next := New()
	for _, o := range objects {
		next.put(o)
	}

	x.writing.Lock()
	defer x.writing.Unlock()
	for _, name := range x.names {
		for _, old := range x.namespaces[name].list(allObjects) {
			if o := next.get(name, old.Name); o == nil || o.UID != old.UID {
				x.removed(old)
			}
		}
	}
	x.mu.Lock()
	x.namespaces, x.names, x.sharing = next.namespaces, next.names, next.sharing
	x.mu.Unlock()
	for _, item := range list {
		x.stored(item)
	}
	return nil
}

// Resync does nothing. It implements cache.ReflectorStore.
func (x *Index) Resync() error { return nil }

// byKey compares objects by namespace, then by name.
func byKey(a, b *Object) int {
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// reduce returns the Object of an API object. It returns an *Object as it is; the Index then owns it.
func reduce(obj any) (*Object, error) {
	if o, ok := obj.(*Object); ok {
		return o, nil
	}
	o, err := NewObject(obj)
	if err != nil {
		return nil, fmt.Errorf("cannot add a %T to the inventory: %w", obj, err)
	}
	return o, nil
}
