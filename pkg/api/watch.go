package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/api/feed"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// maxWatchBytes limits the request of a watch, which stays in memory as long as the watch.
const maxWatchBytes = 16 << 10

// watchable is the storage of a resource that can be watched. Its objects and lists have
// resourceVersions.
type watchable struct {
	*collection
	feed *feed.Feed
}

var (
	_ rest.Getter  = (*watchable)(nil)
	_ rest.Lister  = (*watchable)(nil)
	_ rest.Watcher = (*watchable)(nil)
)

func newWatchable(c *collection) *watchable {
	return &watchable{c, feed.New(feed.Config{
		Snapshot:    c.snapshot,
		NewBookmark: c.newBookmark,
		Now:         func() usage.Time { return c.config.Clock.At(c.config.Now()) },
	})}
}

// snapshot returns the Items of a namespace, or of all if it is "".
func (c *collection) snapshot(namespace string) []encode.Item {
	objects, now := c.inventory.List(namespace, labels.Everything()), c.config.Now()
	list, at := c.encoder.NewList(c.kind(), now, len(objects)), c.config.Clock.At(now)
	for i, u := range c.usages(objects, at) {
		if u != nil {
			list.Add(objects[i], u, c.extra(objects[i], u, at))
		}
	}
	return list.Items
}

// newBookmark returns an object that has only a version.
func (c *collection) newBookmark(version string) runtime.Object {
	object := c.New()
	if m, err := meta.Accessor(object); err == nil { // never an error: it is a NodeMetrics or PodMetrics
		m.SetResourceVersion(version)
	}
	return object
}

// Destroy implements rest.Storage.
func (w *watchable) Destroy() { w.feed.Close() }

// Get implements rest.Getter.
func (w *watchable) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	object, err := w.collection.Get(ctx, name, options)
	if item, ok := object.(*encode.Item); ok {
		item.Version = w.feed.VersionOf(item.Usage)
	}
	return object, err
}

// List implements rest.Lister. All pages of a list have the version of the first one: what has
// changed since is repeated to a watch that begins there, which does no harm.
//
// A list is always the current state, which is not older than any resourceVersion that a client may
// demand. No older state is kept.
func (w *watchable) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	q, err := newQuery(request.NamespaceValue(ctx), options)
	if err != nil {
		return nil, err
	}
	if options != nil && options.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
		return nil, apierrors.NewResourceExpired("no older state is kept: list without resourceVersionMatch=Exact")
	}
	selection := selectionOf(ctx, q)
	var version uint64
	objects, err := w.objects(ctx, q, func() { version = w.feed.Begin() })
	if err != nil {
		return nil, err
	}
	nextPage := q.after != nil && q.after.version != 0
	if nextPage {
		version = q.after.version
	}
	list := w.list(ctx, q, objects, version)
	list.ResourceVersion = strconv.FormatUint(version, 10)
	for i := range list.Items {
		list.Items[i].Version = w.feed.VersionOf(list.Items[i].Usage)
	}
	switch {
	case nextPage:
		w.feed.RememberPage(version, selection, list.Items)
	case q.after == nil:
		w.feed.Remember(version, selection, list.Items)
	}
	return list, nil
}

// selectionOf returns what the user of a request selects.
func selectionOf(ctx context.Context, q *query) feed.Selection {
	s := feed.Selection{
		Namespace: q.namespace, Selectors: sha256.Sum256([]byte(q.labels.String() + "\n" + q.fields.String())),
	}
	if user, ok := request.UserFrom(ctx); ok {
		s.User = user.GetName()
	}
	return s
}

// Watch implements rest.Watcher.
func (w *watchable) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	selectors := *options
	selectors.Limit, selectors.Continue = 0, "" // have no meaning for a watch
	q, err := newQuery(request.NamespaceValue(ctx), &selectors)
	if err != nil {
		return nil, err
	}
	if r, ok := ctx.Value(watchRequestKey{}).(*watchRequest); ok {
		if r.bytes > maxWatchBytes {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the URL, headers and body of a watch have more than the "+
				"maximum of %d bytes: use shorter selectors, or poll with lists", maxWatchBytes))
		}
		r.query = q
	}
	matches := func(o *inventory.Object) bool {
		return q.labels.Matches(&o.Labels) && (q.fields.Empty() || q.matches(o))
	}
	if w.config.Reads != nil && q.selects() {
		all := matches
		matches = func(o *inventory.Object) bool {
			matched := all(o)
			if matched { // its metrics are about to be sent; the next scrape causes the next event
				w.config.Reads.Read(0, 1, w.nodesOf([]*inventory.Object{o}))
			}
			return matched
		}
	}
	return w.feed.Watch(ctx, feed.Options{
		Selection:     selectionOf(ctx, q),
		Matches:       matches,
		Version:       options.ResourceVersion,
		InitialEvents: options.SendInitialEvents,
		Bookmarks:     options.AllowWatchBookmarks,
	})
}

// watchRequest is what the library does not tell Watch about its request.
type watchRequest struct {
	bytes int64 // of the URL, the headers and the body; a body of unknown length counts as too long

	// The layout of the tables of the watch. All of them must have the same columns, because the
	// library sends the definitions of the columns only with the first one.
	query  *query // what is watched
	once   sync.Once
	layout layout
}

type watchRequestKey struct{}

// WithWatchRequests prepares watches. The filter needs the request info that the API server's default
// filters set.
func WithWatchRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); ok && info.Verb == "watch" {
			r = r.WithContext(context.WithValue(r.Context(), watchRequestKey{}, newWatchRequest(r)))
		}
		next.ServeHTTP(w, r)
	})
}

func newWatchRequest(r *http.Request) *watchRequest {
	w := &watchRequest{bytes: int64(len(r.RequestURI)) + r.ContentLength}
	if r.ContentLength < 0 {
		w.bytes = math.MaxInt32
	}
	for name, values := range r.Header {
		for _, value := range values {
			w.bytes += int64(len(name) + len(value))
		}
	}
	return w
}

// layoutOfWatch returns the layout of the table of a watch event. It is that of the table that a
// LIST returned when the first event was sent.
func (c *collection) layoutOfWatch(ctx context.Context, items []encode.Item, mayGetObjects func() bool) layout {
	t, ok := ctx.Value(watchRequestKey{}).(*watchRequest)
	if !ok || t.query == nil {
		return c.layoutOf(items, mayGetObjects)
	}
	t.once.Do(func() {
		objects := t.query.objects(c.inventory)
		t.layout = c.layoutOf(slices.Concat(items, c.list(ctx, t.query, objects, 0).Items), mayGetObjects)
	})
	return t.layout
}

// bookmarkTable returns the table of a bookmark: a row without values.
func (c *collection) bookmarkTable(
	ctx context.Context, bookmark, options runtime.Object, mayGetObjects func() bool,
) (*metav1.Table, error) {
	l := c.layoutOfWatch(ctx, nil, mayGetObjects)
	m, err := meta.Accessor(bookmark)
	if err != nil {
		return nil, err
	}
	table := newTable(l, metav1.ListMeta{ResourceVersion: m.GetResourceVersion()}, options)
	row := metav1.TableRow{Cells: slices.Repeat([]any{""}, len(l.columns()))}
	row.Object.Object = bookmark
	table.Rows = append(table.Rows, row)
	return table, nil
}
