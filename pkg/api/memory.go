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
	// tinyBytes is what a tiny list takes at most, such as that of a deployment or an empty one.
	tinyBytes = 8 << 10
	// maxTiny is the number of tiny lists that need no memory of the pools.
	maxTiny = 256
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
	// take half of each, so that others can use the rest. The user's further small lists count as large,
	// and further large ones wait. A list that needs more than half is the only one of its user.
	Large, Small int64
	// Max is what one list may take that is not written in pieces. One that needs more is rejected.
	Max int64
}

// pool is memory that lists share. One user may take half of it.
type pool struct {
	*semaphore.Weighted
	size int64

	mu    sync.Mutex
	users map[string]*share // of the users that have lists
}

// share is what one user may take of a pool.
type share struct {
	*semaphore.Weighted
	lists int // that use it
}

func newPool(size int64) *pool {
	return &pool{Weighted: semaphore.NewWeighted(size), size: size, users: map[string]*share{}}
}

// join returns the share of a user, for one list. leave must follow.
func (p *pool) join(user string) *share {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.users[user]
	if s == nil {
		s = &share{Weighted: semaphore.NewWeighted(p.size / 2)}
		p.users[user] = s
	}
	s.lists++
	return s
}

func (p *pool) leave(user string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.users[user]; s.lists > 1 {
		s.lists--
	} else {
		delete(p.users, user)
	}
}

// claim is what one list takes, or waits for, of a pool.
type claim struct {
	*pool
	user          string
	share         *share
	size, ofShare int64
	hasShare      bool
	granted       bool
}

// claim returns a claim of a user. The caller releases it.
func (p *pool) claim(user string, n int64) *claim {
	return &claim{pool: p, user: user, share: p.join(user), size: min(n, p.size), ofShare: min(n, p.size/2)}
}

// tryShare takes the user's share, and reports whether there was enough.
func (c *claim) tryShare() bool {
	c.hasShare = c.share.TryAcquire(c.ofShare)
	return c.hasShare
}

// try takes the memory after the share, and reports whether there was enough.
func (c *claim) try() bool {
	c.granted = c.TryAcquire(c.size)
	return c.granted
}

// wait waits for what is missing.
func (c *claim) wait(ctx context.Context) error {
	if !c.hasShare {
		if err := c.share.Acquire(ctx, c.ofShare); err != nil {
			return err
		}
		c.hasShare = true
	}
	if err := c.Acquire(ctx, c.size); err != nil {
		return err
	}
	c.granted = true
	return nil
}

func (c *claim) release() {
	if c.granted {
		c.Release(c.size)
	}
	if c.hasShare {
		c.share.Release(c.ofShare)
	}
	c.leave(c.user)
}

// listRequest is a request for a list.
type listRequest struct {
	large, small, tiny *pool // tiny counts lists
	user               string
	max                int64
	perContainer       int64

	claim *claim // nil: none yet
}

type listRequestKey struct{}

// WithListMemory limits the memory of lists. A list for which there is not enough waits for others, and
// is rejected with status 429 if that takes too long. The filter needs the request info that the API
// server's default filters set.
func WithListMemory(next http.Handler, serializer runtime.NegotiatedSerializer, limit ListMemory) http.Handler {
	large, small, tiny := newPool(limit.Large), newPool(limit.Small), newPool(maxTiny)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || info.APIGroup != metrics.GroupName || info.Verb != "list" {
			next.ServeHTTP(w, r)
			return
		}
		l := &listRequest{
			large: large, small: small, tiny: tiny, max: limit.Max, perContainer: bytesPerContainer(r, serializer),
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

// objects returns the objects from the requested page on, once there is memory for the page.
func (c *collection) objects(ctx context.Context, q *query) ([]*inventory.Object, error) {
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
	if need <= tinyBytes {
		if l.claim = l.tiny.claim(l.user, 1); l.claim.tryShare() && l.claim.try() {
			return true, nil
		}
		l.release()
	}
	if need <= smallBytes {
		if l.claim = l.small.claim(l.user, need); l.claim.tryShare() {
			return l.claim.try(), nil
		}
		l.release()
	}
	l.claim = l.large.claim(l.user, need)
	return l.claim.tryShare() && l.claim.try(), nil
}

// reserve waits until there is enough memory.
func (l *listRequest) reserve(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maxListWait)
	defer cancel()
	if err := l.claim.wait(ctx); err != nil {
		return apierrors.NewTooManyRequests(fmt.Sprintf("the memory for lists was in use for %s: try again", maxListWait), 1)
	}
	return nil
}

// release returns what the list has taken.
func (l *listRequest) release() {
	if l.claim != nil {
		l.claim.release()
		l.claim = nil
	}
}
