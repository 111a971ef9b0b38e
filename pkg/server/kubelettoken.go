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
	// kubeletTokenLifetime is how long a token for kubelets is valid, and thereby how long an
	// outage of the API server may take before kubelets cannot be scraped any more.
	kubeletTokenLifetime = time.Hour
	// kubeletTokenRenewal is the age at which a token is replaced. It is far below the lifetime for
	// the sake of tokens that became invalid early, because somebody has deleted the ServiceAccount
	// and created it again.
	kubeletTokenRenewal = 10 * time.Minute
	// kubeletTokenMargin is the time before its end from which on a token is not sent any more, for
	// clocks that differ.
	kubeletTokenMargin = 10 * time.Second
	// kubeletTokenTimeout bounds one request to the API server. A scrape that waits for it has 10
	// seconds in all.
	kubeletTokenTimeout = 8 * time.Second

	inClusterNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
)

// kubeletTokens requests short-lived tokens for kubelets, by the TokenRequest API. They belong to a
// ServiceAccount that may do nothing else than read the metrics of kubelets, so that a kubelet that
// reads the token off a request gains nothing.
//
// It differs from client-go's caching token sources in what happens when the API server is
// unavailable: scrapes go on with the token at hand until that expires, without waiting, and
// thousands of scrapes do not make as many requests.
type kubeletTokens struct {
	client          corev1client.ServiceAccountsGetter
	namespace, name string // of the ServiceAccount

	mu      sync.Mutex
	token   string
	expires time.Time     // of the token, by our clock
	renewAt time.Time     // when the next request is due
	pending chan struct{} // closed when the request that is under way has ended; nil: there is none
	backoff wait.Backoff  // between requests that fail
	err     error         // why the last request failed; nil: it did not
}

func newKubeletTokens(client *rest.Config, namespace, name string) (*kubeletTokens, error) {
	core, err := corev1client.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("cannot request tokens for kubelets: %w", err)
	}
	return &kubeletTokens{client: core, namespace: namespace, name: name, backoff: newTokenBackoff()}, nil
}

func newTokenBackoff() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 10, Cap: time.Minute}
}

// Token returns a valid token. It waits only if there is none yet, or none any more, and a request
// is under way; then until the context ends.
func (k *kubeletTokens) Token(ctx context.Context) (string, error) {
	for {
		token, pending, err := k.current()
		if token != "" || err != nil {
			return token, err
		}
		select {
		case <-pending:
		case <-ctx.Done():
			return "", fmt.Errorf("the API server has not sent a token of the ServiceAccount %s/%s yet: %w", k.namespace, k.name, ctx.Err())
		}
	}
}

// current returns the token, if it is valid, or else what to wait for, or why there is none. It
// begins a request if one is due.
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

// renew requests a token. Only one request is under way at a time.
func (k *kubeletTokens) renew() {
	asked := time.Now()
	token, lifetime, err := k.request()
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.pending)
	k.pending = nil
	if err != nil {
		if k.err == nil && time.Now().Before(k.expires) {
			klog.Background().Error(err, "Cannot renew the token for kubelets; the present one stays in use until it expires",
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
	k.token, k.expires = token, asked.Add(lifetime-kubeletTokenMargin)
	k.renewAt = asked.Add(min(kubeletTokenRenewal, lifetime/2))
}

// request asks the API server for a token. Its lifetime is what the API server has granted, so that
// no clock but ours is needed to know when the token expires.
func (k *kubeletTokens) request() (token string, lifetime time.Duration, err error) {
	// client-go writes bodies of responses to the logger of the context from -v=8 on. A token must
	// not be logged.
	ctx, cancel := context.WithTimeout(klog.NewContext(context.Background(), klog.Logger{}), kubeletTokenTimeout)
	defer cancel()
	seconds := int64(kubeletTokenLifetime.Seconds())
	response, err := k.client.ServiceAccounts(k.namespace).CreateToken(ctx, k.name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err == nil && response.Status.Token == "" {
		err = errors.New("the API server's response has no token")
	}
	if err != nil {
		return "", 0, k.explain(err)
	}
	if granted := response.Spec.ExpirationSeconds; granted != nil && *granted > 0 {
		seconds = min(seconds, *granted)
	}
	return response.Status.Token, time.Duration(seconds) * time.Second, nil
}

func (k *kubeletTokens) explain(err error) error {
	const or = ", or leave out --kubelet-service-account (kubelet.serviceAccount.create=false in the chart)"
	cure := ""
	switch {
	case apierrors.IsForbidden(err):
		cure = fmt.Sprintf(": grant kube-vitals the verb create on serviceaccounts/token of the name %q in the namespace %q", k.name, k.namespace) + or
	case apierrors.IsNotFound(err):
		cure = ": create that ServiceAccount" + or
	}
	return fmt.Errorf("cannot get a token of the ServiceAccount %s/%s: %w%s", k.namespace, k.name, err, cure)
}

// kubeletTokenNamespace returns the namespace of the ServiceAccount for kubelets: in the cluster
// that of this pod, outside that of the kubeconfig's current context.
func kubeletTokenNamespace(kubeconfig, inClusterFile string) (string, error) {
	if kubeconfig == "" {
		text, err := os.ReadFile(inClusterFile)
		if err != nil {
			return "", fmt.Errorf("--kubelet-service-account: cannot read the namespace of this pod: %w", err)
		}
		if namespace := strings.TrimSpace(string(text)); namespace != "" {
			return namespace, nil
		}
		return "", fmt.Errorf("--kubelet-service-account: %s is empty, and should have the namespace of this pod", inClusterFile)
	}
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return "", fmt.Errorf("cannot use the kubeconfig file %q: %w", kubeconfig, err)
	}
	if c := config.Contexts[config.CurrentContext]; c != nil && c.Namespace != "" {
		return c.Namespace, nil
	}
	return "", fmt.Errorf("--kubelet-service-account: the kubeconfig file %q does not say in which namespace that ServiceAccount is: "+
		"set the namespace of its current context, or leave out the flag, so that its own credentials are sent to kubelets", kubeconfig)
}
