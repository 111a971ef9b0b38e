package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

const (
	// outageLength is how long the API server is unavailable at least.
	outageLength = 6 * time.Second
	// outageLines bounds the log of an outage and a pause, without the lines of the library for
	// each request that it cannot authenticate or authorize: some from each watch as it is lost,
	// retried and won again.
	outageLines = 100
	// strangerPatience bounds the requests that cannot be judged: the library retries their reviews
	// for up to a minute.
	strangerPatience = 5 * time.Second
)

// outage makes the API server unavailable. Clients whose reviews are remembered go on reading
// metrics, which stay fresh; no others get in, and the log of what does not depend on requests
// stays short. With a new certificate, on the same address, the API server is then found again.
func (d *disturbed) outage(t *testing.T) {
	const remembered = "10m"
	s := d.replica(t, "--authorization-webhook-cache-authorized-ttl="+remembered, "--authentication-token-webhook-cache-ttl="+remembered)
	readers := d.outageReaders(t, s)
	for name, r := range readers {
		d.eventually(t, name+" to be let in", func(ctx context.Context) error { return wholePods(r.get(ctx, podsPath)) })
	}
	d.namespaces(t, "after-outage", "after-pause") // their making waits for a controller, which finds the API server again late
	goroutines := d.goroutines(t, s)
	logged := d.logLines(t, s)

	d.StopAPIServer()
	d.away(t, readers)
	if err := d.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.recovered(t, "after-outage")

	d.PauseAPIServer()
	d.away(t, readers)
	d.ResumeAPIServer()
	d.recovered(t, "after-pause")

	if n := d.logLines(t, s) - logged; n > outageLines {
		text, _ := s.Log()
		t.Errorf("%d lines of log, want at most %d:\n%s", n, outageLines, text)
	} else {
		t.Logf("%d lines of log", n)
	}
	d.eventually(t, "the goroutines to go", func(context.Context) error {
		if now := d.goroutines(t, s); now > goroutines+10 {
			return fmt.Errorf("%d, before the outage %d", now, goroutines)
		}
		return nil
	})
}

// outageReaders are a user with a certificate and a ServiceAccount with a token, who may read what
// pods use.
func (d *disturbed) outageReaders(t *testing.T, s *cluster.Server) map[string]*reader {
	t.Helper()
	if err := d.Apply(t.Context(), `
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: `+disturbedNamespace+`}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: `+disturbedNamespace+`}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects:
- {kind: ServiceAccount, name: reader, namespace: `+disturbedNamespace+`}
- {kind: User, name: reader, apiGroup: rbac.authorization.k8s.io}
`); err != nil {
		t.Fatal(err)
	}
	token, err := d.Kubectl(t.Context(), "create", "token", "reader", "--namespace", disturbedNamespace)
	if err != nil {
		t.Fatal(err)
	}
	holder := newReader(t, s)
	holder.token = strings.TrimSpace(token)
	return map[string]*reader{"a user": newReader(t, s).with(d.user("reader", "")), "a token's holder": holder}
}

// away has the readers read while the API server is unavailable, until they have metrics of that
// time, and has strangers try to.
func (d *disturbed) away(t *testing.T, readers map[string]*reader) {
	t.Helper()
	unknown := newReader(t, d.Server).with(d.user("unknown", ""))
	guesser, anonymous := newReader(t, d.Server), newReader(t, d.Server)
	for _, r := range readers {
		unknown.address, guesser.address, anonymous.address = r.address, r.address, r.address
	}
	const anonymousName = "an anonymous client"
	strangers := map[string]*reader{"an unknown user": unknown, anonymousName: anonymous, "the holder of a made-up token": guesser}
	began := time.Now()
	for n, fresh := 0, false; !fresh || time.Since(began) < outageLength; n++ {
		for name, r := range readers {
			asked := time.Now()
			status, body, err := r.get(t.Context(), podsPath)
			if err := wholePods(status, body, err); err != nil {
				t.Fatalf("%s, %s after the API server has gone: %v", name, time.Since(began).Round(time.Second), err)
			}
			fresh = oldest(body).After(began)
			if took := time.Since(asked); took > 5*time.Second {
				t.Errorf("%s waits %s", name, took)
			}
		}
		guesser.token = fmt.Sprintf("made-up-%d", n)
		var tries sync.WaitGroup
		for name, r := range strangers {
			tries.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), strangerPatience)
				defer cancel()
				if status, body, err := r.get(ctx, podsPath); err == nil && status == http.StatusOK {
					t.Errorf("%s is served: %s", name, body)
				} else if name == anonymousName && status != http.StatusUnauthorized {
					t.Errorf("%s: status %d, %v, want 401", name, status, err)
				}
			})
		}
		tries.Wait()
		for _, path := range []string{"/livez", "/readyz"} {
			if err := anonymous.ok(t.Context(), path); err != nil {
				t.Error(err)
			}
		}
	}
}

// oldest is the earliest timestamp in a list of pods.
func oldest(body []byte) time.Time {
	var list podTimes
	if err := json.Unmarshal(body, &list); err != nil || len(list.Items) == 0 {
		return time.Time{}
	}
	return slices.MinFunc(list.Items, func(a, b podTime) int { return a.Timestamp.Compare(b.Timestamp) }).Timestamp
}

type podTimes struct{ Items []podTime }

type podTime struct{ Timestamp time.Time }

// recovered sees a new pod through the API server.
func (d *disturbed) recovered(t *testing.T, namespace string) {
	t.Helper()
	d.run(t, namespace, "node-02", "new")
	out, err := d.Kubectl(t.Context(), "top", "nodes", "--no-headers")
	if err != nil || strings.Count(out, "\n") != disturbedNodes {
		t.Errorf("kubectl top nodes: %v\n%s", err, out)
	}
}

var goroutinesLine = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

func (d *disturbed) goroutines(t *testing.T, s *cluster.Server) int {
	t.Helper()
	status, body, err := d.administrator(t, s).get(t.Context(), "/metrics")
	match := goroutinesLine.FindSubmatch(body)
	if err != nil || match == nil {
		t.Fatalf("no goroutines in the telemetry: status %d, %v", status, err)
	}
	n, err := strconv.Atoi(string(match[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (d *disturbed) logLines(t *testing.T, s *cluster.Server) (n int) {
	t.Helper()
	text, err := s.Log()
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if line := lines.Text(); !strings.Contains(line, "tokenreviews") && !strings.Contains(line, "subjectaccessreviews") {
			n++
		}
	}
	return n
}
