// Package filter protects an API server from its clients: it decides who they are, what they may do,
// and how many requests and how much time they get. Mechanisms come from k8s.io/apiserver; this package
// sets them up where the defaults of the library would harm users.
package filter

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/klog/v2"
)

// logInterval is the minimum time between two lines of the log that clients without credentials cause.
const logInterval = 10 * time.Second

// maxErrorLength is the maximum number of characters of an error in such a line: clients choose the names in their
// certificates.
const maxErrorLength = 1000

// authenticationName is the ConfigMap in the namespace kube-system where the API server publishes the client CA and
// the request-header CA, which signs the certificate of its front proxy.
const authenticationName = "extension-apiserver-authentication"

// errNoRequestHeaderCA is the reason why requests cannot be authenticated yet, for /readyz and the
// log.
var errNoRequestHeaderCA = errors.New("the request-header CA has not been read from the ConfigMap " +
	"kube-system/" + authenticationName + " yet: enable the aggregation layer of the API server, " +
	"and bind the role extension-apiserver-authentication-reader")

// Secure sets the library's delegating authenticator, which tries front-proxy headers, client
// certificates and TokenReviews, and its delegating authorizer. caPublished returns nil once the
// request-header CA is known.
func Secure(
	config *genericapiserver.Config, authentication genericoptions.DelegatingAuthenticationOptions,
	authorization genericoptions.DelegatingAuthorizationOptions,
) (caPublished func() error, err error) {
	// These paths need no credentials. The probes do not depend on the flag, because the chart of
	// metrics-server can set it to /metrics alone.
	authorization.AlwaysAllowPaths = append(
		[]string{"/livez", "/livez/*", "/readyz", "/readyz/*", "/healthz", "/healthz/*"}, authorization.AlwaysAllowPaths...)
	public, err := path.NewAuthorizer(authorization.AlwaysAllowPaths)
	if err != nil {
		return nil, fmt.Errorf("--authorization-always-allow-paths: %w", err)
	}
	if err := authorization.ApplyTo(&config.Authorization); err != nil {
		return nil, fmt.Errorf("cannot set up authorization: %w", err)
	}
	config.Authorization.Authorizer = boundedAuthorizer(shareAccessReviews(config.Authorization.Authorizer, public))
	config.RequestInfoResolver = withoutSelectors{genericapiserver.NewRequestInfoResolver(config)}

	authentication.CustomRoundTripperFn = func(next http.RoundTripper) http.RoundTripper { return withoutFirstRead{next} }
	if err := authentication.ApplyTo(&config.Authentication, config.SecureServing, nil); err != nil {
		return nil, fmt.Errorf("cannot set up authentication: %w", err)
	}
	headers := config.Authentication.RequestHeaderConfig // nil: disabled by flags
	config.Authentication.Authenticator = requireCredentials(
		shareTokenReviews(config.Authentication.Authenticator), public, headers)
	return func() error {
		isFile := authentication.RequestHeader.ClientCAFile != ""
		isPublished := hasCA(headers) && len(headers.UsernameHeaders.Value()) > 0
		if headers == nil || isFile || authentication.TolerateInClusterLookupFailure || isPublished {
			return nil
		}
		return errNoRequestHeaderCA
	}, nil
}

// hasCA reports whether the request-header CA is known.
func hasCA(headers *authenticatorfactory.RequestHeaderConfig) bool {
	return headers != nil && len(headers.CAContentProvider.CurrentCABundleContent()) > 0
}

// withoutFirstRead is a transport that reports the ConfigMap as not found when it is read by name. The
// library does so once, before it watches the ConfigMap, and fails if the API server is unavailable; it
// then starts without the request-header CA.
type withoutFirstRead struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t withoutFirstRead) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/configmaps/"+authenticationName) {
		return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody, Request: r}, nil
	}
	return t.next.RoundTrip(r)
}

// requireCredentials returns an authenticator that rejects requests without credentials, except for public
// paths. The library accepts each as system:anonymous, so each would need a SubjectAccessReview. The front
// proxy may name that user: next returns an error for any certificate that its known CA does not verify.
func requireCredentials(
	next authenticator.Request, public authorizer.Authorizer, headers *authenticatorfactory.RequestHeaderConfig,
) authenticator.Request {
	logFailed := rate.Sometimes{Interval: logInterval}
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		isProxied := hasCA(headers) && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 &&
			slices.ContainsFunc(headers.UsernameHeaders.Value(), func(name string) bool { return r.Header.Get(name) != "" })
		response, ok, err := next.AuthenticateRequest(r) // removes these headers
		if err != nil {                                  // the library would log each
			logFailed.Do(func() {
				klog.ErrorS(nil, "Unable to authenticate a request (logged once in 10 seconds)",
					"client", addressOf(r.RemoteAddr), "err", fmt.Sprintf("%.*s", maxErrorLength, err))
			})
			return nil, false, nil //nolint:nilerr // it is logged, and the client gets 401
		}
		if !ok || response.User.GetName() != user.Anonymous || isProxied {
			return response, ok, nil
		}
		decision, _, err := public.Authorize(r.Context(), authorizer.AttributesRecord{Path: r.URL.Path})
		if err != nil || decision != authorizer.DecisionAllow {
			return nil, false, err
		}
		return response, true, nil
	})
}
