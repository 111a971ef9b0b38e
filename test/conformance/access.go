package conformance

import (
	"context"
	"errors"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var accessChecks = []Check{
	{"access/forbidden", Required, "a ServiceAccount without permissions gets status 403", rbac, workload, checkForbidden},
	{"access/namespace", Required, "a ServiceAccount with permissions in one namespace reads that namespace and no other",
		rbac, workload, checkOneNamespace},
	{"access/view", Recommended, "the role view allows to read the metrics of pods", rbac, workload, checkView},
}

// as returns a client with the token of a new ServiceAccount of the workload's namespace. It has the
// role in this namespace only; without a kind, it has none.
func (e *env) as(ctx context.Context, name string, role rbacv1.RoleRef) (*client, error) {
	accounts := e.client.CoreV1().ServiceAccounts(e.namespace)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := accounts.Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	if role.Kind != "" {
		role.APIGroup = rbacv1.GroupName
		_, err := e.client.RbacV1().RoleBindings(e.namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    role,
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: e.namespace}},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
	}
	token, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return e.withToken(token.Status.Token)
}

// forbidden returns an error unless the client gets status 403 for a path.
func (c *client) forbidden(ctx context.Context, path string) error {
	return c.fails(ctx, path, http.StatusForbidden, metav1.StatusReasonForbidden)
}

func checkForbidden(ctx context.Context, e *env) error {
	guest, err := e.as(ctx, "guest", rbacv1.RoleRef{})
	if err != nil {
		return err
	}
	return e.eachExisting(e.namespace, func(version, resource, namespace string) error {
		return errors.Join(guest.forbidden(ctx, path(version, resource, namespace, "")),
			guest.forbidden(ctx, path(version, resource, namespace, unknown)))
	})
}

func checkOneNamespace(ctx context.Context, e *env) error {
	_, err := e.client.RbacV1().Roles(e.namespace).Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{group}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	reader, err := e.as(ctx, "reader", rbacv1.RoleRef{Kind: "Role", Name: "reader"})
	if err != nil {
		return err
	}
	for _, version := range e.versions {
		if err := e.reads(ctx, reader, version); err != nil {
			return err
		}
		for _, at := range []string{
			path(version, "pods", "", ""), path(version, "pods", "default", ""), path(version, "pods", "default", unknown),
			path(version, "nodes", "", ""),
		} {
			if err := reader.forbidden(ctx, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// reads compares what a client and an administrator read in the workload's namespace. Permissions
// take a moment to have an effect.
func (e *env) reads(ctx context.Context, c *client, version string) error {
	at := path(version, "pods", e.namespace, "")
	return e.eventually(ctx, func(ctx context.Context) error {
		want, err := e.list(ctx, at)
		if err != nil {
			return err
		}
		if len(want.Items) == 0 {
			return mismatch("GET "+at, "the pods of the workload", "none")
		}
		got, err := c.list(ctx, at, typeJSON)
		if err != nil {
			return err
		}
		return equal(want, got)
	})
}

func checkView(ctx context.Context, e *env) error {
	viewer, err := e.as(ctx, "viewer", rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"})
	if err != nil {
		return err
	}
	return e.eachVersion(func(version string) error { return e.reads(ctx, viewer, version) })
}
