package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// permission is one that a ServiceAccount of the server needs.
type permission struct {
	account  string
	optional bool // metrics come without it, but later or with less
	needs    authorizationv1.ResourceAttributes
}

// resource returns what the permission is for, without the verb.
func (p permission) resource() string {
	a := p.needs
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	if a.Group != "" {
		resource += "." + a.Group
	}
	if a.Name != "" {
		resource += " " + a.Name
	}
	if a.Namespace != "" {
		resource += " in " + a.Namespace
	}
	return resource
}

// permissions returns those that the server needs with its flags.
func (d *doctor) permissions() (list []permission) {
	w := d.workload
	account := w.spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	need := func(account string, optional bool, a authorizationv1.ResourceAttributes, verbs ...string) {
		for _, a.Verb = range verbs {
			list = append(list, permission{account: account, optional: optional, needs: a})
		}
	}
	type attributes = authorizationv1.ResourceAttributes
	need(account, false, attributes{Resource: "pods"}, "list", "watch")
	need(account, false, attributes{Resource: "nodes"}, "list", "watch")
	need(account, false, attributes{Group: "authentication.k8s.io", Resource: "tokenreviews"}, "create")
	need(account, false, attributes{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}, "create")
	need(account, false, attributes{Resource: "configmaps", Name: "extension-apiserver-authentication",
		Namespace: metav1.NamespaceSystem}, "get", "list", "watch")
	kubelet := account
	if name, set := w.flag("--kubelet-service-account"); set && name != "" {
		kubelet = name
		need(account, false, attributes{Resource: "serviceaccounts", Subresource: "token", Name: name,
			Namespace: d.target.namespace}, "create")
	}
	if _, set := w.flag("--kubelet-client-certificate"); !set && !w.usesEngine() {
		need(kubelet, false, attributes{Resource: "nodes", Subresource: "metrics"}, "get")
		if d.target.kind == KubeVitals {
			need(kubelet, true, attributes{Resource: "nodes", Subresource: "stats"}, "get")
		}
	}
	if name, set := w.flag("--kubelet-pins"); set && name != "" && !w.usesEngine() {
		need(account, false, attributes{Resource: "configmaps", Name: name, Namespace: d.target.namespace},
			"list", "watch", "update")
	}
	if secret, set := w.flag("--tls-secret"); set {
		need(account, false, attributes{Resource: "secrets", Name: secret, Namespace: d.target.namespace}, "get",
			"watch", "update")
		for _, version := range versions() {
			need(account, false, attributes{Group: "apiregistration.k8s.io", Resource: "apiservices",
				Name: version + ".metrics.k8s.io"}, "get", "watch", "patch")
		}
	}
	if value, set := w.flag("--node-events"); set && value != "false" {
		namespaces := slices.Compact([]string{metav1.NamespaceDefault, d.target.namespace})
		if w.usesEngine() { // there are no events of nodes
			namespaces = []string{d.target.namespace}
		}
		for _, namespace := range namespaces {
			need(account, true, attributes{Resource: "events", Namespace: namespace}, "create", "patch")
		}
		if name, _ := w.flag("--deployment"); name != "" {
			need(account, true, attributes{Group: "apps", Resource: "deployments", Name: name,
				Namespace: d.target.namespace}, "get")
		}
	}
	return list
}

// checkPermissions asks the API server what the server's ServiceAccounts may do.
func (d *doctor) checkPermissions(ctx context.Context) []Check {
	c := Check{ID: "permissions", Title: "permissions"}
	if d.workload.spec == nil {
		c.Status, c.Reason, c.Seen = Skipped, noServer, "the ServiceAccount of the server is not known"
		return []Check{c}
	}
	if d.target.kind == Other {
		c.Status, c.Reason, c.Seen = Skipped, noServer, "the permissions that this server needs are not known"
		return []Check{c}
	}
	all := d.permissions()
	allowed, errs := make([]bool, len(all)), make([]error, len(all))
	concurrently(len(all), func(i int) { allowed[i], errs[i] = d.review(ctx, all[i]) })
	accounts := map[string]bool{}
	missing := map[string]map[string][]string{} // account → resource → verbs
	failed := map[string]bool{}                 // accounts without a permission that is not optional
	for i, p := range all {
		if errs[i] != nil {
			return []Check{Denied(c, errs[i])}
		}
		accounts[p.account] = true
		if !allowed[i] {
			if missing[p.account] == nil {
				missing[p.account] = map[string][]string{}
			}
			missing[p.account][p.resource()] = append(missing[p.account][p.resource()], p.needs.Verb)
			failed[p.account] = failed[p.account] || !p.optional
		}
	}
	if len(missing) == 0 {
		c.Status = OK
		c.Seen = fmt.Sprintf("ServiceAccounts %s have all %d", strings.Join(sortedKeys(accounts), ", "), len(all))
		if len(accounts) == 1 {
			c.Seen = fmt.Sprintf("ServiceAccount %s has all %d", all[0].account, len(all))
		}
		return []Check{c}
	}
	var checks []Check
	for _, account := range sortedKeys(missing) {
		one := c
		one.Status, one.Reason = Warning, permissionMissing
		if failed[account] {
			one.Status = Failed
		}
		one.Seen = fmt.Sprintf("ServiceAccount %s/%s cannot:", d.target.namespace, account)
		for _, resource := range sortedKeys(missing[account]) {
			one.Objects = append(one.Objects, strings.Join(missing[account][resource], "+")+" "+resource)
		}
		checks = append(checks, one)
	}
	return checks
}

// review reports whether the ServiceAccount has the permission.
func (d *doctor) review(ctx context.Context, p permission) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: fmt.Sprintf("system:serviceaccount:%s:%s", d.target.namespace, p.account),
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + d.target.namespace,
			"system:authenticated"},
		ResourceAttributes: &p.needs,
	}}
	review, err := d.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
