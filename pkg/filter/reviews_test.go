package filter

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"
)

// reviewer is an API server that begins reviews and does not end them. It notes how many it has begun.
type reviewer struct {
	mu    sync.Mutex
	begun map[string]int // by user, or by address and by token
}

// begin returns how often the name has begun with this.
func (r *reviewer) begin(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun[name]++
	return r.begun[name]
}

func (r *reviewer) authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	r.begin(a.GetUser().GetName())
	<-ctx.Done()
	return authorizer.DecisionNoOpinion, "", ctx.Err()
}

// AuthenticateRequest ends only reviews of the token "alice" until that has been reviewed once, and those of "mallory".
func (r *reviewer) AuthenticateRequest(request *http.Request) (*authenticator.Response, bool, error) {
	token := request.Header.Get("Authorization")
	if strings.HasPrefix(token, "Bearer mallory ") {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "mallory"}}, true, nil
	}
	r.begin(request.RemoteAddr)
	if n := r.begin(token); token == "" || token == "Bearer alice" && n == 1 {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "alice"}}, true, nil
	}
	<-request.Context().Done()
	return nil, false, request.Context().Err()
}

// TestAccessReviewsOfOneUser checks that a user whose access reviews take all of their share leaves others theirs.
func TestAccessReviewsOfOneUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		reviews := &reviewer{begun: map[string]int{}}
		public, err := path.NewAuthorizer([]string{"/livez"})
		if err != nil {
			t.Fatal(err)
		}
		shared := shareAccessReviews(authorizer.AuthorizerFunc(reviews.authorize), public)
		for n := range 2000 {
			for _, name := range []string{"mallory", "system:serviceaccount:tenant:a", "system:serviceaccount:tenant:b"} {
				go func() {
					a := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: name}, Path: fmt.Sprint("/", n)}
					if _, _, err := shared.Authorize(ctx, a); !errors.Is(err, context.Canceled) {
						t.Errorf("got error %v, want that of the request", err)
					}
				}()
			}
		}
		synctest.Wait()
		go func() {
			a := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "alice"}}
			_, _, _ = shared.Authorize(ctx, a)
		}()
		synctest.Wait()
		if got := reviews.begun["mallory"]; got != maxReviews {
			t.Errorf("got %d reviews of a user, want %d", got, maxReviews)
		}
		tenant := reviews.begun["system:serviceaccount:tenant:a"] + reviews.begun["system:serviceaccount:tenant:b"]
		if tenant != maxReviews {
			t.Errorf("got %d reviews of the ServiceAccounts of a namespace, want %d", tenant, maxReviews)
		}
		probe := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "mallory"}, Path: "/livez"}
		if decision, _, err := shared.Authorize(ctx, probe); decision != authorizer.DecisionAllow || err != nil {
			t.Errorf("a public path: got %v, %v, want that it waits for no review", decision, err)
		}
		if got := reviews.begun["alice"]; got != 1 {
			t.Errorf("got %d reviews of another user, want 1", got)
		}
		cancel()
	})
}

// TestTokenReviewsOfOneAddress has clients at ten addresses send random tokens. Tokens from another address are
// reviewed, those that were valid within an hour also from the same, and requests without a token pass. One token in
// many headers does not displace others.
func TestTokenReviewsOfOneAddress(t *testing.T) {
	for age, known := range map[time.Duration]int{0: 1, time.Hour - time.Second: 1, time.Hour + time.Second: 0} {
		synctest.Test(t, func(t *testing.T) { testTokenReviewsOfOneAddress(t, age, known) })
	}
}

// testTokenReviewsOfOneAddress sends a token that was valid at some time before; known is how often that is reviewed.
func testTokenReviewsOfOneAddress(t *testing.T, age time.Duration, known int) {
	ctx, cancel := context.WithCancel(t.Context())
	reviews := &reviewer{begun: map[string]int{}}
	shared := shareTokenReviews(reviews)
	send := func(address, token string) (*authenticator.Response, bool, error) {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil)
		if r.RemoteAddr = address; token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		return shared.AuthenticateRequest(r)
	}
	const first, other = "192.0.2.0:1234", "[2001:db8:1::1]:1"
	if response, ok, err := send(first, "alice"); !ok || err != nil || response.User.GetName() != "alice" {
		t.Fatalf("got %v, %t, %v, want alice", response, ok, err)
	}
	for n := range maxKnownTokens { // the same token
		if _, ok, err := send(first, fmt.Sprint("mallory ", n)); !ok || err != nil {
			t.Fatalf("got %t, %v, want mallory", ok, err)
		}
	}
	time.Sleep(age)
	for address := range 10 {
		for n := range 200 {
			go send(fmt.Sprintf("192.0.2.%d:1234", address), fmt.Sprint("random", n))
			go send(fmt.Sprintf("[2001:db8::%x:%x]:1234", address, n), fmt.Sprint("random", n))
		}
	}
	synctest.Wait()
	ipv4, ipv6 := 0, 0
	for address, n := range reviews.begun {
		switch address[0] {
		case '[':
			ipv6 += n
		case '1':
			ipv4 += n
		}
	}
	if ipv4 != 10*maxReviews+1 || ipv6 != maxReviews {
		t.Errorf("got %d reviews for ten IPv4 addresses and %d for a network of IPv6, want %d and %d",
			ipv4, ipv6, 10*maxReviews+1, maxReviews)
	}
	go send(first, "alice")
	go send(other, "bob")
	synctest.Wait()
	if reviews.begun["Bearer alice"] != 1+known || reviews.begun["Bearer bob"] != 1 {
		t.Errorf("got %d reviews of a known token and %d of one from another address, want %d and 1",
			reviews.begun["Bearer alice"], reviews.begun["Bearer bob"], 1+known)
	}
	if _, ok, err := send(first, ""); !ok || err != nil {
		t.Errorf("without a token: got %t, %v", ok, err)
	}
	cancel()
}
