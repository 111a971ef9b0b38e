package api

import (
	"context"
	"fmt"
	"math"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/metrics/pkg/apis/metrics"

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
	// smallBytes is what a small response takes at most, such as a list of an autoscaler, without gzipBytes.
	smallBytes = 1 << 20
	// tinyBytes is the maximum size of a tiny response: an object, or the list of a deployment. Tiny responses
	// have a pool of their own, with room for maxTiny. Every response counts as at least tinyBytes.
	tinyBytes = 8 << 10
	maxTiny   = 256
	// gzipBytes is what the library's compressor of a response takes (TestMemoryOfStalledLists). It compresses responses
	// of more than gzipThreshold bytes.
	gzipBytes     = 1200 << 10
	gzipThreshold = 128 << 10
	// maxEncoding is what encoding a streamed response takes at most: pieces of it, and 64 texts of labels.
	maxEncoding = 192<<10 + 64*maxSmallLabels
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
	gzip  bool   // whether the client accepts a compressed response
	table string // the API version of the table that is requested; "": something else

	reserved int64 // bytes
	release  func()
}

type negotiatedKey struct{}

// WithResponseMemory limits the memory of responses. A request without enough is rejected
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
		m.gzip = responsewriters.ContentEncodingSupported(r, features.APIResponseCompression) != ""
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
// library rejects a request that accepts no known format.
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

// demand is the memory that a response needs.
type demand struct {
	cost
	gzip                bool
	objects, containers int
	allText, maxText    int64 // of all objects, and of one
	encoded             int64 // about the size of the response, rather more
}

// newDemand returns the demand of a response before objects are added.
func newDemand(ctx context.Context) *demand {
	if m, ok := ctx.Value(negotiatedKey{}).(*negotiated); ok {
		return &demand{cost: m.cost, gzip: m.gzip}
	}
	return &demand{}
}

// add adds an object. Its node may report more containers than the API server shows.
func (d *demand) add(o *inventory.Object, reported int) {
	d.objects++
	d.containers += max(minContainers, len(o.Containers), reported)
	d.encoded += int64(256 + len(o.Namespace) + len(o.Name) + 2*len(o.Labels) + 128*max(len(o.Containers), reported))
	if !d.whole && len(o.Labels) <= maxSmallLabels {
		return
	}
	n := int64(len(o.Namespace)+len(o.Name)) * d.text
	for key, value := range o.Labels.All() {
		n += d.label + int64(len(key)+len(value))*d.text
	}
	d.allText += n
	d.maxText = max(d.maxText, n)
}

// size returns the memory in bytes. A response that is written in pieces needs the larger of two amounts: while a slow
// client reads it, the usage that scrapes have replaced since; while it is encoded before, when the store still has
// that usage, a quarter of it for the items.
func (d *demand) size() int64 {
	items := int64(d.containers) * d.container
	if d.whole {
		return max(tinyBytes, items+d.allText)
	}
	return max(tinyBytes, items+d.maxText, items/4+d.maxText+min(d.encoded, maxEncoding))
}

// compression returns what compressing the response needs beside its size.
func (d *demand) compression() int64 {
	encoded := d.encoded
	if d.whole { // these formats have more for each object
		encoded *= 2
	}
	if !d.gzip || encoded <= gzipThreshold {
		return 0
	}
	return gzipBytes
}

// reserve reserves the memory for a response, if it needs more than is reserved for it already.
func reserve(ctx context.Context, d *demand) error {
	m, ok := ctx.Value(negotiatedKey{}).(*negotiated)
	if !ok {
		return nil
	}
	need, all := d.size(), d.size()+d.compression()
	if all <= m.reserved {
		return nil
	}
	if m.cost.whole && need > m.max {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
			Message: fmt.Sprintf("a response with %d objects in this format needs about %d MiB of memory, more than the "+
				"maximum of %d MiB: request JSON without indentation or protobuf, or pages with limit=500",
				d.objects, need>>20, m.max>>20),
		}}
	}
	m.release()
	m.reserved, m.release = 0, func() {}
	for _, p := range m.pools {
		// A response that needs more than there is takes all of a pool, and may then grow to what it needs.
		n := min(all, p.Size())
		if need <= p.largest && p.Take(m.user, n) {
			m.reserved, m.release = all, func() { p.Return(m.user, n) }
			return nil
		}
	}
	return apierrors.NewTooManyRequests("the memory for responses is in use: try again", 1)
}
