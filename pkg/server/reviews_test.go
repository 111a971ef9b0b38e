package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/kube-vitals/kube-vitals/internal/sim"
)

// TestImpersonationIsRefused checks that no client impersonates others here, and that trying causes no reviews: the
// API server resolves these headers before it sends a request.
func TestImpersonationIsRefused(t *testing.T) {
	cluster := newCluster(t)
	server := startReady(t, cluster.config(t))
	before := cluster.Requested(sim.TokenReviews, sim.AccessReviews)
	for name, header := range map[string]http.Header{
		"user":       {"Impersonate-User": {"bob"}},
		"lower case": {"impersonate-user": {"bob"}},
		"group":      {"Impersonate-Group": {"system:masters"}},
		"uid":        {"Impersonate-Uid": {"1"}},
		"extra":      {"Impersonate-Extra-Scopes": {"view"}},
		"empty":      {"Impersonate-User": {""}},
	} {
		client := server.another()
		client.header = header
		for _, user := range []string{"alice", "root", "mallory", ""} {
			response, body := client.get(nodesPath, user)
			if response.StatusCode != http.StatusForbidden || !strings.Contains(body, `"kind":"Status"`) ||
				!strings.Contains(body, "send requests with Impersonate headers to the API server") {
				t.Errorf("%s as %q: got status %d: %s", name, user, response.StatusCode, body)
			}
		}
	}
	if n := cluster.Requested(sim.TokenReviews, sim.AccessReviews) - before; n != 0 {
		t.Errorf("got %d reviews, want none", n)
	}
}

// TestOneUserLeavesReviewsForOthers has one user send requests whose access reviews get no response. Another user's
// are reviewed.
func TestOneUserLeavesReviewsForOthers(t *testing.T) {
	cluster := newCluster(t)
	server := startReady(t, cluster.config(t))
	const share = 16 // of pkg/filter
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for n := range 2 * share {
		all.Go(func() { serveUntil(ctx, server.handler, fmt.Sprint(nodesPath, "/", n), "sleepy") })
	}
	for range share {
		<-cluster.asleep
	}
	server.await(http.StatusOK, nodesPath, "alice")
	select {
	case <-cluster.asleep:
		t.Errorf("got more than %d access reviews of a user at a time", share)
	default:
	}
	cancel()
	all.Wait()
}
