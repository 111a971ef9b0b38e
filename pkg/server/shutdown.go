package server

import (
	"net/http"
	"time"
)

// connectionTimeout is the maximum time to wait for open connections once the port is closed. It
// ends connections without a complete request; the library waits for requests in flight, for up to
// --request-timeout each.
const connectionTimeout = 15 * time.Second

// drainer returns a handler that closes each connection with its next response once shutdown is
// closed; HTTP/2 then sends GOAWAY. The API server's aggregation layer keeps its connections, and
// would send requests here until the library rejects them. This way it reconnects to another
// replica during --shutdown-delay-duration, while this one still serves. The library has no such
// option: it keeps connections during the delay, and its GoawayChance applies at random and at any
// time.
func drainer(handler http.Handler, shutdown <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-shutdown:
			w.Header().Set("Connection", "close")
		default:
		}
		handler.ServeHTTP(w, r)
	})
}
