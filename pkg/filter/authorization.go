package filter

import (
	"context"
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// maxReviewBytes is the maximum size of the parts of a SubjectAccessReview that the client chooses: the
// verb, the path, the namespace and other parts of the path, and the name, which a field selector can
// also have. The longest path that is served is that of a pod. It has 370 bytes, and the name in it has
// 253. The library caches up to 8192 reviews of up to 10 kB each, which encoding can make six times as
// long.
const maxReviewBytes = 1 << 10

// boundedAuthorizer returns an authorizer that denies long requests.
func boundedAuthorizer(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(
		func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if len(a.GetVerb())+2*len(a.GetPath())+len(a.GetName()) > maxReviewBytes {
				return authorizer.DecisionDeny, "the request is longer than any path that is served", nil
			}
			return next.Authorize(ctx, a)
		})
}

// withoutSelectors resolves requests without their selectors, and without other parameters that the library would
// parse, and log if they are invalid, before authentication. A selector can only narrow a request. With
// selectors, each HorizontalPodAutoscaler of a namespace would need a review of its own, and the library does not
// count them in the size limit of its cache. Only the name in a field selector counts, as for Kubernetes.
type withoutSelectors struct{ request.RequestInfoResolver }

// NewRequestInfo implements request.RequestInfoResolver.
func (w withoutSelectors) NewRequestInfo(r *http.Request) (*request.RequestInfo, error) {
	query, kept, short := r.URL.Query(), url.Values{}, *r.URL
	if query.Has("watch") {
		kept.Set("watch", query.Get("watch"))
	}
	if text := query.Get("fieldSelector"); len(text) <= maxReviewBytes {
		if _, err := fields.ParseSelector(text); err == nil {
			kept.Set("fieldSelector", text)
		}
	}
	short.RawQuery = kept.Encode()
	info, err := w.RequestInfoResolver.NewRequestInfo(&http.Request{Method: r.Method, URL: &short, Header: r.Header})
	if info != nil {
		info.FieldSelector = ""
	}
	return info, err
}
