package api

import (
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/metrics/pkg/apis/metrics"
)

// WithMetadataCheck rejects a GET of one object as PartialObjectMetadataList and a LIST as
// PartialObjectMetadata. The library rejects them too, but its error names a Go type. The filter
// needs the request info that the API server's default filters set.
func WithMetadataCheck(next http.Handler, serializer runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if message := wrongMetadataKind(r, serializer); message != "" {
			err := &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
				Message: message,
			}}
			responsewriters.ErrorNegotiated(err, serializer, metrics.SchemeGroupVersion, w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// tableScope allows the conversions that the library allows for a resource with tables.
var tableScope = &handlers.RequestScope{TableConvertor: rest.NewDefaultTableConvertor(metrics.Resource(""))}

// wrongMetadataKind returns an error message if the request accepts the wrong kind of metadata.
func wrongMetadataKind(r *http.Request, serializer runtime.NegotiatedSerializer) string {
	if !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") {
		return "" // nearly always
	}
	info, ok := request.RequestInfoFrom(r.Context())
	media, _, err := negotiation.NegotiateOutputMediaType(r, serializer, tableScope)
	if !ok || info.APIGroup != metrics.GroupName || err != nil || media.Convert == nil {
		return ""
	}
	switch kind := media.Convert.Kind; {
	case info.Verb == "get" && kind == "PartialObjectMetadataList":
		return "the response is a single object: accept PartialObjectMetadata instead of PartialObjectMetadataList"
	case info.Verb == "list" && kind == "PartialObjectMetadata":
		return "the response is a list: accept PartialObjectMetadataList instead of PartialObjectMetadata"
	}
	return ""
}
