package filter

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"
)

// TestAuthenticationErrorsAreCut checks how much clients without credentials can write into the log.
func TestAuthenticationErrorsAreCut(t *testing.T) {
	var log strings.Builder
	klog.SetLogger(funcr.New(func(prefix, args string) { log.WriteString(prefix + args) }, funcr.Options{}))
	defer klog.ClearLogger()
	failing := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return nil, false, errors.New("reason " + strings.Repeat("x", 64<<10))
	})
	none := authorizer.AuthorizerFunc(nil)
	for range 2 {
		r := httptest.NewRequest(http.MethodGet, "/livez", nil)
		response, ok, err := requireCredentials(failing, none, nil).AuthenticateRequest(r)
		if response != nil || ok || err != nil {
			t.Errorf("got %v, %v, %v", response, ok, err)
		}
	}
	if got := log.String(); !strings.Contains(got, "reason xxx") || len(got) > 2*(maxErrorLength+200) {
		t.Errorf("got %d bytes: %.300s", len(got), got)
	}
}
