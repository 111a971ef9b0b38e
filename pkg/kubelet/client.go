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

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Client asks kubelets. Its methods may be called by any number of goroutines at once.
type Client struct {
	config      Config
	credentials *credentials
	resource    *question  // what Fetch asks
	summary     *question  // what FetchSummary asks
	buffers     *sync.Pool // of the transports
	workspaces  sync.Pool  // of *workspace
	connecting  permits    // of those that dial and shake hands
	reading     permits    // of those that read and decode a response, each with a workspace
	dialer      dialer

	mu     sync.Mutex
	nodes  map[string]*target // by the node's name
	closed bool
}

// NewClient gives a client. It reads the files that config names, and reports all that is wrong
// with them and with config.
func NewClient(config Config) (*Client, error) {
	config = config.withDefaults()
	credentials, err := newCredentials(&config)
	if err := errors.Join(config.Validate(), err); err != nil {
		return nil, err
	}
	c := &Client{
		config:      config,
		credentials: credentials,
		resource:    newResourceQuestion(&config),
		summary:     newSummaryQuestion(&config),
		buffers:     newBufferPool(),
		workspaces:  sync.Pool{New: func() any { return newWorkspace(config.Limits) }},
		nodes:       map[string]*target{},
		connecting:  newPermits(),
		reading:     newPermits(),
	}
	c.dialer = newDialer(&c.config)
	return c, nil
}

// Fetch asks the kubelet of a node once, and puts what it says into dst, whose memory it reuses.
// What dst then holds is its own: nothing of it lies in memory that is used for another node. After
// an error, dst holds nothing that may be used.
//
// An error is an *Error; Reason gives its class. The connection is kept for the next time.
func (c *Client) Fetch(ctx context.Context, node *corev1.Node, dst *usage.Scrape) error {
	return c.fetch(ctx, node, c.resource, dst)
}

// FetchSummary is Fetch for what the kubelet of a node has reckoned itself: its summary, which has
// rates besides, and whose times are cut to whole seconds. It is a help that can be done without,
// and nothing worth waiting for: it takes 2 seconds at the most.
//
// A summary is asked for at its usual path, also where a node's annotation names another path for
// its resource metrics.
func (c *Client) FetchSummary(ctx context.Context, node *corev1.Node, dst *usage.Scrape) error {
	return c.fetch(ctx, node, c.summary, dst)
}

func (c *Client) fetch(ctx context.Context, node *corev1.Node, q *question, dst *usage.Scrape) error {
	t, err := c.target(node)
	if err != nil {
		return err
	}
	if err := c.get(ctx, t, q, node.Name, dst); err != nil {
		return q.explain(node.Name, err)
	}
	return nil
}

// get makes one request and decodes the response. The moment of the response is when it began: the
// kubelet takes its samples right before that, and what comes after is the time that they take to
// get here.
func (c *Client) get(ctx context.Context, t *target, q *question, node string, dst *usage.Scrape) error {
	defer t.done()
	header, err := c.headers(ctx, q)
	if err != nil {
		return err
	}
	t.renew(c.credentials.version())
	var connecting, reading *permit
	defer func() { dst.Queued = connecting.queueTime() + reading.queueTime() }()
	if !t.transport.hasIdle() { // the wait for a permit comes before the timeout: the kubelet is not the cause of it
		connecting, err = c.connecting.acquire(ctx)
		defer connecting.release()
		if err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	began := time.Now()
	response, err := t.transport.roundTrip(q.request(ctx, t.endpoint, header), connecting)
	if err != nil {
		return t.timed(err, began)
	}
	arrived := time.Now()
	defer response.Body.Close()
	times := decode.Times{
		Sent: c.config.Clock.At(response.Body.(*exchange).sent),
		At:   c.config.Clock.At(arrived),
		Date: dateOf(response.Header),
	}

	reading, err = c.reading.acquire(ctx)
	defer reading.release()
	if err != nil {
		return t.timed(err, began)
	}
	response.Body = &pausingBody{response.Body, reading}
	w := c.workspaces.Get().(*workspace)
	defer c.release(w)
	if err := c.read(response, q, w); err != nil {
		return t.timed(err, began)
	}
	if err := q.decode(w, node, dst, times); err != nil {
		return err
	}
	detach(dst) // before the workspace, in which the names lie, is another request's
	return nil
}

// headers returns the headers of a request. A new token may have to be fetched for them.
func (c *Client) headers(ctx context.Context, q *question) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	return c.credentials.headers(ctx, q.accept)
}

// dateOf returns the time of the Date header; 0 if there is none, or none that can be.
func dateOf(header http.Header) usage.Time {
	date, err := http.ParseTime(header.Get("Date"))
	if err != nil || !decode.ValidTime(date) {
		return 0
	}
	return usage.At(date)
}

// Forget drops what is kept of a node, and its connections. It is to be called after the node's
// last Fetch has returned.
func (c *Client) Forget(node string) {
	c.mu.Lock()
	t := c.nodes[node]
	delete(c.nodes, node)
	c.mu.Unlock()
	t.retire()
}

// Close drops all connections. Requests that are under way end as they would; new ones fail.
func (c *Client) Close() {
	c.mu.Lock()
	nodes := c.nodes
	c.nodes, c.closed = nil, true
	c.mu.Unlock()
	for _, t := range nodes {
		t.retire()
	}
}

// target gives what is kept of a node, as long as its kubelet is where it was.
func (c *Client) target(node *corev1.Node) (*target, error) {
	endpoint, err := c.config.endpointOf(node)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	old, closed := c.nodes[node.Name], c.closed
	t := old
	if !closed && (old == nil || old.endpoint != endpoint) {
		t = c.newTarget(node.Name, endpoint)
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

// target is what is kept of a node: where its kubelet is, and a transport of its own. That way its
// connections can be closed alone, and the name that its certificate must have is known.
type target struct {
	endpoint  endpoint
	transport *transport

	connecting atomic.Bool  // a connection is being made, or the last attempt to make one failed
	version    atomic.Int64 // of the credentials by which connections were made
	retired    atomic.Bool  // no connection is to be kept
}

func (c *Client) newTarget(node string, e endpoint) *target {
	t := &target{endpoint: e}
	t.transport = &transport{
		address: e.address(), // reached directly, whatever the environment says of proxies
		dial:    t.dial(c.dialer),
		permits: c.connecting,
		buffers: c.buffers,
	}
	if !c.config.PlainHTTP {
		t.transport.tls = c.credentials.config(strings.Clone(node), e.host)
	}
	return t
}

// dialer opens connections. It is a net.Dialer's DialContext, except in tests.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// newDialer returns a dialer whose connections notice a peer that is gone without a word before the
// next scrape or two, so that they do not have to find out by waiting.
func newDialer(c *Config) dialer {
	d := &net.Dialer{
		Timeout:         c.Timeout,
		ControlContext:  c.checkDial,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return d.DialContext
}

// dial returns a dialer that notes whether it connects.
func (t *target) dial(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		t.connecting.Store(true)
		conn, err := dial(ctx, network, address)
		if err == nil {
			t.connecting.Store(false)
		}
		return conn, err
	}
}

// timed says how long was waited and for what, where that is the error.
func (t *target) timed(err error, began time.Time) error {
	var dns *net.DNSError
	var netErr net.Error
	late := errors.Is(err, context.DeadlineExceeded) || errors.As(err, &netErr) && netErr.Timeout()
	if !late || errors.As(err, &dns) {
		return err
	}
	return &timeoutError{t.endpoint.address(), time.Since(began).Round(time.Millisecond), t.connecting.Load()}
}

// renew lets go of connections that were made by another trust than the present one.
func (t *target) renew(version int) {
	if t.version.Swap(int64(version)) != int64(version) {
		t.transport.closeIdle()
	}
}

// retire closes the connections, now or when the request that uses one is done.
func (t *target) retire() {
	if t != nil {
		t.retired.Store(true)
		t.transport.closeIdle()
	}
}

// done is called when a request is done, and its connection is idle or closed.
func (t *target) done() {
	if t.retired.Load() {
		t.transport.closeIdle()
	}
}
