package engine

import (
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	promconfig "github.com/prometheus/common/config"

	"github.com/kube-vitals/kube-vitals/pkg/engine/decode"
	"github.com/kube-vitals/kube-vitals/pkg/internal/printable"
	"github.com/kube-vitals/kube-vitals/pkg/internal/reload"
	"github.com/kube-vitals/kube-vitals/pkg/internal/untrusted"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

const (
	maxErrorBytes = 64 << 10 // of a response with an error in JSON that are read

	// defaultTokenTimeout bounds a connection to an OAuth2 server. A refresh waits for four at most: both
	// parallel queries request a token, in the two ways that servers differ in. Alive must not fail meanwhile.
	defaultTokenTimeout = 10 * time.Second
)

// client sends queries to an engine. Calls of query may overlap, but not with reload.
//
// It connects by the package of Prometheus, but does not use github.com/prometheus/client_golang/api, which
// reads a whole response into memory without a limit and then decodes it into a second copy.
type client struct {
	Config
	url    *url.URL
	window time.Duration // of range selectors

	tokenTimeout time.Duration

	file    *reload.Value[*connection]
	problem error // why the file cannot be used; its previous content stays in use
	*connection
}

// connection is what follows from the content of the configuration file.
type connection struct {
	settings *File
	http     *http.Client
}

// newClient reads the configuration file for the first time. It must be valid.
func newClient(c Config, window time.Duration) (*client, error) {
	u, err := ParseURL(c.URL)
	if err != nil {
		return nil, fmt.Errorf("the URL of the engine: %w", err)
	}
	client := &client{Config: c, url: u, window: window, tokenTimeout: defaultTokenTimeout}
	if c.File == "" {
		client.connection, err = client.parse([][]byte{nil})
		client.file = reload.Fixed(client.connection)
		return client, err
	}
	client.file, err = reload.New([]string{c.File}, client.parse,
		func(file string, err error) { client.Reloaded(file, err) })
	if err != nil {
		return nil, err
	}
	client.connection, _ = client.file.Get()
	return client, nil
}

// parse parses the content of the configuration file.
func (c *client) parse(contents [][]byte) (*connection, error) {
	settings, err := ParseFile(contents[0], filepath.Dir(c.File))
	if err != nil {
		return nil, err
	}
	// The files that the configuration names are read again for each request. HTTP/2 would keep using a dead
	// connection for 75 s; HTTP/1.1 closes it with the first query that times out.
	h, err := promconfig.NewClientFromConfig(settings.HTTP, "kube-vitals", promconfig.WithUserAgent(c.UserAgent),
		promconfig.WithDialContextFunc(c.dial), promconfig.WithHTTP2Disabled())
	if err != nil {
		return nil, err
	}
	if settings.HTTP.FollowRedirects {
		h.CheckRedirect = checkRedirect
	}
	settings.Timeout = cmp.Or(settings.Timeout, min(defaultTimeout, c.Interval))
	return &connection{settings, h}, nil
}

// isQuery is the key of a value that the contexts of queries have.
type isQuery struct{}

// dial connects to a server. The contexts of queries have a timeout. Other requests are those of package
// oauth2 for tokens, without one: their connections have a deadline.
func (c *client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if ctx.Value(isQuery{}) != nil {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	dialer := net.Dialer{Deadline: time.Now().Add(c.tokenTimeout)}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(dialer.Deadline)
}

// reload reads the configuration file again.
func (c *client) reload() {
	c.problem = c.file.Reload()
	if current, _ := c.file.Get(); current != c.connection {
		c.http.CloseIdleConnections()
		c.connection = current
	}
}

// checkRedirect allows redirects to the same host and port only: credentials are for the engine, and
// another port is another server.
func checkRedirect(r *http.Request, via []*http.Request) error {
	first := via[0].URL
	if r.URL.Host != first.Host || first.Scheme == "https" && r.URL.Scheme != first.Scheme || len(via) >= 5 {
		return reason.Errorf(reason.BadFormat, "the engine redirects to %s://%s", r.URL.Scheme, r.URL.Host)
	}
	return nil
}

// query sends the query of a kind, and calls emit for each series of the response. Without such a query,
// the response is empty. The series of a response that fails later have been emitted, too.
func (c *client) query(ctx context.Context, k kind, emit func(*decode.Series)) (*decode.Response, error) {
	text := c.settings.query(k, c.window)
	if text == "" {
		return &decode.Response{}, nil
	}
	timeout := c.settings.Timeout
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, isQuery{}, true), timeout)
	defer cancel()
	u := c.url.JoinPath("api/v1/query")
	u.RawQuery = url.Values{
		"query":   {text},
		"timeout": {strconv.FormatInt(timeout.Milliseconds(), 10) + "ms"},
		"nocache": {"1"}, // VictoriaMetrics: without it, the end of the range is 30 s earlier
	}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Accept-Encoding", "gzip") // explicitly, so that the limits apply to both sizes
	decoded, err := c.read(request, emit)
	if err != nil {
		// OAuth 2.0 puts whole responses into its errors, so the text is cut.
		return nil, reason.Flatten(err, "query %v at %s: %.1000s", k, c.url.Host, printable.Text(withoutURL(err).Error()))
	}
	return decoded, nil
}

// read sends a request and decodes the response.
func (c *client) read(request *http.Request, emit func(*decode.Series)) (*decode.Response, error) {
	r, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK && isJSON(r.Header.Get("Content-Type")) {
		if err := c.explain(r); err != nil {
			return nil, err
		}
		r.Body = http.NoBody // explain has read a part of it
	}
	body, err := untrusted.Open(r, isJSON, c.settings.MaxResponseBytes, new(gzip.Reader))
	if err != nil {
		return nil, err
	}
	decoded, err := decode.Decode(body, emit)
	if err == nil && decoded.Status != "success" {
		err = reason.Errorf(reason.BadFormat, "status %q: %q: %q", decoded.Status, decoded.ErrorType, decoded.Message)
	}
	return decoded, err
}

func isJSON(contentType string) bool {
	media, _, _ := mime.ParseMediaType(contentType)
	return media == "application/json" || media == "application/stream+json" // VictoriaMetrics, of raw samples
}

// explain returns the error that engines explain in a response in JSON with a status other than 200, or nil.
func (c *client) explain(r *http.Response) error {
	body, err := untrusted.Body(r, c.settings.MaxResponseBytes, new(gzip.Reader))
	if err == nil {
		decoded, err := decode.Decode(io.LimitReader(body, maxErrorBytes), func(*decode.Series) {})
		if err == nil && decoded.Message != "" {
			return reason.Errorf(reason.OfStatus(r.StatusCode), "status %d %s: %q: %q",
				r.StatusCode, http.StatusText(r.StatusCode), decoded.ErrorType, decoded.Message)
		}
	}
	return nil // the status is the error
}

// withoutURL removes the URLs that libraries put in front of the cause of an error: those of the configuration
// may have passwords.
func withoutURL(err error) error {
	for request := (*url.Error)(nil); errors.As(err, &request); {
		err = request.Err
	}
	return err
}
