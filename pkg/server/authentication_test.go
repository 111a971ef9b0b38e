package server

import (
	"crypto/x509/pkix"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
)

// refusing refuses every request for the same reason.
type refusing struct{ reason error }

func (r *refusing) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	return nil, false, r.reason
}

func TestRefusalsAreToldSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		log := logger.GetSink().(ktesting.Underlier).GetBuffer()
		reason := &refusing{errors.New("made up")}
		d := &discreet{Request: reason}
		request := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(klog.NewContext(t.Context(), logger))
		for range 700 { // 70 s
			if _, ok, err := d.AuthenticateRequest(request); ok || err != nil {
				t.Fatalf("%v, %v", ok, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, `line"=599`) && !strings.Contains(text, "line=599") {
			t.Errorf("the log:\n%s", text)
		}
		time.Sleep(sayAgain)
		reason.reason = errUnasked
		d.AuthenticateRequest(request)
		if text := log.String(); strings.Count(text, "\n") != 2 {
			t.Errorf("the outage is told twice:\n%s", text)
		}
	})
}

// Only who shows a certificate that the front proxy's CA has signed, for one of its names, may say who somebody is.
func TestRequestHeaders(t *testing.T) {
	cluster := newCluster(t)
	users, proxies, strangers := kubelettest.NewCA(), kubelettest.NewCA(), kubelettest.NewCA()
	cluster.setTrust(users, proxies)
	c, url := config(t, cluster)
	defer start(t, c)()
	newClient(t, url).until(http.StatusOK, "/readyz", "")

	for name, test := range map[string]struct {
		ca   *kubelettest.CA // nil: no certificate is shown
		user string
		want int
	}{
		"the front proxy":                        {proxies, "front-proxy", http.StatusOK},
		"nobody":                                 {nil, "", http.StatusForbidden},
		"a user, by his certificate's CA":        {users, "mallory", http.StatusForbidden},
		"a user with the front proxy's name":     {users, "front-proxy", http.StatusForbidden},
		"another name of the front proxy's CA":   {proxies, "mallory", http.StatusUnauthorized},
		"a stranger with the front proxy's name": {strangers, "front-proxy", http.StatusUnauthorized},
	} {
		client := newClient(t, url)
		client.header = http.Header{"X-Remote-User": {"alice"}, "X-Remote-Group": {"system:masters"}}
		if test.ca != nil {
			client.show(test.ca.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: test.user})))
		}
		response, body := client.get("/apis/metrics.k8s.io/v1/nodes", "")
		if response.StatusCode != test.want {
			t.Errorf("%s: %d, want %d: %s", name, response.StatusCode, test.want, body)
		}
	}
}

// The ConfigMap's CAs can be exchanged while the server runs.
func TestTrustChanges(t *testing.T) {
	cluster := newCluster(t)
	before, after := kubelettest.NewCA(), kubelettest.NewCA()
	cluster.setTrust(before, before)
	c, url := config(t, cluster)
	defer start(t, c)()
	asUser := func(ca *kubelettest.CA) *client {
		client := newClient(t, url)
		client.show(ca.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: "alice"})))
		return client
	}
	asProxy := func(ca *kubelettest.CA) *client {
		client := newClient(t, url)
		client.header = http.Header{"X-Remote-User": {"alice"}}
		client.show(ca.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: "front-proxy"})))
		return client
	}
	const path = "/apis/metrics.k8s.io/v1/nodes"
	asUser(before).until(http.StatusOK, path, "")
	asProxy(before).until(http.StatusOK, path, "")
	kept := asUser(before)
	kept.until(http.StatusOK, path, "")

	cluster.setTrust(after, after)
	asUser(after).until(http.StatusOK, path, "")
	asProxy(after).until(http.StatusOK, path, "")
	asUser(before).until(http.StatusUnauthorized, path, "")
	kept.until(http.StatusUnauthorized, path, "") // also on a connection of the time before
}
