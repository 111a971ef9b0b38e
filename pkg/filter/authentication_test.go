package filter

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"
)

// TestAuthenticationErrorsAreCut checks how much clients without credentials can write into the log: a short line in
// each logInterval.
func TestAuthenticationErrorsAreCut(t *testing.T) { synctest.Test(t, testAuthenticationErrorsAreCut) }

func testAuthenticationErrorsAreCut(t *testing.T) {
	var lines []string
	klog.SetLogger(funcr.New(func(prefix, args string) { lines = append(lines, prefix+args) }, funcr.Options{}))
	defer klog.ClearLogger()
	failing := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return nil, false, errors.New("reason " + strings.Repeat("x", 64<<10))
	})
	authenticator := requireCredentials(failing, authorizer.AuthorizerFunc(nil), nil)
	for want := 1; want <= 2; want++ {
		for range 3 {
			response, ok, err := authenticator.AuthenticateRequest(httptest.NewRequest(http.MethodGet, "/livez", nil))
			if response != nil || ok || err != nil {
				t.Errorf("got %v, %v, %v", response, ok, err)
			}
		}
		if len(lines) != want {
			t.Fatalf("got %d lines, want %d", len(lines), want)
		}
		if got := lines[want-1]; !strings.Contains(got, "reason xxx") || len(got) > maxErrorLength+200 {
			t.Errorf("got %d bytes: %.300s", len(got), got)
		}
		time.Sleep(logInterval)
	}
}
