// Package sim simulates what kube-vitals talks to, for tests: this package the API server, kubelettest the kubelets.
// Package cases plays the rules of the numbers.
package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// API is an API server in memory, for objects of any kind. It has lists with selectors and in pages, watches with their
// history, lists by watches, resource versions and conflicts, create, merge patches, apply and delete, access and token
// reviews, protobuf, lists of metadata, and the Date header. It is an http.RoundTripper, which works in a synctest
// bubble, and an http.Handler.
type API struct {
	// Objects are the objects by path. A value may be a typed object, its JSON as a map, or a string, which is the body.
	// A list at the path of a collection replaces the objects in it. While requests are possible, use Put.
	Objects map[string]any
	// Refusals are how requests for a path fail. See Objects.
	Refusals map[string]Refusal

	ClockOffset time.Duration // how far its clock is ahead
	Latency     time.Duration // the longest, of a request and of its response

	// Authenticate returns the user of a token, or nil. Without it, no token is valid.
	Authenticate func(token string) *authenticationv1.UserInfo
	// Authorize reports whether a user has a permission. Without it, every user has each one. The context is that of
	// the request.
	Authorize func(context.Context, *authorizationv1.SubjectAccessReviewSpec) bool

	mu       sync.Mutex
	version  int                              // of the last change
	history  []change                         // oldest first
	changed  chan struct{}                    // closed by the next change
	ended    chan struct{}                    // closed by EndWatches
	refuse   func(verb, path string) *Refusal // returns nil or how a request fails; called under mu
	requests map[string]int                   // number of requests by path, also of those that fail
	writes   int                              // of clients
}

// change is a change of one object.
type change struct {
	path, event string
	object      map[string]any
}

// Refusal is an error response. The code 0 refuses the connection.
type Refusal = metav1.Status

// Refuse returns a Refusal.
func Refuse(code int32, reason metav1.StatusReason, message string) *Refusal {
	return &Refusal{Code: code, Reason: reason, Message: message}
}

var errRefused = errors.New("dial tcp 10.0.0.1:443: connect: connection refused")

// NewAPI returns an API server without objects.
func NewAPI() *API {
	return &API{
		Objects: map[string]any{}, Refusals: map[string]Refusal{}, Latency: 10 * time.Millisecond, requests: map[string]int{},
		changed: make(chan struct{}), ended: make(chan struct{}),
	}
}

// Config returns the configuration of a client that reads and writes JSON.
func (a *API) Config() *rest.Config {
	return &rest.Config{Host: "http://api", Transport: a, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}}
}

// Put writes an object as another client would; nil deletes it.
func (a *API) Put(path string, object any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(path, toMap(path, object))
}

// Patch changes an object by a JSON merge patch as another client would.
func (a *API) Patch(path string, patch map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(path, Merge(a.get(path), patch))
}

// Get returns an object, or nil.
func (a *API) Get(path string) map[string]any {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.get(path)
}

// List returns the objects of a collection, in the order of their paths.
func (a *API) List(path string) []map[string]any {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, _ := parse(path)
	return a.selected(c, nil)
}

// get returns a copy of an object, or nil.
func (a *API) get(path string) map[string]any { return toMap(path, a.Objects[path]) }

// Written returns the number of writes of clients.
func (a *API) Written() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}

// Requested returns how often paths were requested, also by requests that failed.
func (a *API) Requested(paths ...string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, path := range paths {
		n += a.requests[path]
	}
	return n
}

// Version returns the version of the last change.
func (a *API) Version() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.version
}

// RefuseBy sets which requests fail; nil: none. The path of a watch of one object has its name.
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
	close(a.ended)
	a.ended = make(chan struct{})
}

// store stores an object with a new version, and notifies the watches; nil deletes it.
func (a *API) store(at string, object map[string]any) {
	old := a.get(at)
	event := "MODIFIED"
	switch {
	case object == nil && old == nil:
		return
	case object == nil:
		event, object = "DELETED", old
	case old == nil:
		event = "ADDED"
	}
	a.version++
	Meta(object)["resourceVersion"] = strconv.Itoa(a.version)
	if a.Objects[at] = object; event == "DELETED" {
		delete(a.Objects, at)
	}
	a.history = append(a.history, change{at, event, runtime.DeepCopyJSON(object)})
	close(a.changed)
	a.changed = make(chan struct{})
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	response, err := a.RoundTrip(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer response.Body.Close()
	for key, values := range response.Header {
		w.Header()[key] = values
	}
	w.WriteHeader(response.StatusCode)
	for buffer := make([]byte, 1<<16); ; {
		_ = http.NewResponseController(w).Flush()
		n, err := response.Body.Read(buffer)
		if _, writeErr := w.Write(buffer[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

// RoundTrip implements http.RoundTripper.
func (a *API) RoundTrip(r *http.Request) (*http.Response, error) {
	verb, at := verbAndPath(r)
	a.mu.Lock()
	a.requests[r.URL.Path]++
	a.mu.Unlock()
	if err := a.delay(r.Context()); err != nil {
		return nil, err
	}
	a.mu.Lock()
	var refused *Refusal
	if a.refuse != nil {
		refused = a.refuse(verb, at)
	}
	if r, ok := a.Refusals[at]; ok && refused == nil {
		refused = &r
	}
	a.mu.Unlock()
	if refused != nil && refused.Code == 0 {
		return nil, errRefused
	}
	response, err := a.respond(r, verb, refused)
	if err != nil {
		return nil, err
	}
	if err := a.delay(r.Context()); err != nil {
		_ = response.Body.Close() // ends a watch
		return nil, err
	}
	return response, nil
}

// delay waits up to the latency. It returns an error if the request has ended.
func (a *API) delay(ctx context.Context) error {
	if d := rand.N(a.Latency + 1); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

func verbAndPath(r *http.Request) (verb, at string) {
	if r.URL.Query().Get("watch") != "" {
		if name, ok := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="); ok {
			return "watch", path.Join(r.URL.Path, name)
		}
		return "watch", r.URL.Path
	}
	return strings.ToLower(r.Method), r.URL.Path
}

// respond returns the response to a request.
func (a *API) respond(r *http.Request, verb string, refused *Refusal) (*http.Response, error) {
	if refused != nil {
		return a.refused(refused), nil
	}
	sent, err := decode(r)
	if err != nil {
		return a.refused(Refuse(400, metav1.StatusReasonBadRequest, err.Error())), nil
	}
	if response, err := a.review(r, sent); response != nil || err != nil {
		return response, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	stored, exists := a.Objects[r.URL.Path]
	collection, isCollection := parse(r.URL.Path)
	isCollection = isCollection && collection.name == ""
	isApply := r.Header.Get("Content-Type") == string(types.ApplyYAMLPatchType)
	switch {
	case verb == "watch":
		return a.watch(r, collection), nil
	case verb == "post" && isCollection:
		return a.create(r, sent), nil
	case verb == "get" && !exists && isCollection:
		return a.list(r, collection), nil
	case !exists && !isApply:
		return a.refused(Refuse(404, metav1.StatusReasonNotFound, r.URL.Path+" not found")), nil
	case verb == "get", verb == "post": // the latter of a subresource
		return a.ok(r, stored), nil
	case verb == "delete":
		a.writes++
		a.store(r.URL.Path, nil)
		return a.ok(r, map[string]any{"kind": "Status", "apiVersion": "v1", "status": metav1.StatusSuccess}), nil
	default:
		return a.update(r, verb, sent), nil
	}
}

// decode returns the object in the body of a request, or nil if there is none.
func decode(r *http.Request) (sent map[string]any, err error) {
	if r.Body == nil || r.Method == http.MethodGet || r.Method == http.MethodDelete {
		return nil, nil
	}
	body, err := io.ReadAll(r.Body)
	if err == nil && r.Header.Get("Content-Type") == runtime.ContentTypeProtobuf {
		body, err = toJSON(body)
	}
	if err != nil {
		return nil, err
	}
	return sent, json.Unmarshal(body, &sent)
}

// create creates an object in a collection.
func (a *API) create(r *http.Request, sent map[string]any) *http.Response {
	if t, _ := parse(r.URL.Path); Meta(sent)["namespace"] != nil && Meta(sent)["namespace"] != t.namespace {
		return a.refused(Refuse(400, metav1.StatusReasonBadRequest, "the object is of another namespace than the request"))
	}
	name, _ := Meta(sent)["name"].(string)
	if name == "" {
		name = fmt.Sprint(Meta(sent)["generateName"], a.version)
		Meta(sent)["name"] = name
	}
	at := path.Join(r.URL.Path, name)
	if a.Objects[at] != nil {
		return a.refused(Refuse(409, metav1.StatusReasonAlreadyExists, at+" already exists"))
	}
	a.writes++
	a.store(at, sent)
	return a.ok(r, a.Objects[at])
}

// update updates, patches or applies an object.
func (a *API) update(r *http.Request, verb string, sent map[string]any) *http.Response {
	at := r.URL.Path
	stored, kind := a.get(at), r.Header.Get("Content-Type")
	v, ok := Meta(sent)["resourceVersion"]
	// Stricter than a real API server: other writes must be of the version that was read.
	isBlind := kind == string(types.ApplyYAMLPatchType) || kind == string(types.StrategicMergePatchType)
	if !ok && !isBlind {
		return a.refused(Refuse(400, metav1.StatusReasonBadRequest, "a write without a resource version"))
	}
	if ok && v != Meta(stored)["resourceVersion"] {
		return a.refused(Refuse(409, metav1.StatusReasonConflict, at+" has been modified"))
	}
	if verb == "patch" {
		sent = Merge(a.get(at), sent)
	}
	if !bytes.Equal(encode(sent), encode(stored)) { // they have the same version
		a.store(at, sent)
	}
	a.writes++
	return a.ok(r, a.Objects[at])
}

// list returns the objects of a collection that match the selectors of the request, in pages if it has a limit.
func (a *API) list(r *http.Request, c target) *http.Response {
	query := r.URL.Query()
	first, _ := strconv.Atoi(query.Get("continue"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	all := a.selected(c, query)
	items := append([]map[string]any{}, all[min(first, len(all)):]...)
	metadata := map[string]any{"resourceVersion": strconv.Itoa(a.version)}
	if limit > 0 && len(items) > limit {
		items, metadata["continue"] = items[:limit], strconv.Itoa(first+limit)
	}
	return a.ok(r, map[string]any{
		"apiVersion": apiVersion(c), "kind": kindOf(c) + "List", "metadata": metadata, "items": items})
}

// refused returns an error response.
func (a *API) refused(r *Refusal) *http.Response {
	status := *r
	status.TypeMeta, status.Status = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, metav1.StatusFailure
	return a.response(int(r.Code), runtime.ContentTypeJSON, io.NopCloser(bytes.NewReader(encode(status))))
}

// ok returns a response with an object, in protobuf if the client accepts that and the kind has it.
func (a *API) ok(r *http.Request, object any) *http.Response {
	if text, isText := object.(string); isText {
		return a.response(200, "text/plain", io.NopCloser(strings.NewReader(text)))
	}
	m := toMap(r.URL.Path, object)
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
		return a.response(200, runtime.ContentTypeJSON, io.NopCloser(bytes.NewReader(encode(onlyMetadata(m)))))
	}
	content, kind := encode(m), runtime.ContentTypeJSON
	if strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		if binary, err := toProtobuf(content); err == nil {
			content, kind = binary, runtime.ContentTypeProtobuf
		}
	}
	return a.response(200, kind, io.NopCloser(bytes.NewReader(content)))
}

func (a *API) response(code int, kind string, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Body: body, Header: http.Header{
		"Content-Type": {kind},
		"Date":         {time.Now().Add(a.ClockOffset).UTC().Format(http.TimeFormat)},
	}}
}

func encode(object any) []byte {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return text
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
	if m == nil && object != nil {
		m = map[string]any{}
		object["metadata"] = m
	}
	return m
}
