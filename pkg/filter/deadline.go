package filter

import (
	"net/http"
	"time"
)

// MaxWriteTime disconnects clients: those that do not accept a TLS record in it, see Listener, and those whose response
// takes longer than that after the timeout of requests.
const MaxWriteTime = 10 * time.Second

// WithDeadline ends responses that clients read slowly, as --request-timeout ends the others. A Listener ends those
// that clients do not read. The server removes the deadline with the end of the response.
func WithDeadline(next http.Handler, requestTimeout, maxWriteTime time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deadline := time.Now().Add(requestTimeout + maxWriteTime)
		_ = http.NewResponseController(w).SetWriteDeadline(deadline) // the writers of tests have none
		next.ServeHTTP(w, r)
	})
}
