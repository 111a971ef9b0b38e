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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
)

// The fields that a field selector may use; that of the node only for pods. Requests with others are rejected with an
// error that lists these.
const (
	fieldName      = "metadata.name"
	fieldNamespace = "metadata.namespace"
	fieldNode      = "spec.nodeName"
)

// podField returns a field that a selector of pods may use as it is. It is a runtime.FieldLabelConversionFunc.
func podField(label, value string) (string, string, error) {
	if label == fieldNode {
		return label, value, nil
	}
	field, value, err := runtime.DefaultMetaV1FieldSelectorConversion(label, value)
	if err != nil {
		err = fmt.Errorf("%w, %q", err, fieldNode)
	}
	return field, value, err
}

// maxSelectorSize limits the requirements of a selector, since each is compared with each object.
// Each value of a requirement such as "in (a,b)" counts. The selectors of Deployments and
// autoscalers rarely have ten.
const maxSelectorSize = 1000

// labelSelectorSize returns the number of requirements of a selector, counted by their values.
func labelSelectorSize(selector labels.Selector) (n int) {
	requirements, _ := selector.Requirements()
	for i := range requirements {
		n += max(1, len(requirements[i].ValuesUnsorted()))
	}
	return n
}

func selectorTooLarge(kind string, size int) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the %s selector has %d requirements and values, more than the maximum "+
		"of %d: use fewer, or list all objects and select from the result", kind, size, maxSelectorSize))
}

// query holds the parameters of a LIST.
type query struct {
	namespace string // "": all
	labels    labels.Selector
	fields    fields.Selector
	limit     int // objects in a page; 0: no limit

	// after is the last object of the previous page; nil: this is the first. Lists are sorted by namespace
	// and name, so a page begins after it even if objects were added or deleted in between.
	after *types.NamespacedName
}

func newQuery(namespace string, options *metainternalversion.ListOptions) (*query, error) {
	q := &query{namespace: namespace, labels: labels.Everything(), fields: fields.Everything()}
	if options.LabelSelector != nil {
		q.labels = options.LabelSelector
	}
	if options.FieldSelector != nil {
		q.fields = options.FieldSelector
	}
	if n := labelSelectorSize(q.labels); n > maxSelectorSize {
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
	if !ok || namespace != "" && after.Namespace != namespace {
		return nil, apierrors.NewBadRequest("the continue token is not valid for this list: " +
			"restart the list without a continue token")
	}
	q.after = &after
	return q, nil
}

// objects returns the objects that match the selectors, from the requested page on.
func (q *query) objects(all resourceType) []*inventory.Object {
	objects := q.selected(all)
	if q.after == nil {
		return objects
	}
	i, found := slices.BinarySearchFunc(objects, *q.after, func(o *inventory.Object, n types.NamespacedName) int {
		return cmp.Or(strings.Compare(o.Namespace, n.Namespace), strings.Compare(o.Name, n.Name))
	})
	if found {
		i++
	}
	return objects[i:]
}

// selected returns the objects that match the selectors. If they name a namespace and an object in it, it is looked up
// instead of listed.
func (q *query) selected(all resourceType) []*inventory.Object {
	namespace := q.namespace
	if exact, ok := q.fields.RequiresExactMatch(fieldNamespace); ok && namespace == "" {
		namespace = exact
	}
	if name, ok := q.fields.RequiresExactMatch(fieldName); ok && namespace != "" {
		o := all.get(namespace, name)
		if o == nil || !q.labels.Matches(&o.Labels) || !q.matches(o) {
			return nil
		}
		return []*inventory.Object{o}
	}
	objects := all.list(namespace, q.labels)
	if q.fields.Empty() {
		return objects
	}
	return slices.DeleteFunc(objects, func(o *inventory.Object) bool { return !q.matches(o) })
}

func (q *query) matches(o *inventory.Object) bool {
	return q.fields.Matches(fields.Set{fieldName: o.Name, fieldNamespace: o.Namespace, fieldNode: o.Node})
}

// selectsNode reports whether the result depends on the nodes of pods.
func (q *query) selectsNode() bool {
	return slices.ContainsFunc(q.fields.Requirements(), func(r fields.Requirement) bool { return r.Field == fieldNode })
}

// pageSize returns the number of objects in a page, if so many remain.
func (q *query) pageSize(remaining int) int {
	if q.limit > 0 {
		return min(q.limit, remaining)
	}
	return remaining
}

// nextPage returns the metadata of a page that ends with last. As everywhere in Kubernetes, the
// number of remaining objects is set only for lists without selectors. It is an upper bound, since
// objects without metrics count.
func (q *query) nextPage(last *inventory.Object, remaining int) metav1.ListMeta {
	meta := metav1.ListMeta{Continue: continueToken(last.Namespace, last.Name)}
	if q.labels.Empty() && q.fields.Empty() {
		meta.RemainingItemCount = new(int64(remaining))
	}
	return meta
}

// continueToken returns an opaque token for the page after the object with this name.
func continueToken(namespace, name string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(namespace + "/" + name))
}

func parseContinue(token string) (last types.NamespacedName, ok bool) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	namespace, name, _ := strings.Cut(string(text), "/")
	ok = err == nil && name != "" && !strings.Contains(name, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}, ok
}
