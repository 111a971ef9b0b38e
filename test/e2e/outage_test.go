package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

const (
	// outageLength is the minimum length of an outage.
	outageLength = 6 * time.Second
	// outageLines and outageLinesPerSecond bound the lines logged in two outages, without those that the
	// library logs for each request that it cannot authenticate or authorize. Each watch logs some when it
	// fails, is retried and recovers.
	outageLines          = 100
	outageLinesPerSecond = 2
	// unknownTimeout bounds requests that cannot be reviewed: the library retries reviews for up to
	// a minute.
	unknownTimeout = 5 * time.Second
)

// testOutage makes the API server unavailable. Clients with cached reviews keep reading fresh
// metrics, other clients are rejected, and the log stays short. The server reconnects to the API
// server, which has a new certificate, and recovers from an API server that hangs.
func (d *disruption) testOutage(t *testing.T) {
	const cacheTTL = "24h"
	s := d.replica(t, d.server,
		"--authorization-webhook-cache-authorized-ttl="+cacheTTL, "--authentication-token-webhook-cache-ttl="+cacheTTL)
	known := d.knownClients(t, s)
	for name, client := range known {
		eventually(t, "authorization of the "+name, func(ctx context.Context) error {
			return d.checkPods(client.getOK(ctx, podsPath))
		})
	}
	// Created now, because the controller that creates their ServiceAccounts reconnects late.
	d.createNamespaces(t, "after-outage", "after-pause")
	goroutines, logged := d.goroutines(t, s), logLines(t, s)

	began := time.Now()
	d.StopAPIServer()
	d.duringOutage(t, s, known)
	must(t, d.RestartAPIServer(t.Context()))
	unavailable := time.Since(began)
	d.afterOutage(t, "after-outage")

	began = time.Now()
	d.PauseAPIServer()
	d.duringOutage(t, s, known)
	d.ResumeAPIServer()
	unavailable += time.Since(began)
	d.afterOutage(t, "after-pause")

	n, limit := logLines(t, s)-logged, outageLines+outageLinesPerSecond*int(unavailable.Seconds())
	t.Logf("%d lines logged, the API server was unavailable for %s", n, unavailable)
	if n > limit {
		text, _ := s.Log()
		t.Errorf("got %d lines logged, want at most %d:\n%s", n, limit, text)
	}
	eventually(t, "goroutines to end", func(context.Context) error {
		if now := d.goroutines(t, s); now > goroutines+10 {
			return fmt.Errorf("got %d, want about %d as before the outage", now, goroutines)
		}
		return nil
	})
}

// knownClients returns a user with a certificate and a ServiceAccount with a token, which may read
// pods.
func (d *disruption) knownClients(t *testing.T, s *cluster.Server) map[string]*client {
	t.Helper()
	must(t, d.Apply(t.Context(), `
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: `+disruptionNamespace+`}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: `+disruptionNamespace+`}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects:
- {kind: ServiceAccount, name: reader, namespace: `+disruptionNamespace+`}
- {kind: User, name: reader, apiGroup: rbac.authorization.k8s.io}
`))
	token := strings.TrimSpace(d.kubectl(t, "create", "token", "reader", "--namespace", disruptionNamespace))
	return map[string]*client{
		"user":           d.as(t, s, "reader", ""),
		"ServiceAccount": newClient(t, s).withToken(token),
	}
}

// duringOutage has known and unknown clients send requests while the API server is unavailable, for
// some seconds and until the known ones have metrics from after the beginning of the outage.
func (d *disruption) duringOutage(t *testing.T, s *cluster.Server, known map[string]*client) {
	t.Helper()
	anonymous, guesser := newClient(t, s), newClient(t, s)
	unknown := map[string]*client{
		"anonymous": anonymous, "unknown user": d.as(t, s, "unknown", ""), "invalid token": guesser,
	}
	began := time.Now()
	for n, fresh := 0, false; !fresh || time.Since(began) < outageLength; n++ {
		fresh = true
		for name, client := range known {
			sent := time.Now()
			pods, err := d.listPods(client.getOK(t.Context(), podsPath))
			if err != nil {
				t.Fatalf("%s, %s into the outage: %v", name, time.Since(began).Round(time.Second), err)
			}
			fresh = fresh && oldest(pods).After(began)
			if elapsed := time.Since(sent); elapsed > 30*time.Second { // as for a review
				t.Errorf("%s: the response took %s", name, elapsed)
			}
		}
		guesser.withToken(fmt.Sprintf("made-up-%d", n))
		var requests sync.WaitGroup
		for name, client := range unknown {
			requests.Go(func() {
				ctx := t.Context()
				if client != anonymous { // it needs no review
					limited, cancel := context.WithTimeout(ctx, unknownTimeout)
					defer cancel()
					ctx = limited
				}
				status, body, err := client.get(ctx, podsPath)
				switch isLate := client != anonymous && errors.Is(err, context.DeadlineExceeded); {
				case client == anonymous && status != http.StatusUnauthorized:
					t.Errorf("%s: got status %d, %v, want 401", name, status, err)
				case !isLate && (err != nil || status < http.StatusUnauthorized):
					t.Errorf("%s: got status %d, %v, want an error or none in time: %s", name, status, err, body)
				}
			})
		}
		requests.Wait()
		for _, path := range []string{"/livez", "/readyz"} {
			if err := anonymous.ok(t.Context(), path); err != nil {
				t.Error(err)
			}
		}
	}
}

// afterOutage creates a pod, and waits for its metrics through the API server.
func (d *disruption) afterOutage(t *testing.T, namespace string) {
	t.Helper()
	d.createPods(t, namespace, "node-02", "new")
	if out := d.kubectl(t, "top", "nodes", "--no-headers"); strings.Count(out, "\n") != disruptionNodes {
		t.Errorf("kubectl top nodes: got %s, want %d nodes", out, disruptionNodes)
	}
}

func (d *disruption) goroutines(t *testing.T, s *cluster.Server) int {
	t.Helper()
	telemetry, err := d.asAdmin(t, s).telemetry(t.Context())
	if err != nil || telemetry["go_goroutines"] == 0 {
		t.Fatalf("/metrics has no go_goroutines: %v", err)
	}
	return int(telemetry["go_goroutines"])
}

// logLines returns the number of lines logged, without those of reviews.
func logLines(t *testing.T, s *cluster.Server) (n int) {
	t.Helper()
	text, err := s.Log()
	must(t, err)
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "tokenreviews") && !strings.Contains(line, "subjectaccessreviews") {
			n++
		}
	}
	return n
}
