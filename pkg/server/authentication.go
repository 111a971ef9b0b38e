package server

import (
	"context"
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
)

// The ConfigMap in which the API server publishes whom extension API servers are to trust.
const (
	trustNamespace = metav1.NamespaceSystem
	trustName      = "extension-apiserver-authentication"
)

// errNoTrust is what /readyz and the log say while requests cannot be authenticated.
var errNoTrust = errors.New("the request-header CA has not come from the ConfigMap " + trustNamespace + "/" + trustName +
	" yet; this needs an API server with its aggregation layer on, and the role extension-apiserver-authentication-reader")

// authenticate delegates authentication to the cluster's API server: by its request headers, by client certificates and
// by TokenReview. It does what the library's options do, except that it follows the ConfigMap without reading it first,
// so that the server can start while the API server is away. The function that it gives says what is missing before
// requests can be authenticated.
func authenticate(c Config, config *genericapiserver.Config) (trusted func() error, err error) {
	client, err := authenticationClient(c.Authentication.RemoteKubeConfigFile)
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

	o := c.Authentication
	authenticator, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous:                          &apiserver.AnonymousAuthConfig{Enabled: true}, // it is allowed the probes only
		TokenAccessReviewClient:            client.AuthenticationV1(),
		TokenAccessReviewTimeout:           o.TokenRequestTimeout,
		WebhookRetryBackoff:                o.WebhookRetryBackoff,
		CacheTTL:                           o.CacheTTL,
		ClientCertificateCAContentProvider: clientCA,
		RequestHeaderConfig:                headers,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("cannot set up authentication: %w", err)
	}
	config.Authentication.Authenticator = authenticator
	config.Authentication.RequestHeaderConfig = headers
	return trusted, askForCertificates(config, clientCA, headers)
}

func authenticationClient(kubeconfig string) (kubernetes.Interface, error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for authentication: %w", err)
	}
	return client, nil
}

// clientCA gives the CA of users' certificates: that of the flags, or else of the cluster. It is nil if there is none.
func clientCA(c Config, client kubernetes.Interface) (dynamiccertificates.CAContentProvider, error) {
	provider, err := c.Authentication.ClientCert.GetClientCAContentProvider()
	if err != nil {
		return nil, fmt.Errorf("cannot read the file of --client-ca-file: %w", err)
	}
	if provider != nil || c.Authentication.SkipInClusterLookup {
		return provider, nil
	}
	return dynamiccertificates.NewDynamicCAFromConfigMapController("client-ca", trustNamespace, trustName, "client-ca-file", client)
}

// requestHeaders says whose request headers are to be believed: as the flags have it, or else as the cluster has it.
func requestHeaders(c Config, client kubernetes.Interface) (headers *authenticatorfactory.RequestHeaderConfig, trusted func() error, err error) {
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

// askForCertificates makes the server ask clients for their certificates, with the CAs that it knows as a hint. What a
// certificate is worth is decided by the authenticators. It also makes the server run what follows the CAs.
func askForCertificates(config *genericapiserver.Config, clientCA dynamiccertificates.CAContentProvider, headers *authenticatorfactory.RequestHeaderConfig) error {
	if err := config.Authentication.ApplyClientCert(clientCA, config.SecureServing); err != nil {
		return err
	}
	if headers == nil {
		return nil
	}
	return config.Authentication.ApplyClientCert(headers.CAContentProvider, config.SecureServing)
}

// publishedHeaders follows what the API server publishes of itself as an authenticating proxy: the CA of its client
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

// RunOnce implements dynamiccertificates.ControllerRunner. Nothing is known before Run has asked.
func (p *publishedHeaders) RunOnce(context.Context) error { return nil }

// Run implements dynamiccertificates.ControllerRunner. The library calls it when it begins to serve.
func (p *publishedHeaders) Run(ctx context.Context, workers int) {
	var both sync.WaitGroup
	both.Go(func() { p.ConfigMapCAController.Run(ctx, workers) })
	both.Go(func() { p.RequestHeaderAuthRequestController.Run(ctx, workers) })
	both.Wait()
}
