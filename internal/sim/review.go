package sim

import (
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// The paths of reviews.
const (
	TokenReviews  = "/apis/authentication.k8s.io/v1/tokenreviews"
	AccessReviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
)

// review returns the response to a review, or nil if the request is another one. It returns an error if the request
// has ended.
func (a *API) review(r *http.Request, sent map[string]any) (*http.Response, error) {
	switch {
	case r.Method != http.MethodPost:
		return nil, nil
	case r.URL.Path == TokenReviews:
		review := &authenticationv1.TokenReview{}
		fromMap(sent, review)
		if a.Authenticate != nil {
			if user := a.Authenticate(review.Spec.Token); user != nil {
				review.Status.Authenticated, review.Status.User = true, *user
			}
		}
		return a.ok(r, review), nil
	case r.URL.Path == AccessReviews:
		review := &authorizationv1.SubjectAccessReview{}
		fromMap(sent, review)
		review.Status.Allowed = a.Authorize == nil || a.Authorize(r.Context(), &review.Spec)
		return a.ok(r, review), r.Context().Err()
	}
	return nil, nil
}
