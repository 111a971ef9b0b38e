package inventory

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/internal/backoff"
)

// WatchConfig configures Watches. NodeSelector and NodeAnnotations are optional.
type WatchConfig struct {
	Client       *rest.Config // of the API server, with protobuf as its content type
	Nodes, Pods  *Index       // kept in sync with the API server; Nodes comes from New
	Targets      Targets      // each change of the nodes is applied to them, too
	NodeSelector string       // label selector of the nodes to watch; "": all

	// NodeAnnotations are the annotations that the targets have. All others are dropped.
	NodeAnnotations []string
}

// Targets is the set of nodes to scrape. *scrape.Scraper and *engine.Source implement it.
type Targets interface {
	// Set adds or updates a node.
	Set(*corev1.Node)
	// Delete drops a node and its metrics. Watches call it before readers of the Index see that the
	// node is gone, or see another node with its name.
	Delete(name string)
}

// Watches keep two Indexes in sync with the nodes and pods of the API server.
type Watches struct{ nodes, pods *watcher }

// NewWatches returns Watches of the selected nodes and of the pods that are pending or running.
//
// They watch whole objects in protobuf, as the scheduler and the controller manager do, because the
// API server encodes an event once for all such watches.
func NewWatches(c WatchConfig) (*Watches, error) {
	config := rest.CopyConfig(c.Client)
	config.DisableCompression = true // compressing a list takes the API server longer than sending it
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for nodes and pods: %w", err)
	}
	selected := func(o *metav1.ListOptions) { o.LabelSelector = c.NodeSelector }
	notEnded := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.AndSelectors(
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
		).String()
	}
	nodes := newNodeStore(c.Nodes, c.Targets, c.NodeAnnotations)
	w := &Watches{
		nodes: newWatcher("nodes", core.Nodes(), &corev1.Node{}, nodes, selected),
		pods:  newWatcher("pods", newPodPages(core), &corev1.Pod{}, c.Pods, notEnded),
	}
	w.pods.reflector.WatchListPageSize = podsPerPage
	return w, nil
}

// Run watches until the context ends. It must be called once only.
func (w *Watches) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { w.nodes.reflector.RunWithContext(ctx) })
	running.Go(func() { w.pods.reflector.RunWithContext(ctx) })
	running.Wait()
}

// NodesSynced returns nil once the nodes have been listed, and the reason why not until then.
func (w *Watches) NodesSynced() error { return w.nodes.synced() }

// PodsSynced returns nil once the pods have been listed, and the reason why not until then.
func (w *Watches) PodsSynced() error { return w.pods.synced() }

// watcher keeps a store in sync with the API server's objects of one kind.
type watcher struct {
	name      string
	reflector *cache.Reflector
	lastError atomic.Pointer[error] // of the last request that failed
	isSynced  atomic.Bool           // as synced has found once
}

// list is a list of API objects.
type list interface {
	runtime.Object
	metav1.ListInterface
}

// listerWatcher is a client for lists of the type L.
type listerWatcher[L list] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// newWatcher returns a watcher of the objects that the options select.
//
// A response that is not a list of this kind is an error: client-go ignores any other object and
// returns an empty list, which would remove all objects from the store. The list of an API server
// always has a resource version.
func newWatcher[L list](
	name string, client listerWatcher[L], object runtime.Object, store cache.ReflectorStore,
	restrict func(*metav1.ListOptions),
) *watcher {
	w := &watcher{name: name}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			restrict(&options)
			list, err := client.List(ctx, options)
			if err == nil && list.GetResourceVersion() == "" {
				err = fmt.Errorf("the response is not a list of %s: it has no resource version", name)
			}
			w.recordError(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			restrict(&options)
			events, err := client.Watch(ctx, options)
			w.recordError(err)
			return events, err
		},
	}
	// Requests are 0.5 s to about 10 s apart while the API server is unavailable. With the library's default
	// of up to a minute, new pods would have no metrics for that long after an outage.
	w.reflector = cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, client), object, store,
		cache.ReflectorOptions{Name: name, Backoff: backoff.New(500*time.Millisecond, 8*time.Second)})
	return w
}

// recordError stores an error for synced, because the library does not log refused connections.
func (w *watcher) recordError(err error) {
	if err == nil {
		return
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		err = request.Err // without the URL, which is long
	}
	w.lastError.Store(&err)
}

func (w *watcher) synced() error {
	// The Reflector sets the version after Replace, and again with each event, which may have none.
	if w.isSynced.Load() || w.reflector.LastSyncResourceVersion() != "" {
		w.isSynced.Store(true)
		return nil
	}
	err := fmt.Errorf("the API server has not returned the list of %s yet", w.name)
	if last := w.lastError.Load(); last != nil {
		err = fmt.Errorf("%w: %w", err, *last)
	}
	return err
}
