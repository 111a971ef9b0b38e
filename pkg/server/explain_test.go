package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/internal/sim"
)

// TestExplanations checks who learns why metrics are missing, and what it costs the API server.
func TestExplanations(t *testing.T) {
	cluster := newCluster(t)
	cluster.add(runningPod("shop", "web", "gone")) // of a node that does not exist
	c := cluster.config(t)
	c.MissingMetricsWarnings = true
	h := startReady(t, c).handler
	const pods, lookup = "/apis/metrics.k8s.io/v1/namespaces/shop/pods", "/api/v1/namespaces/shop/pods"
	for i, test := range []struct {
		user, pod, text, cause string
		lookups, reviews       int // that the request causes
	}{
		{"alice", "none", `the pod does not exist in namespace "shop"`, "pod-not-found", 1, 2},
		{"alice", "web", `its node "gone" does not exist`, "node-not-found", 0, 1}, // the inventory has all nodes
		{"alice", "web", `its node "gone" does not exist`, "node-not-found", 0, 0},
		{"tenant", "none", `pod "none" is not running in namespace "shop"`, "", 0, 2},
		{"tenant", "other", `pod "other" is not running in namespace "shop"`, "", 0, 1}, // only for the request itself
		{"tenant", "web", `there are no current metrics of it from its node's kubelet`, "", 0, 1},
	} {
		lookups, reviews := cluster.Requested(lookup), cluster.Requested(sim.AccessReviews)
		w := get(h, pods+"/"+test.pod, test.user)
		var status metav1.Status
		err := json.Unmarshal(w.Body.Bytes(), &status)
		if err != nil || w.Code != http.StatusNotFound {
			t.Fatalf("request %d: got %d, %v: %s", i, w.Code, err, w.Body)
		}
		cause := causesOf(status)
		if !strings.Contains(status.Message, test.text) || cause != test.cause {
			t.Errorf("request %d: got %s with cause %q, want %s with cause %q", i, status.Message, cause, test.text, test.cause)
		}
		lookups, reviews = cluster.Requested(lookup)-lookups, cluster.Requested(sim.AccessReviews)-reviews
		if lookups != test.lookups || reviews != test.reviews {
			t.Errorf("request %d: got %d lookups and %d access reviews, want %d and %d",
				i, lookups, reviews, test.lookups, test.reviews)
		}
	}
	for user, want := range map[string]string{
		"alice":  `[299 - "1 of 1 pods has no metrics: 1 on 1 node that is not scraped"]`,
		"tenant": "[]",
	} {
		w := get(h, pods, user)
		if got := fmt.Sprint(w.Header()["Warning"]); w.Code != http.StatusOK || got != want {
			t.Errorf("%s: got %d with warning %s, want %s", user, w.Code, got, want)
		}
	}
	cluster.goDown()
	if w := get(h, pods+"/web", "alice"); !strings.Contains(w.Body.String(), `its node \"gone\" does not exist`) {
		t.Errorf("without the API server: got %d: %s", w.Code, w.Body)
	}
}
