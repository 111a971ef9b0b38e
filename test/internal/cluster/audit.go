package cluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// auditPolicy lets the API server write down who asked for what and whether that was allowed, and
// of questions what others may do, the question and the answer.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  resources: [{group: authorization.k8s.io, resources: [subjectaccessreviews]}]
- level: Metadata
`

// auditEvent is what matters here of an audit.k8s.io/v1 Event.
type auditEvent struct {
	Verb       string
	RequestURI string
	User       struct{ Username string }
	ObjectRef  *struct{ Namespace, APIGroup, Resource, Subresource, Name string } // nil: not a resource

	ResponseStatus struct{ Code int }
	ResponseObject json.RawMessage
	Annotations    map[string]string
}

// decision is the annotation that says whether the request was allowed.
const decision = "authorization.k8s.io/decision"

// startAudit lets the API server that is to be started write down what it is asked.
func (c *Cluster) startAudit() error {
	policy := c.File("audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return fmt.Errorf("the API server cannot be told what to write down: %w", err)
	}
	c.apiServer.args = append(c.apiServer.args, "--audit-policy-file="+policy, "--audit-log-path="+c.File("audit.log"))
	return nil
}

// A Request is something that a user asked the API server for, or that the user asked a kubelet
// for, which then asked the API server whether that is allowed.
type Request struct {
	Verb         string
	Path         string // where the request is not for a resource
	Namespace    string // empty: for none, or for all
	Group        string // API group
	Resource     string // with a subresource after a slash
	Name         string // of the object; empty: none, or all
	Allowed      bool
	MadeAnObject bool // whether the object was not there before
}

// Requests are all that a user has asked for in a cluster that was started with Config.Audit.
func (c *Cluster) Requests(user string) (requests []Request, err error) {
	file, err := os.Open(c.File("audit.log"))
	if err != nil {
		return nil, fmt.Errorf("there is no audit log: %w", err)
	}
	defer file.Close() //nolint:errcheck // it is only read
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // and if there is half a line, the API server is at it
			return requests, nil
		}
		if err != nil {
			return nil, fmt.Errorf("the audit log cannot be read: %w", err)
		}
		var event auditEvent
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("the audit log has a line that cannot be read: %w", err)
		}
		if event.User.Username == user {
			requests = append(requests, asked(event))
		}
		if request, ok := askedOfKubelet(event, user); ok {
			requests = append(requests, request)
		}
	}
}

// asked is what a user asked the API server for.
func asked(event auditEvent) Request {
	r := Request{
		Verb:         event.Verb,
		Path:         event.RequestURI,
		Allowed:      event.Annotations[decision] == "allow",
		MadeAnObject: event.ResponseStatus.Code == http.StatusCreated,
	}
	if object := event.ObjectRef; object != nil {
		r.Path, r.Namespace, r.Group, r.Name = "", object.Namespace, object.APIGroup, object.Name
		r.Resource = path.Join(object.Resource, object.Subresource)
	}
	return r
}

// askedOfKubelet is what a user asked a kubelet for, if the event is the kubelet's question whether
// that is allowed.
func askedOfKubelet(event auditEvent, user string) (Request, bool) {
	if event.ObjectRef == nil || event.ObjectRef.Resource != "subjectaccessreviews" || len(event.ResponseObject) == 0 {
		return Request{}, false
	}
	var review authorizationv1.SubjectAccessReview
	if err := json.Unmarshal(event.ResponseObject, &review); err != nil {
		return Request{}, false
	}
	object := review.Spec.ResourceAttributes
	if review.Spec.User != user || object == nil {
		return Request{}, false
	}
	return Request{
		Verb:     object.Verb,
		Group:    object.Group,
		Resource: path.Join(object.Resource, object.Subresource),
		Name:     object.Name,
		Allowed:  review.Status.Allowed,
	}, true
}
