package server

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// maxReviewBytes bounds the parts of an access review that the requester chooses. The longest path
// that is served, a pod by name, has 370, and its parts once more. The library remembers up to 8192
// reviews, each of up to 10 kB before it is encoded, which can make it six times as long.
const maxReviewBytes = 1 << 10

// authorize delegates authorization to the cluster's API server, as the library does it, except for
// the open paths.
func authorize(c Config, config *genericapiserver.Config) error {
	options := *c.Authorization
	options.AlwaysAllowPaths = openPaths(c)
	if err := options.ApplyTo(&config.Authorization); err != nil {
		return fmt.Errorf("cannot set up authorization: %w", err)
	}
	config.Authorization.Authorizer = boundedAuthorizer(config.Authorization.Authorizer)
	return nil
}

// boundedAuthorizer returns an authorizer that asks next about short requests only, and without
// their selectors. A selector can only narrow a request. With it, each HorizontalPodAutoscaler
// would need a review of its own instead of sharing that of its namespace; and the library's bound
// on what it remembers of a review does not count it.
func boundedAuthorizer(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(
		func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			n := 0
			for _, part := range []string{
				a.GetVerb(), a.GetPath(), a.GetNamespace(), a.GetAPIGroup(), a.GetAPIVersion(),
				a.GetResource(), a.GetSubresource(), a.GetName(),
			} {
				n += len(part)
			}
			if n > maxReviewBytes {
				return authorizer.DecisionDeny, "the request is too long for anything that is served here", nil
			}
			return next.Authorize(ctx, withoutSelectors{a})
		})
}

// withoutSelectors hides the selectors of a request.
type withoutSelectors struct{ authorizer.Attributes }

// GetFieldSelector implements authorizer.Attributes.
func (withoutSelectors) GetFieldSelector() (fields.Requirements, error) { return nil, nil }

// GetLabelSelector implements authorizer.Attributes.
func (withoutSelectors) GetLabelSelector() (labels.Requirements, error) { return nil, nil }
