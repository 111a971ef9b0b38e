package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// tokenServer is an API server that knows TokenRequests only. Its methods may be called at the same
// time as it answers.
type tokenServer struct {
	t *testing.T

	mu       sync.Mutex
	requests int           // how many there have been; the tokens are called secret-1 and so on
	granted  int64         // seconds that it grants; 0: what is asked for
	status   int           // with which it refuses; 0: it does not
	hang     chan struct{} // responses wait until it is closed; nil: they do not
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
		s.t.Errorf("asked for %s %s", r.Method, r.URL)
	}
	var request authenticationv1.TokenRequest
	sent, err := io.ReadAll(r.Body)
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(sent, nil, &request)
	}
	if err != nil {
		s.t.Error(err)
	}
	if seconds := request.Spec.ExpirationSeconds; seconds == nil || *seconds != 3600 || request.Spec.BoundObjectRef != nil || request.Spec.Audiences != nil {
		s.t.Errorf("asked for %+v", request.Spec)
	}
	var answer any = &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
		Code: int32(status), Reason: map[int]metav1.StatusReason{403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound}[status],
		Message: "the API server's reason"}
	if status == 0 {
		status = http.StatusCreated
		request.TypeMeta = metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"}
		if granted != 0 {
			request.Spec.ExpirationSeconds = &granted
		}
		request.Status = authenticationv1.TokenRequestStatus{Token: "secret-" + strconv.Itoa(n),
			ExpirationTimestamp: metav1.Time{Time: time.Unix(1, 0)}} // by a clock that is not ours
		answer = &request
	}
	body, err := json.Marshal(answer)
	return &http.Response{StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body))}, err
}

func (s *tokenServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *tokenServer) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

func (s *tokenServer) config() *rest.Config {
	return &rest.Config{Host: "https://192.0.2.1", Transport: s, QPS: -1}
}

func newTestTokens(t *testing.T) (*kubeletTokens, *tokenServer) {
	t.Helper()
	s := &tokenServer{t: t}
	k, err := newKubeletTokens(s.config(), "ns", "reader")
	if err != nil {
		t.Fatal(err)
	}
	return k, s
}

// want checks what Token returns: a token, or an error that has a text.
func wantToken(t *testing.T, k *kubeletTokens, token, text string) {
	t.Helper()
	got, err := k.Token(t.Context())
	if got != token || (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("the token is %q, error %v; want %q, error %q", got, err, token, text)
	}
}

// TestKubeletTokens: thousands of scrapes share a token, which is replaced long before it expires,
// without any of them waiting for it.
func TestKubeletTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newTestTokens(t)
		s.hang = make(chan struct{})
		var scrapes sync.WaitGroup
		for range 5000 {
			scrapes.Go(func() { wantToken(t, k, "secret-1", "") })
		}
		synctest.Wait()
		close(s.hang)
		scrapes.Wait()
		if n := s.asked(); n != 1 {
			t.Errorf("%d requests for 5000 scrapes", n)
		}
		s.set(func() { s.hang = nil })

		time.Sleep(kubeletTokenRenewal - time.Second)
		wantToken(t, k, "secret-1", "")
		synctest.Wait()
		if n := s.asked(); n != 1 {
			t.Errorf("%d requests before the renewal", n)
		}
		time.Sleep(time.Second)
		wantToken(t, k, "secret-1", "") // and a request in the background
		synctest.Wait()
		wantToken(t, k, "secret-2", "")
		if n := s.asked(); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
	})
}

// TestKubeletTokenOfShortLife: the API server may grant less than is asked for.
func TestKubeletTokenOfShortLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newTestTokens(t)
		s.granted = 600
		wantToken(t, k, "secret-1", "")
		time.Sleep(299 * time.Second)
		wantToken(t, k, "secret-1", "")
		time.Sleep(time.Second)
		wantToken(t, k, "secret-1", "")
		synctest.Wait()
		wantToken(t, k, "secret-2", "")
	})
}

// TestKubeletTokensInAnOutage: a token is used until it expires, and the API server is asked at a
// bounded rate.
func TestKubeletTokensInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newTestTokens(t)
		began := time.Now()
		wantToken(t, k, "secret-1", "")
		s.set(func() { s.status = http.StatusServiceUnavailable })
		expires := began.Add(kubeletTokenLifetime - kubeletTokenMargin)
		for time.Now().Before(expires) {
			wantToken(t, k, "secret-1", "")
			time.Sleep(5 * time.Second)
		}
		if n := s.asked(); n < 40 || n > 80 {
			t.Errorf("%d requests in an outage of 50 minutes, want about one a minute", n)
		}
		wantToken(t, k, "", "cannot get a token of the ServiceAccount ns/reader: the API server's reason")
		before := s.asked()
		for range 5000 {
			wantToken(t, k, "", "the API server's reason")
		}
		if n := s.asked(); n > before+1 {
			t.Errorf("%d requests for 5000 scrapes without a token", n-before)
		}
		s.set(func() { s.status = 0 })
		time.Sleep(90 * time.Second)
		got, err := k.Token(t.Context())
		if err != nil || got != fmt.Sprintf("secret-%d", s.asked()) {
			t.Errorf("after the outage the token is %q, error %v", got, err)
		}
	})
}

// TestKubeletTokensAreNotGiven: the error says what to do, and the API server is not asked again
// for each scrape.
func TestKubeletTokensAreNotGiven(t *testing.T) {
	for status, cure := range map[int]string{
		http.StatusForbidden: `grant kube-vitals the verb create on serviceaccounts/token of the name "reader" in the namespace "ns", ` +
			"or leave out --kubelet-service-account (kubelet.serviceAccount.create=false in the chart)",
		http.StatusNotFound: "create that ServiceAccount, or leave out --kubelet-service-account",
	} {
		synctest.Test(t, func(t *testing.T) {
			k, s := newTestTokens(t)
			s.status = status
			for range 100 {
				wantToken(t, k, "", cure)
			}
			if n := s.asked(); n != 1 {
				t.Errorf("%d requests at once", n)
			}
			s.set(func() { s.status = 0 })
			time.Sleep(2 * time.Second)
			wantToken(t, k, "secret-2", "")
		})
	}
}

// TestKubeletTokenThatDoesNotCome: a scrape waits for the first token for as long as its context
// allows.
func TestKubeletTokenThatDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newTestTokens(t)
		s.hang = make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		if _, err := k.Token(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		wantToken(t, k, "", "context deadline exceeded") // the request is given up
		if n := s.asked(); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
	})
}

// TestKubeletTokensAreNotLogged: client-go logs what the API server answers, if it is asked to log
// all.
func TestKubeletTokensAreNotLogged(t *testing.T) {
	defer klog.CaptureState().Restore()
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{"v": "10", "logtostderr": "false", "stderrthreshold": "FATAL"} {
		if err := flags.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	klog.SetOutput(&log)
	k, _ := newTestTokens(t)
	wantToken(t, k, "secret-1", "")
	klog.Flush()
	if strings.Contains(log.String(), "secret-") {
		t.Errorf("the token is logged:\n%s", log.String())
	}
	klog.Background().V(10).Info("the log is read")
	klog.Flush()
	if !strings.Contains(log.String(), "the log is read") {
		t.Error("nothing is logged at all")
	}
}

// TestKubeletsSeeTheirTokenOnly: with tokens for kubelets, no credentials of this process reach
// one.
func TestKubeletsSeeTheirTokenOnly(t *testing.T) {
	ca := kubelettest.NewCA()
	dir := t.TempDir()
	tokenFile := filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, []byte("own"), 0o600); err != nil {
		t.Fatal(err)
	}
	var seen []string // by the kubelet, one request at a time
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
	tokens, _ := newTestTokens(t)
	for name, own := range map[string]*rest.Config{
		"in the cluster":       {BearerToken: "own", BearerTokenFile: tokenFile},
		"outside, token":       {BearerToken: "own"},
		"outside, certificate": {TLSClientConfig: rest.TLSClientConfig{CertData: clientCertificate, KeyData: clientKey}},
	} {
		t.Run(name, func(t *testing.T) {
			own.CAData = ca.PEM()
			c, err := kubelet.NewClient(kubeletConfig(kubelet.Config{
				Token: tokens.Token, UseNodeStatusPort: true, AllowLoopback: true,
			}, own))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			seen = nil
			if err := errors.Join(c.Fetch(t.Context(), node, &usage.Scrape{}), c.FetchSummary(t.Context(), node, &usage.Scrape{})); err != nil {
				t.Fatal(err)
			}
			for _, credentials := range seen {
				if credentials != "[Bearer secret-1] 0" {
					t.Errorf("the kubelet saw %s", credentials)
				}
			}
			if len(seen) != 2 {
				t.Errorf("%d requests", len(seen))
			}
		})
	}
}

func TestKubeletTokenNamespace(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	kubeconfig := func(context string) string {
		return write("kubeconfig", `{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": `+context+`}]}`)
	}
	for name, test := range map[string]struct {
		kubeconfig, file string
		want, text       string
	}{
		"in the cluster":      {"", write("namespace", "ns\n"), "ns", ""},
		"no file":             {"", filepath.Join(dir, "none"), "", "--kubelet-service-account: cannot read the namespace of this pod"},
		"empty file":          {"", write("empty", "\n"), "", "is empty"},
		"outside":             {kubeconfig(`{"namespace": "ns"}`), "", "ns", ""},
		"outside, not said":   {write("other", `{"apiVersion": "v1", "kind": "Config"}`), "", "", "set the namespace of its current context"},
		"no kubeconfig there": {filepath.Join(dir, "none"), "", "", "cannot use the kubeconfig file"},
	} {
		got, err := kubeletTokenNamespace(test.kubeconfig, test.file)
		if got != test.want || (err == nil) != (test.text == "") || err != nil && !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %q, error %v; want %q, error %q", name, got, err, test.want, test.text)
		}
	}
}

// TestKubeletServiceAccountNeedsANamespace: New fails where it cannot know in which namespace the
// ServiceAccount is.
func TestKubeletServiceAccountNeedsANamespace(t *testing.T) {
	c, _ := config(t, newCluster(t))
	c.KubeletServiceAccount = "reader"
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "--kubelet-service-account: the kubeconfig file") {
		t.Errorf("error %v", err)
	}
}
