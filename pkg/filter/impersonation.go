package filter

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
)

// WithoutImpersonation rejects requests with Impersonate headers. The API server resolves these before it sends a
// request here. The library would need an access review for each user that a client names, before it limits what
// the client has in flight.
func WithoutImpersonation(next http.Handler, codecs runtime.NegotiatedSerializer) http.Handler {
	err := apierrors.NewForbidden(schema.GroupResource{}, "",
		errors.New("kube-vitals does not impersonate: send requests with Impersonate headers to the API server"))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			if len(name) > len("impersonate-") && strings.EqualFold(name[:len("impersonate-")], "impersonate-") {
				responsewriters.ErrorNegotiated(err, codecs, schema.GroupVersion{}, w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
