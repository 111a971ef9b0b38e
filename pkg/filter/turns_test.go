package filter

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// TestTurns checks that requests of one user wait, and none of others.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, release := map[string]int{}, make(chan bool)
		h := WithTurns(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			u, _ := request.UserFrom(r.Context())
			begun[u.GetName()]++
			<-release
		}), 2)
		ended := map[int]int{} // by status
		ctx, cancel := context.WithCancel(t.Context())
		for n, name := range []string{"mallory", "mallory", "mallory", "mallory", "alice"} {
			go func() {
				r := httptest.NewRequest(http.MethodGet, "/nodez", nil)
				if n == 3 {
					r = r.WithContext(ctx)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: name})))
				ended[w.Code]++
			}()
			synctest.Wait()
		}
		if begun["mallory"] != 2 || begun["alice"] != 1 {
			t.Errorf("begun are %v, want 2 of mallory and 1 of alice", begun)
		}
		cancel()
		synctest.Wait()
		if ended[http.StatusServiceUnavailable] != 1 {
			t.Errorf("ended are %v, want one with 503", ended)
		}
		close(release)
		synctest.Wait()
		if ended[http.StatusOK] != 4 {
			t.Errorf("ended are %v, want 4 with 200", ended)
		}
	})
}
