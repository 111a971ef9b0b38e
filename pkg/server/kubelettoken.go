package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/internal/backoff"
	"github.com/kube-vitals/kube-vitals/pkg/internal/failure"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

const (
	// kubeletTokenLifetime is the requested lifetime of a token. Scrapes fail once an outage of the
	// API server has lasted longer.
	kubeletTokenLifetime = time.Hour
	// A token is replaced at the age of kubeletTokenRenewal. It is far below the lifetime
	// because deleting and creating the ServiceAccount again makes tokens invalid early.
	kubeletTokenRenewal = 10 * time.Minute
	// kubeletTokenMargin is how long before its expiry a token is no longer used. It
	// allows for differing clocks.
	kubeletTokenMargin = 10 * time.Second
	// kubeletTokenTimeout is the timeout of a request to the API server. A scrape that waits for
	// the request has a timeout of 10 seconds by default.
	kubeletTokenTimeout = 8 * time.Second
	// kubeletTokenPause is how long a renewal may be late after the machine was suspended: timers do not
	// count that time.
	kubeletTokenPause = 5 * time.Second
)

// kubeletTokens renews a short-lived token from the TokenRequest API. Its ServiceAccount may only
// read the metrics of kubelets, so a kubelet cannot misuse a token that it receives.
//
// The caching token sources of client-go do not fit. While the API server is unavailable, scrapes
// must use the current token until it expires without waiting, and must not each send a request.
type kubeletTokens struct {
	client          corev1client.ServiceAccountsGetter
	namespace, name string                        // of the ServiceAccount
	tried           chan struct{}                 // closed when the first request has ended
	since           func(time.Time) time.Duration // longestSince, except in tests

	mu        sync.Mutex
	token     string
	requested time.Time     // when the token was requested
	lifetime  time.Duration // of the token since then, less kubeletTokenMargin
	err       error         // of the last request
	log       failure.Log
}

func newKubeletTokens(client corev1client.ServiceAccountsGetter, namespace, name string) *kubeletTokens {
	return &kubeletTokens{
		client: client, namespace: namespace, name: name, tried: make(chan struct{}), since: longestSince,
		log: failure.Log{
			Failing:   "Cannot renew the token for kubelets; the current one stays in use until it expires",
			Recovered: "Renewed the token for kubelets",
		},
	}
}

// longestSince returns the time since t by the monotonic or the wall clock, whichever is longer. The
// monotonic clock stands still while the machine is suspended.
func longestSince(t time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(t), now.Round(0).Sub(t.Round(0)))
}

// errTokenExpired is the error until the token is renewed after this process has stood still.
var errTokenExpired = errors.New("the token for kubelets has expired, and is being renewed")

// Token returns the token, or the error of the last request if the token has expired. Until the first
// request has ended, it waits, at most until the context ends.
func (k *kubeletTokens) Token(ctx context.Context) (string, error) {
	select {
	case <-k.tried:
	case <-ctx.Done():
		return "", fmt.Errorf("the API server has not returned a token of the ServiceAccount %s/%s yet: %w",
			k.namespace, k.name, ctx.Err())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isValid() {
		return k.token, nil
	}
	return "", cmp.Or(k.err, errTokenExpired)
}

// isValid reports whether the token has not expired. k.mu is held.
func (k *kubeletTokens) isValid() bool { return k.since(k.requested) < k.lifetime }

// run renews the token until the context ends.
func (k *kubeletTokens) run(ctx context.Context) {
	retry := backoff.New(time.Second, time.Minute)
	for first := true; ; first = false {
		start := time.Now()
		token, lifetime, err := k.request(ctx)
		if ctx.Err() != nil {
			return
		}
		k.set(token, start, lifetime-kubeletTokenMargin, err)
		if first {
			close(k.tried)
		}
		delay := min(kubeletTokenRenewal, lifetime/2)
		if err == nil {
			retry = backoff.New(time.Second, time.Minute)
		} else {
			delay = retry.Step()
		}
		for ended := time.Now(); k.since(ended) < delay; {
			if !backoff.Sleep(ctx, min(delay-k.since(ended), kubeletTokenPause), nil) {
				return
			}
		}
	}
}

// set sets the result of a request. An error leaves the token in use.
func (k *kubeletTokens) set(token string, requested time.Time, lifetime time.Duration, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
	if err == nil {
		k.log.NoteError(klog.Background(), nil)
		k.token, k.requested, k.lifetime = token, requested, lifetime
	} else if k.isValid() { // else the scrapes fail with this error
		why := reason.NoToken.Describe().Explain(err)
		why.Problem = "" // there is still one
		// The text of the error may differ each time, and is no reason for another line.
		k.log.Note(klog.Background(), "failing", why,
			"expires", k.requested.Add(k.lifetime).UTC().Format(time.RFC3339))
	}
}

// request returns a token and the lifetime that the API server granted. Unlike the expiry in the
// response, the lifetime does not depend on the API server's clock.
func (k *kubeletTokens) request(ctx context.Context) (token string, lifetime time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTokenTimeout)
	defer cancel()
	seconds := int64(kubeletTokenLifetime.Seconds())
	response, err := k.client.ServiceAccounts(k.namespace).CreateToken(ctx, k.name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err == nil && response.Status.Token == "" {
		err = errors.New("the response has no token")
	}
	if err != nil {
		return "", 0, k.newError(err)
	}
	if granted := response.Spec.ExpirationSeconds; granted != nil && *granted > 0 {
		seconds = min(seconds, *granted)
	}
	return response.Status.Token, time.Duration(seconds) * time.Second, nil
}

// newError returns the error of a request, with its cure if that depends on the error.
func (k *kubeletTokens) newError(err error) error {
	const or = ", or do not set --kubelet-service-account (kubelet.serviceAccount.create=false in the chart)"
	cure := ""
	switch {
	case apierrors.IsForbidden(err):
		cure = fmt.Sprintf("grant kube-vitals the verb create on serviceaccounts/token with the name %q "+
			"in the namespace %q", k.name, k.namespace) + or
	case apierrors.IsNotFound(err):
		cure = "create that ServiceAccount" + or
	}
	return &reason.Error{
		Reason: reason.NoToken,
		Err:    fmt.Errorf("cannot get a token of the ServiceAccount %s/%s: %w", k.namespace, k.name, err),
		Cure:   cure,
	}
}
