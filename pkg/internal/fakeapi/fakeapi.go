// Package fakeapi is an API server in memory for tests.
package fakeapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
type Refusal = metav1.Status

// Refuse returns a Refusal.
func Refuse(code int32, reason metav1.StatusReason, message string) *Refusal {
	return &Refusal{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: code, Reason: reason, Message: message,
	}
}

var errRefused = errors.New("dial tcp 10.0.0.1:443: connect: connection refused")

// New returns an API server without objects.
func New() *API {
	return &API{
		objects: map[string]map[string]any{}, watches: map[*watchStream]struct{}{}, Latency: 10 * time.Millisecond,
	}
}

// Config returns the configuration of a client.
func (a *API) Config() *rest.Config {
	return &rest.Config{Host: "http://api", Transport: a, QPS: -1,
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
	a.store(path, Merge(runtime.DeepCopyJSON(a.objects[path]), patch))
}

// Get returns an object, or nil.
func (a *API) Get(path string) map[string]any {
	a.mu.Lock()
	defer a.mu.Unlock()
	return runtime.DeepCopyJSON(a.objects[path])
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
		event, object = "DELETED", runtime.DeepCopyJSON(a.objects[at])
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

// RoundTrip implements http.RoundTripper.
func (a *API) RoundTrip(r *http.Request) (*http.Response, error) {
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
		response = a.refused(refused)
	case verb == "watch":
		response = a.watch(r, at)
	default:
		response = a.serve(verb, at, r)
	}
	a.mu.Unlock()
	time.Sleep(rand.N(a.Latency)) //nolint:gosec // it is no secret
	return response, nil
}

func verbAndPath(r *http.Request) (verb, at string) {
	if r.URL.Query().Get("watch") != "" {
		name, _ := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		return "watch", path.Join(r.URL.Path, name)
	}
	return strings.ToLower(r.Method), r.URL.Path
}

// serve handles a request other than a watch.
func (a *API) serve(verb, at string, r *http.Request) *http.Response {
	stored, isApply := a.objects[at], r.Header.Get("Content-Type") == "application/apply-patch+yaml"
	if stored == nil && !isApply {
		return a.refused(Refuse(404, metav1.StatusReasonNotFound, at+" not found"))
	}
	if verb == "get" {
		return a.respond(200, stored)
	}
	var sent map[string]any
	if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
		return a.refused(Refuse(400, metav1.StatusReasonBadRequest, err.Error()))
	}
	v, ok := Meta(sent)["resourceVersion"]
	if !ok && !isApply { // stricter than a real API server
		return a.refused(Refuse(400, metav1.StatusReasonBadRequest, "a write without a resource version"))
	}
	if ok && v != Meta(stored)["resourceVersion"] {
		return a.refused(Refuse(409, metav1.StatusReasonConflict, at+" has been modified"))
	}
	if verb == "patch" {
		sent = Merge(runtime.DeepCopyJSON(stored), sent)
	}
	if !bytes.Equal(encode(sent), encode(stored)) { // they have the same version
		a.store(at, sent)
	}
	a.writes++
	return a.respond(200, a.objects[at])
}

func (a *API) refused(r *Refusal) *http.Response { return a.respond(int(r.Code), r) }

func (a *API) respond(code int, object any) *http.Response {
	return a.response(code, io.NopCloser(bytes.NewReader(encode(object))))
}

func encode(object any) []byte {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return text
}

func (a *API) response(code int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Body: body, Header: http.Header{
		"Content-Type": {"application/json"},
		"Date":         {time.Now().Add(a.Ahead).UTC().Format(http.TimeFormat)},
	}}
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
		return a.refused(Refuse(410, metav1.StatusReasonExpired, "list again"))
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
	w.events <- encode(map[string]any{"type": event, "object": object})
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
	m, _ := object["metadata"].(map[string]any)
	if m == nil {
		m = map[string]any{}
		object["metadata"] = m
	}
	return m
}
