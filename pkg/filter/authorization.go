package filter

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// maxReviewBytes is the maximum size of the parts of a SubjectAccessReview that the client chooses: the
// verb, the path, the namespace and other parts of the path, and the name, which a field selector can
// also have. The longest path that is served is that of a pod. It has 370 bytes, and the name in it has
// 253. The library caches up to 8192 reviews of up to 10 kB each, which encoding can make six times as
// long.
const maxReviewBytes = 1 << 10

// boundedAuthorizer returns an authorizer that denies long requests and passes the others to next
// without their selectors. A selector can only narrow a request. With selectors, each
// HorizontalPodAutoscaler of a namespace would need a review of its own, and the library does not
// count them in the size limit of its cache.
func boundedAuthorizer(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(
		func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if len(a.GetVerb())+2*len(a.GetPath())+len(a.GetName()) > maxReviewBytes {
				return authorizer.DecisionDeny, "the request is longer than any path that is served", nil
			}
			return next.Authorize(ctx, withoutSelectors{a})
		})
}

// withoutSelectors returns no selectors.
type withoutSelectors struct{ authorizer.Attributes }

// GetFieldSelector implements authorizer.Attributes.
func (withoutSelectors) GetFieldSelector() (fields.Requirements, error) { return nil, nil }

// GetLabelSelector implements authorizer.Attributes.
func (withoutSelectors) GetLabelSelector() (labels.Requirements, error) { return nil, nil }
