package simulation

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
)

// authorizer delegates authentication and authorization of a kubelet's clients to the API server,
// as kubelets do. It caches permissions for longer than a kubelet, but for no longer than a token lasts: those that
// expire while the API server is unavailable would end scrapes.
type authorizer struct {
	client kubernetes.Interface

	mu    sync.Mutex
	cache map[access]time.Time // until when it is allowed
}

// access is what a client requests.
type access struct{ token, subresource string }

const cacheTTL = time.Hour

// authorize implements kubelettest.Config.Authorize: it returns the status of the response.
func (a *authorizer) authorize(r *http.Request) int {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return http.StatusUnauthorized
	}
	want := access{token: token, subresource: "proxy"}
	switch r.URL.Path {
	case kubelettest.ResourcePath, kubelettest.CadvisorPath:
		want.subresource = "metrics"
	case kubelettest.SummaryPath:
		want.subresource = "stats"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Now().Before(a.cache[want]) {
		return http.StatusOK
	}
	status := a.review(r.Context(), want)
	if status == http.StatusOK {
		a.cache[want] = time.Now().Add(cacheTTL)
	}
	return status
}

// forget empties the cache.
func (a *authorizer) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.cache)
}

// review returns the status of the response, by a TokenReview and a SubjectAccessReview.
func (a *authorizer) review(ctx context.Context, want access) int {
	token, err := a.client.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: want.token}}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusInternalServerError
	}
	if !token.Status.Authenticated {
		return http.StatusUnauthorized
	}
	permission, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   token.Status.User.Username,
			Groups: token.Status.User.Groups,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "get", Resource: "nodes", Subresource: want.subresource,
			},
		},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return http.StatusInternalServerError
	case !permission.Status.Allowed:
		return http.StatusForbidden
	default:
		return http.StatusOK
	}
}
