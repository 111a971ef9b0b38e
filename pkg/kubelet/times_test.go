package kubelet

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestResponseTimes checks the times of requests, and the Date header.
func TestResponseTimes(t *testing.T) {
	resource, summary := realResponses(t)
	const sent = "Fri, 20 Nov 2026 20:16:08 GMT"
	start := time.Now()
	clock := usage.NewClock(start.Add(-time.Hour)) // not the default
	for name, fetch := range fetchFuncs() {
		for date, want := range map[string]usage.NodeTime{
			sent:                             usage.NodeTime(1795205768 * 1e9),
			"Friday, 20-Nov-26 20:16:08 GMT": usage.NodeTime(1795205768 * 1e9), // RFC 850
			"":                               0,
			"1795205768":                     0,
			"Thu, 01 Jan 1970 00:00:00 GMT":  0,
			"Sat, 01 Jan 0001 00:00:00 GMT":  0,
			"Fri, 31 Dec 9999 23:59:59 GMT":  0,
		} {
			t.Run(name+"/"+date, func(t *testing.T) {
				k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
					if w.Header()["Date"] = nil; date != "" {
						w.Header().Set("Date", date)
					}
					respondTo(w, r, resource, summary)
				})
				c := newTestClient(t, Config{PlainHTTP: true, Clock: clock})
				var dst usage.Scrape
				for range 2 { // over a new connection and an idle one
					before := clock.At(time.Now())
					if err := fetch(c, t.Context(), k.node("node1"), &dst); err != nil {
						t.Fatal(err)
					}
					if after := clock.At(time.Now()); before > dst.Sent || dst.Sent > dst.At || dst.At > after {
						t.Errorf("got sent %v, arrived %v, want both in order from %v to %v", dst.Sent, dst.At, before, after)
					}
					if dst.Date != want {
						t.Errorf("got date %v, want %v", dst.Date.Time(), want.Time())
					}
				}
			})
		}
	}
}

// TestNodeClocks sets a node's clock, with and without a Date header that shows it.
func TestNodeClocks(t *testing.T) {
	noDate := []kubelettest.Fault{kubelettest.NoDate}
	shift := func(by time.Duration) []kubelettest.Fault {
		return []kubelettest.Fault{kubelettest.ShiftTime(by), kubelettest.ShiftSummaryTime(by)}
	}
	for name, tt := range map[string]struct {
		ahead  time.Duration
		faults []kubelettest.Fault
		failed bool
	}{
		"5 hours ahead":                    {ahead: 5 * time.Hour},
		"5 hours behind":                   {ahead: -5 * time.Hour},
		"half an hour ahead, without Date": {ahead: 30 * time.Minute, faults: noDate},
		"5 hours ahead, without Date":      {5 * time.Hour, noDate, true},
		"samples half a minute after Date": {faults: shift(30 * time.Second)},
		"samples 2 minutes after Date":     {0, shift(2 * time.Minute), true},
		"all wrong, samples 5 hours ahead": {-time.Hour, shift(5 * time.Hour), true},
	} {
		for which, fetch := range fetchFuncs() {
			t.Run(which+"/"+name, func(t *testing.T) {
				k := kubelettest.New("n7", kubelettest.Config{})
				k.SetClockOffset(tt.ahead)
				k.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
				k.SetContainer("default", "web-0", "app", kubelettest.Usage{CPU: 0.5, Memory: 1 << 20})
				k.SetFaults(tt.faults...)
				node := nodeAt("n7", k.Start(t, nil).String())
				var dst usage.Scrape
				err := fetch(newTestClient(t, Config{PlainHTTP: true}), t.Context(), node, &dst)
				if tt.failed {
					checkError(t, err, reason.ClockSkew, "set the node's clock")
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if dst.Skipped != [usage.NumSkipReasons]int{} || dst.Node.Has == 0 || len(dst.Containers) != 1 {
					t.Fatalf("got %+v, want a node and a container", dst)
				}
				for _, at := range []usage.NodeTime{dst.Node.At, dst.Containers[0].At} {
					if off := at.AheadOf(dst.At.Add(tt.ahead)); off.Abs() > 32*time.Second { // one fault adds 30 s
						t.Errorf("got a sample of %v that arrived at %v", at.Time(), dst.At.Time())
					}
				}
				if dst.Node.Untimed || dst.Containers[0].Untimed {
					t.Error("got untimed samples")
				}
			})
		}
	}
}

// TestLargeNodeIsComplete has a node with 2000 pods of 3 containers. Its resource metrics are
// within the default limits.
func TestLargeNodeIsComplete(t *testing.T) {
	const pods, each = 2000, 3
	var text strings.Builder
	for _, metric := range []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes"} {
		for i := range pods * each {
			fmt.Fprintf(&text, "%s{container=\"c%d\",namespace=\"n\",pod=\"p%d\"} 1 1795205767486\n", metric, i%each, i/each)
		}
	}
	k := newKubelet(t, nil, func(w http.ResponseWriter, _ *http.Request) { respond(w, []byte(text.String())) })
	var dst usage.Scrape
	if err := fetchResource(newTestClient(t, Config{PlainHTTP: true}), t.Context(), k.node("node1"), &dst); err != nil {
		t.Fatal(err)
	}
	if len(dst.Containers) != pods*each || dst.Partial || dst.Skipped != [usage.NumSkipReasons]int{} {
		t.Errorf("got %d containers, partial %v, skipped %v, want all %d", len(dst.Containers), dst.Partial, dst.Skipped,
			pods*each)
	}
}
