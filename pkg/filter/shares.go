package filter

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-vitals/kube-vitals/pkg/internal/fair"
)

// WithShares returns a handler that sends at most n responses at a time to clients with credentials, and as many to
// others. Users share them, and clients without credentials, who are told apart by their addresses. Requests above that
// get status 429. It needs the user of authentication.
func WithShares(next http.Handler, n int64) http.Handler {
	named, anonymous := fair.NewPool(n), fair.NewPool(n)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		responses, client := anonymous, addressOf(r.RemoteAddr).String()
		if u, ok := request.UserFrom(r.Context()); ok && u.GetName() != user.Anonymous {
			responses, client = named, fair.UserOf(u)
		}
		if !responses.Take(client, 1) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests for "+r.URL.Path, http.StatusTooManyRequests)
			return
		}
		defer responses.Return(client, 1)
		next.ServeHTTP(w, r)
	})
}
