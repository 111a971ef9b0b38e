package pins

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// fakeAPI is an API server with at most one ConfigMap. It has resource versions, conflicts and
// watches. It works in a synctest bubble.
type fakeAPI struct {
	corev1client.ConfigMapInterface

	mu      sync.Mutex
	object  *corev1.ConfigMap // nil: there is none
	version int
	watches map[*fakeWatch]struct{}
	writes  int   // of clients that succeeded
	failure error // of every request; nil: none
}

const latency = 10 * time.Millisecond

var errUnavailable = errors.New("dial tcp 10.0.0.1:443: connect: connection refused")

// newAPI returns an API server with the empty ConfigMap of the chart.
func newAPI() *fakeAPI {
	a := &fakeAPI{watches: map[*fakeWatch]struct{}{}}
	a.put(&corev1.ConfigMap{})
	return a
}

// put replaces the ConfigMap as another client would; nil deletes it.
func (a *fakeAPI) put(object *corev1.ConfigMap) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(object)
}

// patch sets an entry as another client would; "" removes it.
func (a *fakeAPI) patch(node, value string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	object := a.object.DeepCopy()
	if object.Data == nil {
		object.Data = map[string]string{}
	}
	if object.Data[node] = value; value == "" {
		delete(object.Data, node)
	}
	a.store(object)
}

// fail makes all requests fail and ends the watches; nil: requests succeed.
func (a *fakeAPI) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failure = err
	for w := range a.watches {
		w.end()
	}
	clear(a.watches)
}

// data returns the entries.
func (a *fakeAPI) data() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.object == nil {
		return nil
	}
	return maps.Clone(a.object.Data)
}

// written returns the number of writes of clients.
func (a *fakeAPI) written() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}

func (a *fakeAPI) store(object *corev1.ConfigMap) {
	a.version++
	event := watch.Event{Type: watch.Modified}
	switch {
	case object == nil:
		event.Type, event.Object = watch.Deleted, a.object.DeepCopy()
	case a.object == nil:
		event.Type = watch.Added
	}
	if object != nil {
		object.Name, object.ResourceVersion = "pins", strconv.Itoa(a.version)
		event.Object = object.DeepCopy()
	}
	a.object = object
	for w := range a.watches {
		w.events <- event
	}
}

// request waits as a request does, and returns its error.
func (a *fakeAPI) request(ctx context.Context) error {
	select {
	case <-time.After(latency):
	case <-ctx.Done():
		return ctx.Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failure
}

// IsWatchListSemanticsUnSupported makes reflectors send a LIST.
func (a *fakeAPI) IsWatchListSemanticsUnSupported() bool { return true }

func (a *fakeAPI) List(ctx context.Context, _ metav1.ListOptions) (*corev1.ConfigMapList, error) {
	if err := a.request(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}}
	if a.object != nil {
		list.Items = append(list.Items, *a.object.DeepCopy())
	}
	return list, nil
}

func (a *fakeAPI) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if err := a.request(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if options.ResourceVersion != strconv.Itoa(a.version) {
		return nil, apierrors.NewResourceExpired("list again")
	}
	w := &fakeWatch{api: a, events: make(chan watch.Event, 1000)}
	a.watches[w] = struct{}{}
	return w, nil
}

func (a *fakeAPI) Update(
	ctx context.Context, object *corev1.ConfigMap, _ metav1.UpdateOptions,
) (*corev1.ConfigMap, error) {
	if err := a.request(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	resource := schema.GroupResource{Resource: "configmaps"}
	switch {
	case a.object == nil:
		return nil, apierrors.NewNotFound(resource, "pins")
	case a.object.ResourceVersion != object.ResourceVersion:
		return nil, apierrors.NewConflict(resource, "pins", errors.New("it has changed"))
	}
	a.writes++
	a.store(object.DeepCopy())
	return a.object.DeepCopy(), nil
}

type fakeWatch struct {
	api    *fakeAPI
	events chan watch.Event
	once   sync.Once
}

func (w *fakeWatch) ResultChan() <-chan watch.Event { return w.events }
func (w *fakeWatch) end()                           { w.once.Do(func() { close(w.events) }) }
func (w *fakeWatch) Stop() {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	delete(w.api.watches, w)
	w.end()
}
