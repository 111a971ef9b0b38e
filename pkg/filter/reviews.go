package filter

import (
	"context"
	"hash/maphash"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/kube-vitals/kube-vitals/pkg/internal/fair"
)

const (
	// maxReviews is how many reviews of one user, or of tokens from one address, are requested at a time. Others
	// wait. The library sends 200 reviews of a kind in a second, first come, first served: so each user delays
	// those of others by 80 ms at most.
	maxReviews = 16
	// maxKnownTokens is how many tokens that were valid are remembered, by their hash, for an hour.
	maxKnownTokens = 1024
)

// shareAccessReviews returns an authorizer that lets no user take the whole budget of the library's client for
// SubjectAccessReviews. What the library has cached is not reviewed, and takes a turn for a moment only. Public
// paths, such as those of probes, wait for nothing.
func shareAccessReviews(next, public authorizer.Authorizer) authorizer.Authorizer {
	turns := fair.NewTurns(maxReviews)
	return authorizer.AuthorizerFunc(
		func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if decision, reason, err := public.Authorize(ctx, a); err == nil && decision == authorizer.DecisionAllow {
				return decision, reason, nil
			}
			done, err := turns.Take(ctx, fair.UserOf(a.GetUser()))
			if err != nil {
				return authorizer.DecisionNoOpinion, "", err
			}
			defer done()
			return next.Authorize(ctx, a)
		})
}

// shareTokenReviews does the same for TokenReviews. Before the review, only the address of a request is known. A client
// that has sent a valid token before does not share with others at that address.
func shareTokenReviews(next authenticator.Request) authenticator.Request {
	turns, known, seed := fair.NewTurns(maxReviews), cache.NewLRUExpireCache(maxKnownTokens), maphash.MakeSeed()
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		header, protocol := r.Header.Get("Authorization"), r.Header.Get("Sec-Websocket-Protocol")
		if header == "" && protocol == "" {
			return next.AuthenticateRequest(r)
		}
		hash := maphash.String(seed, bearerToken(header)) // not of the header: many have the same token
		name, isKnown := known.Get(hash)
		if !isKnown || protocol != "" {
			name = "address " + addressOf(r.RemoteAddr).String()
		}
		done, err := turns.Take(r.Context(), name.(string))
		if err != nil {
			return nil, false, err
		}
		defer done()
		response, ok, err := next.AuthenticateRequest(r)
		if ok && protocol == "" {
			known.Add(hash, "user "+fair.UserOf(response.User), time.Hour)
		}
		return response, ok, err
	})
}

// bearerToken returns what the library takes for the token.
func bearerToken(header string) string {
	parts := strings.SplitN(strings.TrimSpace(header), " ", 3)
	if len(parts) < 2 {
		return ""
	}
	return parts[1]
}
