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

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
)

// guard asks the API server whether a client may read a kubelet's figures, as kubelets do that
// delegate authentication and authorization. It remembers who may, for as long as a kubelet does.
type guard struct {
	client kubernetes.Interface

	mu      sync.Mutex
	allowed map[question]time.Time // until when
}

type question struct{ token, subresource string }

const remembered = 5 * time.Minute

func newGuard(client kubernetes.Interface) *guard {
	return &guard{client: client, allowed: make(map[question]time.Time)}
}

// authorize is a kubelettest.Config's.
func (g *guard) authorize(r *http.Request) int {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return http.StatusUnauthorized
	}
	q := question{token: token, subresource: "proxy"}
	switch r.URL.Path {
	case kubelettest.ResourcePath:
		q.subresource = "metrics"
	case kubelettest.SummaryPath:
		q.subresource = "stats"
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Now().Before(g.allowed[q]) {
		return http.StatusOK
	}
	status := g.ask(r.Context(), q)
	if status == http.StatusOK {
		g.allowed[q] = time.Now().Add(remembered)
	}
	return status
}

func (g *guard) ask(ctx context.Context, q question) int {
	identity, err := g.client.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: q.token}}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusInternalServerError
	}
	if !identity.Status.Authenticated {
		return http.StatusUnauthorized
	}
	answer, err := g.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   identity.Status.User.Username,
			Groups: identity.Status.User.Groups,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "get", Resource: "nodes", Subresource: q.subresource,
			},
		},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return http.StatusInternalServerError
	case !answer.Status.Allowed:
		return http.StatusForbidden
	default:
		return http.StatusOK
	}
}
