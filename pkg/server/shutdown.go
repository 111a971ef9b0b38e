package server

import (
	"net/http"
	"sync/atomic"
	"time"
)

// drainTimeout is how long requests in flight may take to end once the port is closed; then they are cut off. With the
// delay before that, it stays below the 30 s after which the cluster kills a pod.
const drainTimeout = 15 * time.Second

// farewell closes each connection with the next answer on it once the server is about to stop. Clients that keep theirs,
// as the API server's aggregation layer does, so come to another server while this one still answers; afterwards, a request
// that is on its way when the port is closed would be refused.
type farewell struct{ begun atomic.Bool }

func (f *farewell) wrap(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.begun.Load() {
			w.Header().Set("Connection", "close") // HTTP/2 sends GOAWAY for it
		}
		handler.ServeHTTP(w, r)
	})
}

// begin is called when the server is to stop, which is some time before it does.
func (f *farewell) begin() error {
	f.begun.Store(true)
	return nil
}
