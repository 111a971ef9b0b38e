package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

const (
	// kubeletTokenLifetime is the requested lifetime of a token. Scrapes fail once an outage of the
	// API server has lasted longer.
	kubeletTokenLifetime = time.Hour
	// kubeletTokenRenewal is the age at which a token is replaced. It is far below the lifetime
	// because deleting and creating the ServiceAccount again makes tokens invalid early.
	kubeletTokenRenewal = 10 * time.Minute
	// kubeletTokenMargin is the time before its expiry at which a token is no longer used. It
	// allows for differing clocks.
	kubeletTokenMargin = 10 * time.Second
	// kubeletTokenTimeout is the timeout of a request to the API server. A scrape that waits for
	// the request has a timeout of 10 seconds.
	kubeletTokenTimeout = 8 * time.Second

	// inClusterNamespaceFile has the namespace of the pod that this process runs in.
	inClusterNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
)

// kubeletTokens caches short-lived tokens from the TokenRequest API. Their ServiceAccount may only
// read the metrics of kubelets, so a kubelet cannot misuse a token that it receives.
//
// The caching token sources of client-go do not fit. While the API server is unavailable, scrapes
// must use the current token until it expires without waiting, and must not each send a request.
type kubeletTokens struct {
	client          corev1client.ServiceAccountsGetter
	namespace, name string // of the ServiceAccount

	mu      sync.Mutex
	token   string
	expires time.Time     // of the token, by our clock, less kubeletTokenMargin
	renewAt time.Time     // time of the next request
	pending chan struct{} // closed when the request in flight has ended; nil if there is none
	backoff wait.Backoff  // of requests that fail
	err     error         // of the last request
}

func newKubeletTokens(client *rest.Config, namespace, name string) (*kubeletTokens, error) {
	core, err := corev1client.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for tokens: %w", err)
	}
	return &kubeletTokens{client: core, namespace: namespace, name: name, backoff: newTokenBackoff()}, nil
}

func newTokenBackoff() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 10, Cap: time.Minute}
}

// Token returns a valid token. If there is none, it waits for the request in flight, at most until
// the context ends.
func (k *kubeletTokens) Token(ctx context.Context) (string, error) {
	for {
		token, pending, err := k.current()
		if token != "" || err != nil {
			return token, err
		}
		select {
		case <-pending:
		case <-ctx.Done():
			return "", fmt.Errorf("the API server has not returned a token of the ServiceAccount %s/%s yet: %w",
				k.namespace, k.name, ctx.Err())
		}
	}
}

// current returns the token if it is valid, else the end of the request in flight, else the error
// of the last one. It starts a request if one is due.
func (k *kubeletTokens) current() (token string, pending <-chan struct{}, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if k.pending == nil && !now.Before(k.renewAt) {
		k.pending = make(chan struct{})
		go k.renew()
	}
	switch {
	case now.Before(k.expires):
		return k.token, nil, nil
	case k.pending != nil:
		return "", k.pending, nil
	}
	return "", nil, k.err
}

// renew requests a token. The caller ensures that only one request is in flight.
func (k *kubeletTokens) renew() {
	start := time.Now()
	token, lifetime, err := k.request()
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.pending)
	k.pending = nil
	if err != nil {
		if k.err == nil && time.Now().Before(k.expires) {
			klog.Background().Error(err, "Cannot renew the token for kubelets; the current one stays in use until it expires",
				"expires", k.expires.UTC().Format(time.RFC3339))
		}
		k.err = err
		k.renewAt = time.Now().Add(k.backoff.Step())
		return
	}
	if k.err != nil {
		klog.Background().Info("Renewed the token for kubelets")
	}
	k.err, k.backoff = nil, newTokenBackoff()
	k.token, k.expires = token, start.Add(lifetime-kubeletTokenMargin)
	k.renewAt = start.Add(min(kubeletTokenRenewal, lifetime/2))
}

// request returns a token and the lifetime that the API server granted. Unlike the expiry in the
// response, the lifetime does not depend on the API server's clock.
func (k *kubeletTokens) request() (token string, lifetime time.Duration, err error) {
	// From -v=8, client-go logs bodies to the logger of the context. It must not log a token.
	ctx, cancel := context.WithTimeout(klog.NewContext(context.Background(), klog.Logger{}), kubeletTokenTimeout)
	defer cancel()
	seconds := int64(kubeletTokenLifetime.Seconds())
	response, err := k.client.ServiceAccounts(k.namespace).CreateToken(ctx, k.name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err == nil && response.Status.Token == "" {
		err = errors.New("the response has no token")
	}
	if err != nil {
		return "", 0, k.explain(err)
	}
	if granted := response.Spec.ExpirationSeconds; granted != nil && *granted > 0 {
		seconds = min(seconds, *granted)
	}
	return response.Status.Token, time.Duration(seconds) * time.Second, nil
}

// explain returns the error with its cure.
func (k *kubeletTokens) explain(err error) error {
	const or = ", or do not set --kubelet-service-account (kubelet.serviceAccount.create=false in the chart)"
	cure := ""
	switch {
	case apierrors.IsForbidden(err):
		cure = fmt.Sprintf(": grant kube-vitals the verb create on serviceaccounts/token with the name %q "+
			"in the namespace %q", k.name, k.namespace) + or
	case apierrors.IsNotFound(err):
		cure = ": create that ServiceAccount" + or
	}
	return fmt.Errorf("cannot get a token of the ServiceAccount %s/%s: %w%s", k.namespace, k.name, err, cure)
}

// podNamespace returns the namespace of the objects that a flag names: that of the kubeconfig's
// current context, or without a kubeconfig that of this pod.
func podNamespace(flag, kubeconfig, inClusterFile string) (string, error) {
	if kubeconfig == "" {
		text, err := os.ReadFile(inClusterFile)
		if err != nil {
			return "", fmt.Errorf("%s: cannot read the namespace of this pod: %w", flag, err)
		}
		if namespace := strings.TrimSpace(string(text)); namespace != "" {
			return namespace, nil
		}
		return "", fmt.Errorf("%s: %s is empty; want the namespace of this pod", flag, inClusterFile)
	}
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return "", fmt.Errorf("cannot use the kubeconfig file %q: %w", kubeconfig, err)
	}
	if c := config.Contexts[config.CurrentContext]; c != nil && c.Namespace != "" {
		return c.Namespace, nil
	}
	return "", fmt.Errorf("%s: the namespace of kube-vitals is unknown: set the namespace of the current context in the "+
		"kubeconfig file %q, or do not set the flag", flag, kubeconfig)
}
