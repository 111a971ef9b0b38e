package server

import (
	"net/http"
	"strings"
	"sync/atomic"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// madeUp is how the tokens begin that belong to no user.
const madeUp = "made-up"

// reviewer answers the reviews of a cluster's API server. A bearer token is the name of its user,
// except madeUp. The user "alice" may do everything, all others nothing; reviews of the user
// "sleepy" get no response.
type reviewer struct {
	tokens, accesses atomic.Int64  // reviews so far
	busy             atomic.Bool   // every review gets 429
	asleep           chan struct{} // receives an element for each access review of "sleepy"
}

func newReviewer() reviewer { return reviewer{asleep: make(chan struct{}, 1)} }

// serve answers a review, and reports whether the request was one.
func (v *reviewer) serve(w http.ResponseWriter, r *http.Request) bool {
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		v.tokens.Add(1)
	case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		v.accesses.Add(1)
	default:
		return false
	}
	if v.busy.Load() {
		http.Error(w, "busy", http.StatusTooManyRequests)
		return true
	}
	if r.URL.Path == "/apis/authentication.k8s.io/v1/tokenreviews" {
		var review authenticationv1.TokenReview
		read(r, &review)
		review.Status = authenticationv1.TokenReviewStatus{
			Authenticated: !strings.HasPrefix(review.Spec.Token, madeUp),
			User:          authenticationv1.UserInfo{Username: review.Spec.Token},
		}
		answer(w, review)
		return true
	}
	var review authorizationv1.SubjectAccessReview
	read(r, &review)
	if review.Spec.User == "sleepy" {
		v.asleep <- struct{}{}
		<-r.Context().Done()
		return true
	}
	review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: review.Spec.User == "alice"}
	answer(w, review)
	return true
}
