package kubelet

import (
	"context"
	"math"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Client sends requests to kubelets. Its methods are safe for concurrent use.
type Client struct {
	config      Config
	credentials *credentials
	workspaces  sync.Pool // of *workspace
	connecting  permits   // of requests that dial and do a TLS handshake
	// Of requests that read and decode a response. Each has a workspace, but permits do not bound how many there are: a
	// wait for the kubelet may end the permit, and the workspace is in use until the samples are stored.
	reading permits
	dialer  dialer

	mu    sync.Mutex
	nodes map[string]*transport // by the node's name
}

// NewClient returns a client. It reads the files in config, and reports the mistakes of all at once.
func NewClient(config Config) (*Client, error) {
	credentials, err := newCredentials(&config)
	if err != nil {
		return nil, err
	}
	// As many containers as a response may have.
	maxContainers := int(max(1, min(config.MaxBodyBytes/decode.MinContainerBytes, math.MaxInt32)))
	return &Client{
		config:      config,
		credentials: credentials,
		workspaces:  sync.Pool{New: func() any { return newWorkspace(maxContainers) }},
		nodes:       map[string]*transport{},
		connecting:  newPermits(),
		reading:     newPermits(),
		dialer:      newDialer(&config),
	}, nil
}

// Fetch requests the resource metrics of a node's kubelet once, and calls receive with the decoded
// response unless that fails. receive must not retain the scrape, nor the names in it: both are in memory
// that another request reuses once receive returns.
//
// reason.Of returns the reason of an error. Its text has neither the node, which callers know, nor the cure, which is
// added where it is printed, see reason.Explanation. The connection is kept for the next request.
func (c *Client) Fetch(ctx context.Context, node *corev1.Node, receive func(*usage.Scrape)) (usage.Timing, error) {
	return c.fetch(ctx, node, resourceQuery, receive)
}

// FetchSummary is Fetch for the kubelet's summary, which contains kubelet-reported rates. Its
// timestamps are rounded down to seconds. Its path does not depend on annotations.
func (c *Client) FetchSummary(
	ctx context.Context, node *corev1.Node, receive func(*usage.Scrape),
) (usage.Timing, error) {
	return c.fetch(ctx, node, summaryQuery, receive)
}

// FetchStorage is Fetch for the complete summary of the kubelet. The scrape has only Storage. It may be
// called during a Fetch for the same node.
func (c *Client) FetchStorage(
	ctx context.Context, node *corev1.Node, receive func(*usage.Scrape),
) (usage.Timing, error) {
	return c.fetch(ctx, node, storageQuery, receive)
}

// patience is how long a kubelet counts as slow after a slow request, in SlowTimeouts. A loaded kubelet often responds
// fast in between.
const patience = 2

// fetch sends one request, with more time for a kubelet that was slow. It returns errors with their reasons.
func (c *Client) fetch(
	ctx context.Context, node *corev1.Node, q *query, receive func(*usage.Scrape),
) (timing usage.Timing, err error) {
	t, err := c.transportOf(ctx, node)
	if err != nil {
		return timing, err
	}
	slowUntil, timeout := &t.slowUntil, c.config.Timeout
	if q == storageQuery {
		slowUntil = &t.storageSlowUntil
	}
	if int64(c.now()) < slowUntil.Load() {
		timeout = max(timeout, c.config.SlowTimeout)
	}
	w, err := c.get(ctx, t, q, timeout, &timing)
	timing.Slow = timing.Took >= min(c.config.Timeout, DefaultTimeout)
	if timing.Slow {
		slowUntil.Store(int64(c.now().Add(patience * c.config.SlowTimeout)))
	}
	if err != nil {
		return timing, q.newError(err)
	}
	receive(&w.scrape)
	c.release(w)
	return timing, nil
}

// get sends one request and decodes the response. The caller must release the workspace with the
// result. It sets the durations in timing: the wait for a token, which the API server may delay, is in neither.
//
// The time of the response is when its body begins: the kubelet takes its samples right before, and the
// rest is the time of the transfer. Until then, the request has neither a permit nor a workspace.
func (c *Client) get(
	ctx context.Context, t *transport, q *query, timeout time.Duration, timing *usage.Timing,
) (*workspace, error) {
	header, err := c.headers(ctx, q, timeout)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	defer func() { timing.Took = time.Since(start) - timing.Queued }()
	idle := t.takeIdle()
	var connecting *permit
	if idle == nil { // the timeout starts after this wait, unless the kubelet has closed the idle connection
		connecting, err = c.connecting.acquire(ctx)
		timing.Queued += connecting.queued
		defer connecting.release()
		if err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	begun, queuedBefore := time.Now(), timing.Queued
	fail := func(err error) (*workspace, error) {
		return nil, t.asTimeout(err, time.Since(begun), timing.Queued-queuedBefore)
	}
	response, err := t.roundTrip(q.request(ctx, t.endpoint, header), idle, c.connecting, connecting, &timing.Queued)
	if err != nil {
		return fail(err)
	}
	defer response.Body.Close()
	x := response.Body.(*exchange)
	if response.ContentLength != 0 {
		_, _ = x.buffers.in.Peek(1) // until the body begins; read returns the error
	}
	at := c.now()
	if err := ctx.Err(); err != nil { // the body did not begin in time
		return fail(err)
	}

	reading, err := c.reading.acquire(ctx)
	timing.Queued += reading.queued
	defer reading.release()
	if err != nil {
		return fail(err)
	}
	x.conn.socket.permit = reading // which it pauses while it waits for the kubelet
	w := c.workspaces.Get().(*workspace)
	w.scrape.Sent, w.scrape.At = c.config.Clock.At(x.sent), at
	w.scrape.Date, w.scrape.Dated = dateOf(response.Header), c.config.Clock.At(x.begun)
	err = c.read(response, q, w)
	if err == nil {
		err = q.decode(w, t.node)
	}
	// Without a length or chunks, a body that was cut at the end of a line looks complete.
	if response.ContentLength < 0 && len(response.TransferEncoding) == 0 {
		w.scrape.Partial = true
	}
	if err != nil {
		c.release(w)
		return fail(err)
	}
	return w, nil
}

// now returns our time.
func (c *Client) now() usage.Time { return c.config.Clock.At(time.Now()) }

// headers returns the headers of a request. It may wait for a new token.
func (c *Client) headers(ctx context.Context, q *query, timeout time.Duration) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return c.credentials.headers(ctx, q.accept)
}

// dateOf returns the time of the Date header, or 0 if it is missing or invalid.
func dateOf(header http.Header) usage.NodeTime {
	date, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return 0
	}
	return usage.NodeAt(date)
}

// Forget removes a node and closes its connection. The context of a Fetch for it must have ended.
func (c *Client) Forget(node string) {
	c.mu.Lock()
	t := c.nodes[node]
	delete(c.nodes, node)
	c.mu.Unlock()
	t.retire()
}

// Address returns the host and port of a node's kubelet. It is empty if the node has no valid
// address.
func (c *Client) Address(node *corev1.Node) string {
	e, err := c.config.endpointOf(node)
	if err != nil {
		return ""
	}
	c.mu.Lock()
	t := c.nodes[node.Name]
	c.mu.Unlock()
	if t != nil && t.endpoint == e {
		return t.address()
	}
	return e.address(e.hosts[0])
}

// transportOf returns the transport of a node, and replaces it if its endpoint has changed or if the node
// was created again. It adds none once ctx has ended: Forget may have been called.
func (c *Client) transportOf(ctx context.Context, node *corev1.Node) (*transport, error) {
	endpoint, err := c.config.endpointOf(node)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	old := c.nodes[node.Name]
	if old != nil && old.endpoint == endpoint && old.uid == node.UID {
		c.mu.Unlock()
		return old, nil
	}
	if err := ctx.Err(); err != nil {
		c.mu.Unlock()
		return nil, err
	}
	t := c.newTransport(node.Name, node.UID, endpoint)
	c.nodes[t.node] = t
	c.mu.Unlock()
	old.retire() // without the lock: a kubelet that does not read delays the end of its connections
	return t, nil
}
