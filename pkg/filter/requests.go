package filter

import (
	"bytes"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

const (
	// maxHeaders is the maximum size of the headers of a request, and of the names of its trailers: the names, the
	// values, and headerOverhead for each, in bytes.
	maxHeaders     = 64 << 10
	headerOverhead = 32
	// maxTarget and maxListTarget are the maximum sizes of the path and the query, in bytes. Only the lists of
	// metrics.k8s.io take selectors.
	maxTarget     = 8 << 10
	maxListTarget = 64 << 10
	// maxElements is the maximum number of commas in a request, and of parameters in its query: requirements and
	// values of selectors, and media types.
	maxElements = 2000
	// maxCertificates is the maximum number of certificates of a client: its own, and those up to the root.
	// maxCertificateBytes is their size, and maxExponent the maximum exponent of RSA keys in them, which is the usual
	// one. They are verified for each request, and named in errors, before it is known who the client is.
	maxCertificates, maxCertificateBytes, maxExponent = 4, 16 << 10, 1<<16 + 1
	// maxBody is the maximum size of a body, which only /debug/flags/v takes, in bytes.
	maxBody = 64
	// maxDiscarded is how much of a body is read, in bytes, as net/http does.
	maxDiscarded = 256 << 10
	// requestMemory is what a request without headers takes, in bytes, and headerMemory what each byte of its
	// headers and target does (TestRequestMemory).
	requestMemory, headerMemory = 40 << 10, 6
)

// WithRequestLimits returns a handler that rejects what no client needs before the library parses, logs or counts
// anything: long requests, other paths than those that are served, methods that write, and impersonation. So no text of
// a client without credentials gets into logs, labels of metrics or caches. The paths are those that are listed at the
// first request, and those below metrics.k8s.io, /openapi/v3 and /debug.
//
// Requests count as their connection does, see Listener. Only the front proxy does not count, whose certificate is
// verified as in authentication: all users share its connections, and another filter counts their requests. Connections
// of others end with the first response, and so do those of long requests: what net/http keeps of one request, or has
// read of the next one, is not known.
//
// Once shutdown is closed, each connection ends with its next response. The API server's aggregation layer keeps its
// connections, and would send requests here until the library rejects them. This way it reconnects to another replica
// during --shutdown-delay-duration, while this one still serves. The library has no such option: it keeps connections
// during the delay.
func WithRequestLimits(
	next http.Handler, config *genericapiserver.Config, listed func() []string, shutdown <-chan struct{},
) http.Handler {
	return &requestLimits{
		next: next, isFrontProxy: frontProxy(config), listed: sync.OnceValue(listed), shutdown: shutdown,
	}
}

type requestLimits struct {
	next         http.Handler
	isFrontProxy authenticator.Request
	listed       func() []string
	shutdown     <-chan struct{}
}

// frontProxy returns an authenticator of requests with the front proxy's certificate.
func frontProxy(config *genericapiserver.Config) authenticator.Request {
	is := func(ok bool) authenticator.RequestFunc {
		return func(*http.Request) (*authenticator.Response, bool, error) { return nil, ok, nil }
	}
	headers := config.Authentication.RequestHeaderConfig
	if headers == nil { // disabled by flags
		return is(false)
	}
	return x509request.NewDynamicCAVerifier(headers.CAContentProvider.VerifyOptions, is(true), headers.AllowedClientNames)
}

// ServeHTTP implements http.Handler.
func (l *requestLimits) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	headers, conn := headerSize(r), connOf(r)
	if conn != nil {
		if !conn.trusted.Load() && isVerifiable(r) {
			if _, ok, _ := l.isFrontProxy.AuthenticateRequest(r); ok {
				conn.trust()
			}
		}
		memory := requestMemory + headerMemory*int64(headers+len(r.Method)+len(r.RequestURI))
		end, isOpen := conn.begin(memory, certificateSize(r))
		defer end()
		if !isOpen {
			return
		}
	}
	r.Trailer = nil // its names refer to the text of the header
	err := l.check(r, headers)
	// All other limits are of sizes.
	isLong := err != nil && !slices.Contains(
		[]int32{http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed}, err.ErrStatus.Code)
	isCounted := conn != nil && !conn.trusted.Load()
	if isLong || isCounted || l.isDraining() {
		w.Header().Set("Connection", "close")
	}
	if r.ContentLength != 0 {
		r = withReadBody(w, r, isLong)
	}
	if err != nil {
		reject(w, err)
	} else {
		removeTimeout(r)
		removeCompression(r)
		l.next.ServeHTTP(w, r)
	}
	if isCounted { // until the response is sent, it and the request take memory
		_ = http.NewResponseController(w).Flush()
	}
}

// isDraining reports whether the server shuts down.
func (l *requestLimits) isDraining() bool {
	select {
	case <-l.shutdown:
		return true
	default:
		return false
	}
}

func headerSize(r *http.Request) int {
	size := len(r.Host)
	for name := range r.Trailer { // net/http has removed them from the header
		size += len(name) + headerOverhead
	}
	for name, values := range r.Header {
		for _, value := range values {
			size += len(name) + len(value) + headerOverhead
		}
	}
	return size
}

// certificateSize returns the size of the client's certificates in bytes.
func certificateSize(r *http.Request) (n int64) {
	if r.TLS != nil {
		for _, certificate := range r.TLS.PeerCertificates {
			n += int64(len(certificate.Raw))
		}
	}
	return n
}

// isVerifiable reports whether the client's certificates can be verified in a short time.
func isVerifiable(r *http.Request) bool {
	if r.TLS == nil {
		return true
	}
	return len(r.TLS.PeerCertificates) <= maxCertificates && certificateSize(r) <= maxCertificateBytes &&
		!slices.ContainsFunc(r.TLS.PeerCertificates, func(c *x509.Certificate) bool {
			key, isRSA := c.PublicKey.(*rsa.PublicKey)
			return isRSA && key.E > maxExponent
		})
}

var (
	lists   = regexp.MustCompile(`^/apis/metrics\.k8s\.io/v1(beta1)?/(nodes|(namespaces/[^/]+/)?pods)/?$`)
	objects = regexp.MustCompile(`^/apis/metrics\.k8s\.io/v1(beta1)?/(nodes|namespaces/[^/]+/pods)/[^/]+/?$`)
)

// check returns why a request is rejected.
func (l *requestLimits) check(r *http.Request, headers int) *apierrors.StatusError {
	path, longest := r.URL.Path, maxTarget
	if lists.MatchString(path) {
		longest = maxListTarget
	}
	var status int
	var why string
	switch {
	case !isVerifiable(r):
		status, why = http.StatusBadRequest, fmt.Sprintf("the client certificates are more than %d or have more than %d "+
			"bytes, or one has an RSA key with an exponent above %d", maxCertificates, maxCertificateBytes, maxExponent)
	case headers > maxHeaders:
		status, why = http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("the headers have more than %d bytes", maxHeaders)
	case len(r.RequestURI) > longest:
		status, why = http.StatusRequestURITooLong, fmt.Sprintf("the path and the query have more than %d bytes", longest)
	case elements(r) > maxElements:
		status, why = http.StatusBadRequest,
			fmt.Sprintf("the selectors, media types and parameters are more than %d", maxElements)
	case !utf8.ValidString(path) || !l.isServed(path):
		status, why = http.StatusNotFound, "the path is not served"
	case !isFlag(r) && r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions:
		status, why = http.StatusMethodNotAllowed, "the API is read-only"
	case isFlag(r) && (r.ContentLength < 0 || r.ContentLength > maxBody):
		status, why = http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", maxBody)
	case impersonates(r):
		status = http.StatusForbidden
		why = "kube-vitals does not impersonate: send requests with Impersonate headers to the API server"
	default:
		return nil
	}
	err := apierrors.NewGenericServerResponse(status, r.Method, schema.GroupResource{}, "", why, 0, true)
	err.ErrStatus.Message, err.ErrStatus.Details = why, nil
	return err
}

// elements returns the number of commas and ampersands. They separate what the library parses before authentication.
func elements(r *http.Request) (n int) {
	for _, separator := range []string{",", "%2C", "%2c", "&"} {
		n += strings.Count(r.URL.RawQuery, separator)
	}
	for _, values := range r.Header {
		for _, value := range values {
			n += strings.Count(value, ",")
		}
	}
	return n
}

// impersonates reports whether a request has Impersonate headers. The API server resolves these before it sends a
// request here. The library would need an access review for each user that a client names, before it limits what the
// client has in flight.
func impersonates(r *http.Request) bool {
	for name := range r.Header { // in the canonical form, as the library reads them
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// isServed reports whether a request of the path can have another status than 404.
func (l *requestLimits) isServed(path string) bool {
	if lists.MatchString(path) || objects.MatchString(path) {
		return true
	}
	if name, isSpec := strings.CutPrefix(path, "/openapi/v3/"); isSpec {
		path = "/" + name
	}
	if len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	if name, isProfile := strings.CutPrefix(path, "/debug/pprof/"); isProfile {
		return pprof.Lookup(name) != nil || slices.Contains([]string{"cmdline", "profile", "symbol", "trace"}, name)
	}
	return slices.Contains([]string{"/", "/debug/pprof", "/debug/flags", "/debug/flags/v"}, path) ||
		slices.Contains(l.listed(), path)
}

// isFlag reports whether a request has a body that is read.
func isFlag(r *http.Request) bool {
	return r.Method == http.MethodPut && r.URL.Path == "/debug/flags/v"
}

// withReadBody reads the body of a request, and returns a copy of the request with the begin of the body, which only
// /debug/flags/v does not ignore. A response before the end of the body can get lost on the way through the API server,
// which forwards both at the same time. net/http would wait for the end without a limit. A long request does not wait.
// The Body of r stays that of net/http, which closes the connection if there is more of it.
func withReadBody(w http.ResponseWriter, r *http.Request, isLong bool) *http.Request {
	controller, kept, wait := http.NewResponseController(w), bytes.Buffer{}, MaxWriteTime
	if isLong {
		wait = 0
	}
	_ = controller.SetReadDeadline(time.Now().Add(wait))
	if r.ContentLength <= maxDiscarded {
		_, err := io.CopyN(&kept, r.Body, maxBody)
		if err != nil && !errors.Is(err, io.EOF) {
			kept.Reset() // a part of a number is another number
		}
		_, _ = io.CopyN(io.Discard, r.Body, maxDiscarded-maxBody)
	}
	_ = r.Body.Close()
	_ = controller.SetReadDeadline(time.Time{})
	r = r.WithContext(r.Context())
	r.Body = io.NopCloser(&kept)
	return r
}

// reject sends an error.
func reject(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}

// removeTimeout removes the parameter timeout, which the API does not have: the library would end the request after
// it, before authentication, and clients have timeouts of their own.
func removeTimeout(r *http.Request) {
	if query := r.URL.Query(); query.Has("timeout") {
		query.Del("timeout")
		r.URL.RawQuery = query.Encode()
	}
}

// removeCompression makes the library send its own documents as they are: compressing one takes 0.8 MB until the client
// has read it, which only responses of metrics.k8s.io count.
func removeCompression(r *http.Request) {
	if r.URL.Path == "/metrics" || strings.HasPrefix(r.URL.Path, "/openapi/") {
		r.Header.Del("Accept-Encoding")
	}
}
