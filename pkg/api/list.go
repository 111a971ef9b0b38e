package api

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
)

// The fields that a field selector may name. The library refuses all others with an error that
// names these.
const (
	fieldName      = "metadata.name"
	fieldNamespace = "metadata.namespace"
)

// maxSelectorSize bounds the requirements of a selector, because each of them is compared with each
// object. The values of one such as "in (a,b)" count as requirements. Nothing that a Deployment or
// an autoscaler selects by has more than some ten.
const maxSelectorSize = 1000

// sizeOfLabelSelector returns the number of its requirements, counted by their values.
func sizeOfLabelSelector(selector labels.Selector) (n int) {
	requirements, _ := selector.Requirements()
	for i := range requirements {
		n += max(1, len(requirements[i].ValuesUnsorted()))
	}
	return n
}

func selectorTooLarge(kind string, size int) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the %s selector has %d requirements and values, more than the %d that this server allows: "+
		"select by fewer, or list all objects and select from the result", kind, size, maxSelectorSize))
}

// query is what a LIST asks for.
type query struct {
	namespace string // "" for all
	labels    labels.Selector
	fields    fields.Selector
	limit     int       // objects in a page; 0: no limit
	after     *position // where the page begins; nil: at the first object
}

// position is that of the last object of a page. Lists are sorted by namespace, then by name, so
// the next page begins behind it, whatever came or went meanwhile.
type position struct{ namespace, name string }

func newQuery(namespace string, options *metainternalversion.ListOptions) (*query, error) {
	q := &query{namespace: namespace, labels: labels.Everything(), fields: fields.Everything()}
	if options == nil {
		return q, nil
	}
	if options.LabelSelector != nil {
		q.labels = options.LabelSelector
	}
	if options.FieldSelector != nil {
		q.fields = options.FieldSelector
	}
	if n := sizeOfLabelSelector(q.labels); n > maxSelectorSize {
		return nil, selectorTooLarge("label", n)
	}
	if n := len(q.fields.Requirements()); n > maxSelectorSize {
		return nil, selectorTooLarge("field", n)
	}
	q.limit = int(options.Limit)
	if options.Continue == "" {
		return q, nil
	}
	after, ok := parseContinue(options.Continue)
	if !ok || namespace != "" && after.namespace != namespace {
		return nil, apierrors.NewBadRequest("the continue token was not given by this server for this list; " +
			"begin the list anew, without one")
	}
	q.after = &after
	return q, nil
}

// objects gives those that the selectors match, from where the page begins.
func (q *query) objects(all Inventory) []*inventory.Object {
	objects := q.selected(all)
	if q.after == nil {
		return objects
	}
	i, found := slices.BinarySearchFunc(objects, *q.after, func(o *inventory.Object, p position) int {
		return cmp.Or(strings.Compare(o.Namespace, p.namespace), strings.Compare(o.Name, p.name))
	})
	if found {
		i++
	}
	return objects[i:]
}

// selected gives the objects that the selectors match. One that names its object costs no search.
func (q *query) selected(all Inventory) []*inventory.Object {
	namespace := q.namespace
	if exact, ok := q.fields.RequiresExactMatch(fieldNamespace); ok && namespace == "" {
		namespace = exact
	}
	if name, ok := q.fields.RequiresExactMatch(fieldName); ok && namespace != "" {
		o := all.Get(namespace, name)
		if o == nil || !q.labels.Matches(labels.Set(o.Labels)) || !q.matches(o) {
			return nil
		}
		return []*inventory.Object{o}
	}
	objects := all.List(namespace, q.labels)
	if q.fields.Empty() {
		return objects
	}
	return slices.DeleteFunc(objects, func(o *inventory.Object) bool { return !q.matches(o) })
}

func (q *query) matches(o *inventory.Object) bool {
	return q.fields.Matches(fields.Set{fieldName: o.Name, fieldNamespace: o.Namespace})
}

// fill joins the objects with what they use, up to the limit. Objects without figures are left out.
func (l *entryList[U]) fill(q *query, objects []*inventory.Object, find func(*inventory.Object) *U) {
	size := len(objects)
	if q.limit > 0 {
		size = min(size, q.limit)
	}
	l.Items = make([]entry[U], 0, size)
	for i, o := range objects {
		used := find(o)
		if used == nil {
			continue
		}
		if q.limit > 0 && len(l.Items) == q.limit {
			l.ListMeta = q.more(l.Items[q.limit-1].object, len(objects)-i)
			return
		}
		l.Items = append(l.Items, entry[U]{o, used, l.answer})
		l.oldest = min(l.oldest, l.answer.asOf(used))
	}
}

// more says how to go on behind the last object of a page. The number of those that remain is an
// upper bound (some may have no figures) and, as everywhere in Kubernetes, given for lists without
// selectors only.
func (q *query) more(last *inventory.Object, remaining int) metav1.ListMeta {
	meta := metav1.ListMeta{Continue: position{last.Namespace, last.Name}.token()}
	if q.labels.Empty() && q.fields.Empty() {
		n := int64(remaining)
		meta.RemainingItemCount = &n
	}
	return meta
}

// token is the position as clients see it: opaque.
func (p position) token() string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.namespace + "/" + p.name))
}

func parseContinue(token string) (position, bool) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return position{}, false
	}
	namespace, name, ok := strings.Cut(string(text), "/")
	return position{namespace, name}, ok && name != ""
}
