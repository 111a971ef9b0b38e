package api

import (
	"context"
	"iter"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/internal/fair"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// resourceType is what differs between nodes and pods.
type resourceType interface {
	rest.Scoper
	rest.SingularNameProvider // also finds the kind: "kubectl get podmetrics"

	New() runtime.Object
	NewList() runtime.Object
	kind() encode.Kind
	name() string // in paths

	// get returns the running pod or the node of that name, or nil. The namespace of nodes is "".
	get(namespace, name string) *inventory.Object
	// list returns the nodes, or the running pods in a namespace (in all if it is ""), that match, sorted by
	// namespace and name. The slice belongs to the caller.
	list(namespace string, selector labels.Selector) []*inventory.Object
	// items yields the index of each object, and the object with its usage and further resources, or without Usage if
	// there is none to serve. The Item is valid until the next one.
	items(objects []*inventory.Object, now usage.Time) iter.Seq2[int, *encode.Item]
}

// collection is the read-only storage of a resource.
type collection struct {
	resourceType
	explainer Explainer
	encoder   *encode.Encoder
	turns     *fair.Turns
	config    Config
}

var (
	_ rest.Storage = (*collection)(nil)
	_ rest.Getter  = (*collection)(nil)
	_ rest.Lister  = (*collection)(nil)
)

// Destroy implements rest.Storage. There is nothing to clean up.
func (c *collection) Destroy() {}

// Get implements rest.Getter.
func (c *collection) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	now := c.config.Now()
	o := c.get(request.NamespaceValue(ctx), name)
	if o == nil {
		return nil, c.notFound(ctx, name, false, now)
	}
	c.noteRead(o)
	at := c.config.Clock.At(now)
	var item encode.Item
	for _, found := range c.items([]*inventory.Object{o}, at) {
		item = *found
	}
	if item.Usage == nil {
		return nil, c.notFound(ctx, name, true, now)
	}
	need := newDemand(ctx)
	need.add(o, item.Usage.NumContainers())
	if err := reserve(ctx, need); err != nil {
		return nil, err
	}
	c.config.ObserveAnswerAge(c.name(), at.Sub(item.Usage.SampledAt()))
	return c.encoder.NewItem(c.kind(), now, &item), nil
}

// List implements rest.Lister.
func (c *collection) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	q, err := newQuery(request.NamespaceValue(ctx), options)
	if err != nil {
		return nil, err
	}
	if q.selectsNode() {
		if err := c.checkNodeSelector(ctx); err != nil {
			return nil, err
		}
	}
	objects, err := c.objectsInTurn(ctx, q)
	if err != nil {
		return nil, err
	}
	estimate := newDemand(ctx) // of a page that may have other objects, and more containers
	for _, o := range objects[:q.pageSize(len(objects))] {
		estimate.add(o, 0)
	}
	if err := reserve(ctx, estimate); err != nil {
		return nil, err
	}
	return c.page(ctx, q, objects)
}

// page returns a page of a list of objects. It skips those without metrics.
func (c *collection) page(ctx context.Context, q *query, objects []*inventory.Object) (runtime.Object, error) {
	now, need := c.config.Now(), newDemand(ctx)
	list := c.encoder.NewList(c.kind(), now, q.pageSize(len(objects)))
	if q.after == nil {
		list.Selected = len(objects)
		list.Select = func() ([]*inventory.Object, error) { return c.objectsInTurn(ctx, q) }
	}
	at := c.config.Clock.At(now)
	oldest := at
	for i, item := range c.items(objects, at) {
		if item.Usage == nil {
			continue
		}
		if q.limit > 0 && len(list.Items) == q.limit {
			list.ListMeta = q.nextPage(list.Items[q.limit-1].Object, len(objects)-i)
			objects = objects[:i]
			break
		}
		list.Add(item)
		need.add(item.Object, item.Usage.NumContainers())
		oldest = min(oldest, item.Usage.SampledAt())
	}
	if err := reserve(ctx, need); err != nil {
		return nil, err
	}
	if len(list.Items) > 0 {
		c.config.ObserveAnswerAge(c.name(), at.Sub(oldest))
	}
	if q.selects() {
		c.noteRead(objects...)
	}
	return list, nil
}
