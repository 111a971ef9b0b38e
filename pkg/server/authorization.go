package server

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/client-go/kubernetes"
)

// authorize delegates authorization to the cluster's API server, but for the groups and paths that are always allowed.
func authorize(c Config, outage *outage) (authorizer.Authorizer, error) {
	client, err := delegationClient(c.Authorization.RemoteKubeConfigFile)
	if err != nil {
		return nil, err
	}
	paths, err := path.NewAuthorizer(c.Authorization.AlwaysAllowPaths)
	if err != nil {
		return nil, fmt.Errorf("--authorization-always-allow-paths: %w", err)
	}
	return union.New(
		union.NamedAuthorizer{AuthorizerName: "groups", Authorizer: authorizerfactory.NewPrivilegedGroups(c.Authorization.AlwaysAllowGroups...)},
		union.NamedAuthorizer{AuthorizerName: "paths", Authorizer: paths},
		union.NamedAuthorizer{AuthorizerName: "cluster", Authorizer: accessReviews(c, client, outage)},
	)
}

// accessReviews decides as the API server does. It asks without the selectors of a request: they can only narrow what is
// asked for, and with them each HorizontalPodAutoscaler would be a question of its own, rather than each namespace.
func accessReviews(c Config, client kubernetes.Interface, outage *outage) authorizer.AuthorizerFunc {
	o := c.Authorization
	answers := newReviews(o.ClientTimeout, *o.WebhookRetryBackoff, outage,
		func(s authorizationv1.SubjectAccessReviewStatus) time.Duration {
			if s.Allowed {
				return o.AllowCacheTTL
			}
			return o.DenyCacheTTL
		},
		func(s authorizationv1.SubjectAccessReviewStatus) bool { return s.Allowed && !s.Denied })

	return func(ctx context.Context, request authorizer.Attributes) (authorizer.Decision, string, error) {
		spec := accessReview(request)
		question, err := json.Marshal(spec)
		if err != nil {
			return authorizer.DecisionNoOpinion, "", fmt.Errorf("cannot ask whether a request is allowed: %w", err)
		}
		status, err := answers.answer(ctx, string(question), func(ctx context.Context) (authorizationv1.SubjectAccessReviewStatus, error) {
			review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx,
				&authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
			if err != nil {
				return authorizationv1.SubjectAccessReviewStatus{}, err
			}
			return review.Status, nil
		})
		switch {
		case err != nil:
			return authorizer.DecisionNoOpinion, err.Error(), nil //nolint:nilerr // the library writes a line in the log for each error
		case status.Denied:
			return authorizer.DecisionDeny, status.Reason, nil
		case status.Allowed:
			return authorizer.DecisionAllow, status.Reason, nil
		default:
			return authorizer.DecisionNoOpinion, status.Reason, nil
		}
	}
}

// accessReview is the question whether a request is allowed.
func accessReview(request authorizer.Attributes) authorizationv1.SubjectAccessReviewSpec {
	var spec authorizationv1.SubjectAccessReviewSpec
	if u := request.GetUser(); u != nil {
		spec.User, spec.UID, spec.Groups = u.GetName(), u.GetUID(), u.GetGroups()
		spec.Extra = map[string]authorizationv1.ExtraValue{}
		for key, values := range u.GetExtra() {
			spec.Extra[key] = values
		}
	}
	if request.IsResourceRequest() {
		spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Namespace:   request.GetNamespace(),
			Verb:        request.GetVerb(),
			Group:       request.GetAPIGroup(),
			Version:     request.GetAPIVersion(),
			Resource:    request.GetResource(),
			Subresource: request.GetSubresource(),
			Name:        request.GetName(),
		}
	} else {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: request.GetPath(), Verb: request.GetVerb()}
	}
	return spec
}
