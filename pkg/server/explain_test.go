package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// getTable sends a GET for a table to a handler.
func getTable(h http.Handler, path, user string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Authorization", "Bearer "+user)
	r.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// orphan is a pod whose node does not exist.
var orphan = corev1.Pod{
	ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
	Spec:       corev1.PodSpec{NodeName: "gone"},
	Status:     corev1.PodStatus{Phase: corev1.PodRunning},
}

// TestExplanations checks who learns why metrics are missing, and what it costs the API server.
func TestExplanations(t *testing.T) {
	cluster := newCluster(t)
	cluster.pods = []corev1.Pod{orphan}
	c, _ := cluster.config(t)
	c.MissingMetricsWarnings = true
	h := startHandler(t, c)
	const pods = "/apis/metrics.k8s.io/v1/namespaces/shop/pods"
	for i, test := range []struct {
		user, pod, text, cause string
		lookups, reviews       int64 // that the request causes
	}{
		{"alice", "none", `the pod does not exist in namespace "shop"`, "pod-not-found", 1, 2},
		{"alice", "web", `its node "gone" does not exist`, "node-not-found", 0, 1}, // the inventory has all nodes
		{"alice", "web", `its node "gone" does not exist`, "node-not-found", 0, 0},
		{"tenant", "none", `pod "none" is not running in namespace "shop"`, "", 0, 2},
		{"tenant", "other", `pod "other" is not running in namespace "shop"`, "", 0, 1}, // only for the request itself
		{"tenant", "web", `there are no current metrics of it from its node's kubelet`, "", 0, 1},
	} {
		lookups, reviews := cluster.lookups.Load(), cluster.accessReviews.Load()
		w := getTable(h, pods+"/"+test.pod, test.user)
		var status metav1.Status
		err := json.Unmarshal(w.Body.Bytes(), &status)
		if err != nil || w.Code != http.StatusNotFound || status.Details == nil {
			t.Fatalf("request %d: got %d, %v: %s", i, w.Code, err, w.Body)
		}
		cause := ""
		for _, c := range status.Details.Causes {
			cause += string(c.Type)
		}
		if !strings.Contains(status.Message, test.text) || cause != test.cause {
			t.Errorf("request %d: got %s with cause %q, want %s with cause %q", i, status.Message, cause, test.text, test.cause)
		}
		lookups, reviews = cluster.lookups.Load()-lookups, cluster.accessReviews.Load()-reviews
		if lookups != test.lookups || reviews != test.reviews {
			t.Errorf("request %d: got %d lookups and %d access reviews, want %d and %d",
				i, lookups, reviews, test.lookups, test.reviews)
		}
	}
	for user, want := range map[string]string{
		"alice":  `[299 - "1 of 1 pods has no metrics: 1 on 1 node that is not scraped"]`,
		"tenant": "[]",
	} {
		w := getTable(h, pods, user)
		if got := fmt.Sprint(w.Header()["Warning"]); w.Code != http.StatusOK || got != want {
			t.Errorf("%s: got %d with warning %s, want %s", user, w.Code, got, want)
		}
	}
	cluster.goDown()
	if w := getTable(h, pods+"/web", "alice"); !strings.Contains(w.Body.String(), `its node \"gone\" does not exist`) {
		t.Errorf("without the API server: got %d: %s", w.Code, w.Body)
	}
}
