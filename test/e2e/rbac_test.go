package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// TestRBAC compares the permissions in the chart with the requests in the API server's audit log:
// every permission is used, and every request needs one of them.
func TestRBAC(t *testing.T) {
	t.Parallel()
	flags, log := startAudit(t)
	r := &rbac{testCluster: newCluster(t, flags...), log: log}
	r.install(t, r.certificateFlags()...)
	r.sendUnauthorizedRequests(t)
	r.awaitTop(t)
	r.testEvents(t)
	r.awaitSecretWrites(t, "update", 2) // the first certificate, and its successor
	r.compare(t)

	// The only value that makes the chart allow more.
	must(t, r.Upgrade(t.Context(), "tls.kubeVitals.recreateSecret=true"))
	r.kubectl(t, "delete", "secret", servingSecret, inNamespace)
	r.awaitSecretWrites(t, "patch", 1)
	r.compare(t)
	r.testEventsDisabled(t)
	r.testTenant(t)
}

// testTenant installs the chart with the permissions of an administrator of one namespace, who creates neither RBAC nor
// APIServices.
func (r *rbac) testTenant(t *testing.T) {
	r.kubectl(t, "create", "namespace", "tenant")
	r.kubectl(t, "create", "rolebinding", "admin", "--namespace=tenant", "--clusterrole=admin", "--user=tenant")
	_, err := r.Run(t.Context(), binaries.Helm, "install", "own", r.Chart, "--namespace=tenant", "--kube-as-user=tenant",
		"--set", "image.tag=dev,rbac.create=false,apiService.create=false,tls.admissionPolicy.enabled=false")
	must(t, err)
}

type rbac struct {
	*testCluster
	log string // the API server's audit log
}

// sendUnauthorizedRequests makes the server send TokenReviews and SubjectAccessReviews.
func (r *rbac) sendUnauthorizedRequests(t *testing.T) {
	t.Helper()
	for _, path := range []string{nodesPath, "/apis/metrics.k8s.io/v1/pods", "/metrics"} {
		newClient(t, r.server).withToken("made-up").wantStatus(t, path, http.StatusUnauthorized)
		r.as(t, r.server, "user", "").wantStatus(t, path, http.StatusForbidden)
	}
}

// awaitSecretWrites waits until the server has written its Secret n times with the verb.
func (r *rbac) awaitSecretWrites(t *testing.T, verb string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d %s requests for the Secret", n, verb), func(context.Context) error {
		requests, err := auditRequests(r.log, account)
		if err != nil {
			return err
		}
		got := 0
		for _, q := range requests {
			if q.verb == verb && q.name == servingSecret && q.allowed {
				got++
			}
		}
		if got < n {
			return fmt.Errorf("got %d", got)
		}
		return nil
	})
}

// The ServiceAccounts of the chart: that of the pods, and the one whose tokens kubelets see.
const (
	accountPrefix  = "system:serviceaccount:" + cluster.Namespace + ":"
	account        = accountPrefix + cluster.Release
	kubeletAccount = accountPrefix + cluster.Release + "-kubelet"
)

// compare waits until both ServiceAccounts have used all of their permissions, and fails if they
// sent any other request.
func (r *rbac) compare(t *testing.T) {
	t.Helper()
	permissions := r.compareAccount(t, account)
	for p := range neededElsewhere {
		if !slices.ContainsFunc(permissions, func(q permission) bool { return q.withoutRole() == p }) {
			t.Errorf("the chart does not allow %s, which other clusters need", p)
		}
	}
	r.compareAccount(t, kubeletAccount)
}

func (r *rbac) compareAccount(t *testing.T, account string) []permission {
	t.Helper()
	permissions := r.permissionsOf(t, strings.TrimPrefix(account, accountPrefix))
	if len(permissions) == 0 {
		t.Fatalf("%s has no permissions", account)
	}
	var requests []auditRequest
	eventually(t, "every permission of "+account+" to be used", func(context.Context) (err error) {
		if requests, err = auditRequests(r.log, account); err != nil {
			return err
		}
		if unused := unused(permissions, requests); len(unused) > 0 {
			return errors.New("not used: " + strings.Join(unused, "\n"))
		}
		return nil
	})
	for _, q := range notPermitted(permissions, requests) {
		t.Errorf("%s: no permission of the chart allows %+v", account, q)
	}

	// The comparison detects an extra and a missing permission.
	extra := permission{role: "extra", ours: true, resource: "pods", verb: "delete"}
	if len(unused(append(slices.Clone(permissions), extra), requests)) == 0 {
		t.Error("an extra permission is not detected")
	}
	for i, p := range permissions {
		others := slices.Delete(slices.Clone(permissions), i, i+1)
		if p.ours && neededElsewhere[p.withoutRole()] == "" && len(notPermitted(others, requests)) == 0 {
			t.Errorf("no request needs %s", p)
		}
	}
	return permissions
}

// permission is one verb for one resource in one rule of a role.
type permission struct {
	role      string
	ours      bool   // the role belongs to the chart, not to every cluster
	namespace string // empty: all
	group     string
	resource  string // with a subresource after a slash
	name      string // empty: all
	verb      string
}

func (p permission) String() string {
	return fmt.Sprintf("%s of %q %s %q in namespace %q, by %s", p.verb, p.group, p.resource, p.name, p.namespace, p.role)
}

// allows reports whether the permission allows the request, in part: a patch that creates an object
// needs the permission to create, too.
func (p permission) allows(q auditRequest) bool {
	return q.path == "" && p.group == q.group && p.resource == q.resource &&
		(p.verb == q.verb || p.verb == "create" && q.verb == "patch" && q.created) &&
		(p.name == "" || p.name == q.name) && (p.namespace == "" || p.namespace == q.namespace)
}

// neededElsewhere has permissions that the server needs in other clusters, and why.
var neededElsewhere = map[permission]string{
	{resource: "nodes", verb: "list"}: "before Kubernetes 1.34, a watch may not begin with a list (WatchList)",
	{resource: "/nodez", verb: "get"}: "kubectl vitals doctor reads the page of nodes with a token of the account",
}

func (p permission) withoutRole() permission {
	p.role, p.ours = "", false
	return p
}

// unused returns the chart's permissions that no request needs. Of the cluster's own roles, it
// returns the resources that no request needs: their verbs are not the chart's choice.
func unused(permissions []permission, requests []auditRequest) (names []string) {
	resources := map[string]bool{} // resource and role → whether a request needs it
	for _, p := range permissions {
		used := slices.ContainsFunc(requests, p.allows)
		if p.ours && !used && neededElsewhere[p.withoutRole()] == "" {
			names = append(names, p.String())
		}
		resource := p.resource + ", by " + p.role
		resources[resource] = resources[resource] || used || p.ours
	}
	for resource, used := range resources {
		if !used {
			names = append(names, resource)
		}
	}
	return names
}

// notPermitted returns the requests that were denied, or allowed by other permissions than these. A request that was
// denied once and allowed later was denied because the API server had not yet read a new role.
func notPermitted(permissions []permission, requests []auditRequest) (others []auditRequest) {
	for i, q := range requests {
		if !q.allowed {
			allowed := q
			allowed.allowed = true
			q.allowed = slices.ContainsFunc(requests[i+1:], func(later auditRequest) bool {
				later.created = false // as for what is denied
				return later == allowed
			})
		}
		parts := []auditRequest{q}
		if q.verb == "patch" && q.created {
			parts = append(parts, q)
			parts[0].created, parts[1].verb = false, "create"
		}
		for _, part := range parts {
			anyone := part.path != "" && part.allowed // such as discovery
			permitted := part.allowed && slices.ContainsFunc(permissions, func(p permission) bool { return p.allows(part) })
			if !anyone && !permitted {
				others = append(others, part)
			}
		}
	}
	return others
}

// permissionsOf returns the permissions of a ServiceAccount in the server's namespace.
func (r *rbac) permissionsOf(t *testing.T, name string) (permissions []permission) {
	t.Helper()
	isAccount := func(s rbacv1.Subject) bool {
		return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == cluster.Namespace && s.Name == name
	}
	clusterBindings, err := r.Client.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, b := range clusterBindings.Items {
		if slices.ContainsFunc(b.Subjects, isAccount) {
			permissions = append(permissions, r.permissionsOfRole(t, b.RoleRef, "")...)
		}
	}
	bindings, err := r.Client.RbacV1().RoleBindings(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, b := range bindings.Items {
		if slices.ContainsFunc(b.Subjects, isAccount) {
			permissions = append(permissions, r.permissionsOfRole(t, b.RoleRef, b.Namespace)...)
		}
	}
	return permissions
}

// permissionsOfRole returns those of a role that is bound in a namespace, or in all.
func (r *rbac) permissionsOfRole(t *testing.T, ref rbacv1.RoleRef, namespace string) (permissions []permission) {
	t.Helper()
	var meta metav1.ObjectMeta
	var rules []rbacv1.PolicyRule
	if ref.Kind == "ClusterRole" {
		role, err := r.Client.RbacV1().ClusterRoles().Get(t.Context(), ref.Name, metav1.GetOptions{})
		must(t, err)
		meta, rules = role.ObjectMeta, role.Rules
	} else {
		role, err := r.Client.RbacV1().Roles(namespace).Get(t.Context(), ref.Name, metav1.GetOptions{})
		must(t, err)
		meta, rules = role.ObjectMeta, role.Rules
	}
	p := permission{role: ref.Kind + " " + ref.Name, namespace: namespace}
	p.ours = meta.Labels["app.kubernetes.io/instance"] == cluster.Release
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, p.group = range rule.APIGroups {
			for _, p.resource = range rule.Resources {
				for _, p.name = range names {
					for _, p.verb = range rule.Verbs {
						permissions = append(permissions, p)
					}
				}
			}
		}
		p.group, p.name = "", ""
		for _, p.resource = range rule.NonResourceURLs {
			for _, p.verb = range rule.Verbs {
				permissions = append(permissions, p)
			}
		}
	}
	return permissions
}
