package api

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// collection serves one kind, read-only. Its functions are what differs between the kinds.
type collection[U usage.Pod | usage.Node] struct {
	kind       *kind[U]
	name       string // as it stands in the path
	singular   string // also what clients look the kind up by: "kubectl get podmetrics"
	namespaced bool
	inventory  Inventory
	now        func() time.Time
	clock      usage.Clock
	answered   func(resource string, oldest time.Duration)

	newObject func() runtime.Object
	newList   func() runtime.Object

	find func(o *inventory.Object, now usage.Time) *U // nil: no figures to serve

	absent func(namespace, name string) string // why an unknown name is not found
	blank  func(namespace, name string) string // why a known name is not found
}

var (
	_ rest.Storage              = (*collection[usage.Pod])(nil)
	_ rest.Scoper               = (*collection[usage.Pod])(nil)
	_ rest.KindProvider         = (*collection[usage.Pod])(nil)
	_ rest.SingularNameProvider = (*collection[usage.Pod])(nil)
	_ rest.Getter               = (*collection[usage.Pod])(nil)
	_ rest.Lister               = (*collection[usage.Pod])(nil)
)

// New implements rest.Storage.
func (r *collection[U]) New() runtime.Object { return r.newObject() }

// NewList implements rest.Lister.
func (r *collection[U]) NewList() runtime.Object { return r.newList() }

// Destroy implements rest.Storage. There is nothing to clean up.
func (r *collection[U]) Destroy() {}

// Kind implements rest.KindProvider.
func (r *collection[U]) Kind() string { return r.kind.name }

// NamespaceScoped implements rest.Scoper.
func (r *collection[U]) NamespaceScoped() bool { return r.namespaced }

// GetSingularName implements rest.SingularNameProvider.
func (r *collection[U]) GetSingularName() string { return r.singular }

// Get implements rest.Getter.
func (r *collection[U]) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	namespace, now := request.NamespaceValue(ctx), r.now()
	object := r.inventory.Get(namespace, name)
	if object == nil {
		return nil, r.notFound(name, r.absent(namespace, name))
	}
	used := r.find(object, r.clock.At(now))
	if used == nil {
		return nil, r.notFound(name, r.blank(namespace, name))
	}
	e := &entry[U]{object, used, &answer[U]{r.kind, metav1.NewTime(now)}}
	r.observe(now, r.kind.asOf(used))
	if t := tableAsked(ctx); t != nil {
		return &entryTable[U]{e.alone(), t}, nil
	}
	return e, nil
}

// List implements rest.Lister.
func (r *collection[U]) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	q, err := newQuery(request.NamespaceValue(ctx), options)
	if err != nil {
		return nil, err
	}
	now := r.now()
	list := &entryList[U]{oldest: r.clock.At(now), answer: &answer[U]{r.kind, metav1.NewTime(now)}}
	list.fill(q, q.objects(r.inventory), func(o *inventory.Object) *U { return r.find(o, r.clock.At(now)) })
	if len(list.Items) > 0 {
		r.observe(now, list.oldest)
	}
	if t := tableAsked(ctx); t != nil {
		return &entryTable[U]{list, t}, nil
	}
	return list, nil
}

// ConvertToTable implements rest.TableConvertor. It makes the tables that WithTables has let pass.
func (r *collection[U]) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	list, ok := object.(*entryList[U])
	if !ok {
		list = object.(*entry[U]).alone()
	}
	o, ok := options.(*metav1.TableOptions)
	if !ok {
		o = &metav1.TableOptions{}
	}
	return list.table(o), nil
}

// notFound is the usual error with a reason behind it: that there is no such pod and that its
// figures are not there yet call for different actions.
func (r *collection[U]) notFound(name, why string) error {
	err := apierrors.NewNotFound(metrics.Resource(r.singular), name)
	err.ErrStatus.Message = fmt.Sprintf("%s: %s", err.ErrStatus.Message, why)
	return err
}

// observe reports the age of the oldest metric in a response.
func (r *collection[U]) observe(now time.Time, oldest usage.Time) {
	if r.answered != nil {
		r.answered(r.name, r.clock.At(now).Sub(oldest))
	}
}
