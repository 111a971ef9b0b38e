package api

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
)

// Memory that a list takes for each container until it is written, in bytes. A node, or a pod with
// fewer containers, counts as two. BenchmarkListMemory measures them.
const (
	// streamedBytes is for a list that is written in pieces. It is nearly all usage, which a list that a
	// slow client reads keeps in memory when a scrape has replaced it.
	streamedBytes = 512
	// wholeBytes is for a list that the library encodes as a whole: a table, metadata, indented JSON.
	wholeBytes = 2 << 10
	// yamlBytes is for YAML, which the library makes from a tree of what JSON contains.
	yamlBytes = 16 << 10
	// minContainers is the number that an object counts at least.
	minContainers = 2
)

const (
	// smallBytes is what a small list takes at most, such as that of an autoscaler.
	smallBytes = 1 << 20
	// maxListWait limits the time that a list waits for others.
	maxListWait = 10 * time.Second
	// maxListWrite is the time after which a list that the client does not read is given up. It exceeds
	// the timeout of requests, which does not end a write that blocks.
	maxListWrite = 75 * time.Second
)

// ListMemory limits the memory of the lists that are being written, in bytes.
type ListMemory struct {
	// Large is what all lists but the small ones may take. One that needs more is written while no
	// other one is. Small is for the small lists, so that they do not wait for large ones. One user may
	// take half of it. The user's further lists count as large, so that others can use the rest.
	Large, Small int64
	// Max is what one list may take that is not written in pieces. One that needs more is rejected.
	Max int64
}

// pool is memory that lists share.
type pool struct {
	*semaphore.Weighted
	size int64
}

// shares are what the lists of each user take, or wait for, of a pool.
type shares struct {
	max int64 // of one user

	mu    sync.Mutex
	taken map[string]int64
}

// take adds to the share of a user, and reports whether it does not become too large.
func (s *shares) take(user string, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.taken[user] + n
	if taken > s.max {
		return false
	}
	if n > 0 {
		s.taken[user] = taken
	}
	return true
}

func (s *shares) giveBack(user string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[user] -= n; s.taken[user] == 0 {
		delete(s.taken, user)
	}
}

// listRequest is a request for a list.
type listRequest struct {
	large, small *pool
	shares       *shares // of the small pool
	user         string
	max          int64
	perContainer int64

	pool     *pool // of the list
	needed   int64 // of the pool
	shared   int64 // of the user's share
	reserved bool
}

type listRequestKey struct{}

// WithListMemory limits the memory of lists. A list for which there is not enough waits for others, and
// is rejected with status 429 if that takes too long. The filter needs the request info that the API
// server's default filters set.
func WithListMemory(next http.Handler, serializer runtime.NegotiatedSerializer, limit ListMemory) http.Handler {
	large := &pool{semaphore.NewWeighted(limit.Large), limit.Large}
	small := &pool{semaphore.NewWeighted(limit.Small), limit.Small}
	shares := &shares{max: limit.Small / 2, taken: map[string]int64{}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || info.APIGroup != metrics.GroupName || info.Verb != "list" {
			next.ServeHTTP(w, r)
			return
		}
		l := &listRequest{
			large: large, small: small, shares: shares, max: limit.Max, perContainer: bytesPerContainer(r, serializer),
		}
		if user, ok := request.UserFrom(r.Context()); ok {
			l.user = user.GetName()
		}
		// This must be done before the timeout of the request, since w is not valid after it.
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxListWrite)); err != nil {
			klog.FromContext(r.Context()).V(2).Info("Cannot limit the time to send a list", "err", err)
		}
		defer l.release() // when the response has been written
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), listRequestKey{}, l)))
	})
}

// bytesPerContainer returns the memory for each container in the format that the request accepts.
func bytesPerContainer(r *http.Request, serializer runtime.NegotiatedSerializer) int64 {
	media, info, err := negotiation.NegotiateOutputMediaType(r, serializer, tableScope)
	switch {
	case err != nil:
		return 0 // the library rejects the request
	case info.MediaType == runtime.ContentTypeYAML:
		return yamlBytes
	case media.Convert != nil, info.PrettySerializer != nil && info.Serializer == info.PrettySerializer:
		return wholeBytes
	}
	return streamedBytes
}

// objects returns the objects from the requested page on, once there is memory for the page. It calls
// begin right before it selects them.
func (c *collection) objects(ctx context.Context, q *query, begin func()) ([]*inventory.Object, error) {
	begin()
	objects := q.objects(c.inventory)
	l, ok := ctx.Value(listRequestKey{}).(*listRequest)
	if !ok {
		return objects, nil
	}
	page := objects[:q.pageSize(len(objects))]
	if reserved, err := l.tryReserve(page); reserved || err != nil {
		return objects, err
	}
	if err := l.reserve(ctx); err != nil {
		return nil, err
	}
	begin()
	return q.objects(c.inventory), nil // again: in the meantime, the first ones are garbage
}

// tryReserve reserves memory for a page, and reports whether there was enough. It returns an error if
// there will never be.
func (l *listRequest) tryReserve(page []*inventory.Object) (bool, error) {
	containers := 0
	for _, o := range page {
		containers += max(minContainers, len(o.Containers))
	}
	need := int64(containers) * l.perContainer
	if l.perContainer > streamedBytes && need > l.max {
		return false, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
			Message: fmt.Sprintf("a list of %d objects in this format needs about %d MiB of memory, more than the maximum "+
				"of %d MiB: request JSON without indentation or protobuf, or pages with limit=500",
				len(page), need>>20, l.max>>20),
		}}
	}
	l.pool = l.large
	if need <= smallBytes && l.shares.take(l.user, need) {
		l.pool, l.shared = l.small, need
	}
	l.needed = min(need, l.pool.size)
	l.reserved = l.pool.TryAcquire(l.needed)
	return l.reserved, nil
}

// reserve waits until there is enough memory.
func (l *listRequest) reserve(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maxListWait)
	defer cancel()
	if err := l.pool.Acquire(ctx, l.needed); err != nil {
		return apierrors.NewTooManyRequests(fmt.Sprintf("the memory for lists was in use for %s: try again", maxListWait), 1)
	}
	l.reserved = true
	return nil
}

func (l *listRequest) release() {
	if l.reserved {
		l.pool.Release(l.needed)
	}
	if l.shared > 0 {
		l.shares.giveBack(l.user, l.shared)
	}
}
