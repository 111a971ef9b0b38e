package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// fakeExplainer is an Explainer that records its calls.
type fakeExplainer struct{ calls []string }

func (e *fakeExplainer) Explain(_ context.Context, namespace, name string, _ time.Time) (reason.Reason, string) {
	e.calls = append(e.calls, "explain "+namespace+"/"+name)
	return reason.PodPending, "it waits for " + name
}

func (e *fakeExplainer) Summarize(missing []*inventory.Object, _ time.Time) string {
	e.calls = append(e.calls, fmt.Sprintf("summarize %d", len(missing)))
	return fmt.Sprintf("%d that wait", len(missing))
}

// fakeAuthorizer allows everything to the user admin, and records the requests.
type fakeAuthorizer struct {
	authorizer.Authorizer

	mu       sync.Mutex
	requests []string
	err      error
}

func (a *fakeAuthorizer) Authorize(_ context.Context, r authorizer.Attributes) (authorizer.Decision, string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, strings.TrimSpace(fmt.Sprintf("%s %s %s/%s/%s in %q %s",
		r.GetUser().GetName(), r.GetVerb(), r.GetAPIGroup(), r.GetAPIVersion(), r.GetResource(), r.GetNamespace(),
		r.GetName())))
	if r.GetUser().GetName() == "admin" && r.IsResourceRequest() {
		return authorizer.DecisionAllow, "", a.err
	}
	return authorizer.DecisionNoOpinion, "", a.err
}

// explained is a server with an explainer, and its requests come from a user.
type explained struct {
	http.Handler
	explainer  *fakeExplainer
	authorizer *fakeAuthorizer
}

// calls returns what the explainer and the authorizer were called for since the last time.
func (e *explained) calls() (explained, requests []string) {
	explained, requests = e.explainer.calls, e.authorizer.requests
	e.explainer.calls, e.authorizer.requests = nil, nil
	return explained, requests
}

func serveExplained(t *testing.T, name string, change ...func(*Config)) explained {
	e := explained{explainer: &fakeExplainer{}, authorizer: &fakeAuthorizer{}}
	c := newConfig()
	c.ExplainPods, c.ExplainNodes, c.Authorizer, c.Warnings = e.explainer, e.explainer, e.authorizer, true
	for _, f := range change {
		f(&c)
	}
	h := serve(t, c)
	e.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name != "" {
			r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: name}))
		}
		h.ServeHTTP(w, r)
	})
	return e
}

func TestExplainedNotFound(t *testing.T) {
	e := serveExplained(t, "admin")
	for _, test := range []struct{ path, name, kind, access string }{
		{"/namespaces/apps/pods/none", "none", "podmetrics", `admin get /v1/pods in "apps"`},
		{"/namespaces/apps/pods/no-metrics", "no-metrics", "podmetrics", `admin get /v1/pods in "apps"`},
		{"/nodes/none", "none", "nodemetrics", `admin get /v1/nodes in ""`},
		{"/nodes/node-no-metrics", "node-no-metrics", "nodemetrics", `admin get /v1/nodes in ""`},
	} {
		for _, accept := range []string{
			jsonType, tableType, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
			"application/json;as=Table;g=meta.k8s.io;v=v1beta1",
		} {
			for _, prefix := range []string{v1Path, v1beta1Path} {
				got := getAs[metav1.Status](t, e, prefix+test.path, accept, http.StatusNotFound)
				text := "it waits for " + test.name
				want := fmt.Sprintf("%s.metrics.k8s.io %q not found: %s; see %s",
					test.kind, test.name, text, reason.PodPending.URL())
				cause := metav1.StatusCause{Type: "pod-pending", Message: text}
				if got.Reason != metav1.StatusReasonNotFound || got.Message != want || got.Details.Name != test.name ||
					got.Details.Kind != test.kind || !slices.Equal(got.Details.Causes, []metav1.StatusCause{cause}) {
					t.Errorf("%s as %s: got %+v, want message %s and cause %+v", test.path, accept, got, want, cause)
				}
				if _, requests := e.calls(); !slices.Equal(requests, []string{test.access}) {
					t.Errorf("%s: got access requests %q, want %q", test.path, requests, test.access)
				}
			}
		}
	}
}

// TestNotFoundIsNotExplained checks that users who may not get the object learn nothing but that
// there are no metrics, and cause no lookup.
func TestNotFoundIsNotExplained(t *testing.T) {
	deny := func(err error) func(*Config) {
		return func(c *Config) { c.Authorizer.(*fakeAuthorizer).err = err }
	}
	for _, test := range []struct {
		name, user string
		change     func(*Config)
		requests   int
	}{
		{"tenant", "tenant", deny(nil), 1},
		{"failing authorizer", "admin", deny(errors.New("unavailable")), 1},
		{"no user", "", deny(nil), 0},
	} {
		e := serveExplained(t, test.user, test.change)
		const pods, nodes = "podmetrics.metrics.k8s.io", "nodemetrics.metrics.k8s.io"
		const noMetrics = `is running in namespace "apps", but there are no current metrics of it from its node's kubelet`
		for path, want := range map[string]string{
			"/namespaces/apps/pods/none":        pods + ` "none" not found: pod "none" is not running in namespace "apps"`,
			"/namespaces/none/pods/web-1":       pods + ` "web-1" not found: pod "web-1" is not running in namespace "none"`,
			"/namespaces/apps/pods/no-metrics":  pods + ` "no-metrics" not found: pod "no-metrics" ` + noMetrics,
			"/namespaces/apps/pods/predecessor": pods + ` "predecessor" not found: pod "predecessor" ` + noMetrics,
			"/nodes/none": nodes + ` "none" not found: ` +
				`node "none" does not exist or is not selected for scraping`,
			"/nodes/node-no-metrics": nodes + ` "node-no-metrics" not found: ` +
				`there are no current metrics from the kubelet of node "node-no-metrics"`,
		} {
			got := get[metav1.Status](t, e, v1Path+path, http.StatusNotFound)
			explained, requests := e.calls()
			if got.Kind != "Status" || got.Status != metav1.StatusFailure || got.Reason != metav1.StatusReasonNotFound ||
				got.Message != want || len(got.Details.Causes) > 0 || len(explained) > 0 {
				t.Errorf("%s, %s: got %+v after %q, want message %s", test.name, path, got, explained, want)
			}
			if len(requests) != test.requests {
				t.Errorf("%s, %s: got access requests %q, want %d", test.name, path, requests, test.requests)
			}
		}
	}
}

// TestNotFoundInEngine checks that no kubelet is blamed for what an engine does not have.
func TestNotFoundInEngine(t *testing.T) {
	c := newConfig()
	c.FromEngine = true
	h := serve(t, c)
	for path, want := range map[string]string{
		"namespaces/apps/pods/no-metrics": `pod "no-metrics" is running in namespace "apps", ` +
			`but there are no current metrics of it in the engine that kube-vitals reads`,
		"nodes/node-no-metrics": `there are no current metrics of node "node-no-metrics" ` +
			`in the engine that kube-vitals reads`,
	} {
		got := get[metav1.Status](t, h, v1Path+"/"+path, http.StatusNotFound)
		if !strings.HasSuffix(got.Message, "not found: "+want) {
			t.Errorf("%s: got %s, want %s", path, got.Message, want)
		}
	}
}

// TestHitsAreNotExplained checks that a hit costs no access request.
func TestHitsAreNotExplained(t *testing.T) {
	e := serveExplained(t, "admin")
	for path, accept := range map[string]string{
		"/namespaces/apps/pods/web-1": jsonType,
		"/nodes/node-a":               tableType,
		"/namespaces/data/pods":       jsonType,
		"/namespaces/none/pods":       tableType,
	} {
		w := do(e, http.MethodGet, v1Path+path, accept)
		explained, requests := e.calls()
		if w.Code != http.StatusOK || len(explained)+len(requests) > 0 || w.Header()["Warning"] != nil {
			t.Errorf("%s: got %d after %q and %q, warning %q", path, w.Code, explained, requests, w.Header()["Warning"])
		}
	}
}

func TestWarnings(t *testing.T) {
	const apps = `2 of 5 pods have no metrics: 2 that wait`
	e := serveExplained(t, "admin")
	for _, test := range []struct{ path, want string }{
		{"/namespaces/apps/pods", apps},
		{"/pods", `2 of 7 pods have no metrics: 2 that wait`},
		{"/pods?limit=1", `2 of 7 pods have no metrics: 2 that wait`},
		{"/namespaces/apps/pods?limit=3&continue=" + continueToken("apps", "idle"), ""}, // the first page has warned
		{"/namespaces/apps/pods?labelSelector=tier", ""},
		{"/namespaces/apps/pods?labelSelector=!tier", `2 of 2 pods have no metrics: 2 that wait`},
		{"/namespaces/apps/pods?fieldSelector=metadata.name%3Dno-metrics", `1 of 1 pods has no metrics: 1 that wait`},
		{"/nodes", `1 of 3 nodes has no metrics: 1 that wait`},
		{"/nodes?labelSelector=zone%3Db", ""},
	} {
		var want []string
		if test.want != "" {
			want = []string{fmt.Sprintf(`299 - "%s"`, test.want)}
		}
		got := do(e, http.MethodGet, v1Path+test.path, tableType).Header()["Warning"]
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", test.path, got, want)
		}
	}
	const path = v1beta1Path + "/namespaces/apps/pods"
	for name, test := range map[string]struct {
		user, accept string
		off          bool
		requests     int
	}{
		"JSON":              {"admin", jsonType, false, 0},
		"protobuf":          {"admin", protobufType, false, 0},
		"YAML":              {"admin", yamlType, false, 0},
		"metadata":          {"admin", metadataType, false, 0},
		"off":               {"admin", tableType, true, 1}, // for the column of nodes
		"without the right": {"tenant", tableType, false, 1},
	} {
		e := serveExplained(t, test.user, func(c *Config) { c.Warnings = !test.off })
		w := do(e, http.MethodGet, path, test.accept)
		calls, requests := e.calls()
		if w.Code != http.StatusOK || w.Header()["Warning"] != nil || len(calls) > 0 || len(requests) != test.requests {
			t.Errorf("%s: got %d, warning %q after %q and %q", name, w.Code, w.Header()["Warning"], calls, requests)
		}
	}
}
