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

// api is an API server in memory, with the few objects and verbs that an identity needs. It keeps
// to the real one's rules where they matter: versions and the conflicts that they lead to, what a
// merge patch and an apply change, that only an apply makes an object, and the Date of its answers.
// It works in a synctest bubble.
type api struct {
	mu      sync.Mutex
	objects map[string]map[string]any        // path → object; a deleted one is not there
	version int                              // of the last change
	watches map[*watchStream]struct{}        //
	refuse  func(verb, path string) *refusal // nil, or why a request fails; called under mu
	ahead   time.Duration                    // by how much its clock is ahead
	writes  int                              // that it has taken
	slow    time.Duration                    // how long a request may take to arrive, and its answer to come back
}

// refusal is an answer other than success.
type refusal struct {
	code    int
	reason  string
	message string
}

var errAway = errors.New("dial tcp 10.0.0.1:443: connect: connection refused")

func newAPI() *api {
	return &api{objects: map[string]map[string]any{}, watches: map[*watchStream]struct{}{}, slow: 10 * time.Millisecond}
}

// config is how a client reaches it.
func (a *api) config() *rest.Config {
	return &rest.Config{Host: "http://api", Transport: roundTripper(a.roundTrip), QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

const (
	secretPath     = "/api/v1/namespaces/kube-system/secrets/serving"
	apiServicePath = "/apis/apiregistration.k8s.io/v1/apiservices/"
)

// put changes an object as somebody else would; nil deletes it.
func (a *api) put(path string, object map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(path, object)
}

// change lets f change an object as somebody else would.
func (a *api) change(path string, f func(object map[string]any)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	object := clone(a.objects[path])
	f(object)
	a.store(path, object)
}

// get gives an object, or nil.
func (a *api) get(path string) map[string]any {
	a.mu.Lock()
	defer a.mu.Unlock()
	return clone(a.objects[path])
}

// written is how many writes it has taken from clients.
func (a *api) written() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}

// versionNow is the version of the last change.
func (a *api) versionNow() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.version
}

// refuseBy sets what is refused.
func (a *api) refuseBy(refuse func(verb, path string) *refusal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = refuse
}

// store keeps an object with a new version, and tells the watches.
func (a *api) store(at string, object map[string]any) {
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

func (a *api) roundTrip(r *http.Request) (*http.Response, error) {
	verb, at := verbAndPath(r)
	time.Sleep(rand.N(a.slow))
	a.mu.Lock()
	var refused *refusal
	if a.refuse != nil {
		refused = a.refuse(verb, at)
	}
	var response *http.Response
	switch {
	case refused != nil && refused.code == 0:
		a.mu.Unlock()
		return nil, errAway
	case refused != nil:
		response = a.answer(refused.code, status(*refused))
	case verb == "watch":
		response = a.watch(r, at)
	default:
		body, _ := readAll(r.Body)
		response = a.serve(verb, at, r.Header.Get("Content-Type"), body)
	}
	a.mu.Unlock()
	time.Sleep(rand.N(a.slow))
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

// serve carries out a request.
func (a *api) serve(verb, at, contentType string, body []byte) *http.Response {
	there := a.objects[at]
	if there == nil && contentType != "application/apply-patch+yaml" {
		return a.answer(404, status(refusal{404, "NotFound", at + " not found"}))
	}
	if verb == "get" {
		return a.answer(200, there)
	}
	var sent map[string]any
	if err := json.Unmarshal(body, &sent); err != nil {
		return a.answer(400, status(refusal{400, "BadRequest", err.Error()}))
	}
	v, ok := meta(sent)["resourceVersion"]
	if !ok && contentType != "application/apply-patch+yaml" {
		return a.answer(400, status(refusal{400, "BadRequest", "a write without a condition"})) // stricter than the real one
	}
	if ok && v != meta(there)["resourceVersion"] {
		return a.answer(409, status(refusal{409, "Conflict", at + " has been modified"}))
	}
	delete(meta(sent), "resourceVersion")
	if verb == "patch" {
		sent = merge(clone(there), sent)
	}
	if !equal(sent, there) {
		a.store(at, sent)
	}
	a.writes++
	return a.answer(200, a.objects[at])
}

func (a *api) answer(code int, object any) *http.Response {
	body, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return a.response(code, io.NopCloser(bytes.NewReader(body)))
}

func (a *api) response(code int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Body: body, Header: http.Header{
		"Content-Type": {"application/json"},
		"Date":         {time.Now().Add(a.ahead).UTC().Format(http.TimeFormat)},
	}}
}

func status(r refusal) map[string]any {
	return map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": r.code, "reason": r.reason, "message": r.message,
	}
}

// watchStream is the body of the answer to a watch.
type watchStream struct {
	path   string
	events chan []byte
	*io.PipeReader
}

// watch begins with the object as it is, like the real one when it is given no version to begin
// with.
func (a *api) watch(r *http.Request, at string) *http.Response {
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

// merge is a JSON merge patch; for the objects of these tests an apply does the same.
func merge(into, patch map[string]any) map[string]any {
	if into == nil {
		into = map[string]any{}
	}
	for key, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(into, key)
		case map[string]any:
			below, _ := into[key].(map[string]any)
			into[key] = merge(below, value)
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

// equal compares all but the versions.
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

// clone copies as deeply as the tests change objects.
func clone(object map[string]any) map[string]any {
	if object == nil {
		return nil
	}
	c := maps.Clone(object)
	for key, value := range c {
		if below, ok := value.(map[string]any); ok {
			c[key] = clone(below)
		}
	}
	return c
}
