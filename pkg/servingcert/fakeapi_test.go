package servingcert

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

	"k8s.io/client-go/rest"
)

// fakeAPI is an API server in memory with the objects and verbs that a Manager needs. It has
// resource versions and conflicts, merge patches, apply (the only verb that creates), watches and
// the Date header. It works in a synctest bubble.
type fakeAPI struct {
	mu      sync.Mutex
	objects map[string]map[string]any        // by path
	version int                              // of the last change
	watches map[*watchStream]struct{}        // open
	refuse  func(verb, path string) *refusal // returns nil or how a request fails; called under mu
	ahead   time.Duration                    // of its clock
	writes  int                              // of clients
	latency time.Duration                    // the longest, of a request and of its response
}

// refusal is an error response. The code 0 refuses the connection.
type refusal struct {
	code    int
	reason  string
	message string
}

var errRefused = errors.New("dial tcp 10.0.0.1:443: connect: connection refused")

func newAPI() *fakeAPI {
	return &fakeAPI{
		objects: map[string]map[string]any{}, watches: map[*watchStream]struct{}{}, latency: 10 * time.Millisecond,
	}
}

// config returns the configuration of a client.
func (a *fakeAPI) config() *rest.Config {
	return &rest.Config{Host: "http://api", Transport: roundTripper(a.roundTrip), QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

const (
	secretPath     = "/api/v1/namespaces/kube-system/secrets/serving"
	apiServicePath = "/apis/apiregistration.k8s.io/v1/apiservices/"
)

// put writes an object as another client would; nil deletes it.
func (a *fakeAPI) put(path string, object map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(path, object)
}

// change lets f change an object as another client would.
func (a *fakeAPI) change(path string, f func(object map[string]any)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	object := clone(a.objects[path])
	f(object)
	a.store(path, object)
}

// get returns an object, or nil.
func (a *fakeAPI) get(path string) map[string]any {
	a.mu.Lock()
	defer a.mu.Unlock()
	return clone(a.objects[path])
}

// written returns the number of writes of clients.
func (a *fakeAPI) written() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}

// versionNow returns the version of the last change.
func (a *fakeAPI) versionNow() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.version
}

// refuseBy sets which requests fail; nil: none.
func (a *fakeAPI) refuseBy(refuse func(verb, path string) *refusal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = refuse
}

// store stores an object with a new version and notifies the watches.
func (a *fakeAPI) store(at string, object map[string]any) {
	a.version++
	event := "MODIFIED"
	if object == nil {
		event, object = "DELETED", clone(a.objects[at])
		delete(a.objects, at)
	} else {
		if a.objects[at] == nil {
			event = "ADDED"
		}
		a.objects[at] = object
	}
	meta(object)["resourceVersion"] = strconv.Itoa(a.version)
	for w := range a.watches {
		if w.path == at {
			w.send(event, object)
		}
	}
}

func (a *fakeAPI) roundTrip(r *http.Request) (*http.Response, error) {
	verb, at := verbAndPath(r)
	time.Sleep(rand.N(a.latency))
	a.mu.Lock()
	var refused *refusal
	if a.refuse != nil {
		refused = a.refuse(verb, at)
	}
	var response *http.Response
	switch {
	case refused != nil && refused.code == 0:
		a.mu.Unlock()
		return nil, errRefused
	case refused != nil:
		response = a.respond(refused.code, status(*refused))
	case verb == "watch":
		response = a.watch(r, at)
	default:
		body, _ := readAll(r.Body)
		response = a.serve(verb, at, r.Header.Get("Content-Type"), body)
	}
	a.mu.Unlock()
	time.Sleep(rand.N(a.latency))
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
func (a *fakeAPI) serve(verb, at, contentType string, body []byte) *http.Response {
	stored := a.objects[at]
	if stored == nil && contentType != "application/apply-patch+yaml" {
		return a.respond(404, status(refusal{404, "NotFound", at + " not found"}))
	}
	if verb == "get" {
		return a.respond(200, stored)
	}
	var sent map[string]any
	if err := json.Unmarshal(body, &sent); err != nil {
		return a.respond(400, status(refusal{400, "BadRequest", err.Error()}))
	}
	v, ok := meta(sent)["resourceVersion"]
	if !ok && contentType != "application/apply-patch+yaml" {
		// Stricter than a real API server.
		return a.respond(400, status(refusal{400, "BadRequest", "a write without a resource version"}))
	}
	if ok && v != meta(stored)["resourceVersion"] {
		return a.respond(409, status(refusal{409, "Conflict", at + " has been modified"}))
	}
	delete(meta(sent), "resourceVersion")
	if verb == "patch" {
		sent = merge(clone(stored), sent)
	}
	if !equal(sent, stored) {
		a.store(at, sent)
	}
	a.writes++
	return a.respond(200, a.objects[at])
}

func (a *fakeAPI) respond(code int, object any) *http.Response {
	body, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return a.response(code, io.NopCloser(bytes.NewReader(body)))
}

func (a *fakeAPI) response(code int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Body: body, Header: http.Header{
		"Content-Type": {"application/json"},
		"Date":         {time.Now().Add(a.ahead).UTC().Format(http.TimeFormat)},
	}}
}

func status(r refusal) map[string]any {
	return map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure",
		"code": r.code, "reason": r.reason, "message": r.message,
	}
}

// watchStream is the body of the response to a watch.
type watchStream struct {
	path   string
	events chan []byte
	*io.PipeReader
}

// watch starts a watch with the current object, like a real API server for a request without a
// resource version.
func (a *fakeAPI) watch(r *http.Request, at string) *http.Response {
	reader, writer := io.Pipe()
	w := &watchStream{path: at, events: make(chan []byte, 1000), PipeReader: reader}
	a.watches[w] = struct{}{}
	if object := a.objects[at]; object != nil {
		w.send("ADDED", object)
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

// merge applies a JSON merge patch. For these objects, an apply has the same effect.
func merge(into, patch map[string]any) map[string]any {
	if into == nil {
		into = map[string]any{}
	}
	for key, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(into, key)
		case map[string]any:
			nested, _ := into[key].(map[string]any)
			into[key] = merge(nested, value)
		default:
			into[key] = value
		}
	}
	return into
}

func meta(object map[string]any) map[string]any {
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
	a, b = clone(a), clone(b)
	delete(meta(a), "resourceVersion")
	delete(meta(b), "resourceVersion")
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

// clone copies an object with its nested maps.
func clone(object map[string]any) map[string]any {
	if object == nil {
		return nil
	}
	c := maps.Clone(object)
	for key, value := range c {
		if nested, ok := value.(map[string]any); ok {
			c[key] = clone(nested)
		}
	}
	return c
}
