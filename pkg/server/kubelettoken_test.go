package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// tokenServer is an API server for requests for tokens of the ServiceAccount ns/reader. The tokens are
// secret-1, secret-2 and so on.
type tokenServer struct {
	corev1client.ServiceAccountInterface // nil
	t                                    *testing.T
	suspendedAt                          atomic.Pointer[time.Time] // when the machine was suspended for 8 hours

	mu       sync.Mutex
	requests int           // number of requests
	granted  *int64        // lifetime in seconds; nil: as requested
	err      error         // of responses
	hang     chan struct{} // delays responses until it is closed; may be nil
}

func (s *tokenServer) ServiceAccounts(namespace string) corev1client.ServiceAccountInterface {
	if namespace != "ns" {
		s.t.Errorf("got the namespace %s", namespace)
	}
	return s
}

func (s *tokenServer) CreateToken(
	ctx context.Context, name string, request *authenticationv1.TokenRequest, _ metav1.CreateOptions,
) (*authenticationv1.TokenRequest, error) {
	s.mu.Lock()
	s.requests++
	n, granted, err, hang := s.requests, s.granted, s.err, s.hang
	s.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	spec := request.Spec
	if name != "reader" || *spec.ExpirationSeconds != 3600 || spec.BoundObjectRef != nil || spec.Audiences != nil {
		s.t.Errorf("got a request for %s, %+v", name, spec)
	}
	spec.ExpirationSeconds = cmp.Or(granted, spec.ExpirationSeconds)
	return &authenticationv1.TokenRequest{Spec: spec, Status: authenticationv1.TokenRequestStatus{
		Token: fmt.Sprint("secret-", n), ExpirationTimestamp: metav1.Time{Time: time.Unix(1, 0)}, // by another clock
	}}, err
}

func (s *tokenServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *tokenServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// wantRequests checks the number of requests.
func (s *tokenServer) wantRequests(want int) {
	s.t.Helper()
	if n := s.count(); n != want {
		s.t.Errorf("got %d requests, want %d", n, want)
	}
}

// newTestTokens returns tokens from the server, which are renewed until the test ends.
func newTestTokens(t *testing.T, s *tokenServer) *kubeletTokens {
	t.Helper()
	s.t = t
	k := newKubeletTokens(s, "ns", "reader")
	k.since = func(t time.Time) time.Duration {
		elapsed := longestSince(t)
		if suspended := s.suspendedAt.Load(); suspended != nil && !t.After(*suspended) {
			elapsed += 8 * time.Hour
		}
		return elapsed
	}
	go k.run(t.Context())
	return k
}

// wantToken checks that Token returns the token, or an error with the text.
func wantToken(t *testing.T, k *kubeletTokens, token, text string) {
	t.Helper()
	got, err := k.Token(t.Context())
	why := reason.NoToken.Describe().Explain(err).Error()
	if got != token || (err == nil) != (text == "") || err != nil && !strings.Contains(why, text) {
		t.Errorf("got %q, %s; want %q, %q", got, why, token, text)
	}
}

// TestKubeletTokens checks that many scrapes share one token, and that it is renewed in the background long
// before it expires: after half of its lifetime if that is shorter than requested.
func TestKubeletTokens(t *testing.T) {
	for granted, renewal := range map[int64]time.Duration{3600: 10 * time.Minute, 600: 300 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := &tokenServer{hang: make(chan struct{}), granted: &granted}
			k := newTestTokens(t, s)
			var scrapes sync.WaitGroup
			for range 500 {
				scrapes.Go(func() { wantToken(t, k, "secret-1", "") })
			}
			synctest.Wait()
			close(s.hang)
			scrapes.Wait()
			s.wantRequests(1)

			time.Sleep(renewal - time.Second)
			synctest.Wait()
			wantToken(t, k, "secret-1", "")
			s.wantRequests(1)
			time.Sleep(time.Second)
			synctest.Wait()
			wantToken(t, k, "secret-2", "")
			s.wantRequests(2)
		})
	}
}

// TestKubeletTokensDuringOutage checks that a token is used until it expires, and that the API
// server gets a bounded rate of requests.
func TestKubeletTokensDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tokenServer{}
		k := newTestTokens(t, s)
		expires := time.Now().Add(kubeletTokenLifetime - kubeletTokenMargin)
		wantToken(t, k, "secret-1", "")
		s.set(func() { s.err = errors.New("out of order") })
		for time.Now().Before(expires) {
			wantToken(t, k, "secret-1", "")
			time.Sleep(5 * time.Second)
		}
		before := s.count()
		if before < 40 || before > 80 {
			t.Errorf("got %d requests in an outage of 50 minutes, want about one a minute", before)
		}
		for range 500 {
			wantToken(t, k, "", "cannot get a token of the ServiceAccount ns/reader: out of order")
		}
		if n := s.count(); n > before+1 {
			t.Errorf("got %d requests for 500 scrapes without a token, want 1 at most", n-before)
		}
		s.set(func() { s.err = nil })
		time.Sleep(90 * time.Second)
		wantToken(t, k, fmt.Sprint("secret-", s.count()), "")
	})
}

// TestKubeletTokensAfterSuspension checks that a token that expired while the machine was suspended, which
// timers do not notice, is not used, and is renewed at once.
func TestKubeletTokensAfterSuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tokenServer{}
		k := newTestTokens(t, s)
		wantToken(t, k, "secret-1", "")
		synctest.Wait() // until the next renewal waits: one of this moment would be from before the suspension, too
		s.suspendedAt.Store(new(time.Now()))
		wantToken(t, k, "", "is being renewed")
		time.Sleep(kubeletTokenPause)
		synctest.Wait()
		wantToken(t, k, "secret-2", "")
	})
}

// TestKubeletTokenErrors checks that the error has the cure, and that failures are not repeated for
// each scrape.
func TestKubeletTokenErrors(t *testing.T) {
	for cure, err := range map[string]error{
		`grant kube-vitals the verb create on serviceaccounts/token with the name "reader" in the namespace "ns", ` +
			"or do not set --kubelet-service-account (kubelet.serviceAccount.create=false in the chart)": apierrors.NewForbidden(
			corev1.Resource("serviceaccounts"), "reader", nil),
		"create that ServiceAccount, or do not set --kubelet-service-account": apierrors.NewNotFound(
			corev1.Resource("serviceaccounts"), "reader"),
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &tokenServer{err: err}
			k := newTestTokens(t, s)
			for range 100 {
				wantToken(t, k, "", cure)
			}
			s.wantRequests(1)
			s.set(func() { s.err = nil })
			time.Sleep(2 * time.Second)
			wantToken(t, k, "secret-2", "")
		})
	}
}

// TestKubeletTokenTimeout checks that Token waits for the first token until its context ends.
func TestKubeletTokenTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tokenServer{hang: make(chan struct{})}
		k := newTestTokens(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		if _, err := k.Token(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		wantToken(t, k, "", "context deadline exceeded") // the request has timed out
		s.wantRequests(1)
	})
}

// TestTokenWaitsForNodes checks that a server that starts in an outage requests its token once the nodes are
// known, and so at once: the first scrapes would have to wait for a retry.
func TestTokenWaitsForNodes(t *testing.T) {
	const nodes, token = "/api/v1/nodes", "/api/v1/namespaces/monitoring/serviceaccounts/reader/token"
	cluster := newCluster(t)
	cluster.down.Store(true)
	c := cluster.config(t)
	c.KubeletServiceAccount = "reader"
	start(t, c)
	await := func(path string, atLeast int) {
		eventually(t, func() string {
			if n := cluster.Requested(path); n < atLeast {
				return fmt.Sprintf("got %d requests for %s, want %d", n, path, atLeast)
			}
			return ""
		})
	}
	await(nodes, 2)
	if n := cluster.Requested(token); n != 0 {
		t.Errorf("got %d requests for a token before the nodes are known", n)
	}
	cluster.down.Store(false)
	await(token, 1)
}
