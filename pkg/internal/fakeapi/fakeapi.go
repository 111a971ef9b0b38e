// Package fakeapi is an API server in memory for tests.
package fakeapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// API is an API server in memory. It has resource versions and conflicts, merge patches, apply (the
// only verb that creates), watches of one object and the Date header. It works in a synctest bubble.
type API struct {
	mu      sync.Mutex
	objects map[string]map[string]any        // by path
	version int                              // of the last change
	watches map[*watchStream]struct{}        // open
	refuse  func(verb, path string) *Refusal // returns nil or how a request fails; called under mu
	writes  int                              // of clients

	Ahead   time.Duration // of its clock
	Latency time.Duration // the longest, of a request and of its response
}

// Refusal is an error response. The code 0 refuses the connection.
type Refusal struct {
	Code    int
	Reason  string
	Message string
}

// Refuse returns a Refusal.
func Refuse(code int, reason, message string) *Refusal { return &Refusal{code, reason, message} }

var errRefused = errors.New("dial tcp 10.0.0.1:443: connect: connection refused")

// New returns an API server without objects.
func New() *API {
	return &API{
		objects: map[string]map[string]any{}, watches: map[*watchStream]struct{}{}, Latency: 10 * time.Millisecond,
	}
}

// Config returns the configuration of a client.
func (a *API) Config() *rest.Config {
	return &rest.Config{Host: "http://api", Transport: roundTripper(a.roundTrip), QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

// Put writes an object as another client would; nil deletes it.
func (a *API) Put(path string, object map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(path, object)
}

// Patch changes an object by a JSON merge patch as another client would.
func (a *API) Patch(path string, patch map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(path, Merge(Clone(a.objects[path]), patch))
}

// Get returns an object, or nil.
func (a *API) Get(path string) map[string]any {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Clone(a.objects[path])
}

// Written returns the number of writes of clients.
func (a *API) Written() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}

// Version returns the version of the last change.
func (a *API) Version() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.version
}

// RefuseBy sets which requests fail; nil: none.
func (a *API) RefuseBy(refuse func(verb, path string) *Refusal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = refuse
}

// Forbid forbids requests of a verb for a path; "": of all.
func (a *API) Forbid(verb, path string) {
	a.RefuseBy(func(v, p string) *Refusal {
		if verb != "" && verb != v || path != "" && path != p {
			return nil
		}
		return Refuse(403, "Forbidden", "not allowed by RBAC")
	})
}

// EndWatches ends all watches.
func (a *API) EndWatches() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.watches {
		_ = w.writer.Close()
	}
	clear(a.watches)
}

// store stores an object with a new version and notifies the watches.
func (a *API) store(at string, object map[string]any) {
	a.version++
	event := "MODIFIED"
	if object == nil {
		event, object = "DELETED", Clone(a.objects[at])
		delete(a.objects, at)
	} else {
		if a.objects[at] == nil {
			event = "ADDED"
		}
		a.objects[at] = object
	}
	Meta(object)["resourceVersion"] = strconv.Itoa(a.version)
	for w := range a.watches {
		if w.path == at {
			w.send(event, object)
		}
	}
}

func (a *API) roundTrip(r *http.Request) (*http.Response, error) {
	verb, at := verbAndPath(r)
	time.Sleep(rand.N(a.Latency)) //nolint:gosec // it is no secret
	a.mu.Lock()
	var refused *Refusal
	if a.refuse != nil {
		refused = a.refuse(verb, at)
	}
	var response *http.Response
	switch {
	case refused != nil && refused.Code == 0:
		a.mu.Unlock()
		return nil, errRefused
	case refused != nil:
		response = a.respond(refused.Code, status(*refused))
	case verb == "watch":
		response = a.watch(r, at)
	default:
		body, _ := readAll(r.Body)
		response = a.serve(verb, at, r.Header.Get("Content-Type"), body)
	}
	a.mu.Unlock()
	time.Sleep(rand.N(a.Latency)) //nolint:gosec // it is no secret
	return response, nil
}

func readAll(body io.Reader) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	return io.ReadAll(body)
}

func verbAndPath(r *http.Request) (verb, at string) {
	if r.URL.Query().Get("watch") != "" {
		name, _ := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		return "watch", path.Join(r.URL.Path, name)
	}
	return strings.ToLower(r.Method), r.URL.Path
}

// serve handles a request other than a watch.
func (a *API) serve(verb, at, contentType string, body []byte) *http.Response {
	stored := a.objects[at]
	if stored == nil && contentType != "application/apply-patch+yaml" {
		return a.respond(404, status(Refusal{404, "NotFound", at + " not found"}))
	}
	if verb == "get" {
		return a.respond(200, stored)
	}
	var sent map[string]any
	if err := json.Unmarshal(body, &sent); err != nil {
		return a.respond(400, status(Refusal{400, "BadRequest", err.Error()}))
	}
	v, ok := Meta(sent)["resourceVersion"]
	if !ok && contentType != "application/apply-patch+yaml" {
		// Stricter than a real API server.
		return a.respond(400, status(Refusal{400, "BadRequest", "a write without a resource version"}))
	}
	if ok && v != Meta(stored)["resourceVersion"] {
		return a.respond(409, status(Refusal{409, "Conflict", at + " has been modified"}))
	}
	delete(Meta(sent), "resourceVersion")
	if verb == "patch" {
		sent = Merge(Clone(stored), sent)
	}
	if !equal(sent, stored) {
		a.store(at, sent)
	}
	a.writes++
	return a.respond(200, a.objects[at])
}

func (a *API) respond(code int, object any) *http.Response {
	body, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return a.response(code, io.NopCloser(bytes.NewReader(body)))
}

func (a *API) response(code int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Body: body, Header: http.Header{
		"Content-Type": {"application/json"},
		"Date":         {time.Now().Add(a.Ahead).UTC().Format(http.TimeFormat)},
	}}
}

func status(r Refusal) map[string]any {
	return map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure",
		"code": r.Code, "reason": r.Reason, "message": r.Message,
	}
}

// watchStream is the body of the response to a watch.
type watchStream struct {
	path   string
	events chan []byte
	writer *io.PipeWriter
	*io.PipeReader
}

// watch starts a watch. Like a real API server, it sends the current object if the request has no
// resource version, and ends the initial events of a streaming list with a bookmark. It has no
// history: a watch from an older version fails.
func (a *API) watch(r *http.Request, at string) *http.Response {
	query, current := r.URL.Query(), strconv.Itoa(a.version)
	isList, since := query.Get("sendInitialEvents") == "true", query.Get("resourceVersion")
	if !isList && since != "" && since != current {
		return a.respond(410, status(Refusal{410, "Expired", "list again"}))
	}
	reader, writer := io.Pipe()
	w := &watchStream{path: at, events: make(chan []byte, 1000), writer: writer, PipeReader: reader}
	a.watches[w] = struct{}{}
	if object := a.objects[at]; object != nil && (isList || since == "") {
		w.send("ADDED", object)
	}
	if isList { // clients use it only for ConfigMaps
		w.send("BOOKMARK", map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{
			"resourceVersion": current, "annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"}}})
	}
	go func() {
		defer func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			delete(a.watches, w)
		}()
		for {
			select {
			case <-r.Context().Done():
				_ = writer.CloseWithError(r.Context().Err())
				return
			case event := <-w.events:
				if _, err := writer.Write(event); err != nil {
					return
				}
			}
		}
	}()
	return a.response(200, w)
}

func (w *watchStream) send(event string, object map[string]any) {
	text, err := json.Marshal(map[string]any{"type": event, "object": object})
	if err != nil {
		panic(err)
	}
	w.events <- text
}

// Merge applies a JSON merge patch. For these objects, an apply has the same effect.
func Merge(into, patch map[string]any) map[string]any {
	if into == nil {
		into = map[string]any{}
	}
	for key, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(into, key)
		case map[string]any:
			nested, _ := into[key].(map[string]any)
			into[key] = Merge(nested, value)
		default:
			into[key] = value
		}
	}
	return into
}

// Meta returns the metadata of an object.
func Meta(object map[string]any) map[string]any {
	if object["metadata"] == nil {
		object["metadata"] = map[string]any{}
	}
	m, ok := object["metadata"].(map[string]any)
	if !ok {
		panic(fmt.Sprintf("metadata is %T", object["metadata"]))
	}
	return m
}

// equal compares objects without their versions.
func equal(a, b map[string]any) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	a, b = Clone(a), Clone(b)
	delete(Meta(a), "resourceVersion")
	delete(Meta(b), "resourceVersion")
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

// Clone copies an object with its nested maps.
func Clone(object map[string]any) map[string]any {
	if object == nil {
		return nil
	}
	c := maps.Clone(object)
	for key, value := range c {
		if nested, ok := value.(map[string]any); ok {
			c[key] = Clone(nested)
		}
	}
	return c
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
