package server

import (
	"net/http"
	"time"
)

// connectionTimeout is how long connections may take to end once the port is closed. It is for
// connections without a whole request; the library waits for the requests in flight themselves, up
// to --request-timeout each.
const connectionTimeout = 15 * time.Second

// drainer returns a handler that closes each connection with its next response once shutdown has
// begun; HTTP/2 then sends GOAWAY. The library keeps connections for the whole of
// --shutdown-delay-duration, and its GoawayChance works at random and all the time. The API
// server's aggregation layer keeps its connections too, so it would go on sending requests here
// until the library rejects them. This way it opens the next connection to another replica while
// this one still serves.
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
