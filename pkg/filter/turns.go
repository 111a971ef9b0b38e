package filter

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-vitals/kube-vitals/pkg/internal/fair"
)

// WithTurns returns a handler that serves at most n requests of a user at a time. Others of that user wait. It needs
// the user of authentication.
func WithTurns(next http.Handler, n int) http.Handler {
	turns := fair.NewTurns(n)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := ""
		if user, ok := request.UserFrom(r.Context()); ok {
			name = fair.UserOf(user)
		}
		done, err := turns.Take(r.Context(), name)
		if err != nil {
			http.Error(w, "too many requests of the same user for "+r.URL.Path, http.StatusServiceUnavailable)
			return
		}
		defer done()
		next.ServeHTTP(w, r)
	})
}
