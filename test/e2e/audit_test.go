package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// auditPolicy makes the API server log each request, who sent it and whether it was allowed, and
// SubjectAccessReviews in full.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  resources: [{group: authorization.k8s.io, resources: [subjectaccessreviews]}]
- level: Metadata
`

// startAudit returns the flags that make the API server write an audit log, and the log's path.
func startAudit(t *testing.T) (flags []string, log string) {
	t.Helper()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	must(t, os.WriteFile(policy, []byte(auditPolicy), 0o600))
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log}, log
}

// auditEvent has the fields of an audit.k8s.io/v1 Event that are used here.
type auditEvent struct {
	Verb       string
	RequestURI string
	User       struct{ Username string }
	ObjectRef  *struct{ Namespace, APIGroup, Resource, Subresource, Name string } // nil: not a resource

	ResponseStatus struct{ Code int }
	ResponseObject json.RawMessage
	Annotations    map[string]string
}

// auditRequest is a request of a user to the API server, or to a kubelet that asked the API server
// whether the user may send it.
type auditRequest struct {
	verb      string
	path      string // if the request is not for a resource
	namespace string // empty: none, or all
	group     string // API group
	resource  string // with a subresource after a slash
	name      string // of the object; empty: none, or all
	allowed   bool
	created   bool // the object did not exist before
}

// auditRequests returns all requests of a user in an audit log.
func auditRequests(log, user string) (requests []auditRequest, err error) {
	file, err := os.Open(log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // the API server may be writing the last line
			return requests, nil
		}
		if err != nil {
			return nil, err
		}
		var event auditEvent
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, err
		}
		if event.User.Username == user {
			requests = append(requests, event.request())
		}
		if request, ok := event.kubeletRequest(user); ok {
			requests = append(requests, request)
		}
	}
}

// request returns the request to the API server.
func (e auditEvent) request() auditRequest {
	r := auditRequest{
		verb:    e.Verb,
		path:    e.RequestURI,
		allowed: e.Annotations["authorization.k8s.io/decision"] == "allow",
		created: e.ResponseStatus.Code == http.StatusCreated,
	}
	if object := e.ObjectRef; object != nil {
		r.path, r.namespace, r.group, r.name = "", object.Namespace, object.APIGroup, object.Name
		r.resource = path.Join(object.Resource, object.Subresource)
	}
	return r
}

// kubeletRequest returns the user's request to a kubelet, if the event is the kubelet's
// SubjectAccessReview of it.
func (e auditEvent) kubeletRequest(user string) (auditRequest, bool) {
	if e.ObjectRef == nil || e.ObjectRef.Resource != "subjectaccessreviews" || len(e.ResponseObject) == 0 {
		return auditRequest{}, false
	}
	var review authorizationv1.SubjectAccessReview
	if err := json.Unmarshal(e.ResponseObject, &review); err != nil {
		return auditRequest{}, false
	}
	object := review.Spec.ResourceAttributes
	if review.Spec.User != user || object == nil {
		return auditRequest{}, false
	}
	return auditRequest{
		verb:     object.Verb,
		group:    object.Group,
		resource: path.Join(object.Resource, object.Subresource),
		name:     object.Name,
		allowed:  review.Status.Allowed,
	}, true
}
