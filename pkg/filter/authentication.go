// Package filter protects an API server from its clients: it decides who they are, what they may do,
// and how many requests and how much time they get. Mechanisms come from k8s.io/apiserver; this package
// sets them up where the defaults of the library would harm users.
package filter

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// The ConfigMap in which the API server publishes the client CA and the request-header CA.
const (
	authenticationNamespace = metav1.NamespaceSystem
	authenticationName      = "extension-apiserver-authentication"
)

// The rate limit of TokenReviews, per second, as in the options of the API server library.
const (
	tokenReviewQPS   = 200
	tokenReviewBurst = 400
)

// errNoRequestHeaderCA is the reason why requests cannot be authenticated yet, for /readyz and the
// log.
var errNoRequestHeaderCA = errors.New("the request-header CA has not been read from the ConfigMap " +
	authenticationNamespace + "/" + authenticationName + " yet: enable the aggregation layer of the API server, " +
	"and bind the role extension-apiserver-authentication-reader")

// Options are those of the library whose own ApplyTo does not fit.
type Options struct {
	Authentication *genericoptions.DelegatingAuthenticationOptions
	Authorization  *genericoptions.DelegatingAuthorizationOptions
	Client         *rest.Config // of the API server, for authentication
}

// Authenticate sets the library's delegating authenticator, which tries front-proxy headers, client
// certificates and TokenReviews. caPublished returns nil once the request-header CA is known.
//
// The library's options, which do the same, do not fit. They fail if the ConfigMap cannot be read
// at start-up, when the API server may be unavailable. And they accept every request without
// credentials as anonymous, so that each needs a SubjectAccessReview.
func (o Options) Authenticate(config *genericapiserver.Config) (caPublished func() error, err error) {
	limited := rest.CopyConfig(o.Client)
	limited.QPS, limited.Burst = tokenReviewQPS, tokenReviewBurst
	client, err := kubernetes.NewForConfig(limited)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for token reviews: %w", err)
	}
	clientCA, err := o.clientCA(client)
	if err != nil {
		return nil, err
	}
	headers, caPublished, err := o.requestHeaders(client)
	if err != nil {
		return nil, err
	}
	delegating, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient:            client.AuthenticationV1(),
		TokenAccessReviewTimeout:           o.Authentication.TokenRequestTimeout,
		WebhookRetryBackoff:                o.Authentication.WebhookRetryBackoff,
		CacheTTL:                           o.Authentication.CacheTTL,
		ClientCertificateCAContentProvider: clientCA,
		RequestHeaderConfig:                headers,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("cannot set up authentication: %w", err)
	}
	anonymous, err := anonymousAt(o.publicPaths())
	if err != nil {
		return nil, err
	}
	config.Authentication.Authenticator = union.NewFailOnError(delegating, anonymous)
	config.Authentication.RequestHeaderConfig = headers
	// Request client certificates, and run the controllers that reload the CAs.
	if err := config.Authentication.ApplyClientCert(clientCA, config.SecureServing); err != nil {
		return nil, err
	}
	if headers != nil {
		err = config.Authentication.ApplyClientCert(headers.CAContentProvider, config.SecureServing)
	}
	return caPublished, err
}

// publicPaths returns the paths that need no credentials: the probes and those of
// --authorization-always-allow-paths, which may end in "*". The probes do not depend on the flag,
// because the chart of metrics-server can set it to /metrics alone.
func (o Options) publicPaths() []string {
	probes := []string{"/livez", "/livez/*", "/readyz", "/readyz/*", "/healthz", "/healthz/*"}
	return append(probes, o.Authorization.AlwaysAllowPaths...)
}

// anonymousAt returns an authenticator that accepts requests to the paths as system:anonymous. The
// conditions of the library's AnonymousAuthConfig do not support "*".
func anonymousAt(paths []string) (authenticator.Request, error) {
	public, err := path.NewAuthorizer(paths)
	if err != nil {
		return nil, fmt.Errorf("--authorization-always-allow-paths: %w", err)
	}
	anonymous := anonymous.NewAuthenticator(nil)
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		decision, _, err := public.Authorize(r.Context(), authorizer.AttributesRecord{Path: r.URL.Path})
		if err != nil || decision != authorizer.DecisionAllow {
			return nil, false, err
		}
		return anonymous.AuthenticateRequest(r)
	}), nil
}

// clientCA returns the CA of client certificates, from --client-ca-file or else from the ConfigMap.
// It returns nil if both are disabled.
func (o Options) clientCA(client kubernetes.Interface) (dynamiccertificates.CAContentProvider, error) {
	provider, err := o.Authentication.ClientCert.GetClientCAContentProvider()
	if err != nil {
		return nil, fmt.Errorf("cannot read --client-ca-file: %w", err)
	}
	if provider != nil || o.Authentication.SkipInClusterLookup {
		return provider, nil
	}
	return dynamiccertificates.NewDynamicCAFromConfigMapController("client-ca", authenticationNamespace,
		authenticationName, "client-ca-file", client)
}

// requestHeaders returns the configuration of the front proxy, from the flags or else from the
// ConfigMap. It returns nil if both are disabled.
func (o Options) requestHeaders(client kubernetes.Interface) (
	headers *authenticatorfactory.RequestHeaderConfig, caPublished func() error, err error,
) {
	caPublished = func() error { return nil }
	headers, err = o.Authentication.RequestHeader.ToAuthenticationRequestHeaderConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read --requestheader-client-ca-file: %w", err)
	}
	if headers != nil || o.Authentication.SkipInClusterLookup {
		return headers, caPublished, nil
	}
	published, err := newPublishedHeaders(client)
	if err != nil {
		return nil, nil, err
	}
	if !o.Authentication.TolerateInClusterLookupFailure {
		caPublished = published.check
	}
	return &authenticatorfactory.RequestHeaderConfig{
		CAContentProvider:   published,
		UsernameHeaders:     headerrequest.StringSliceProviderFunc(published.UsernameHeaders),
		UIDHeaders:          headerrequest.StringSliceProviderFunc(published.UIDHeaders),
		GroupHeaders:        headerrequest.StringSliceProviderFunc(published.GroupHeaders),
		ExtraHeaderPrefixes: headerrequest.StringSliceProviderFunc(published.ExtraHeaderPrefixes),
		AllowedClientNames:  headerrequest.StringSliceProviderFunc(published.AllowedClientNames),
	}, caPublished, nil
}

// publishedHeaders reads the configuration of the front proxy from the ConfigMap: the CA of its
// client certificate, and its headers.
type publishedHeaders struct {
	*dynamiccertificates.ConfigMapCAController
	*headerrequest.RequestHeaderAuthRequestController
}

func newPublishedHeaders(client kubernetes.Interface) (*publishedHeaders, error) {
	ca, err := dynamiccertificates.NewDynamicCAFromConfigMapController("request-header", authenticationNamespace,
		authenticationName, "requestheader-client-ca-file", client)
	if err != nil {
		return nil, fmt.Errorf("cannot watch the request-header CA: %w", err)
	}
	headers := headerrequest.NewRequestHeaderAuthRequestController(authenticationName, authenticationNamespace, client,
		"requestheader-username-headers", "requestheader-uid-headers", "requestheader-group-headers",
		"requestheader-extra-headers-prefix", "requestheader-allowed-names")
	return &publishedHeaders{ca, headers}, nil
}

func (p *publishedHeaders) check() error {
	if len(p.CurrentCABundleContent()) == 0 || len(p.UsernameHeaders()) == 0 {
		return errNoRequestHeaderCA
	}
	return nil
}

// RunOnce implements dynamiccertificates.ControllerRunner. It does nothing, because the API server
// may be unavailable at start-up.
func (p *publishedHeaders) RunOnce(context.Context) error { return nil }

// Run implements dynamiccertificates.ControllerRunner.
func (p *publishedHeaders) Run(ctx context.Context, workers int) {
	var running sync.WaitGroup
	running.Go(func() { p.ConfigMapCAController.Run(ctx, workers) })
	running.Go(func() { p.RequestHeaderAuthRequestController.Run(ctx, workers) })
	running.Wait()
}
