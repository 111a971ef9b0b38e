package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// tokenServer is a fake API server for TokenRequests. The tokens are secret-1, secret-2 and so on.
type tokenServer struct {
	t *testing.T

	mu       sync.Mutex
	requests int           // number of requests
	granted  int64         // lifetime in seconds; 0: as requested
	status   int           // of the response; 0: a token
	hang     chan struct{} // delays responses until it is closed; may be nil
}

func (s *tokenServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.requests++
	n, granted, status, hang := s.requests, s.granted, s.status, s.hang
	s.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	if r.Method != http.MethodPost || r.URL.Path != "/api/v1/namespaces/ns/serviceaccounts/reader/token" {
		s.t.Errorf("got a request %s %s", r.Method, r.URL)
	}
	var request authenticationv1.TokenRequest
	unmarshal(r, &request)
	seconds := request.Spec.ExpirationSeconds
	if seconds == nil || *seconds != 3600 || request.Spec.BoundObjectRef != nil || request.Spec.Audiences != nil {
		s.t.Errorf("got a request for %+v", request.Spec)
	}
	reasons := map[int]metav1.StatusReason{403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound}
	var response any = &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   "Failure", Code: int32(status), Reason: reasons[status], Message: "the API server's reason",
	}
	if status == 0 {
		status = http.StatusCreated
		request.TypeMeta = metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"}
		if granted != 0 {
			request.Spec.ExpirationSeconds = &granted
		}
		request.Status = authenticationv1.TokenRequestStatus{Token: "secret-" + strconv.Itoa(n),
			ExpirationTimestamp: metav1.Time{Time: time.Unix(1, 0)}} // by another clock
		response = &request
	}
	body, err := json.Marshal(response)
	return &http.Response{StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body))}, err
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

// newTestTokens returns tokens from the server, which are renewed until the test ends.
func newTestTokens(t *testing.T, s *tokenServer) *kubeletTokens {
	t.Helper()
	s.t = t
	core, err := corev1client.NewForConfig(&rest.Config{Host: "https://192.0.2.1", Transport: s, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	k := newKubeletTokens(core, "ns", "reader")
	go k.run(t.Context())
	return k
}

// wantToken checks that Token returns the token, or an error with the text.
func wantToken(t *testing.T, k *kubeletTokens, token, text string) {
	t.Helper()
	got, err := k.Token(t.Context())
	if got != token || (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("got %q, error %v; want %q, error %q", got, err, token, text)
	}
}

// TestKubeletTokens checks that thousands of scrapes share one token, and that it is renewed in the
// background long before it expires.
func TestKubeletTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tokenServer{hang: make(chan struct{})}
		k := newTestTokens(t, s)
		var scrapes sync.WaitGroup
		for range 5000 {
			scrapes.Go(func() { wantToken(t, k, "secret-1", "") })
		}
		synctest.Wait()
		close(s.hang)
		scrapes.Wait()
		if n := s.count(); n != 1 {
			t.Errorf("got %d requests for 5000 scrapes, want 1", n)
		}
		s.set(func() { s.hang = nil })

		time.Sleep(kubeletTokenRenewal - time.Second)
		wantToken(t, k, "secret-1", "")
		synctest.Wait()
		if n := s.count(); n != 1 {
			t.Errorf("got %d requests before the renewal, want 1", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		wantToken(t, k, "secret-2", "")
		if n := s.count(); n != 2 {
			t.Errorf("got %d requests, want 2", n)
		}
	})
}

// TestKubeletTokenWithShortLifetime checks that a token with a shorter lifetime than requested is
// renewed after half of it.
func TestKubeletTokenWithShortLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTestTokens(t, &tokenServer{granted: 600})
		wantToken(t, k, "secret-1", "")
		time.Sleep(299 * time.Second)
		wantToken(t, k, "secret-1", "")
		time.Sleep(time.Second)
		synctest.Wait()
		wantToken(t, k, "secret-2", "")
	})
}

// TestKubeletTokensDuringOutage checks that a token is used until it expires, and that the API
// server gets a bounded rate of requests.
func TestKubeletTokensDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tokenServer{}
		k := newTestTokens(t, s)
		start := time.Now()
		wantToken(t, k, "secret-1", "")
		s.set(func() { s.status = http.StatusServiceUnavailable })
		expires := start.Add(kubeletTokenLifetime - kubeletTokenMargin)
		for time.Now().Before(expires) {
			wantToken(t, k, "secret-1", "")
			time.Sleep(5 * time.Second)
		}
		if n := s.count(); n < 40 || n > 80 {
			t.Errorf("got %d requests in an outage of 50 minutes, want about one a minute", n)
		}
		wantToken(t, k, "", "cannot get a token of the ServiceAccount ns/reader: the API server's reason")
		before := s.count()
		for range 5000 {
			wantToken(t, k, "", "the API server's reason")
		}
		if n := s.count(); n > before+1 {
			t.Errorf("got %d requests for 5000 scrapes without a token, want 1 at most", n-before)
		}
		s.set(func() { s.status = 0 })
		time.Sleep(90 * time.Second)
		got, err := k.Token(t.Context())
		if err != nil || got != fmt.Sprintf("secret-%d", s.count()) {
			t.Errorf("after the outage: got %q, error %v", got, err)
		}
	})
}

// TestKubeletTokenErrors checks that the error has the cure, and that failures are not repeated for
// each scrape.
func TestKubeletTokenErrors(t *testing.T) {
	for status, cure := range map[int]string{
		http.StatusForbidden: "grant kube-vitals the verb create on serviceaccounts/token with the name \"reader\" " +
			"in the namespace \"ns\", or do not set --kubelet-service-account " +
			"(kubelet.serviceAccount.create=false in the chart)",
		http.StatusNotFound: "create that ServiceAccount, or do not set --kubelet-service-account",
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &tokenServer{status: status}
			k := newTestTokens(t, s)
			for range 100 {
				wantToken(t, k, "", cure)
			}
			if n := s.count(); n != 1 {
				t.Errorf("got %d requests at once, want 1", n)
			}
			s.set(func() { s.status = 0 })
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
		if n := s.count(); n != 1 {
			t.Errorf("got %d requests, want 1", n)
		}
	})
}

// TestTokenWaitsForNodes checks that a server that starts in an outage requests its token once the nodes are
// known, and so at once: the first scrapes would have to wait for a retry.
func TestTokenWaitsForNodes(t *testing.T) {
	const nodes, token = "/api/v1/nodes", "/api/v1/namespaces/default/serviceaccounts/reader/token"
	cluster := newCluster(t)
	cluster.down.Store(true)
	c, _ := cluster.config(t)
	c.KubeletServiceAccount = "reader"
	start(t, c)
	await := func(path string, atLeast int) {
		eventually(t, func() string {
			if n := cluster.requested(path); n < atLeast {
				return fmt.Sprintf("got %d requests for %s, want %d", n, path, atLeast)
			}
			return ""
		})
	}
	await(nodes, 2)
	if n := cluster.requested(token); n != 0 {
		t.Errorf("got %d requests for a token before the nodes are known", n)
	}
	cluster.down.Store(false)
	await(token, 1)
}

// TestKubeletsGetOnlyTheirToken checks that kubelets do not get the credentials of this process if
// there are tokens for kubelets.
func TestKubeletsGetOnlyTheirToken(t *testing.T) {
	ca := kubelettest.NewCA()
	dir := t.TempDir()
	tokenFile := filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, []byte("own"), 0o600); err != nil {
		t.Fatal(err)
	}
	var seen []string // credentials in the kubelet's requests
	k := kubelettest.New("n7", kubelettest.Config{Authorize: func(r *http.Request) int {
		seen = append(seen, fmt.Sprint(r.Header.Values("Authorization"), len(r.TLS.PeerCertificates)))
		return http.StatusOK
	}})
	k.SetNode(kubelettest.Usage{CPU: 1})
	certificate := ca.Issue([]string{"n7"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	address := k.Start(t, &certificate)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n7"}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.Addr().String()}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(address.Port())
	clientCertificate, clientKey := kubelettest.PEM(ca.Issue(nil, nil))
	tokens := newTestTokens(t, &tokenServer{})
	for name, own := range map[string]*rest.Config{
		"in the cluster":       {BearerToken: "own", BearerTokenFile: tokenFile},
		"outside, token":       {BearerToken: "own"},
		"outside, certificate": {TLSClientConfig: rest.TLSClientConfig{CertData: clientCertificate, KeyData: clientKey}},
	} {
		t.Run(name, func(t *testing.T) {
			own.CAData = ca.PEM()
			c, err := kubelet.NewClient(kubeletConfig(kubelet.Config{
				Token: tokens.Token, UseNodeStatusPort: true, AllowLoopback: true, AddressTypes: kubelet.DefaultAddressTypes(),
				Timeout: kubelet.DefaultTimeout, MaxBodyBytes: kubelet.DefaultMaxBodyBytes, Clock: usage.NewClock(time.Now()),
			}, own))
			if err != nil {
				t.Fatal(err)
			}
			seen = nil
			ignore := func(*usage.Scrape) {}
			_, err = c.Fetch(t.Context(), node, ignore)
			if _, summaryErr := c.FetchSummary(t.Context(), node, ignore); errors.Join(err, summaryErr) != nil {
				t.Fatal(err, summaryErr)
			}
			if want := []string{"[Bearer secret-1] 0", "[Bearer secret-1] 0"}; !slices.Equal(seen, want) {
				t.Errorf("the kubelet got %q, want %q", seen, want)
			}
		})
	}
}

// TestNamespace checks that objects which flags name are in the namespace of the kubeconfig.
func TestNamespace(t *testing.T) {
	c, _ := newCluster(t).config(t)
	defer c.Serving.Listener.Close()
	for _, want := range []string{"default", "monitoring"} {
		a, err := newAssembly(c)
		if err != nil || a.namespace != want {
			t.Errorf("got %v, want the namespace %s", err, want)
		}
		c = withEvents(t, c)
	}
}
