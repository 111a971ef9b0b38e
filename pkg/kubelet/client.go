package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Client sends requests to kubelets. Its methods are safe for concurrent use.
type Client struct {
	config      Config
	credentials *credentials
	resource    *query     // of Fetch
	summary     *query     // of FetchSummary
	storage     *query     // of FetchStorage
	buffers     *sync.Pool // of the transports
	workspaces  sync.Pool  // of *workspace
	foreground  budget     // of Fetch and FetchSummary
	background  budget     // of FetchStorage
	dialer      dialer

	mu     sync.Mutex
	nodes  map[string]*target // by the node's name
	closed bool
}

// NewClient returns a client. It reads the files in config, and reports all mistakes at once.
func NewClient(config Config) (*Client, error) {
	config = config.withDefaults()
	credentials, err := newCredentials(&config)
	if err := errors.Join(config.Validate().ToAggregate(), err); err != nil {
		return nil, err
	}
	c := &Client{
		config:      config,
		credentials: credentials,
		resource:    newResourceQuery(&config),
		summary:     newSummaryQuery(&config),
		storage:     newStorageQuery(&config),
		buffers:     newBufferPool(),
		workspaces:  sync.Pool{New: func() any { return newWorkspace(config.Limits) }},
		nodes:       map[string]*target{},
		foreground:  newBudget(permitsPerCPU),
		background:  newBudget(backgroundPermitsPerCPU),
	}
	c.dialer = newDialer(&c.config)
	return c, nil
}

// Fetch requests the resource metrics of a node's kubelet once, and decodes the response into dst,
// whose memory it reuses. dst shares no memory with other scrapes. After an error, its content must
// not be used.
//
// An error is an *Error; Reason returns its class. The connection is kept for the next request.
func (c *Client) Fetch(ctx context.Context, node *corev1.Node, dst *usage.Scrape) error {
	return c.fetch(ctx, node, c.resource, c.foreground, dst)
}

// FetchSummary is Fetch for the kubelet's summary, which contains kubelet-reported rates. Its
// timestamps are rounded down to seconds. It takes at most 2 seconds, because the summary is
// optional.
//
// The path of the summary does not depend on annotations.
func (c *Client) FetchSummary(ctx context.Context, node *corev1.Node, dst *usage.Scrape) error {
	return c.fetch(ctx, node, c.summary, c.foreground, dst)
}

// FetchStorage is Fetch for the complete summary of the kubelet. It sets dst.Storage only. It may be
// called during a Fetch for the same node, and does not delay other requests: few of its requests
// connect or read at the same time.
func (c *Client) FetchStorage(ctx context.Context, node *corev1.Node, dst *usage.Scrape) error {
	return c.fetch(ctx, node, c.storage, c.background, dst)
}

func (c *Client) fetch(ctx context.Context, node *corev1.Node, q *query, b budget, dst *usage.Scrape) error {
	t, err := c.target(node)
	if err != nil {
		return err
	}
	if err := c.get(ctx, t, q, b, node.Name, dst); err != nil {
		return q.explain(node.Name, err)
	}
	return nil
}

// get sends one request and decodes the response. The time of the response is when its headers
// arrive: the kubelet takes its samples right before, and the rest is the time of the transfer.
func (c *Client) get(
	ctx context.Context, t *target, q *query, b budget, node string, dst *usage.Scrape,
) error {
	header, err := c.headers(ctx, q)
	if err != nil {
		return err
	}
	version := c.credentials.version()
	t.dropStaleConns(version)
	defer t.done(version)
	var connecting, reading *permit
	defer func() { dst.Queued = connecting.queueTime() + reading.queueTime() }()
	if !t.transport.hasIdle() { // the timeout starts after this wait, which the kubelet does not cause
		connecting, err = b.connecting.acquire(ctx)
		defer connecting.release()
		if err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	start := time.Now()
	startedAt := c.config.Clock.At(start) // not later: the machine may be suspended during the request
	response, err := t.transport.roundTrip(q.request(ctx, t.endpoint, header), b.connecting, connecting)
	if err != nil {
		return t.asTimeout(err, start)
	}
	arrived := time.Now()
	defer response.Body.Close()
	times := decode.Times{
		Sent: startedAt.Add(response.Body.(*exchange).sent.Sub(start)),
		At:   c.config.Clock.At(arrived),
		Date: dateOf(response.Header),
	}

	reading, err = b.reading.acquire(ctx)
	defer reading.release()
	if err != nil {
		return t.asTimeout(err, start)
	}
	response.Body = &pausingBody{response.Body, reading}
	w := c.workspaces.Get().(*workspace)
	defer c.release(w)
	if err := c.read(response, q, w); err != nil {
		return t.asTimeout(err, start)
	}
	if err := q.decode(w, node, dst, times); err != nil {
		return err
	}
	detach(dst) // the names are in the workspace, which the next request reuses
	return nil
}

// headers returns the headers of a request. It may have to wait for a new token.
func (c *Client) headers(ctx context.Context, q *query) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	return c.credentials.headers(ctx, q.accept)
}

// dateOf returns the time of the Date header, or 0 if it is missing or invalid.
func dateOf(header http.Header) usage.Time {
	date, err := http.ParseTime(header.Get("Date"))
	if err != nil || !decode.ValidTime(date) {
		return 0
	}
	return usage.At(date)
}

// Forget removes a node and closes its connection. It must be called after the node's last Fetch
// has returned.
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
	return e.address()
}

// Close closes all idle connections. Running requests complete; new ones fail.
func (c *Client) Close() {
	c.mu.Lock()
	nodes := c.nodes
	c.nodes, c.closed = nil, true
	c.mu.Unlock()
	for _, t := range nodes {
		t.retire()
	}
}

// target returns the target of a node, and replaces it if its endpoint has changed or if the node
// was created again.
func (c *Client) target(node *corev1.Node) (*target, error) {
	endpoint, err := c.config.endpointOf(node)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	old, closed := c.nodes[node.Name], c.closed
	t := old
	if !closed && (old == nil || old.endpoint != endpoint || old.uid != node.UID) {
		t = c.newTarget(node.Name, node.UID, endpoint)
		c.nodes[strings.Clone(node.Name)] = t
	}
	c.mu.Unlock()
	if closed {
		return nil, explain(node.Name, fmt.Errorf("the client is closed: %w", context.Canceled))
	}
	if t != old {
		old.retire()
	}
	return t, nil
}

// target is a node's kubelet. It has a transport of its own, so that its connection can be closed
// alone and its certificate can be verified for the node's name.
type target struct {
	endpoint  endpoint
	uid       types.UID // of the node
	transport *transport

	version atomic.Int64 // version of the credentials of existing connections
	retired atomic.Bool  // connections must not be kept
}

func (c *Client) newTarget(node string, uid types.UID, e endpoint) *target {
	t := &target{endpoint: e, uid: uid, transport: &transport{
		address: e.address(), // proxies in the environment are ignored
		dial:    c.dialer,
		buffers: c.buffers,
	}}
	if !c.config.PlainHTTP {
		p := &peer{credentials: c.credentials, node: strings.Clone(node), uid: uid, host: e.host}
		t.transport.tls = c.credentials.tlsConfig(p)
		if c.config.Pins != nil {
			t.transport.pinned = p
		}
	}
	return t
}

// dialer opens connections. It is net.Dialer.DialContext except in tests.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// newDialer returns a dialer whose connections detect a dead peer within a scrape or two, so that
// requests do not time out on them.
func newDialer(c *Config) dialer {
	d := &net.Dialer{
		Timeout:         c.Timeout,
		ControlContext:  c.checkDial,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return d.DialContext
}

// asTimeout replaces a timeout by an error that reports what took how long. It returns other errors
// unchanged.
func (t *target) asTimeout(err error, start time.Time) error {
	var dns *net.DNSError
	var op *net.OpError
	if !isTimeout(err) || errors.As(err, &dns) {
		return err
	}
	r, missing := reason.Timeout, "complete response from"
	if errors.As(err, &op) && op.Op == "dial" {
		r, missing = reason.ConnectTimeout, "connection to"
	}
	return newScrapeError(r, "no %s the kubelet at %s within %v", missing, t.endpoint.address(),
		time.Since(start).Round(time.Millisecond))
}

// dropStaleConns closes an idle connection that was opened with other credentials.
func (t *target) dropStaleConns(version int) {
	if t.version.Swap(int64(version)) != int64(version) {
		t.transport.closeIdle()
	}
}

// retire closes the connection, now or at the end of the request that uses it.
func (t *target) retire() {
	if t != nil {
		t.retired.Store(true)
		t.transport.closeIdle()
	}
}

// done must be called at the end of a request, when its connection is idle or closed. The connection
// is not kept if another request has seen other credentials meanwhile.
func (t *target) done(version int) {
	if t.retired.Load() || t.version.Load() != int64(version) {
		t.transport.closeIdle()
	}
}
