package filter

import (
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

const (
	// MaxWriteTime disconnects clients: those that accept less than pieceSize bytes of a response in it, or
	// not a TLS record, or whose response takes longer than that after the timeout of requests.
	MaxWriteTime = 10 * time.Second
	pieceSize    = 64 << 10
)

// WithDeadline ends responses that clients do not read, or read slowly, as --request-timeout ends the others.
func WithDeadline(next http.Handler, requestTimeout, maxWriteTime time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(&deadlineWriter{
			ResponseWriter: w, controller: http.NewResponseController(w),
			maxWriteTime: maxWriteTime, end: time.Now().Add(requestTimeout + maxWriteTime),
		}), r)
	})
}

// deadlineWriter is a response with a deadline for each piece and for the end. The last deadline is
// also that of what the server still buffers when the handler returns. The server removes it with the
// end of the response.
type deadlineWriter struct {
	http.ResponseWriter
	controller   *http.ResponseController
	maxWriteTime time.Duration
	end          time.Time
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *deadlineWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements io.Writer.
func (w *deadlineWriter) Write(p []byte) (written int, err error) {
	for {
		deadline := time.Now().Add(w.maxWriteTime)
		if deadline.After(w.end) {
			deadline = w.end
		}
		w.controller.SetWriteDeadline(deadline) //nolint:errcheck,gosec // the writers of tests have none
		n, err := w.ResponseWriter.Write(p[:min(len(p), pieceSize)])
		written += n
		if p = p[n:]; err != nil || len(p) == 0 {
			return written, err
		}
	}
}
