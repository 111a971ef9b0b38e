package server

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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
)

// watches keep the inventory equal to what the API server knows.
type watches struct{ nodes, pods *feed }

// newWatches returns watches of the nodes that the selector matches, and of the pods that have not
// ended. As the scheduler and the controller manager do, it watches whole pods in protobuf: an API
// server encodes an event once for all such watches.
func newWatches(config *rest.Config, selector labels.Selector, nodes *nodeStore, pods *inventory.Index) (*watches, error) {
	typed := rest.CopyConfig(config)
	typed.ContentType = runtime.ContentTypeProtobuf
	typed.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	typed.DisableCompression = true // the API server takes longer to compress a list than a network to carry it
	core, err := corev1client.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for nodes and pods: %w", err)
	}
	if selector == nil {
		selector = labels.Everything()
	}
	selected := func(o *metav1.ListOptions) { o.LabelSelector = selector.String() }
	notEnded := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.AndSelectors(
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
		).String()
	}
	w := &watches{
		nodes: newFeed("nodes", core.Nodes(), &corev1.Node{}, nodes, selected),
		pods:  newFeed("pods", newPodPages(core), &corev1.Pod{}, pods, notEnded),
	}
	w.pods.reflector.WatchListPageSize = podsPerPage
	return w, nil
}

// run follows both until the context ends.
func (w *watches) run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { w.nodes.reflector.RunWithContext(ctx) })
	both.Go(func() { w.pods.reflector.RunWithContext(ctx) })
	both.Wait()
}

// feed keeps a store equal to what the API server tells.
type feed struct {
	name      string
	reflector *cache.Reflector
	store     syncedStore
	failure   atomic.Pointer[error] // why the last request that failed did
}

type syncedStore interface {
	cache.ReflectorStore
	HasSynced() bool
}

// lister is a client that gives lists of the type L.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// newFeed gives a feed of the objects that restrict picks.
func newFeed[L runtime.Object](name string, client lister[L], object runtime.Object, store syncedStore, restrict func(*metav1.ListOptions)) *feed {
	f := &feed{name: name, store: store}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			restrict(&options)
			list, err := client.List(ctx, options)
			f.remember(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			restrict(&options)
			events, err := client.Watch(ctx, options)
			f.remember(err)
			return events, err
		},
	}
	f.reflector = cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, client), object, store,
		cache.ReflectorOptions{Name: name, Backoff: reconnect()})
	return f
}

// reconnect is how long to wait between tries while the API server is away: from half a second up
// to some 10 s. The library's default is up to a minute, in which new pods would have no figures
// though the API server is back.
func reconnect() *wait.Backoff {
	return &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 20, Cap: 8 * time.Second}
}

func (f *feed) remember(err error) {
	if err == nil {
		return
	}
	if request := (*url.Error)(nil); errors.As(err, &request) {
		err = request.Err // without the address, which is long and says nothing
	}
	f.failure.Store(&err)
}

// synced says why the whole of what exists has not been told yet. The library retries without a
// word when nobody listens at the API server's address.
func (f *feed) synced() error {
	if f.store.HasSynced() {
		return nil
	}
	err := fmt.Errorf("the list of %s has not come from the API server yet", f.name)
	if failure := f.failure.Load(); failure != nil {
		err = fmt.Errorf("%w: %w", err, *failure)
	}
	return err
}

// nodeStore takes in nodes for two: the index of those that exist, and the scraper.
type nodeStore struct {
	*inventory.Index
	scraper targets
	told    atomic.Bool // whether the scraper knows the nodes of the first list
}

// targets is told which nodes there are to scrape. *scrape.Scraper implements it.
type targets interface {
	Set(*corev1.Node)
	Delete(name string)
}

var _ cache.TransformingStore = (*nodeStore)(nil)

// Add implements cache.ReflectorStore.
func (s *nodeStore) Add(object any) error {
	if err := s.Index.Add(object); err != nil {
		return err
	}
	return s.set(object)
}

// Update implements cache.ReflectorStore.
func (s *nodeStore) Update(object any) error { return s.Add(object) }

// Delete implements cache.ReflectorStore.
func (s *nodeStore) Delete(object any) error {
	if err := s.Index.Delete(object); err != nil {
		return err
	}
	name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
	if err != nil {
		return err
	}
	s.scraper.Delete(name)
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *nodeStore) Replace(list []any, version string) error {
	before := s.List("", labels.Everything())
	if err := s.Index.Replace(list, version); err != nil {
		return err
	}
	for _, o := range before {
		if s.Get("", o.Name) == nil {
			s.scraper.Delete(o.Name)
		}
	}
	for _, object := range list {
		if err := s.set(object); err != nil {
			return err
		}
	}
	s.told.Store(true)
	return nil
}

// HasSynced says whether the nodes that exist are known, to the scraper too.
func (s *nodeStore) HasSynced() bool { return s.told.Load() }

// Transformer implements cache.TransformingStore. Unlike the index's, it leaves what the scraper
// needs.
func (s *nodeStore) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		if node, ok := object.(*corev1.Node); ok {
			return slim(node), nil
		}
		return object, nil
	}
}

func (s *nodeStore) set(object any) error {
	node, ok := object.(*corev1.Node)
	if !ok {
		return fmt.Errorf("the watch of nodes brought a %T", object)
	}
	s.scraper.Set(slim(node))
	return nil
}

// slim gives what is needed to serve and to scrape a node, in a copy: a whole node is mostly images
// and conditions.
func slim(node *corev1.Node) *corev1.Node {
	thin := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:              node.Name,
			UID:               node.UID,
			Labels:            node.Labels,
			CreationTimestamp: node.CreationTimestamp,
		},
		Status: corev1.NodeStatus{
			Addresses:       node.Status.Addresses,
			DaemonEndpoints: node.Status.DaemonEndpoints,
			Capacity:        corev1.ResourceList{corev1.ResourceCPU: *node.Status.Capacity.Cpu()},
		},
	}
	if path, ok := node.Annotations[kubelet.PathAnnotation]; ok {
		thin.Annotations = map[string]string{kubelet.PathAnnotation: path}
	}
	return thin
}
