package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
)

// list is the part of a list that tests read.
type list struct {
	Kind     string
	Metadata struct {
		Continue           string
		RemainingItemCount *int64
		ResourceVersion    string
	}
	Items []struct {
		Metadata struct{ Namespace, Name string }
	}
}

func (l list) names() []string {
	names := []string{}
	for _, item := range l.Items {
		names = append(names, strings.TrimPrefix(item.Metadata.Namespace+"/"+item.Metadata.Name, "/"))
	}
	return names
}

func TestList(t *testing.T) {
	h := serve(t, newConfig())
	empty := do(h, http.MethodGet, v1Path+"/namespaces/none/pods", jsonType).Body.String()
	if !strings.Contains(empty, `"items":[]`) {
		t.Errorf("got %s, want empty items: clients cannot read null", empty)
	}
	for _, test := range []struct {
		path string
		want []string
	}{
		{"/pods", []string{"apps/idle", "apps/web-1", "apps/web-2", "data/db", "data/web-1"}},
		{"/namespaces/apps/pods", []string{"apps/idle", "apps/web-1", "apps/web-2"}},
		{"/namespaces/none/pods", nil},
		{"/pods?labelSelector=app%3Dweb", []string{"apps/web-1", "apps/web-2", "data/web-1"}},
		{"/namespaces/apps/pods?labelSelector=app+in+(web,db),tier", []string{"apps/web-1", "apps/web-2"}},
		{"/pods?labelSelector=app!%3Dweb", []string{"apps/idle", "data/db"}},
		{"/pods?fieldSelector=metadata.name%3Dweb-1", []string{"apps/web-1", "data/web-1"}},
		{"/pods?fieldSelector=metadata.name!%3Dweb-1", []string{"apps/idle", "apps/web-2", "data/db"}},
		{"/pods?fieldSelector=metadata.namespace%3Ddata", []string{"data/db", "data/web-1"}},
		{"/pods?fieldSelector=metadata.namespace%3Ddata,metadata.name%3Dweb-1", []string{"data/web-1"}},
		{"/pods?fieldSelector=metadata.namespace%3Ddata,metadata.name%3Dweb-1,metadata.name!%3Dweb-1", nil},
		{"/namespaces/apps/pods?fieldSelector=metadata.namespace%3Ddata", nil},
		{"/namespaces/apps/pods?fieldSelector=metadata.name%3Dweb-1,metadata.namespace%3Ddata", nil},
		{"/namespaces/apps/pods?fieldSelector=metadata.name%3Dweb-1", []string{"apps/web-1"}},
		{"/namespaces/apps/pods?fieldSelector=metadata.name%3Dno-metrics", nil},
		{"/namespaces/apps/pods?fieldSelector=metadata.name%3Dweb-1&labelSelector=app%3Dother", nil},
		// A page begins after the last object of the previous one, even if that has been deleted.
		{"/pods?continue=" + continueToken("apps", "web-11"), []string{"apps/web-2", "data/db", "data/web-1"}},
		{"/nodes", []string{"node-a", "node-b"}},
		{"/nodes?labelSelector=zone%3Db", []string{"node-b"}},
		{"/nodes?fieldSelector=metadata.name%3Dnode-a", []string{"node-a"}},
	} {
		for _, version := range versions {
			got := get[list](t, h, "/apis/metrics.k8s.io/"+version+test.path, http.StatusOK)
			if !slices.Equal(got.names(), test.want) {
				t.Errorf("%s %s: got %q, want %q", version, test.path, got.names(), test.want)
			}
			if got.Metadata.Continue != "" || got.Metadata.RemainingItemCount != nil {
				t.Errorf("%s: got %+v, want no continue token", test.path, got.Metadata)
			}
		}
	}
}

func TestPages(t *testing.T) {
	h := serve(t, newConfig())
	for _, test := range []struct {
		path  string
		pages [][]string
		count bool // whether the remaining items are counted
	}{
		{"/pods?limit=2", [][]string{{"apps/idle", "apps/web-1"}, {"apps/web-2", "data/db"}, {"data/web-1"}}, true},
		{"/pods?limit=5", [][]string{{"apps/idle", "apps/web-1", "apps/web-2", "data/db", "data/web-1"}}, true},
		{"/namespaces/apps/pods?limit=2", [][]string{{"apps/idle", "apps/web-1"}, {"apps/web-2"}}, true},
		{"/pods?limit=2&labelSelector=app%3Dweb", [][]string{{"apps/web-1", "apps/web-2"}, {"data/web-1"}}, false},
		{"/nodes?limit=1", [][]string{{"node-a"}, {"node-b"}}, true},
	} {
		token := ""
		for i, want := range test.pages {
			got := get[list](t, h, v1Path+test.path+"&continue="+token, http.StatusOK)
			if !slices.Equal(got.names(), want) {
				t.Errorf("%s, page %d: got %q, want %q", test.path, i, got.names(), want)
			}
			token = got.Metadata.Continue
			last := i == len(test.pages)-1
			if (token == "") != last {
				t.Errorf("%s, page %d of %d: got continue %q", test.path, i, len(test.pages), token)
			}
			if counted := got.Metadata.RemainingItemCount != nil; counted != (test.count && !last) {
				t.Errorf("%s, page %d: got remainingItemCount: %t", test.path, i, counted)
			}
		}
	}
}

func TestBadRequests(t *testing.T) {
	h := serve(t, newConfig())
	for path, want := range map[string]string{
		"/pods?fieldSelector=spec.host%3Dnode-a": `"spec.host" is not a known field selector: ` +
			`only "metadata.name", "metadata.namespace", "spec.nodeName"`,
		"/pods?fieldSelector=status.phase%3DRunning": `"status.phase" is not a known field selector: ` +
			`only "metadata.name", `,
		"/nodes?fieldSelector=spec.nodeName%3Dnode-a": `"spec.nodeName" is not a known field selector: ` +
			`only "metadata.name"`,
		"/pods?continue=%21":  "the continue token is not valid",
		"/pods?continue=YWJj": "the continue token is not valid", // "abc"
		"/pods?continue=YS8":  "the continue token is not valid", // "a/"
		"/namespaces/apps/pods?continue=" + continueToken("data", "db"): "the continue token is not valid",
	} {
		got := get[struct{ Reason, Message string }](t, h, v1Path+path, http.StatusBadRequest)
		if got.Reason != "BadRequest" || !strings.Contains(got.Message, want) {
			t.Errorf("%s: got %+v, want %q", path, got, want)
		}
	}
}

// bound changes a Config such that each pod is bound to the node "node-" with its name.
func bound(c *Config) {
	cluster := newCluster()
	for _, o := range cluster.pods {
		o.Node = "node-" + o.Name
	}
	c.Warnings, c.View = false, cluster.config().View
}

// TestPodsOfNode checks that pods can be selected by their node, as kubectl before 1.37 does, and that only users who
// may get the pods can learn their nodes from it.
func TestPodsOfNode(t *testing.T) {
	const selector = "fieldSelector=spec.nodeName"
	admin := serveExplained(t, "admin", bound)
	for path, want := range map[string][]string{
		"/pods?" + selector + "%3Dnode-web-1":                                      {"apps/web-1", "data/web-1"},
		"/namespaces/data/pods?" + selector + "%3Dnode-web-1":                      {"data/web-1"},
		"/namespaces/data/pods?" + selector + "!%3Dnode-web-1":                     {"data/db"},
		"/pods?" + selector + "%3Dnode-web-1,metadata.namespace%3Dapps":            {"apps/web-1"},
		"/namespaces/apps/pods?" + selector + "%3Dnone":                            {},
		"/namespaces/apps/pods?" + selector + "%3D":                                {},
		"/namespaces/apps/pods?" + selector + "%3Dnode-idle,metadata.name%3Didle":  {"apps/idle"},
		"/namespaces/apps/pods?" + selector + "%3Dnode-idle,metadata.name%3Dweb-1": {},
		"/pods?" + selector + "%3Dnode-web-1&labelSelector=tier":                   {"apps/web-1"},
		"/pods?" + selector + "%3Dnode-web-1&limit=1":                              {"apps/web-1"},
	} {
		for _, version := range versions {
			got := get[list](t, admin, "/apis/metrics.k8s.io/"+version+path, http.StatusOK)
			if !slices.Equal(got.names(), want) {
				t.Errorf("%s %s: got %q, want %q", version, path, got.names(), want)
			}
		}
	}
	if w := do(admin, http.MethodGet, v1Path+"/pods?"+selector+"%3Dnode-idle", tableType); w.Code != http.StatusOK {
		t.Errorf("as a table: got status %d: %s", w.Code, w.Body)
	}
	admin.calls()
	tenant := serveExplained(t, "tenant", bound)
	busy := serveExplained(t, "admin", bound, func(c *Config) {
		c.Authorizer.(*fakeAuthorizer).err = errors.New("unavailable")
	})
	for _, path := range []string{"/namespaces/data/pods", "/pods"} {
		for _, operator := range []string{"%3D", "!%3D"} {
			for _, query := range []string{"node-db", "none", ""} {
				query = v1Path + path + "?" + selector + operator + query
				got := get[metav1.Status](t, tenant, query, http.StatusForbidden)
				if want := `"spec.nodeName" needs permission to get pods`; !strings.Contains(got.Message, want) {
					t.Errorf("%s: got %s, want %s", query, got.Message, want)
				}
				if got := get[metav1.Status](t, busy, query, http.StatusInternalServerError); got.Reason == "Forbidden" {
					t.Errorf("%s without an access review: got %+v", query, got)
				}
			}
		}
	}
	_, requests := tenant.calls()
	if want := `tenant get /v1/pods in "data"`; requests[0] != want {
		t.Errorf("got access request %s, want %s", requests[0], want)
	}
}

func TestOnlyRunningPodsAreServed(t *testing.T) {
	c := newCluster()
	for name, phase := range map[string]inventory.Phase{
		"failed": inventory.PodFailed, "pending": inventory.PodPending, "running": inventory.PodRunning,
		"succeeded": inventory.PodSucceeded, "unknown": inventory.PhaseUnknown,
	} {
		o := object("phases", name)
		o.Phase = phase
		c.pods = append(c.pods, o)
		c.podUsage["phases/"+name] = c.podUsage["apps/web-1"]
	}
	h := serve(t, c.config())
	const path = v1Path + "/namespaces/phases/pods"
	page := get[list](t, h, path+"?limit=1", http.StatusOK)
	if got := page.names(); !slices.Equal(got, []string{"phases/running"}) || page.Metadata.Continue != "" {
		t.Errorf("got page %+v, want the only running pod", page)
	}
	for _, name := range []string{"failed", "pending", "succeeded", "unknown"} {
		if got := get[list](t, h, path+"?fieldSelector=metadata.name%3D"+name, http.StatusOK).names(); len(got) > 0 {
			t.Errorf("got list by name %q, want none", got)
		}
		got := get[struct{ Message string }](t, h, path+"/"+name, http.StatusNotFound)
		if want := fmt.Sprintf("pod %q is not running", name); !strings.Contains(got.Message, want) {
			t.Errorf("got message %q, want %q", got.Message, want)
		}
	}
}

func TestSelectorSizeIsLimited(t *testing.T) {
	const most = 1000
	h := serve(t, newConfig())
	// many joins n parts, with their number for %d.
	many := func(part, separator string, n int) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = fmt.Sprintf(part, i)
		}
		return strings.Join(parts, separator)
	}
	for _, test := range []struct {
		parameter, selector string
		size                int // that the error must have; 0: the selector is allowed
	}{
		{"labelSelector", many("!k%d", ",", most), 0},
		{"labelSelector", many("!k%d", ",", most+1), most + 1},
		{"labelSelector", many("k%d=v", ",", most+1), most + 1},
		{"labelSelector", "app in (" + many("v%d", ",", most) + ")", 0},
		{"labelSelector", "app in (" + many("v%d", ",", most) + "),tier", most + 1},
		{"labelSelector", "app notin (" + many("v%d", ",", most+1) + ")", most + 1},
		{"fieldSelector", many("metadata.name!=n%d", ",", most), 0},
		{"fieldSelector", many("metadata.name!=n%d", ",", most+1), most + 1},
	} {
		path := v1Path + "/pods?" + url.Values{test.parameter: {test.selector}}.Encode()
		name := test.selector[:20]
		if test.size == 0 {
			if w := do(h, http.MethodGet, path, jsonType); w.Code != http.StatusOK {
				t.Errorf("%s: got %d: %s", name, w.Code, w.Body)
			}
			continue
		}
		got := get[struct{ Reason, Message string }](t, h, path, http.StatusBadRequest)
		if got.Reason != "BadRequest" || !strings.Contains(got.Message, fmt.Sprint(test.size)) ||
			!strings.Contains(got.Message, fmt.Sprint(most)) {
			t.Errorf("%s: got %+v, want size %d and maximum %d", name, got, test.size, most)
		}
	}
}
