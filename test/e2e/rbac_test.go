package e2e

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/server"
)

// TestRights lets a server live through all that it does, in a cluster that writes down every
// request, and compares what it asked for with what the chart allows: neither may have anything
// that the other lacks.
func TestRights(t *testing.T) {
	t.Parallel()
	o := &owner{Cluster: nodeCluster(t, cluster.Config{Binaries: shared.Binary(""), Progress: io.Discard, Audit: true})}
	s, err := server.Start(t.Context(), o.Cluster, server.Config{
		Binary: shared.KubeVitals, Chart: shared.Chart,
		Args: []string{fmt.Sprintf("--tls-lifetime=%s", ownLifetime), fmt.Sprintf("--tls-settle=%s", ownSettle)},
	})
	if err != nil {
		t.Fatal(err)
	}
	o.askAsClients(t, s)
	awaitTop(t, o.Cluster)
	o.awaitWrites(t, "update", 2) // the first certificate, and one that took its place
	o.compareRights(t)

	// The one option by which the chart allows more.
	if err := s.Upgrade(t.Context(), shared.Chart, "tls.kubeVitals.recreateSecret=true"); err != nil {
		t.Fatal(err)
	}
	o.kubectl(t, "delete", "secret", ownSecret, "--namespace", server.Namespace)
	o.awaitWrites(t, "patch", 1)
	o.compareRights(t)
}

// askAsClients asks the server what makes it ask the API server who that is, and what they may do.
func (o *owner) askAsClients(t *testing.T, s *server.Server) {
	t.Helper()
	stranger := newReader(t, s)
	stranger.token = "made-up"
	nobody := newReader(t, s).with(o.CA.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: "nobody"})))
	for _, path := range []string{nodesPath, "/apis/metrics.k8s.io/v1/pods", "/metrics"} {
		if status, body, err := stranger.get(t.Context(), path); err != nil || status != http.StatusUnauthorized {
			t.Errorf("%s with a token that is made up: status %d, %v, want 401:\n%s", path, status, err, body)
		}
		if status, body, err := nobody.get(t.Context(), path); err != nil || status != http.StatusForbidden {
			t.Errorf("%s without rights: status %d, %v, want 403:\n%s", path, status, err, body)
		}
	}
}

// awaitWrites waits until the server has written its Secret by the verb so many times.
func (o *owner) awaitWrites(t *testing.T, verb string, times int) {
	t.Helper()
	o.eventually(t, fmt.Sprintf("%d times %s of the Secret", times, verb), func(context.Context) error {
		requests, err := o.Requests(account)
		if err != nil {
			return err
		}
		n := 0
		for _, r := range requests {
			if r.Verb == verb && r.Name == ownSecret && r.Allowed {
				n++
			}
		}
		if n < times {
			return fmt.Errorf("it was %d times", n)
		}
		return nil
	})
}

// The ServiceAccounts of the chart: that of the pods, and the one whose tokens kubelets see.
const (
	accountPrefix  = "system:serviceaccount:" + server.Namespace + ":"
	account        = accountPrefix + server.Release
	kubeletAccount = accountPrefix + server.Release + "-kubelet"
)

// compareRights waits until both ServiceAccounts have used all of their rights, and fails if they
// requested anything else.
func (o *owner) compareRights(t *testing.T) {
	t.Helper()
	rights := o.compareRightsOf(t, account)
	for elsewhere := range spare {
		if !slices.ContainsFunc(rights, func(r right) bool { return r.words() == elsewhere }) {
			t.Errorf("the chart does not allow what the server needs elsewhere: %s", elsewhere)
		}
	}
	o.compareRightsOf(t, kubeletAccount)
}

func (o *owner) compareRightsOf(t *testing.T, account string) []right {
	t.Helper()
	rights := o.rightsOf(t, strings.TrimPrefix(account, accountPrefix))
	if len(rights) == 0 {
		t.Fatalf("%s has no rights", account)
	}
	var requests []cluster.Request
	o.eventually(t, "every right of "+account+" to be used", func(context.Context) (err error) {
		if requests, err = o.Requests(account); err != nil {
			return err
		}
		return joined(unused(rights, requests))
	})
	for _, r := range beyond(rights, requests) {
		t.Errorf("%s: %s", account, r)
	}

	// Would a right too many, or one too few, be found?
	many := append(slices.Clone(rights), right{role: "more", ours: true, resource: "pods", verb: "delete"})
	if len(unused(many, requests)) == 0 {
		t.Error("a right too many is not found")
	}
	for i, r := range rights {
		if r.ours && !r.spare() && len(beyond(slices.Delete(slices.Clone(rights), i, i+1), requests)) == 0 {
			t.Errorf("nothing was asked for that only this allows: %s", r)
		}
	}
	return rights
}

// A right is what one word of one rule of a role allows.
type right struct {
	role      string
	ours      bool   // the chart's, and not one that each cluster has
	namespace string // empty: all
	group     string
	resource  string // with a subresource after a slash
	name      string // empty: all
	verb      string
}

func (r right) String() string {
	return fmt.Sprintf("%s of %q %s %q in namespace %q, by %s", r.verb, r.group, r.resource, r.name, r.namespace, r.role)
}

// allows tells whether the request needs the right. An object that is patched into being needs two:
// to patch, and to create.
func (r right) allows(q cluster.Request) bool {
	return q.Path == "" && r.group == q.Group && r.resource == q.Resource &&
		(r.verb == q.Verb || r.verb == "create" && q.Verb == "patch" && q.MadeAnObject) &&
		(r.name == "" || r.name == q.Name) && (r.namespace == "" || r.namespace == q.Namespace)
}

// spare are the chart's rights that the server needs in other clusters than this one, and why.
var spare = map[right]string{
	{resource: "nodes", verb: "list"}: "API servers before Kubernetes 1.34 need not send a list as the beginning of a watch (WatchList)",
}

func (r right) spare() bool {
	_, ok := spare[r.words()]
	return ok
}

// words is the right without the role by which it is given.
func (r right) words() right {
	r.role, r.ours = "", false
	return r
}

// unused are the chart's rights that no request needs, and of the cluster's own roles, which are as
// they are, the resources that none needs.
func unused(rights []right, requests []cluster.Request) (complaints []string) {
	needed := map[string]bool{} // by resource, and by role
	for _, r := range rights {
		used := slices.ContainsFunc(requests, r.allows)
		if r.ours && !used && !r.spare() {
			complaints = append(complaints, "not used: "+r.String())
		}
		resource := r.resource + ", by " + r.role
		needed[resource] = needed[resource] || used || r.ours
	}
	for resource, used := range needed {
		if !used {
			complaints = append(complaints, "not used: "+resource)
		}
	}
	return complaints
}

// beyond are the requests that were refused, or allowed by something else than these rights.
func beyond(rights []right, requests []cluster.Request) (complaints []string) {
	for _, q := range requests {
		needed := []cluster.Request{q}
		if q.Verb == "patch" && q.MadeAnObject {
			needed = append(needed, q)
			needed[0].MadeAnObject, needed[1].Verb = false, "create"
		}
		for _, n := range needed {
			anyone := n.Path != "" && n.Allowed // such as discovery
			if !anyone && (!n.Allowed || !slices.ContainsFunc(rights, func(r right) bool { return r.allows(n) })) {
				complaints = append(complaints, fmt.Sprintf("not by these rights: %+v", n))
			}
		}
	}
	return complaints
}

// rightsOf returns all rights of a ServiceAccount in the server's namespace, by the roles that are
// bound to it.
func (o *owner) rightsOf(t *testing.T, name string) (rights []right) {
	t.Helper()
	isAccount := func(s rbacv1.Subject) bool {
		return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == server.Namespace && s.Name == name
	}
	rbac := o.Client.RbacV1()
	everywhere, err := rbac.ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range everywhere.Items {
		if slices.ContainsFunc(b.Subjects, isAccount) {
			rights = append(rights, o.rightsOfRole(t, b.RoleRef, "")...)
		}
	}
	somewhere, err := rbac.RoleBindings(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range somewhere.Items {
		if slices.ContainsFunc(b.Subjects, isAccount) {
			rights = append(rights, o.rightsOfRole(t, b.RoleRef, b.Namespace)...)
		}
	}
	return rights
}

// rightsOfRole are those of a role that is bound in a namespace, or everywhere.
func (o *owner) rightsOfRole(t *testing.T, ref rbacv1.RoleRef, namespace string) (rights []right) {
	t.Helper()
	var meta metav1.ObjectMeta
	var rules []rbacv1.PolicyRule
	if ref.Kind == "ClusterRole" {
		role, err := o.Client.RbacV1().ClusterRoles().Get(t.Context(), ref.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		meta, rules = role.ObjectMeta, role.Rules
	} else {
		role, err := o.Client.RbacV1().Roles(namespace).Get(t.Context(), ref.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		meta, rules = role.ObjectMeta, role.Rules
	}
	one := right{role: ref.Kind + " " + ref.Name, ours: meta.Labels["app.kubernetes.io/instance"] == server.Release, namespace: namespace}
	for _, rule := range rules {
		rights = append(rights, one.of(rule)...)
	}
	return rights
}

// of are the rights of a rule in the place of the one that is given.
func (r right) of(rule rbacv1.PolicyRule) (rights []right) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, r.group = range rule.APIGroups {
		for _, r.resource = range rule.Resources {
			for _, r.name = range names {
				for _, r.verb = range rule.Verbs {
					rights = append(rights, r)
				}
			}
		}
	}
	for _, r.resource = range rule.NonResourceURLs { // the server needs none, so none is ever used
		rights = append(rights, r)
	}
	return rights
}

// joined is an error that has all complaints, if there are any.
func joined(complaints []string) error {
	if len(complaints) == 0 {
		return nil
	}
	return errors.New(strings.Join(complaints, "\n"))
}
