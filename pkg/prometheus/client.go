package prometheus

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	promconfig "github.com/prometheus/common/config"

	"github.com/kube-vitals/kube-vitals/pkg/internal/httpbody"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// client sends queries to an engine. Calls of query may overlap, but not with reload.
//
// It sends the requests itself, because github.com/prometheus/client_golang/api reads a whole
// response into memory without a limit and then decodes it into a second copy. For how to connect,
// it uses the package of Prometheus itself.
type client struct {
	url       *url.URL
	file      string // of the configuration; "": none
	userAgent string
	window    time.Duration // of range selectors
	interval  time.Duration
	reloaded  func(file string, err error)

	content []byte // of the file, as it is used
	failed  []byte // content that cannot be used
	problem string // why the file could not be read
	config  *File
	http    *http.Client
	get     atomic.Bool // the engine, or a proxy in front of it, rejects POST
}

// newClient reads the configuration file for the first time. It must be valid.
func newClient(c Config, window time.Duration) (*client, error) {
	u, err := ParseURL(c.URL)
	if err != nil {
		return nil, fmt.Errorf("the URL of the engine: %w", err)
	}
	client := &client{
		url: u, file: c.File, userAgent: c.UserAgent, window: window, interval: c.Interval, reloaded: c.Reloaded,
	}
	if c.File != "" {
		if client.content, err = os.ReadFile(c.File); err != nil {
			return nil, err
		}
	}
	if err := client.use(client.content); err != nil {
		return nil, fmt.Errorf("%s: %w", c.File, err)
	}
	return client, nil
}

// use replaces the configuration.
func (c *client) use(content []byte) error {
	config, err := parseFileAt(c.file, content)
	if err != nil {
		return err
	}
	// The files that the configuration names are read again for each request.
	h, err := promconfig.NewClientFromConfig(config.HTTP, "kube-vitals", promconfig.WithUserAgent(c.userAgent))
	if err != nil {
		return err
	}
	if config.HTTP.FollowRedirects {
		h.CheckRedirect = checkRedirect
	}
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
	if config.Timeout == 0 {
		config.Timeout = min(DefaultTimeout, c.interval)
	}
	c.config, c.http, c.content = config, h, content
	c.get.Store(false)
	return nil
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

// reload reads the configuration file again if it has changed. If it cannot be used, its previous
// content stays in use. Each change is reported once.
func (c *client) reload() {
	if c.file == "" {
		return
	}
	content, err := os.ReadFile(c.file)
	if err != nil {
		if c.problem != err.Error() {
			c.problem = err.Error()
			c.reloaded(c.file, err)
		}
		return
	}
	c.problem = ""
	if bytes.Equal(content, c.content) {
		c.failed = nil
		return
	}
	if c.failed != nil && bytes.Equal(content, c.failed) {
		return
	}
	c.failed = nil
	if err := c.use(content); err != nil {
		c.failed = content
		c.reloaded(c.file, err)
		return
	}
	c.reloaded(c.file, nil)
}

// query sends the query of a kind, and calls emit for each series of the response. It returns nil if
// there is no such query. The series of a response that fails later have been emitted, too.
func (c *client) query(ctx context.Context, k kind, emit func(*series)) (*response, error) {
	text := c.config.query(k, c.window)
	if text == "" {
		return nil, nil
	}
	timeout := c.config.Timeout
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	form := url.Values{
		"query":   {text},
		"timeout": {strconv.FormatInt(timeout.Milliseconds(), 10) + "ms"},
		"nocache": {"1"}, // VictoriaMetrics: without it, the end of the range is 30 s earlier
	}
	get := c.get.Load()
	r, err := c.send(ctx, form, get)
	if err == nil && !get && (r.StatusCode == http.StatusMethodNotAllowed || r.StatusCode == http.StatusNotImplemented) {
		_ = r.Body.Close()
		c.get.Store(true)
		r, err = c.send(ctx, form, true)
	}
	var decoded *response
	if err == nil {
		decoded, err = c.read(r, emit)
		_ = r.Body.Close()
	}
	if err != nil {
		return nil, explain(err, k, c.url.Host)
	}
	return decoded, nil
}

// send sends a query by GET, or else by POST, because a proxy may limit the length of URLs.
func (c *client) send(ctx context.Context, form url.Values, get bool) (*http.Response, error) {
	u := *c.url
	u.Path += "/api/v1/query"
	method, body := http.MethodPost, form.Encode()
	if get {
		method, u.RawQuery, body = http.MethodGet, body, ""
	}
	request, err := http.NewRequestWithContext(ctx, method, u.String(), strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if !get {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	// A query may be sent again: this allows net/http to do that if the engine has closed the
	// connection. The header is not sent.
	request.Header["Idempotency-Key"] = nil
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Accept-Encoding", "gzip") // explicitly, so that the limits apply to both sizes
	return c.http.Do(request)
}

// read decodes a response.
func (c *client) read(r *http.Response, emit func(*series)) (*response, error) {
	body, err := httpbody.Open(r, c.config.MaxResponseBytes, new(gzip.Reader))
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	isJSON := media == "application/json" || media == "application/stream+json" // VictoriaMetrics, of raw samples
	switch {
	case r.StatusCode != http.StatusOK && err != nil:
		return nil, statusError(r.StatusCode, false, http.NoBody)
	case r.StatusCode != http.StatusOK:
		return nil, statusError(r.StatusCode, isJSON, body)
	case err != nil:
		return nil, err
	}
	if !isJSON {
		return nil, reason.Errorf(reason.BadFormat, "content type %.100q", r.Header.Get("Content-Type"))
	}
	decoded, err := decodeResponse(body, emit)
	switch {
	case err != nil:
		return nil, err
	case decoded.status != "success":
		return nil, reason.Errorf(reason.BadFormat, "status %q: %s: %q", decoded.status, decoded.errorType, decoded.message)
	}
	return decoded, nil
}

// statusError returns the error of a response with a status other than 200. Engines explain it in
// JSON.
func statusError(code int, isJSON bool, body io.Reader) error {
	text := fmt.Sprintf("status %d %s", code, http.StatusText(code))
	body = io.LimitReader(body, maxErrorBytes)
	if isJSON {
		if decoded, err := decodeResponse(body, func(*series) {}); err == nil && decoded.message != "" {
			text += fmt.Sprintf(": %s: %q", decoded.errorType, decoded.message)
		}
	} else {
		start := make([]byte, maxWarning)
		n, _ := io.ReadFull(body, start) // helpful, but not required
		if start = bytes.ToValidUTF8(bytes.TrimSpace(start[:n]), nil); len(start) > 0 {
			text += fmt.Sprintf(": %q", start)
		}
	}
	return reason.Errorf(reason.OfStatus(code), "%s", text)
}
