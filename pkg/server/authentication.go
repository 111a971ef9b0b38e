package server

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
	"k8s.io/client-go/kubernetes"
)

// The ConfigMap in which the API server publishes the CAs of clients' certificates and of its front
// proxy.
const (
	trustNamespace = metav1.NamespaceSystem
	trustName      = "extension-apiserver-authentication"
)

// The rate of TokenReviews that the API server library allows its delegating authenticator, a
// second and at once.
const (
	tokenReviewQPS   = 200
	tokenReviewBurst = 400
)

// errNoTrust is the reason why requests cannot be authenticated yet, in /readyz and in the log.
var errNoTrust = errors.New("the request-header CA has not come from the ConfigMap " + trustNamespace + "/" +
	trustName + " yet; this needs an API server with its aggregation layer on, and the role " +
	"extension-apiserver-authentication-reader")

// authenticate delegates authentication to the cluster's API server: by front-proxy headers, client
// certificates and TokenReview. It uses the library's delegating authenticator. It does not use the
// library's options, for two reasons: they fail when the ConfigMap cannot be read at once, and this
// server starts while the API server is unavailable; and they make every request without
// credentials anonymous, so that each costs a SubjectAccessReview. trusted returns the reason why
// requests cannot be authenticated yet, or nil.
func authenticate(c Config, config *genericapiserver.Config) (trusted func() error, err error) {
	client, err := tokenReviewClient(c.Authentication.RemoteKubeConfigFile)
	if err != nil {
		return nil, err
	}
	clientCA, err := clientCA(c, client)
	if err != nil {
		return nil, err
	}
	headers, trusted, err := requestHeaders(c, client)
	if err != nil {
		return nil, err
	}
	delegating, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient:            client.AuthenticationV1(),
		TokenAccessReviewTimeout:           c.Authentication.TokenRequestTimeout,
		WebhookRetryBackoff:                c.Authentication.WebhookRetryBackoff,
		CacheTTL:                           c.Authentication.CacheTTL,
		ClientCertificateCAContentProvider: clientCA,
		RequestHeaderConfig:                headers,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("cannot set up authentication: %w", err)
	}
	anonymous, err := anonymousAt(openPaths(c))
	if err != nil {
		return nil, err
	}
	config.Authentication.Authenticator = union.NewFailOnError(delegating, anonymous)
	config.Authentication.RequestHeaderConfig = headers
	return trusted, requestCertificates(config, clientCA, headers)
}

// openPaths returns the paths that need no credentials: the probes, and those of
// --authorization-always-allow-paths. A path may end in "*". The probes are always among them: metrics-server's
// chart can set the flag to /metrics alone.
func openPaths(c Config) []string {
	probes := []string{"/livez", "/livez/*", "/readyz", "/readyz/*", "/healthz", "/healthz/*"}
	return append(probes, c.Authorization.AlwaysAllowPaths...)
}

// anonymousAt returns an authenticator for requests without credentials: at the paths they are
// those of system:anonymous, elsewhere they stay unauthenticated. The library's own conditions
// (AnonymousAuthConfig) know no "*".
func anonymousAt(paths []string) (authenticator.Request, error) {
	open, err := path.NewAuthorizer(paths)
	if err != nil {
		return nil, fmt.Errorf("--authorization-always-allow-paths: %w", err)
	}
	anybody := anonymous.NewAuthenticator(nil)
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		decision, _, err := open.Authorize(r.Context(), authorizer.AttributesRecord{Path: r.URL.Path})
		if err != nil || decision != authorizer.DecisionAllow {
			return nil, false, err
		}
		return anybody.AuthenticateRequest(r)
	}), nil
}

func tokenReviewClient(kubeconfig string) (kubernetes.Interface, error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = tokenReviewQPS, tokenReviewBurst
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for token reviews: %w", err)
	}
	return client, nil
}

// clientCA returns the CA of users' certificates: that of the flags, or else of the cluster. It is
// nil if there is none.
func clientCA(c Config, client kubernetes.Interface) (dynamiccertificates.CAContentProvider, error) {
	provider, err := c.Authentication.ClientCert.GetClientCAContentProvider()
	if err != nil {
		return nil, fmt.Errorf("cannot read the file of --client-ca-file: %w", err)
	}
	if provider != nil || c.Authentication.SkipInClusterLookup {
		return provider, nil
	}
	return dynamiccertificates.NewDynamicCAFromConfigMapController("client-ca", trustNamespace, trustName,
		"client-ca-file", client)
}

// requestHeaders returns whose request headers are believed: by the flags, or else by the cluster's
// ConfigMap.
func requestHeaders(c Config, client kubernetes.Interface) (
	headers *authenticatorfactory.RequestHeaderConfig, trusted func() error, err error,
) {
	trusted = func() error { return nil }
	headers, err = c.Authentication.RequestHeader.ToAuthenticationRequestHeaderConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the file of --requestheader-client-ca-file: %w", err)
	}
	if headers != nil || c.Authentication.SkipInClusterLookup {
		return headers, trusted, nil
	}
	published, err := newPublishedHeaders(client)
	if err != nil {
		return nil, nil, err
	}
	if !c.Authentication.TolerateInClusterLookupFailure {
		trusted = published.trusted
	}
	return &authenticatorfactory.RequestHeaderConfig{
		CAContentProvider:   published,
		UsernameHeaders:     headerrequest.StringSliceProviderFunc(published.UsernameHeaders),
		UIDHeaders:          headerrequest.StringSliceProviderFunc(published.UIDHeaders),
		GroupHeaders:        headerrequest.StringSliceProviderFunc(published.GroupHeaders),
		ExtraHeaderPrefixes: headerrequest.StringSliceProviderFunc(published.ExtraHeaderPrefixes),
		AllowedClientNames:  headerrequest.StringSliceProviderFunc(published.AllowedClientNames),
	}, trusted, nil
}

// requestCertificates makes the server request clients' certificates, with the known CAs as a hint.
// The authenticators verify them. It also makes the server run the controllers that follow the CAs.
func requestCertificates(
	config *genericapiserver.Config,
	clientCA dynamiccertificates.CAContentProvider,
	headers *authenticatorfactory.RequestHeaderConfig,
) error {
	if err := config.Authentication.ApplyClientCert(clientCA, config.SecureServing); err != nil {
		return err
	}
	if headers == nil {
		return nil
	}
	return config.Authentication.ApplyClientCert(headers.CAContentProvider, config.SecureServing)
}

// publishedHeaders follows what the API server publishes of its front proxy: the CA of its client
// certificate, and the headers that it sends.
type publishedHeaders struct {
	*dynamiccertificates.ConfigMapCAController
	*headerrequest.RequestHeaderAuthRequestController
}

func newPublishedHeaders(client kubernetes.Interface) (*publishedHeaders, error) {
	ca, err := dynamiccertificates.NewDynamicCAFromConfigMapController("request-header", trustNamespace, trustName,
		"requestheader-client-ca-file", client)
	if err != nil {
		return nil, fmt.Errorf("cannot follow the request-header CA: %w", err)
	}
	return &publishedHeaders{ca, headerrequest.NewRequestHeaderAuthRequestController(trustName, trustNamespace, client,
		"requestheader-username-headers", "requestheader-uid-headers", "requestheader-group-headers",
		"requestheader-extra-headers-prefix", "requestheader-allowed-names")}, nil
}

func (p *publishedHeaders) trusted() error {
	if len(p.CurrentCABundleContent()) == 0 || len(p.UsernameHeaders()) == 0 {
		return errNoTrust
	}
	return nil
}

// RunOnce implements dynamiccertificates.ControllerRunner. It does nothing: the server starts
// before the API server responds.
func (p *publishedHeaders) RunOnce(context.Context) error { return nil }

// Run implements dynamiccertificates.ControllerRunner. The library calls it when it begins to
// serve.
func (p *publishedHeaders) Run(ctx context.Context, workers int) {
	var both sync.WaitGroup
	both.Go(func() { p.ConfigMapCAController.Run(ctx, workers) })
	both.Go(func() { p.RequestHeaderAuthRequestController.Run(ctx, workers) })
	both.Wait()
}
