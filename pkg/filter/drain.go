package filter

import "net/http"

// WithDrain returns a handler that closes each connection with its next response once shutdown is
// closed. The API server's aggregation layer keeps its connections, and would send requests here until
// the library rejects them. This way it reconnects to another replica during
// --shutdown-delay-duration, while this one still serves. The library has no such option: it keeps
// connections during the delay.
func WithDrain(handler http.Handler, shutdown <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-shutdown:
			w.Header().Set("Connection", "close")
		default:
		}
		handler.ServeHTTP(w, r)
	})
}
