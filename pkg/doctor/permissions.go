package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// permission is what a ServiceAccount of the server needs.
type permission struct {
	account   string
	verbs     string // separated by +
	resource  string // such as nodes/metrics or deployments.apps
	namespace string // empty: all
	name      string // empty: all
	optional  bool   // metrics come without it, but later or with less
}

// permissions returns those that the server needs with its flags.
func (d *doctor) permissions() []permission {
	w, account, ns := &d.workload, d.workload.account(), d.target.Namespace
	list := []permission{
		{account, "list+watch", "pods", "", "", false},
		{account, "list+watch", "nodes", "", "", false},
		{account, "create", "tokenreviews.authentication.k8s.io", "", "", false},
		{account, "create", "subjectaccessreviews.authorization.k8s.io", "", "", false},
		{account, "get+list+watch", "configmaps", metav1.NamespaceSystem, "extension-apiserver-authentication", false},
	}
	kubelet := account
	if name := w.flag("--kubelet-service-account"); name != "" {
		kubelet = name
		list = append(list, permission{account, "create", "serviceaccounts/token", ns, name, false})
	}
	sendsToken := w.flag("--kubelet-client-certificate") == "" && !w.isSet("--deprecated-kubelet-completely-insecure")
	if sendsToken && !w.usesEngine() {
		list = append(list, permission{kubelet, "get", "nodes/metrics", "", "", false})
		if d.target.Kind == KubeVitals {
			list = append(list, permission{kubelet, "get", "nodes/stats", "", "", true})
		}
	}
	if name := w.flag("--kubelet-pins"); name != "" && !w.usesEngine() {
		list = append(list, permission{account, "list+watch+update", "configmaps", ns, name, false})
	}
	verbs, isOptional := "get", true // to check where the APIServices lead
	if name := w.flag("--tls-secret"); name != "" {
		verbs, isOptional = "get+watch+patch", false
		list = append(list, permission{account, "get+watch+update", "secrets", ns, name, false})
	}
	if w.flag("--service") != "" || !isOptional {
		names := cmp.Or(w.flag("--tls-apiservices"), "v1beta1.metrics.k8s.io,v1.metrics.k8s.io")
		for name := range strings.SplitSeq(names, ",") {
			list = append(list, permission{account, verbs, "apiservices.apiregistration.k8s.io", "", name, isOptional})
		}
	}
	if name := w.flag("--tls-ca-configmap"); name != "" {
		list = append(list, permission{account, "get+update", "configmaps", ns, name, true})
	}
	if name := w.flag("--deployment"); name != "" {
		for _, in := range slices.Compact([]string{ns, metav1.NamespaceDefault}) {
			list = append(list, permission{account, "create+patch", "events", in, "", true})
		}
		list = append(list, permission{account, "get", "deployments.apps", ns, name, true})
	}
	return list
}

func (d *doctor) checkPermissions(ctx context.Context, c Check) []Check {
	if d.workload.spec == nil {
		return d.skip(c, noServer, "the ServiceAccount of the server is not known", chain)
	}
	if d.target.Kind == Other {
		return c.Skip(noServer, "the permissions that this server needs are not known")
	}
	n, failing := 0, Groups{}
	accounts, unknown := d.kube.CoreV1().ServiceAccounts(d.target.Namespace).List(ctx, metav1.ListOptions{})
	for _, p := range d.permissions() {
		// A review allows one that does not exist what its name is allowed.
		exists := func(a corev1.ServiceAccount) bool { return a.Name == p.account }
		if unknown == nil && !slices.ContainsFunc(accounts.Items, exists) {
			return c.Fail(accountMissing, "ServiceAccount %s/%s does not exist", d.target.Namespace, p.account)
		}
		missing, err := d.missing(ctx, p)
		if err != nil {
			return c.Denied(err)
		}
		n += 1 + strings.Count(p.verbs, "+")
		if missing == "" {
			continue
		}
		failing.Add(p.account, missing, func() []Check {
			return c.Warn(permissionMissing, "ServiceAccount %s/%s cannot:", d.target.Namespace, p.account)
		})
		if !p.optional {
			failing[p.account].Status = Failed
		}
	}
	if len(failing) > 0 {
		return failing.Checks(nil)
	}
	return c.OK("ServiceAccount %s and any that it uses have all %d", d.workload.account(), n)
}

// missing returns the part of a permission that its ServiceAccount does not have.
func (d *doctor) missing(ctx context.Context, p permission) (string, error) {
	resource := schema.ParseGroupResource(p.resource)
	attributes := authorizationv1.ResourceAttributes{Namespace: p.namespace, Name: p.name, Group: resource.Group}
	attributes.Resource, attributes.Subresource, _ = strings.Cut(resource.Resource, "/")
	var verbs []string
	for verb := range strings.SplitSeq(p.verbs, "+") {
		attributes.Verb = verb
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: fmt.Sprintf("system:serviceaccount:%s:%s", d.target.Namespace, p.account),
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + d.target.Namespace,
				"system:authenticated"},
			ResourceAttributes: &attributes,
		}}
		review, err := d.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		if !review.Status.Allowed {
			verbs = append(verbs, verb)
		}
	}
	if len(verbs) == 0 {
		return "", nil
	}
	text := strings.TrimSuffix(strings.Join(verbs, "+")+" "+p.resource+" "+p.name, " ")
	if p.namespace != "" {
		text += " in " + p.namespace
	}
	return text, nil
}
