package api

import (
	"context"
	"fmt"
	"iter"
	"math"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/internal/fair"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
)

// cost is what a response in a format takes until it is written, in bytes. BenchmarkListMemory
// measures it.
type cost struct {
	container int64 // for each container; a node, or a pod with fewer containers, counts as two
	label     int64 // for each label
	text      int64 // for each byte of names and labels
	whole     bool  // whether the library encodes the response as a whole, instead of in pieces
}

const (
	// minContainers is the number that an object counts at least.
	minContainers = 2
	// maxSmallLabels is the size of the labels of an object that are not counted in a streamed response.
	maxSmallLabels = 4 << 10
	// smallBytes is what a small response takes at most, such as a list of an autoscaler.
	smallBytes = 1 << 20
	// tinyBytes is what a tiny response takes at most, such as a list of a deployment, a list without
	// objects, or an object. It is also what any response takes at least.
	tinyBytes = 8 << 10
	// maxTiny is the number of tiny responses that take nothing from those which are not.
	maxTiny = 256
)

// ResponseMemory limits the memory of the responses that are being written, in bytes.
type ResponseMemory struct {
	// Large is what all responses but the small ones may take. One that needs more is written while no
	// other one is. Small is for the small ones, so that large ones leave memory for them. What a user
	// may take of each is limited, see fair.Pool; more small responses of a user count as large.
	Large, Small int64
	// Max is what one response may take that is not written in pieces. One that needs more is rejected.
	Max int64
}

// memoryPool is memory for responses that need at most so much.
type memoryPool struct {
	*fair.Pool
	largest int64
}

// negotiated is what WithResponseMemory has negotiated for a request. reserve reserves memory for it, and
// ConvertToTable reads table from it.
type negotiated struct {
	pools []memoryPool
	user  string
	max   int64
	cost  cost
	table string // the API version of the table that is requested; "": something else

	reserved int64 // bytes
	release  func()
}

type negotiatedKey struct{}

// WithResponseMemory limits the memory of responses. A request for which there is not enough is rejected
// with status 429. The filter needs the request info and the user, which the API server's
// default filters set.
func WithResponseMemory(
	next http.Handler, serializer runtime.NegotiatedSerializer, limit ResponseMemory,
) http.Handler {
	pools := []memoryPool{
		{fair.NewPool(maxTiny * tinyBytes), tinyBytes},
		{fair.NewPool(limit.Small), smallBytes},
		{fair.NewPool(limit.Large), math.MaxInt64},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || info.APIGroup != metrics.GroupName || info.Verb != "list" && info.Verb != "get" {
			next.ServeHTTP(w, r)
			return
		}
		m := &negotiated{pools: pools, max: limit.Max, release: func() {}}
		m.cost, m.table = costOf(r, serializer)
		if user, ok := request.UserFrom(r.Context()); ok {
			m.user = fair.UserOf(user)
		}
		defer func() { m.release() }() // when the response has been written
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), negotiatedKey{}, m)))
	})
}

// tableScope allows what the library allows for a resource with tables. It accepts "sv=v1", too.
var tableScope = &handlers.RequestScope{
	TableConvertor: rest.NewDefaultTableConvertor(metrics.Resource("")), MetaGroupVersion: metav1.SchemeGroupVersion,
}

// costOf returns the cost in the format that the request accepts, and the API version if that is a table. The
// library rejects a request for which there is none.
func costOf(r *http.Request, serializer runtime.NegotiatedSerializer) (c cost, table string) {
	media, info, err := negotiation.NegotiateOutputMediaType(r, serializer, tableScope)
	if err != nil {
		return c, ""
	}
	if media.Convert != nil && media.Convert.Kind == "Table" {
		table = media.Convert.GroupVersion().String()
	}
	switch {
	case info.MediaType == runtime.ContentTypeYAML: // the library makes it from a tree of what JSON contains
		return cost{container: 16 << 10, label: 1152, text: 8, whole: true}, table
	case media.Convert != nil, info.PrettySerializer != nil && info.Serializer == info.PrettySerializer:
		return cost{container: 2 << 10, label: 160, text: 5, whole: true}, table
	}
	// Nearly all is usage, which a response that a slow client reads keeps in memory when a scrape has
	// replaced it. Of the labels, only those of one object are in memory at a time.
	return cost{container: 512, label: 120, text: 4}, table
}

// size returns the memory for a response with these objects, each with the number of containers that its node
// reports: that may be more than the API server shows.
func (c cost) size(objects iter.Seq2[*inventory.Object, int]) int64 {
	var containers, text, largest int64
	for o, reported := range objects {
		containers += int64(max(minContainers, len(o.Containers), reported))
		if !c.whole && len(o.Labels) <= maxSmallLabels {
			continue
		}
		n := int64(len(o.Namespace)+len(o.Name)) * c.text
		for key, value := range o.Labels.All() {
			n += c.label + int64(len(key)+len(value))*c.text
		}
		text += n
		largest = max(largest, n)
	}
	if !c.whole {
		text = largest
	}
	return containers*c.container + text
}

// unread yields objects of which the usage is not read yet.
func unread(objects []*inventory.Object) iter.Seq2[*inventory.Object, int] {
	return func(yield func(*inventory.Object, int) bool) {
		for _, o := range objects {
			if !yield(o, 0) {
				return
			}
		}
	}
}

// read yields objects and the number of containers in their usage.
func read(items []encode.Item) iter.Seq2[*inventory.Object, int] {
	return func(yield func(*inventory.Object, int) bool) {
		for i := range items {
			reported := 0
			if pod, ok := items[i].Usage.(*encode.Pod); ok {
				reported = len(pod.Containers)
			}
			if !yield(items[i].Object, reported) {
				return
			}
		}
	}
}

// reserve reserves memory for a response with that number of objects, if more is needed than is reserved for it
// already.
func reserve(ctx context.Context, count int, objects iter.Seq2[*inventory.Object, int]) error {
	m, ok := ctx.Value(negotiatedKey{}).(*negotiated)
	if !ok {
		return nil
	}
	need := max(tinyBytes, m.cost.size(objects))
	if need <= m.reserved {
		return nil
	}
	if m.cost.whole && need > m.max {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
			Message: fmt.Sprintf("a response with %d objects in this format needs about %d MiB of memory, more than the "+
				"maximum of %d MiB: request JSON without indentation or protobuf, or pages with limit=500",
				count, need>>20, m.max>>20),
		}}
	}
	m.release()
	for _, p := range m.pools {
		n := min(need, p.Size())
		if need <= p.largest && p.Take(m.user, n) {
			m.reserved, m.release = need, func() { p.Return(m.user, n) }
			return nil
		}
	}
	return apierrors.NewTooManyRequests("the memory for responses is in use: try again", 1)
}
