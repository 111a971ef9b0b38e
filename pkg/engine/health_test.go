package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/reason/reasontest"
)

// refreshAt refreshes as Run does, at a time.
func (f *fixture) refreshAt(now time.Time) Result {
	f.client.reload()
	result := f.refresh(context.Background())
	f.record(context.Background(), &result, now)
	f.setNext(now.Add(interval))
	return result
}

func (f *fixture) health(name string) health.Node {
	f.Helper()
	s, known := f.Node(name)
	if !known {
		f.Errorf("%s is not known", name)
	}
	return s
}

func TestHealth(t *testing.T) {
	f := newFixture(t, "")
	if e := f.Overall(); e.Engine.Host != f.client.url.Host || e.Window != 112*time.Second || !e.Last.IsZero() {
		t.Errorf("at the start: got %+v", e)
	}
	f.Set(newNode("n2", "10.0.0.2"))
	f.put("app", "", -35, 100, -20, 103)
	f.put("side", "", -31, 100, -18, 103)
	f.set(func() { // of a node that this cluster does not have
		f.series[`container_cpu_usage_seconds_total{container="a",namespace="ns",node="n9",pod="p"}`] = f.samples(-5, 1)
		f.warnings = []string{"store 3 is unavailable"}
	})
	now := time.Now()
	if r := f.refreshAt(now); r.Missing != 1 {
		t.Errorf("got %d nodes without series, want 1", r.Missing)
	}
	e := f.Overall()
	if !e.LastSuccess.Equal(now) || !e.Next.Equal(now.Add(interval)) || e.Failures != 0 || e.Engine.UnknownSeries != 1 ||
		e.Engine.Series["containerCPU"] != 2 || e.Engine.Series["nodeCPU"] != 0 ||
		e.Engine.Warning != "store 3 is unavailable" {
		t.Errorf("after a success: got %+v", e)
	}
	n := f.health("n1")
	if n.Failures != 0 || n.Containers != 2 || n.Newest != f.at(-18) ||
		n.Interval != 15*time.Second || n.LastSuccess.IsZero() || !n.LastSuccess.Equal(n.SucceedingSince) {
		t.Errorf("n1: got %+v", n)
	}
	if n := f.health("n2"); n.Reason != reason.NotInEngine || !n.LastSuccess.IsZero() || n.Newest != 0 {
		t.Errorf("n2, which the engine does not scrape: got %+v", n)
	}
	if all := f.Nodes(); len(all) != 2 || all[0].Name != "n1" || all[1].Name != "n2" {
		t.Errorf("got %+v", all)
	}

	f.set(func() {
		f.respond = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }
	})
	failed := now.Add(interval)
	f.refreshAt(failed)
	f.refreshAt(failed.Add(interval))
	if e := f.Overall(); e.Failures != 2 || !e.FailingSince.Equal(failed) || e.Reason != reason.ServerError ||
		e.Err == nil || !e.LastSuccess.Equal(now) || e.Engine.Series["containerCPU"] != 2 {
		t.Errorf("after failures: got %+v", e)
	}
	if n := f.health("n1"); n.Failures != 0 || n.Containers != 2 {
		t.Errorf("n1, after failures: got %+v", n)
	}

	f.set(func() { // only n2 is left
		f.respond, f.warnings = nil, nil
		clear(f.series)
	})
	f.putCPU("node", `{node="n2"}`, f.samples(-40, 1)...)
	f.refreshAt(failed.Add(2 * interval))
	if e := f.Overall(); e.Failures != 0 || e.Err != nil || e.Reason != "" || !e.FailingSince.IsZero() ||
		e.Engine.Warning != "" {
		t.Errorf("after the recovery: got %+v", e)
	}
	if n := f.health("n1"); n.Failures != 1 || n.Containers != 0 || n.LastSuccess.IsZero() || n.Newest == 0 {
		t.Errorf("n1, which is gone: got %+v", n)
	}
	if n := f.health("n2"); n.Failures != 0 || n.Interval != 0 {
		t.Errorf("n2, with one sample: got %+v", n)
	}
	f.putCPU("node", `{node="n2"}`, f.samples(80, 2)...)
	f.refreshAt(failed.Add(3 * interval))
	if n := f.health("n2"); n.Interval != 2*time.Minute {
		t.Errorf("n2, with samples that are too far apart for one response: got %+v", n)
	}
	f.Delete("n2")
	if s, known := f.Node("n2"); known {
		t.Errorf("a deleted node is known: %+v", s)
	}
}

// TestErrorsAreDescribed checks that each reason of this package is one of reasontest.Refreshes.
func TestErrorsAreDescribed(t *testing.T) {
	errs := []error{context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, errors.New("another")}
	for code := 100; code < 600; code++ {
		errs = append(errs, reason.Errorf(reason.OfStatus(code), "status %d", code))
	}
	for _, err := range errs {
		if r := reason.Of(fmt.Errorf("wrapped: %w", err)); !slices.Contains(reasontest.Refreshes(), r) {
			t.Errorf("%v has the reason %q, which reasontest.Refreshes does not have", err, r)
		}
	}
}
