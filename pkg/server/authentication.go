package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	authenticatorunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
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
// so that the server can start while the API server is away, and that it writes less in the log. The function that it
// gives says what is missing before requests can be authenticated.
func authenticate(c Config, config *genericapiserver.Config, outage *outage) (trusted func() error, err error) {
	client, err := delegationClient(c.Authentication.RemoteKubeConfigFile)
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

	config.Authentication.Authenticator = newAuthenticator(headers, clientCA, tokenReviews(c, client, outage))
	config.Authentication.RequestHeaderConfig = headers
	return trusted, askForCertificates(config, clientCA, headers)
}

func delegationClient(kubeconfig string) (kubernetes.Interface, error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client to ask who clients are and what they may do: %w", err)
	}
	return client, nil
}

// newAuthenticator gives what tells who makes a request: whom the front proxy names, whom a certificate names, or who holds a token.
// Anyone else is anonymous, and allowed the probes only; but who shows what is wrong is refused.
func newAuthenticator(headers *authenticatorfactory.RequestHeaderConfig, clientCA dynamiccertificates.CAContentProvider, tokens authenticator.Token) authenticator.Request {
	var ways []authenticator.Request
	if headers != nil {
		ways = append(ways, headerrequest.NewDynamicVerifyOptionsSecure(headers.CAContentProvider.VerifyOptions, headers.AllowedClientNames,
			headers.UsernameHeaders, headers.UIDHeaders, headers.GroupHeaders, headers.ExtraHeaderPrefixes))
	}
	if clientCA != nil {
		ways = append(ways, x509.NewDynamic(clientCA.VerifyOptions, x509.CommonNameUserConversion))
	}
	ways = append(ways, bearertoken.New(tokens))
	known := group.NewAuthenticatedGroupAdder(authenticatorunion.New(ways...))
	return &discreet{Request: authenticatorunion.NewFailOnError(known, anonymous.NewAuthenticator(nil))}
}

// discreet keeps errors from the library, which would write a line in the log for each request that has one, and writes
// what is worth it. The answer is 401 either way.
type discreet struct {
	authenticator.Request

	mu     sync.Mutex
	saying seldom
}

// AuthenticateRequest implements authenticator.Request.
func (d *discreet) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	who, ok, err := d.Request.AuthenticateRequest(r)
	if err == nil {
		return who, ok, nil
	}
	if !errors.Is(err, errUnasked) && r.Context().Err() == nil { // those have been told, or concern nobody
		d.say(r.Context(), err)
	}
	return nil, false, nil
}

func (d *discreet) say(ctx context.Context, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if unsaid, ok := d.saying.due(time.Now()); ok {
		klog.FromContext(ctx).Error(err, "A request is refused: it does not prove who makes it", "like it since the last such line", unsaid)
	}
}

// refusedTTL bounds how long a token is taken for wrong that may be right a little later.
const refusedTTL = 10 * time.Second

// tokenReviews tells who holds a token, as the API server does.
func tokenReviews(c Config, client kubernetes.Interface, outage *outage) authenticator.TokenFunc {
	o := c.Authentication
	answers := newReviews(o.TokenRequestTimeout, *o.WebhookRetryBackoff, outage,
		func(s authenticationv1.TokenReviewStatus) time.Duration {
			if s.Authenticated {
				return o.CacheTTL
			}
			return min(o.CacheTTL, refusedTTL)
		},
		func(s authenticationv1.TokenReviewStatus) bool { return s.Authenticated })

	return func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		hash := sha256.Sum256([]byte(token)) // so that tokens do not stay in memory
		status, err := answers.answer(ctx, string(hash[:]), func(ctx context.Context) (authenticationv1.TokenReviewStatus, error) {
			review, err := client.AuthenticationV1().TokenReviews().Create(ctx,
				&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
			if err != nil {
				return authenticationv1.TokenReviewStatus{}, err
			}
			return review.Status, nil
		})
		switch {
		case err != nil:
			return nil, false, err
		case status.Authenticated:
			return &authenticator.Response{User: holder(status.User)}, true, nil
		case status.Error != "":
			return nil, false, errors.New(status.Error)
		default:
			return nil, false, nil
		}
	}
}

func holder(u authenticationv1.UserInfo) user.Info {
	info := &user.DefaultInfo{Name: u.Username, UID: u.UID, Groups: u.Groups, Extra: map[string][]string{}}
	for key, values := range u.Extra {
		info.Extra[key] = values
	}
	return info
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
