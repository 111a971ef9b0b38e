package server

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
)

// watches follow what exists.
type watches struct{ nodes, pods *cache.Reflector }

// newWatches prepares the watches of the nodes that the selector picks and of the running pods. Of pods only the metadata
// are asked for: that needs no more rights, and costs the API server and this one a tenth.
func newWatches(config *rest.Config, selector labels.Selector, nodes *nodeStore, pods *inventory.Index) (*watches, error) {
	typed := rest.CopyConfig(config)
	typed.ContentType = runtime.ContentTypeProtobuf
	typed.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	core, err := corev1client.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for nodes: %w", err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for pods: %w", err)
	}
	if selector == nil {
		selector = labels.Everything()
	}
	running := meta.Resource(corev1.SchemeGroupVersion.WithResource("pods"))
	return &watches{
		nodes: reflector("nodes", core.Nodes(), &corev1.Node{}, nodes, func(o *metav1.ListOptions) {
			o.LabelSelector = selector.String()
		}),
		pods: reflector("pods", running, &metav1.PartialObjectMetadata{}, pods, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("status.phase", string(corev1.PodRunning)).String()
		}),
	}, nil
}

// lister is a client that gives lists of the type L.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// reflector keeps the store equal to what the client tells of the objects that restrict picks.
func reflector[L runtime.Object](name string, client lister[L], object runtime.Object, store cache.ReflectorStore, restrict func(*metav1.ListOptions)) *cache.Reflector {
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			restrict(&options)
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			restrict(&options)
			return client.Watch(ctx, options)
		},
	}
	return cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, client), object, store,
		cache.ReflectorOptions{Name: name})
}

// run follows both until the context ends.
func (w *watches) run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { w.nodes.RunWithContext(ctx) })
	both.Go(func() { w.pods.RunWithContext(ctx) })
	both.Wait()
}

// nodeStore takes in nodes for two: the index of those that exist, and the scraper.
type nodeStore struct {
	*inventory.Index
	scraper *scrape.Scraper
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
	return nil
}

// Transformer implements cache.TransformingStore. Unlike the index's, it leaves what the scraper needs.
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

// slim gives what is needed to serve and to scrape a node, in a copy: a whole node is mostly images and conditions.
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
		},
	}
	if path, ok := node.Annotations[kubelet.PathAnnotation]; ok {
		thin.Annotations = map[string]string{kubelet.PathAnnotation: path}
	}
	return thin
}
